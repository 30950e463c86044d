"""CPU time of what an audit of a run folder does after its files are read, by the number of ranks.

    python -m benchmarks.measure_run_folders

makes run folders (healthy, one slow rank, ranks late by turns, a slow loader on one, a slow node of
many), reads them, and prints CPU time of aligning ranks (`measure_run`), of booking (`book_run`), of
the facts (`summarise`) and of all rules (`diagnose_source`), the least of three; then that of sealing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from computeflow.catalog import load_catalog
from computeflow.collection.sealing import seal
from computeflow.diagnosis import diagnose_source
from computeflow.telemetry.run_folders.rank_reading import read_rank_file
from computeflow.telemetry.run_folders.run_folder_source import describe, measure_run, report_run
from computeflow.telemetry.run_folders.run_ledger import book_run
from computeflow.telemetry.run_folders.run_summary import summarise
from computeflow.telemetry.source_reports import SourceRequest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from run_folder_maker import MS, Training  # noqa: E402

SIZES = ((64, 60), (1024, 20))
"""Ranks and steps."""
CASES: dict[str, Callable[[int, int], dict[str, int]]] = {
    "healthy": lambda rank, step: {},
    "one slow rank": lambda rank, step: {"f": 20 * MS} if rank == 5 else {},
    "late by turns": lambda rank, step: {"f": 20 * MS} if (rank * 7 + step) % 13 == 0 else {},
    "a slow loader": lambda rank, step: {"d": 20 * MS} if rank == 5 else {},
    "a slow node": lambda rank, step: {"b": 15 * MS} if 8 <= rank < 16 else {},
}


def least_cpu_seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(3):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def measure(training: Training) -> tuple[dict[str, float], str]:
    """CPU-seconds by what is done, and the first finding."""
    with tempfile.TemporaryDirectory() as made:
        folder = training.write(Path(made))
        files = [read_rank_file(path, 1 << 30) for path in sorted(folder.glob("*.cfr"))]
        about = describe(folder, [])
    attempts = measure_run(files, [])
    books = book_run(attempts)
    report = report_run(attempts, about, SourceRequest(catalog=load_catalog(())))
    findings = diagnose_source(report).findings
    return {
        "align": least_cpu_seconds(lambda: measure_run(files, [])),
        "book": least_cpu_seconds(lambda: book_run(attempts)),
        "facts": least_cpu_seconds(lambda: summarise(attempts, books, about)),
        "rules": least_cpu_seconds(lambda: diagnose_source(report)),
    }, findings[0].rule if findings else "none"


def measure_sealing() -> str:
    with tempfile.TemporaryDirectory() as made:
        folder = Training(ranks=2, steps=20_000).write(Path(made))
        size = sum(path.stat().st_size for path in folder.glob("*.cfr"))
        seconds = least_cpu_seconds(lambda: seal(folder))
    return f"sealing {size / 1e6:.1f} MB of records: {seconds:.2f} CPU-s"


def main() -> None:
    for ranks, steps in SIZES:
        for name, extra in CASES.items():
            training = Training(
                ranks=ranks,
                steps=steps,
                jitter=0.03,
                extra=extra,
                host=lambda rank: f"node{rank // 8}",
            )
            seconds, first = measure(training)
            figures = ", ".join(f"{part} {1e3 * value:.0f} ms" for part, value in seconds.items())
            print(f"{ranks:,} ranks x {steps} steps, {name}: {figures}; first finding: {first}")
    print(measure_sealing())


if __name__ == "__main__":
    main()
