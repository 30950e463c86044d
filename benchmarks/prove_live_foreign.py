"""Other people's loops, watched while they train on a GPU; benchmarks/reports/live_foreign.md.

    python3 -m benchmarks.prove_live_foreign record OUT --half fit|judge [--from K] [--seconds 560]
    python -m benchmarks.prove_live_foreign judge ANSWERS...

`record` trains cases of `benchmarks/foreign_new_hands` one after the other, each for 24 s under
`computeflow record` while a collector follows them. OUT gets `live-HALF-K.json`: for each case the
findings that the collector opened and those of `audit` afterwards. `judge` writes the report from such
files, which lie in `benchmarks/data/live_foreign`.

Only cases whose cause can be told without a profiler: none, input-stall, host-stall, evaluation,
checkpoint-stall. What removing the mistake gains was measured without a recorder (`truth-*.csv`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.live_training import LiveCollector, collecting, environment

ROOT = Path(__file__).parents[1]
TRUTH = ROOT / "benchmarks" / "foreign_new_hands"
DATA = ROOT / "benchmarks" / "data" / "live_foreign"
REPORT = ROOT / "benchmarks" / "reports" / "live_foreign.md"
TRAIN_SECONDS = 24
_CAUSES = {
    "none": frozenset[str](),
    "input-stall": frozenset({"input-stall"}),
    "host-stall": frozenset({"host-stall", "gc-pause"}),
    "evaluation": frozenset({"evaluation"}),
    "checkpoint-stall": frozenset({"checkpoint-stall", "checkpoint-interval"}),
}
"""Each cause and the rules that name it."""
_COSTS_LITTLE = 0.05
"""A mistake that costs less need not be found."""
_BOUND_SECONDS = 120.0
_NOTES = """
The judging half was scored once. The first nine cases of the other half were recorded before models
that are called and not trained (a teacher, a reference) were watched: `dpo_ordinary` and the second
finding of `teacher_one-worker` are of then. On Lightning (`forecast`), device time of the whole step
was booked as optimizer, which is mended since.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    name: str
    cause: str
    gain: float | None
    """The share of the step that removing the mistake saves."""

    @property
    def is_ordinary(self) -> bool:
        return self.cause == "none" or (self.gain is not None and self.gain < _COSTS_LITTLE)


