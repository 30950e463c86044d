"""Who made a job hang: `python -m benchmarks.prove_hangs [--half fitted] [-v]`.

Reads the dumps of `record_hangs` (tests/data/planted_hangs), each as fresh as when it was written, and
writes `reports/hangs.md` and the table of docs/sources/flight-recorder.md. Fails where an innocent rank
is named, or a hang is passed over without a word.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose_source
from computeflow.errors import InputError
from computeflow.telemetry.flight_recorder.flight_source import FlightRecorder
from computeflow.telemetry.source_reports import SourceRequest

DATA = Path("tests/data/planted_hangs")
PAGE = Path("docs/sources/flight-recorder.md")
MARKS = ("<!-- hangs: made by benchmarks/prove_hangs.py -->\n", "<!-- /hangs -->")
REPORT = Path("benchmarks/reports/hangs.md")
FITTED = ("ddp", "ddp_accumulating", "ddp_by_hand", "fsdp", "pipeline")
JUDGING = (
    "ddp_exchanging",
    "fsdp_accumulating",
    "hsdp",
    "pipeline_replicated",
    "pipeline_schedule",
)
MEANING = {
    "first": "stops before the first step",
    "before": "stops before a collective",
    "inside": "is stopped (SIGSTOP) inside a collective",
    "loader": "stops in its loader",
    "save": "stops in a save",
    "subgroup": "stops before a collective of a smaller group",
    "late": "comes later than the timeout of the others",
    "killed": "is killed (SIGKILL)",
    "raises": "raises an exception",
    "store": "waits for a key that nobody sets",
    "send": "sends to a rank that does not receive",
    "recv": "receives from a rank that does not send",
    "shapes": "brings another shape",
    "kinds": "calls another collective",
    "order": "calls two collectives in the other order",
    "skips": "skips a step",
    "branch": "calls a collective that the others do not",
    "batches": "has fewer batches, and waits at the end",
    "leaves": "has fewer batches, and ends",
    "running": "(no hang: dumps of a running job)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    truth: dict[str, Any]
    named: frozenset[int]
    says_hang: bool
    reason: str

    @property
    def judging(self) -> bool:
        return self.truth["script"] not in FITTED

    @property
    def result(self) -> str:
        if self.truth["culprit"] is None:
            return "WRONG" if self.says_hang else "no hang"
        if self.named:
            return "right" if self.named == {self.truth["culprit"]} else "WRONG"
        return "cannot tell" if self.reason else "SILENT"


def judge_script(data: Path, script: str) -> list[tuple[str, Verdict]]:
    """Verdicts on all recordings of a script, by name."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(data / f"{script}.tar.xz") as archive,
    ):
        archive.extractall(folder, filter="data")
        cases = sorted(path.parent for path in Path(folder).glob("*/truth.json"))
        return [(case.name, judge(case)) for case in cases]


def judge(case: Path) -> Verdict:
    """The verdict on one recording, its files as old as they were."""
    truth = json.loads((case / "truth.json").read_text())
    for name, written in truth["written"].items():
        os.utime(case / name, (written, written))
    named, says_hang, reason = _read([case / name for name in truth["written"]])
    return Verdict(truth=truth, named=named, says_hang=says_hang, reason=reason)


def _read(paths: Sequence[Path]) -> tuple[frozenset[int], bool, str]:
    """Ranks that the findings name, whether there is a finding, and what cannot be told."""
    try:
        reports = FlightRecorder().observe(sorted(paths), SourceRequest(catalog=load_catalog()))
    except InputError as error:
        return frozenset(), False, str(error).partition(":")[2].strip() or str(error)
    findings = [f for report in reports for f in diagnose_source(report).findings]
    named = frozenset(rank for finding in findings for rank in finding.ranks)
    return named, bool(findings), "; ".join(r.facts.untold for r in reports if r.facts.untold)


