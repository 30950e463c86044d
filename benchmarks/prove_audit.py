"""`audit` against Holistic Trace Analysis and against what is known, to benchmarks/reports/audit.md.

Figures, CPU time and memory beside HTA's (installed in environments of their own, made once, in a
cache folder; COMPUTEFLOW_PROOFS names another), the same bytes from a Ray cluster of several nodes,
the ledger beside the trainer's own clock, and ranks of which one is slow. Needs the public recordings
(COMPUTEFLOW_DATA); what is not there or not installed is said so.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.audit_answers import (
    ROOT,
    TRACES,
    Judge,
    differences,
    equality,
    on_ray,
    stragglers,
    trainer,
)  # fmt: skip
from benchmarks.audit_runs import Run, find_hta, run_hta, run_ours
from benchmarks.audit_traces import Recording, read_recording, write_copies, write_long

REPORT = ROOT / "benchmarks" / "reports" / "audit.md"
ROUNDS = 3
LONG_BYTES = 5_000_000_000


def speed(judge: Judge, folder: Path, recording: Recording) -> list[str]:
    lines = [
        "| recordings | tool | events | CPU-s (median) | peak memory | times our CPU (each round) |",
        "|---|---|--:|--:|--:|---|",
    ]
    python = find_hta()
    if not python:
        lines.append("| | HTA could not be installed: not compared | | | | |")
    eight = write_copies(recording, folder / "eight", 8)
    for what, where, least in (("one rank", recording.path.parent, 12), ("8 copies", eight, 15)):
        ours: list[Run] = []
        theirs: dict[str, list[Run]] = {name: [] for name in python}
        for _ in range(ROUNDS):
            ours.append(run_ours(where))
            for name, interpreter in python.items():
                theirs[name].append(run_hta(interpreter, where))
                apart = differences(ours[-1].rows, theirs[name][-1].rows)
                if any(apart):
                    judge.say(f"{what}, figures of {name}", "equal", f"{max(apart):g} apart", False,
                              must=True)  # fmt: skip
        events = ours[0].more["events"]
        peak = max(run.peak_bytes for run in ours)
        lines.append(
            f"| {what} | ComputeFlow | {events:,} | {_cpu(ours):.2f} | {peak / 1e6:.0f} MB | |"
        )
        for name, runs in theirs.items():
            ratios = [a.cpu_seconds / b.cpu_seconds for a, b in zip(runs, ours, strict=True)]
            said = ", ".join(f"{ratio:.1f}" for ratio in ratios)
            most = max(run.peak_bytes for run in runs)
            lines.append(
                f"| {what} | {name} | {events:,} | {_cpu(runs):.1f} | {most / 1e6:.0f} MB | {said} |"
            )
            judge.say(f"CPU of {name} over ours, {what}", f"at least {least}",
                      f"{median(ratios):.1f}", median(ratios) >= least)  # fmt: skip
        judge.say(f"peak memory, {what}", "at most 350 MB", f"{peak / 1e6:.0f} MB", peak <= 350e6)
    return [*lines, "", *inflating(recording.path, _cpu(ours) / 8)]


def _cpu(runs: Sequence[Run]) -> float:
    return median(run.cpu_seconds for run in runs)


def inflating(path: Path, whole: float) -> list[str]:
    """What another inflater would bring; none is used."""
    packed = path.read_bytes()
    took: dict[str, float] = {}
    for name in ("zlib", "zlib_ng.zlib_ng", "isal.isal_zlib"):
        try:
            library: Any = importlib.import_module(name)
        except ImportError:
            continue
        rounds = []
        for _ in range(5):
            start = time.process_time()
            inflate = library.decompressobj(31)
            for at in range(0, len(packed), 1 << 18):
                inflate.decompress(packed[at : at + (1 << 18)])
            rounds.append(time.process_time() - start)
        took[name.partition(".")[0]] = min(rounds)
    said = ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in took.items())
    line = f"Inflating this file alone: {said} of CPU."
    if len(took) > 1:
        best = min(took.values())
        line += (
            f" Of {1e3 * whole:.0f} ms that a rank takes among the eight, the fastest would save "
            f"{1e3 * (took['zlib'] - best):.0f}: the ratios above, times "
            f"{whole / (whole - took['zlib'] + best):.2f}. It is not a dependency."
        )
    return [line]


def memory(judge: Judge, folder: Path, recording: Recording) -> list[str]:
    eight = run_ours(folder / "eight")
    many = run_ours(write_copies(recording, folder / "many", 64))
    flat = many.peak_bytes / eight.peak_bytes
    lines = ["| recordings | events | CPU-s | peak memory |", "|---|--:|--:|--:|"]
    for what, run in (("8 copies", eight), ("64 copies", many)):
        lines.append(f"| {what} | {run.more['events']:,} | {run.cpu_seconds:.1f} | "
                     f"{run.peak_bytes / 1e6:.0f} MB |")  # fmt: skip
    judge.say("memory, 64 copies over 8", "at most 1.25", f"{flat:.2f}", flat <= 1.25)
    if shutil.disk_usage(folder).free < 3 * LONG_BYTES:
        return [*lines, "", "The long recording was not made: too little disk is free."]
    path = folder / "long.json"
    times = write_long(recording, path, LONG_BYTES)
    size = path.stat().st_size
    long = run_ours(path)
    path.unlink()
    lines.append(f"| one rank, {times} times as long ({size / 1e9:.1f} GB of text) | "
                 f"{long.more['events']:,} | {long.cpu_seconds:.1f} | "
                 f"{long.peak_bytes / 1e6:.0f} MB |")  # fmt: skip
    judge.say("peak memory, 5 GB", "at most 600 MB", f"{long.peak_bytes / 1e6:.0f} MB",
              long.peak_bytes <= 600e6)  # fmt: skip
    return lines


def main() -> int:
    judge = Judge()
    parts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="audit") as name:
        folder = Path(name)
        path = TRACES / "df_index_resolver" / "df_index_resolver.json.gz"
        if not path.exists():
            print(
                "the public recordings are not there (COMPUTEFLOW_DATA): the report is left as it is"
            )
            return 0
        recording = read_recording(path)
        sections: dict[str, Callable[[], list[str]]] = {
            "Figures": lambda: equality(judge),
            "CPU time": lambda: speed(judge, folder, recording),
            "Memory": lambda: memory(judge, folder, recording),
            "Ray": lambda: on_ray(judge, folder / "eight"),
            "Slow ranks": lambda: stragglers(judge, folder, recording),
            "The project's own traces": lambda: trainer(judge),
        }
        for title, section in sections.items():
            parts += ["", f"## {title}", "", TEXTS[title], "", *section()]
    aims = ["| what | aim | found | met |", "|---|---|---|---|", *judge.lines]
    REPORT.write_text("\n".join([OPENING, *aims, *parts, ""]))
    return int(judge.failed)


OPENING = """# Audit, measured

