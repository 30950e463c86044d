"""Detection quality of the online rules on made runs; benchmarks/reports/online.md.

    python -m benchmarks.prove_online              the half for development
    python -m benchmarks.prove_online --judge      the half of noise sources and seeds that only judges
    python -m benchmarks.prove_online --quick      a few cases, no report
    python -m benchmarks.prove_online --clean-minutes 5   real training without a fault: silent
    python -m benchmarks.prove_online --repeat 5          real training, each fault so many times

Every case is a run with the step-time noise of real runs (`data/step_noise.json`) and one fault, or
none. A finding is right where its rule and exactly its ranks are those of the fault, and it is opened
while the fault lasts; any other one is wrong. Latency counts from the end of the first faulty step to
the tick that opens the finding, with the recorder's flush (0.4 s), the agent's second and the tick's.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.online_cases import (
    LEVELS,
    SEVERITIES,
    CaseResult,
    OnlineCase,
    faulty_cases,
    healthy_cases,
    judge_case,
    noise_sources,
)
from benchmarks.online_live import (
    Repeated,
    clean_run,
    clean_section,
    faults_section,
    repeat_faults,
)

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "online.md"
HEALTHY_RUNS = 100
LIVE = "## Real training"
"""Head of the parts of the report that real training makes; each part is kept until it runs again."""
_PARTS = ("### Without a fault", "### Faults again and again")
SILENT = 0.99
"""Least share of healthy runs without any finding."""


def quick_cases(judging: bool) -> list[OnlineCase]:
    """The most severe case of each kind at two or eight ranks, and two short healthy runs."""
    worst: dict[str, OnlineCase] = {}
    for case in faulty_cases(judging):
        if case.fault is not None and case.ranks == 2 and case.level == LEVELS[0]:
            worst[case.fault.kind] = case
    return [*worst.values(), *healthy_cases(judging, 2, 600)]


def run_cases(cases: Sequence[OnlineCase], jobs: int) -> list[CaseResult]:
    results = []
    with ProcessPoolExecutor(jobs) as pool:
        for number, result in enumerate(pool.map(judge_case, cases), 1):
            results.append(result)
            if number % 20 == 0:
                print(f"{number} of {len(cases)}", file=sys.stderr, flush=True)
    return results


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def _seconds(values: Iterable[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    most = known[math.ceil(0.9 * len(known)) - 1]
    return f"{statistics.median(known):.1f} / {most:.1f} / {known[-1]:.1f}"


def _row(name: str, rows: Sequence[CaseResult]) -> str:
    if not rows:
        return f"| {name} | 0 |" + " - |" * 7
    found = [row for row in rows if row.found]
    right, wrong = sum(row.right for row in rows), sum(len(row.wrong) for row in rows)
    precision = f"{right / (right + wrong):.2f}" if right + wrong else "-"
    cells = (
        name,
        str(len(rows)),
        f"{len(found) / len(rows):.2f}",
        precision,
        str(wrong),
        str(right - len(found)),
        _seconds(row.opened_seconds for row in found),
        _seconds(float(row.opened_steps or 0) for row in found),
        _seconds(row.closed_seconds for row in found),
    )
    return "| " + " | ".join(cells) + " |"


_HEAD = (
    "| {} | runs | recall | precision | wrong | again | opened, s | opened, steps | closed, s |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def _tables(faulty: Sequence[CaseResult]) -> list[str]:
    def of(row: CaseResult) -> tuple[str, float]:
        assert row.case.fault is not None
        return row.case.fault.kind, row.case.fault.severity

    lines = ["## By kind", "", _HEAD.format("kind")]
    for kind in SEVERITIES:
        lines.append(_row(kind, [row for row in faulty if of(row)[0] == kind]))
    lines += ["", "## By kind and severity", "", _HEAD.format("kind, severity")]
    for pair in sorted({of(row) for row in faulty}):
        rows = [row for row in faulty if of(row) == pair]
        lines.append(_row(f"{pair[0]} {pair[1]:g}", rows))
    lines += ["", "## By ranks", "", _HEAD.format("ranks")]
    for ranks in sorted({row.case.ranks for row in faulty}):
        lines.append(_row(f"{ranks:,}", [row for row in faulty if row.case.ranks == ranks]))
    lines += ["", "## By noise level", "", _HEAD.format("times the noise")]
    for level in LEVELS:
        lines.append(_row(f"{level:g}", [row for row in faulty if row.case.level == level]))
    lines += ["", "## By noise source", "", _HEAD.format("source")]
    for name in sorted({row.case.noise for row in faulty}):
        lines.append(_row(name, [row for row in faulty if row.case.noise == name]))
    return lines


def summarise(results: Sequence[CaseResult]) -> str:
    """One screen: what was found, how fast, and what was wrong."""
    faulty = [row for row in results if row.case.fault is not None]
    healthy = [row for row in results if row.case.fault is None]
    found = [row for row in faulty if row.found]
    right, wrong = sum(row.right for row in faulty), sum(len(row.wrong) for row in faulty)
    silent = sum(not row.wrong for row in healthy)
    steps = sum(row.case.steps for row in healthy)
    return "\n".join(
        [
            f"- faults found: {_share(len(found), len(faulty))}",
            f"- findings that are right: {_share(right, right + wrong)}",
            f"- seconds to open, median / 90 % / worst: {_seconds(r.opened_seconds for r in found)}",
            f"- seconds to close, the same: {_seconds(r.closed_seconds for r in found)}",
            f"- healthy runs without a finding: {_share(silent, len(healthy))}, {steps:,} steps",
            f"- processor time of the watcher: {sum(r.cpu_seconds for r in results) / 60:.1f} min "
            f"for {sum(r.ticks for r in results):,} ticks",
        ]
    )


def report(results: Sequence[CaseResult], judging: bool, options: Sequence[str] = ()) -> str:
    command = " ".join(["python -m benchmarks.prove_online", *options])
    faulty = [row for row in results if row.case.fault is not None]
    healthy = [row for row in results if row.case.fault is None]
    half = "judges" if judging else "develops"
    names = ", ".join(noise.name for noise in noise_sources(judging))
    lines = [
        "# Online rules on made runs",
        "",
        f"Written by `{command}`: the half that "
        f"{half} (noise of {names}; [step_noise.json](../data/step_noise.json)). Seconds and steps "
        "are median / 90 % / worst, counted from the end of the first faulty step to the finding, and "
        "from the last to its closing. Wrong: findings of another rule, on other ranks, or at "
        "another time. Again: right findings beyond the first of a fault.",
        "",
        summarise(results),
        "",
        *_tables(faulty),
        "",
        f"## Healthy runs of {max((row.case.steps for row in healthy), default=0):,} steps",
        "",
        "| noise | ranks | runs | silent | findings |",
        "|---|---|---|---|---|",
    ]
    for name, ranks in sorted({(row.case.noise, row.case.ranks) for row in healthy}):
        rows = [row for row in healthy if (row.case.noise, row.case.ranks) == (name, ranks)]
        silent, wrong = sum(not row.wrong for row in rows), sum(len(row.wrong) for row in rows)
        lines.append(f"| {name} | {ranks} | {len(rows)} | {silent} | {wrong} |")
    wrong_ones = [(row, text) for row in results for text in row.wrong]
    lines += ["", f"## Wrong findings: {len(wrong_ones)}, the first 40", ""]
    for row, text in wrong_ones[:40]:
        fault = row.case.fault
        what = f"{fault.kind} {fault.severity:g} on {fault.rank}" if fault else "healthy"
        lines.append(
            f"- {what}, {row.case.ranks} ranks, {row.case.noise} x {row.case.level:g}, seed "
            f"{row.case.seed}: {text[:160]}"
        )
    missed = [row for row in faulty if not row.found]
    lines += ["", f"## Missed: {len(missed)}", ""]
    for row in missed:
        fault = row.case.fault
        assert fault is not None
        lines.append(
            f"- {fault.kind} {fault.severity:g}, {row.case.ranks} ranks, {row.case.noise} x "
            f"{row.case.level:g}, seed {row.case.seed}"
        )
    return "\n".join(lines) + "\n"


def _live_parts() -> dict[str, list[str]]:
    """The parts of the report on real training, as they are in the file."""
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    text = REPORT.read_text().partition(LIVE)[2] if REPORT.exists() else ""
    for line in text.splitlines():
        if line in _PARTS:
            lines = parts[line] = []
        elif line.strip():
            lines.append(line)
    return parts


def write_report(made: str | None = None, live: dict[str, list[str]] | None = None) -> None:
    """Write what was run anew, beside what was not."""
    before = REPORT.read_text().partition(LIVE)[0] if REPORT.exists() else ""
    parts = _live_parts() | (live or {})
    lines = [(made or before).rstrip("\n")]
    if parts:
        lines += ["", LIVE]
        for head in _PARTS:
            lines += ["", head, "", *parts[head]] if head in parts else []
    REPORT.write_text("\n".join(lines) + "\n")


def run_live(clean_minutes: float, times: int, ranks: Sequence[int]) -> None:
    """Real training: so many minutes without a fault, and each fault so many times."""
    if clean_minutes:
        run = clean_run(clean_minutes)
        lines = clean_section(run)
        print("\n".join(lines))
        write_report(live={_PARTS[0]: lines})
        if run.findings:
            sys.exit("a run without a fault was not silent")
    if times:
        say = partial(print, file=sys.stderr, flush=True)
        results: list[Repeated] = []
        for some in ranks:
            results += repeat_faults(some, times, say)
            write_report(live={_PARTS[1]: faults_section(results)})
        print("\n".join(faults_section(results)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--judge", action="store_true", help="the half that only judges")
    parser.add_argument("--quick", action="store_true", help="a few cases, no report")
    parser.add_argument("--healthy", type=int, default=HEALTHY_RUNS, help="healthy runs")
    parser.add_argument("--max-ranks", type=int, default=1024, help="leave out larger runs")
    parser.add_argument("--every", type=int, default=1, help="take a faulty case in N, by chance")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--clean-minutes", type=float, default=0.0, help="real training, no fault")
    parser.add_argument("--repeat", type=int, default=0, help="real training, times of each fault")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="ranks with --repeat")
    options = parser.parse_args()
    if options.clean_minutes or options.repeat:
        run_live(options.clean_minutes, options.repeat, options.ranks)
        return
    if options.quick:
        print(summarise(run_cases(quick_cases(options.judge), options.jobs)))
        return
    cases = [case for case in faulty_cases(options.judge) if case.ranks <= options.max_ranks]
    random.Random(0).shuffle(cases)
    cases = cases[:: options.every]
    cases += healthy_cases(options.judge, options.healthy)
    cases.sort(key=lambda case: -case.ranks)
    results = run_cases(cases, options.jobs)
    write_report(report(results, options.judge, sys.argv[1:]))
    print(summarise(results))
    healthy = [row for row in results if row.case.fault is None]
    if healthy and sum(not row.wrong for row in healthy) < SILENT * len(healthy):
        sys.exit(f"fewer than {SILENT:.0%} of the healthy runs were silent")


if __name__ == "__main__":
    main()
