"""Diagnosis of code that is not ours: benchmarks/reports/foreign.md, the head of docs/diagnosis.md.

    python -m benchmarks.prove_foreign FOLDER...             recordings of benchmarks/foreign, printed
    python -m benchmarks.prove_foreign FOLDER --half fit     only those of one half
    python -m benchmarks.prove_foreign                       the recordings that are in the repository
    python -m benchmarks.prove_foreign FOLDER... --write     the report, and the head of the page
    python -m benchmarks.prove_foreign FOLDER --set foreign_more_styles [--write]
                                                             recordings that only judge, by another hand
    python -m benchmarks.prove_foreign FOLDER --set foreign_more_styles --write-after
                                                             the same after repairs, added to the report
    python -m benchmarks.prove_foreign FOLDER --set foreign_new_hands --half fit [--write]
    python -m benchmarks.prove_foreign FOLDER --set foreign_new_hands --half judge [--write]
                                                             one half of a set whose truth is in halves

A folder has traces as `benchmarks.foreign.record` packs them (xz) or as gzip, or the archives (tar) of
them; the truth of a half (`truth-fit.csv`) may lie beside them, or in the folder of the set. Of two
recordings of one name that of the first folder counts. What is judged against
`benchmarks/foreign/truth.csv`: the step without its profiler, the first cause, what its remedy gains.
The committed report is of the code that scored the judging half first (`SCORED`); write another one
only for a new judging half.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.foreign.unpack import traces_of, unpacked, without_archives
from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose
from computeflow.errors import ComputeFlowError
from computeflow.telemetry.trace_audit import audit

ROOT = Path(__file__).parents[1]
TRUTH = ROOT / "benchmarks" / "foreign" / "truth.csv"
KEPT = TRUTH.parent / "traces"
"""The small recordings that are in the repository, all of the half that is not judged."""
REPORT = ROOT / "benchmarks" / "reports" / "foreign.md"
PAGE = ROOT / "docs" / "diagnosis.md"
MARKS = ("<!-- foreign: made by benchmarks/prove_foreign.py -->", "<!-- /foreign -->")
SCORED = "b5b5ff7"
"""The commit whose code scored the judging half: once, for the report."""
JUDGED = f"""The judging half ({{count}} recordings) was scored once, with the code of commit {SCORED}.
No trace of it had been opened before. Its measured times (`truth.csv`) had been seen, and one of
them (`qwen_tiny`) was in view when the factors of compiling (`COMPILED_HOST`) were first set."""
HALVES = ("foreign_new_hands",)
"""Sets whose truth is in halves."""
LOOKED_AT = {"foreign_more_styles": ("nano", "dlrm", "swin", "vae", "clip", "opt")}
"""Scripts of a set that was scored whose recordings were opened to repair what it showed; the traces of
the others were not."""
AFTER = "## After repairs (no longer judging)"
COSTS = 0.02
"""Least gain of a mistake; a finding on less is as right as silence, if it is the planted one."""
CLASSES = (
    {"host-stall", "gc-pause", "input-stall"},
    {"launch-bound", "small-micro-batch", "underfilled"},
)
"""Rules that name one class of cause: time of the host outside of torch; a host that is too slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    recording: str
    half: str
    cause: str
    unprofiled: float
    recorded: float | None
    """The steady step with the profiler, as replayed."""
    step: float | None
    low: float | None
    high: float | None
    rules: tuple[str, ...]
    gained: float
    """Share of the step that removing the mistake gained."""
    claimed: float | None
    claimed_low: float | None
    claimed_high: float | None
    cpu_seconds: float

    @property
    def is_ordinary(self) -> bool:
        return self.cause == "none"

    @property
    def counts(self) -> bool:
        """Whether there is something to find."""
        return not self.is_ordinary and self.gained >= COSTS

    @property
    def exact(self) -> bool:
        return self.rules[:1] == (self.cause,)

    @property
    def by_class(self) -> bool:
        return self.exact or any(
            self.cause in some and set(self.rules[:1]) & some for some in CLASSES
        )

    @property
    def error(self) -> float | None:
        return None if self.step is None else self.step / self.unprofiled - 1

    @property
    def is_device_bound(self) -> bool:
        """Whether the profiler does not change the step, nor the host's speed."""
        if self.step is None or self.recorded is None or self.low is None or self.high is None:
            return False
        return self.high / self.low < 1.09 and self.recorded / self.step < 1.03