Made by `make proofs` (`benchmarks/prove_audit.py`). HTA is Holistic Trace Analysis, which goes on under
the name traceinsight from 0.6 on.
"""
TEXTS = {
    "Figures": """HTA's temporal breakdown (microseconds) and overlap (percent), kept from a run of it,
and what `audit --window hta` gives on the same files.""",
    "CPU time": """Seconds of processor time of the analysis and all its processes, without the start of
the interpreter and imports; each tool in a process of its own, in turn, three rounds. HTA loads, and
makes its temporal breakdown, overlap and kernel breakdown; `audit` makes all that it makes, and keeps
nothing. The copies differ in their rank. The memory is that of the whole tree of processes, and pages
that they share count in each.""",
    "Memory": """The long recording is the same one again and again, later each time, with numbers of
its own, as plain text.""",
    "Ray": """What `audit -o json` prints with `--engine ray` and with `--engine local`.""",
    "Slow ranks": """Made from one rank that has all-reduces.""",
    "The project's own traces": """Recorded on an H200 with the reference trainer: two profiled
steps, with the trainer's own times (CUDA events) and FLOPs (its formula). Faults are planted in most.

What this shows and what not: times and FLOPs come from different sources (the profiler's timeline and
the shapes in it), but both count FLOPs by the same convention, so that equal FLOPs say that every
operator was found, not that the convention is right. With unequal lengths the trainer's formula takes
attention at the full length, so that its figure is the one that is too high. Where a single step is
further off than both together, only the bound between the two steps lies elsewhere.""",
}

if __name__ == "__main__":
    sys.exit(main())