def report(verdicts: Sequence[Verdict]) -> str:
    lines = [
        "# Hangs",
        "",
        "Made by `python -m benchmarks.prove_hangs` from the dumps of `benchmarks/record_hangs.py`:",
        "real ranks over gloo, in scripts that are not ours. A script whose verdict led to a repair",
        "counts as fitted from then on; docs/log.md has the earlier scores.",
        "",
        *_summary(verdicts),
        "",
        *_by_kind(verdicts),
        "",
        *_reasons(verdicts),
    ]
    return "\n".join(lines) + "\n"


def _summary(verdicts: Sequence[Verdict]) -> list[str]:
    lines = [
        "| script | half | hangs | culprit named | cannot tell | says hang | wrong | running | wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for script in dict.fromkeys(v.truth["script"] for v in sorted(verdicts, key=_order)):
        lines.append(_row(script, [v for v in verdicts if v.truth["script"] == script]))
    for half in (False, True):
        name = "all judging" if half else "all fitted"
        lines.append(_row(name, [v for v in verdicts if v.judging == half]))
    return lines


def _row(name: str, some: Sequence[Verdict]) -> str:
    running = [v for v in some if v.truth["culprit"] is None]
    some = [v for v in some if v.truth["culprit"] is not None]
    results = Counter(v.result for v in some)
    half = "judging" if some and some[0].judging else "fitted"
    open_hangs = sum(v.says_hang for v in some if v.result == "cannot tell")
    wrong = results["WRONG"] + results["SILENT"]
    return (
        f"| {name} | {half} | {len(some)} | {results['right']} | {results['cannot tell']} | "
        f"{open_hangs} | {wrong} | {len(running)} | {sum(v.says_hang for v in running)} |"
    )


def _order(verdict: Verdict) -> tuple[bool, str]:
    return verdict.judging, verdict.truth["script"]


def _by_kind(verdicts: Sequence[Verdict]) -> list[str]:
    scripts = list(dict.fromkeys(v.truth["script"] for v in sorted(verdicts, key=_order)))
    lines = [f"| one rank | {' | '.join(scripts)} |", "|---" * (len(scripts) + 1) + "|"]
    for kind, meaning in MEANING.items():
        found = {v.truth["script"]: v.result for v in verdicts if v.truth["kind"] == kind}
        lines.append(f"| {meaning} | {' | '.join(found.get(s, '-') for s in scripts)} |")
    return lines


def _reasons(verdicts: Sequence[Verdict]) -> list[str]:
    counts = Counter(_kind_of_reason(v.reason) for v in verdicts if v.result == "cannot tell")
    lines = ["| cannot tell, because | recordings |", "|---|---|"]
    return lines + [f"| {reason} | {count} |" for reason, count in counts.most_common()]


def _kind_of_reason(reason: str) -> str:
    """The reason without the ranks and the operation of the case."""
    reason = re.sub(r" \(behind: [\d, ]+\)", "", reason)
    return re.sub(r"in \w+ number \d+ of \w+ \(\d+\)", "in an operation", reason)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--half", choices=["fitted"], help="only these scripts; writes no report")
    parser.add_argument("-v", action="store_true", help="a line for each recording")
    options = parser.parse_args()
    scripts = FITTED if options.half else (*FITTED, *JUDGING)
    verdicts = []
    for script in scripts:
        for name, verdict in judge_script(options.data, script):
            verdicts.append(verdict)
            if options.v or verdict.result in ("WRONG", "SILENT"):
                culprit, named = verdict.truth["culprit"], sorted(verdict.named)
                print(f"{name}: {culprit} {verdict.result} {named} {verdict.reason}")
    text = report(verdicts)
    print(text)
    if not options.half:
        REPORT.write_text(text)
        before, _, rest = PAGE.read_text().partition(MARKS[0])
        table = "\n".join(_summary(verdicts))
        PAGE.write_text(f"{before}{MARKS[0]}\n{table}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")
    return int(any(v.result in ("WRONG", "SILENT") for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