def judge(path: Path, truth: dict[str, str]) -> Row:
    try:
        return _judged(path, truth)
    except ComputeFlowError as error:
        print(error, flush=True)
        return _refused(truth)


def _refused(truth: dict[str, str]) -> Row:
    """A recording that the audit refuses: no step, and no cause."""
    unprofiled = float(truth["step_seconds_unprofiled"])
    return Row(
        recording=truth["recording"],
        half=truth["half"],
        cause=truth["cause"],
        unprofiled=unprofiled,
        recorded=None,
        step=None,
        low=None,
        high=None,
        rules=("refused",),
        gained=1 - float(truth["step_seconds_fixed"] or unprofiled) / unprofiled,
        claimed=None,
        claimed_low=None,
        claimed_high=None,
        cpu_seconds=0.0,
    )


def _judged(path: Path, truth: dict[str, str]) -> Row:
    began = time.process_time()
    audited = audit([path], load_catalog(()), cache=False)
    found = diagnose(audited, load_catalog(()))
    cpu = time.process_time() - began
    whole = audited.job.ledger.gpu_seconds
    first = found.findings[0].remedy if found.findings else None
    gains = (
        (None, None, None)
        if first is None
        else tuple(
            None if gain is None else gain / whole
            for gain in (first.gain_gpu_seconds, first.gain_low, first.gain_high)
        )
    )
    step = found.as_it_runs
    unprofiled = float(truth["step_seconds_unprofiled"])
    fixed = float(truth["step_seconds_fixed"] or unprofiled)
    return Row(
        recording=truth["recording"],
        half=truth["half"],
        cause=truth["cause"],
        unprofiled=unprofiled,
        recorded=None if step is None else step.step_seconds_profiled,
        step=None if step is None else step.step_seconds,
        low=None if step is None else step.step_seconds_low,
        high=None if step is None else step.step_seconds_high,
        rules=tuple(finding.rule for finding in found.findings),
        gained=1 - fixed / unprofiled,
        claimed=gains[0],
        claimed_low=gains[1],
        claimed_high=gains[2],
        cpu_seconds=cpu,
    )


def read(folders: Sequence[Path], half: str | None, truths: Path = TRUTH) -> list[Row]:
    truth = {row["recording"]: row for row in csv.DictReader(truths.open())}
    rows = []
    for name, packed in traces_of(folders).items():
        if name in truth and half in (None, truth[name]["half"]):
            with unpacked(packed) as path:
                rows.append(judge(path, truth[name]))
            print(_line(rows[-1]), flush=True)
    return rows


def _line(row: Row) -> str:
    step = "not replayed" if row.step is None else f"{1e3 * row.step:.1f} ms"
    claimed = "" if row.claimed is None else f"{100 * row.claimed:.1f} %"
    return (
        f"{row.recording:28} {1e3 * row.unprofiled:8.1f} ms, replayed {step:>11}; "
        f"{row.cause} {100 * row.gained:.1f} %: {', '.join(row.rules) or 'nothing'} {claimed}"
    )