def truths(half: str) -> list[Truth]:
    with (TRUTH / f"truth-{half}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["cause"] in _CAUSES]
    return [
        Truth(
            name=row["recording"],
            cause=row["cause"],
            gain=1 - float(row["step_seconds_fixed"]) / float(row["step_seconds_unprofiled"])
            if row["step_seconds_fixed"]
            else None,
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class _Case:
    """A case that has begun to import what it needs; the file `go` lets it train."""

    name: str
    process: subprocess.Popen[bytes]
    go: Path
    log: Path


def _start(folder: Path, name: str) -> _Case:
    go, log = folder / f"go-{name}", folder / f"log-{name}"
    words = [sys.executable, "-m", "computeflow", "record", "--quiet", "--no-seal", "--name", name]
    words += ["--out", str(folder / "runs" / name), "--"]
    words += [sys.executable, "-m", "benchmarks.foreign_new_hands.train", name]
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*words, str(TRAIN_SECONDS), str(go)],
            cwd=folder,
            env=environment(HF_HUB_OFFLINE="1", PYTHONPATH=path),
            stdout=output,
            stderr=output,
        )
    return _Case(name, process, go, log)


def record(out: Path, half: str, first: int, seconds: float) -> None:
    """While a case trains, the next one imports what it needs."""
    ends = time.monotonic() + seconds
    names, answers = [case.name for case in truths(half)[first:]], []
    with tempfile.TemporaryDirectory(prefix="computeflow-live-") as name:
        folder = Path(name)
        with (
            collecting(folder, "--follow", str(folder / "runs")) as collector,
            ExitStack() as stack,
        ):
            following = _start(folder, names[0])
            for number, _ in enumerate(names):
                case = following
                if ends - time.monotonic() < 1.6 * TRAIN_SECONDS:
                    print("no time for", names[number:], flush=True)
                    break
                if number + 1 < len(names):
                    following = _start(folder, names[number + 1])
                    stack.callback(following.process.wait, 60)
                    stack.callback(following.process.terminate)
                answers.append(_trained(case, folder, collector))
    (out / f"live-{half}-{first}.json").write_text(json.dumps(answers, indent=1) + "\n")


def _trained(case: _Case, folder: Path, collector: LiveCollector) -> dict[str, Any]:
    case.go.touch()
    code = case.process.wait(_BOUND_SECONDS)
    time.sleep(1.5)  # until the watch has seen the end
    runs = collector.get("/v1/runs")["runs"]
    run = next((each for each in runs if each["name"] == case.name), None)
    if run is None:
        print(
            case.name, "not seen:", code, case.log.read_text(errors="replace")[-1500:], flush=True
        )
        return {"name": case.name, "live": None, "audit": None}
    found = [each for each in collector.all_findings() if each["run"] == run["run"]]
    kept = ("rule", "title", "share", "onset", "opened", "closed")
    answer = {
        "name": case.name,
        "steps": run["step"],
        "step_seconds": run["step_seconds"],
        "booked": run["booked"],
        "live": [{field: each[field] for field in kept} for each in found],
        "audit": _audited(folder / "runs" / case.name),
    }
    print(json.dumps(answer)[:900], flush=True)
    return answer


def _audited(folder: Path) -> list[dict[str, Any]] | str:
    words = [sys.executable, "-m", "computeflow", "audit", str(folder), "-o", "json"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    try:
        findings = json.loads(done.stdout)["findings"]
    except (ValueError, KeyError):
        return f"exit {done.returncode}: {done.stderr[-300:]}"
    return [{field: each.get(field) for field in ("rule", "title", "share")} for each in findings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    half: str
    truth: Truth
    live: list[dict[str, Any]]
    audit: list[dict[str, Any]]

    @property
    def first(self) -> dict[str, Any] | None:
        return max(self.live, key=lambda each: each["share"], default=None)

    @property
    def is_right(self) -> bool:
        """The largest finding names the cause; none where there is nothing to find."""
        if self.truth.is_ordinary:
            return self.first is None
        return self.first is not None and self.first["rule"] in _CAUSES[self.truth.cause]


def judged() -> list[Judged]:
    found: dict[str, Judged] = {}
    known = {case.name: (half, case) for half in ("fit", "judge") for case in truths(half)}
    for path in sorted(DATA.glob("live-*.json")):
        for answer in json.loads(path.read_text()):
            if answer["live"] is not None:
                half, truth = known[answer["name"]]
                found[truth.name] = Judged(
                    half=half, truth=truth, live=answer["live"], audit=answer["audit"]
                )
    return list(found.values())


def judge() -> None:
    cases = judged()
    lines = [
        "# Other people's loops, watched while they train",
        "",
        f"""Written by `python -m benchmarks.prove_live_foreign judge` from what `record` brought of
one H200: each case trains for {TRAIN_SECONDS} s under `computeflow record`, followed by a collector.
Claimed is the share of the time that the largest finding names; measured is the share of the step
that removing the mistake saves, without a recorder.""",
        _NOTES,
        "| | learnt from | judging half |",
        "|---|---|---|",
        _line(cases, "faults: cause named first", lambda each: not each.truth.is_ordinary),
        _line(cases, "ordinary runs silent", lambda each: each.truth.is_ordinary),
        "| claimed against measured, points, median | "
        + " | ".join(_claims(cases, half) for half in ("fit", "judge"))
        + " |",
        "| seconds from the first slow step to the finding, median | "
        + " | ".join(_latency(cases, half) for half in ("fit", "judge"))
        + " |",
        "",
        "| case | half | cause | measured, % | live: rule, claimed % | audit afterwards | right |",
        "|---|---|---|---|---|---|---|",
        *(_row(each) for each in sorted(cases, key=lambda each: (each.half, each.truth.name))),
    ]
    REPORT.write_text("\n".join(lines) + "\n")


def _line(cases: Sequence[Judged], name: str, wanted: Callable[[Judged], bool]) -> str:
    counts = []
    for half in ("fit", "judge"):
        some = [each for each in cases if each.half == half and wanted(each)]
        counts.append(f"{sum(each.is_right for each in some)} of {len(some)}")
    return f"| {name} | {' | '.join(counts)} |"


def _right_faults(cases: Sequence[Judged], half: str) -> list[Judged]:
    return [e for e in cases if e.half == half and e.is_right and not e.truth.is_ordinary]


def _claims(cases: Sequence[Judged], half: str) -> str:
    off = [
        abs(each.first["share"] - each.truth.gain)
        for each in _right_faults(cases, half)
        if each.first is not None and each.truth.gain is not None
    ]
    return f"{100 * statistics.median(off):.1f}"


def _latency(cases: Sequence[Judged], half: str) -> str:
    late = [
        each.first["opened"] - each.first["onset"]
        for each in _right_faults(cases, half)
        if each.first is not None
    ]
    return f"{statistics.median(late):.1f}"


def _row(each: Judged) -> str:
    gain = "" if each.truth.gain is None else f"{100 * each.truth.gain:.0f}"
    live = "; ".join(f"{one['rule']} {100 * one['share']:.0f}" for one in each.live) or "-"
    audit = "; ".join(one["rule"] for one in each.audit) or "-"
    right = "yes" if each.is_right else "**no**"
    cells = (each.truth.name, each.half, each.truth.cause, gain, live, audit, right)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--half", choices=("fit", "judge"), required=True)
    recording.add_argument("--from", dest="first", type=int, default=0)
    recording.add_argument("--seconds", type=float, default=560.0)
    commands.add_parser("judge")
    options = parser.parse_args()
    if options.command == "record":
        record(options.out, options.half, options.first, options.seconds)
    else:
        judge()


if __name__ == "__main__":
    main()