def figures(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """What was asked for, the target, and what came out."""
    errors = [abs(row.error) for row in rows if row.error is not None]
    bound = [abs(row.error) for row in rows if row.error is not None and row.is_device_bound]
    held = [
        row.low <= row.unprofiled <= row.high
        for row in rows
        if row.low is not None and row.high is not None
    ]
    plain = [abs(row.recorded / row.unprofiled - 1) for row in rows if row.recorded is not None]
    wanted = [row for row in rows if row.counts]
    ordinary = [row for row in rows if row.is_ordinary]
    right = [row for row in wanted if row.exact and row.claimed is not None]
    off = sorted(abs((row.claimed or 0.0) - row.gained) for row in right)
    within = [(row.claimed_low or 0.0) <= row.gained <= (row.claimed_high or 0.0) for row in right]
    return [
        ("step without the profiler, mean error", "7 % (aim 4)", _percent(_mean(errors))),
        ("the same for the recorded step", "", _percent(_mean(plain))),
        (
            "the same where the device is the limit",
            "2 %",
            f"{_percent(_mean(bound))} of {len(bound)}",
        ),
        ("its range holds", "80 %", _share(held)),
        ("right class of cause first", "85 % (aim 95)", _share([row.by_class for row in wanted])),
        ("right rule first", "75 %", _share([row.exact for row in wanted])),
        ("ordinary runs silent", "all", _share([not row.rules for row in ordinary])),
        ("claimed less gained, median", "4 points (aim 2)", _points(off, 0.5)),
        ("within 12 points", "90 %", _share([each <= 0.12 for each in off])),
        ("worst", "20 points", _points(off, 1.0)),
        ("range of the gain holds", "75 %", _share(within)),
    ]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share(values: Sequence[bool]) -> str:
    return f"{sum(values)} of {len(values)} ({100 * _mean(list(map(float, values))):.0f} %)"


def _points(ordered: Sequence[float], share: float) -> str:
    if not ordered:
        return "-"
    return f"{100 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]:.1f} points"


def table(rows: Sequence[Row]) -> list[str]:
    halves = {half: figures([row for row in rows if row.half == half]) for half in ("judge", "fit")}
    return [
        "| | target | judging half | other half |",
        "|---|---|---|---|",
        *(
            f"| {what} | {target} | {value} | {other} |"
            for (what, target, value), (_, _, other) in zip(
                halves["judge"], halves["fit"], strict=True
            )
        ),
    ]


def report(rows: Sequence[Row]) -> str:
    lines = [
        "# Diagnosis of code that is not ours",
        "",
        "Made by `python -m benchmarks.prove_foreign`; the recordings: "
        "[benchmarks/foreign](../foreign/README.md).",
        "",
        JUDGED.format(count=sum(row.half == "judge" for row in rows)),
        "",
        *table(rows),
        "",
        *_recordings(rows),
    ]
    return "\n".join(lines)


JUDGES = """{count} recordings, scored once with the code
that stood before any of them had been made; nothing was changed by what they showed."""
HALF = {
    "fit": "{count} recordings of the half to learn from, with the code as it is.",
    "judge": """{count} recordings of the judging half, scored once. No trace of it had been opened
before; the other half was learnt from.""",
}


def report_of_judges(rows: Sequence[Row], name: str, half: str | None = None) -> str:
    """The report of a set that only judges, or of one half of a set."""
    what = f"--set {name} --half {half}" if half else f"--set {name}"
    text = HALF[half] if half else JUDGES
    lines = [
        "# Diagnosis of code by another hand",
        "",
        f"Made by `python -m benchmarks.prove_foreign FOLDER {what} --write`; the recordings: "
        f"[benchmarks/{name}](../{name}/README.md). {text.format(count=len(rows))}",
        "",
        "| | target | scored |",
        "|---|---|---|",
        *(f"| {what} | {target} | {value} |" for what, target, value in figures(rows)),
        "",
        *_recordings(rows),
    ]
    return "\n".join(lines)


def after_repairs(rows: Sequence[Row], name: str) -> str:
    """The section of a set that was scored before: what the repaired code gives, by what was seen."""
    seen = [row.recording.partition("_")[0] in LOOKED_AT[name] for row in rows]
    columns = [
        figures([row for row, looked in zip(rows, seen, strict=True) if looked is which])
        for which in (True, False)
    ]
    lines = [
        AFTER,
        "",
        f"Made by `python -m benchmarks.prove_foreign FOLDER --set {name} --write-after`.",
        f"Recordings of {', '.join(LOOKED_AT[name])}",
        "were opened for the repairs; those of the other scripts were not.",
        "",
        "| | target | looked at | not looked at | all |",
        "|---|---|---|---|---|",
        *(
            f"| {what} | {target} | {value} | {other} | {both} |"
            for (what, target, value), (_, _, other), (_, _, both) in zip(
                *columns, figures(rows), strict=True
            )
        ),
        "",
        *_recordings(rows),
    ]
    return "\n".join(lines)


def _recordings(rows: Sequence[Row]) -> list[str]:
    return [
        "| recording | half | unprofiled, ms | replayed, ms | range, ms | cause | gained | found | "
        "claimed |",
        "|---|---|---:|---:|---|---|---:|---|---:|",
        *(_row(row) for row in rows),
        "",
    ]


def _row(row: Row) -> str:
    step = "-" if row.step is None else f"{1e3 * row.step:.1f}"
    held = (
        "-"
        if row.low is None or row.high is None
        else f"{1e3 * row.low:.1f} to {1e3 * row.high:.1f}"
    )
    claimed = "" if row.claimed is None else f"{100 * row.claimed:.1f} %"
    gained = "" if row.is_ordinary else f"{100 * row.gained:.1f} %"
    return (
        f"| {row.recording} | {row.half} | {1e3 * row.unprofiled:.1f} | {step} | {held} | {row.cause} "
        f"| {gained} | {', '.join(row.rules) or '-'} | {claimed} |"
    )


def write(rows: Sequence[Row]) -> None:
    REPORT.write_text(report(rows))
    REPORT.with_suffix(".json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1) + "\n"
    )
    page = PAGE.read_text()
    before, rest = page.split(MARKS[0], 1)
    after = rest.split(MARKS[1], 1)[1]
    PAGE.write_text(before + "\n".join((MARKS[0], "", *table(rows), "", MARKS[1])) + after)


def truth_of(folders: Sequence[Path], name: str, half: str | None) -> Path:
    """The truth of a set, or of its half: beside the traces, or in the folder of the set."""
    file = f"truth-{half}.csv" if half else "truth.csv"
    places = [folder / file for folder in (*folders, ROOT / "benchmarks" / name)]
    return next((place for place in places if place.exists()), places[-1])


def judge_set(
    folders: Sequence[Path], name: str, half: str | None, *, write_report: bool, write_after: bool
) -> int:
    with without_archives(folders) as opened:
        rows = read(opened, half, truth_of(folders, name, half))
    for what, target, value in figures(rows):
        print(f"{what:45} {target:18} {value}")
    rows.sort(key=lambda row: row.recording)
    report = REPORT.with_name(f"{name}_fit.md" if half == "fit" else f"{name}.md")
    if write_report:
        report.write_text(report_of_judges(rows, name, half))
    if write_after:
        first = report.read_text().partition(AFTER)[0]
        report.write_text(f"{first.rstrip()}\n\n{after_repairs(rows, name)}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[KEPT])
    parser.add_argument("--half", choices=("fit", "judge"))
    parser.add_argument("--write", action="store_true", help="write the report")
    parser.add_argument(
        "--set", choices=("foreign", "foreign_more_styles", *HALVES), default="foreign"
    )
    parser.add_argument(
        "--write-after", action="store_true", help="add what repaired code gives to the report"
    )
    arguments = parser.parse_args()
    if arguments.set in HALVES and (arguments.half is None or arguments.write_after):
        parser.error(f"{arguments.set} is scored by half: --half, without --write-after")
    if arguments.set != "foreign":
        return judge_set(
            arguments.folders,
            arguments.set,
            arguments.half if arguments.set in HALVES else None,
            write_report=arguments.write,
            write_after=arguments.write_after,
        )
    if arguments.write and arguments.half:
        parser.error("--write needs both halves")
    rows = sorted(
        read(arguments.folders, arguments.half), key=lambda row: (row.half, row.recording)
    )
    for what, target, value in figures(rows):
        print(f"{what:45} {target:18} {value}")
    if arguments.write:
        write(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
