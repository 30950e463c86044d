"""Speed and memory of reading a long training log.

    python -m benchmarks.measure_logs --megabytes 2000

writes a made log of that size (labelled ranks, warnings, steps with timers, checkpoints, restarts) to a
temporary folder, reads it in a process of its own, and prints seconds, MB/s and that process's peak
memory, with the truth that the log was made with.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from computeflow.catalog import load_catalog
from computeflow.telemetry.logs.log_source import LogSource
from computeflow.telemetry.source_reports import SourceRequest

_START = datetime(2025, 1, 1, tzinfo=UTC)
_EVERY = 1_000
"""Steps between checkpoints."""
_FAILS = 8_500
"""Steps between failures: each loses half an interval of checkpoints."""
_NOISE = (
    "UserWarning: The given buffer is not writable, and PyTorch does not support non-writable "
    "tensors. This means you can write to the underlying buffer using the tensor."
)


def made_log(most_bytes: int) -> Iterator[tuple[str, int]]:
    """Lines of a synthetic log with the steps so far, until the size is reached."""
    seconds, iteration, done, written = 0.0, 0, 0, 0

    def stamp() -> str:
        return (_START + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f")

    def launch() -> list[str]:
        return [
            f"0: [start of main] datetime: {stamp()} ",
            "0: using world size: 256, data-parallel size: 32, tensor-model-parallel size: 8, "
            "pipeline-model-parallel size: 1",
            f"0:   successfully loaded checkpoint from /c at iteration {iteration}",
            f"0: [before the start of training step] datetime: {stamp()} ",
        ]

    lines = launch()
    while True:
        for line in lines:
            written += len(line) + 1
            yield line, done
        if written >= most_bytes:
            return
        iteration, done, seconds = iteration + 1, done + 1, seconds + 2.0
        lines = [f"{rank}: {_NOISE}" for rank in range(4)]
        lines.append(
            f"255:  [{stamp()}] iteration {iteration:8d}/ 9000000 | consumed samples: "
            f"{iteration * 512:12d} | elapsed time per iteration (ms): 2000.0 | learning rate: "
            f"1.5E-04 | global batch size:   512 | lm loss: {2 + 1 / iteration:.6E} | loss scale: 1.0 "
            "| grad norm: 0.512 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if iteration % _EVERY == 0:
            lines.append(f"0: [{stamp()}] saving checkpoint at iteration {iteration:7d} to /c")
            seconds += 10
            lines.append(
                f"0:   [{stamp()}] successfully saved checkpoint from iteration {iteration:7d}"
            )
        if done % _FAILS == 0:
            seconds += 300
            iteration = iteration // _EVERY * _EVERY
            lines += launch()


def write_log(path: Path, most_bytes: int) -> int:
    """Write a log; returns the number of its steps."""
    done = 0
    with path.open("w") as file:
        for line, done in made_log(most_bytes):  # noqa: B007
            file.write(line + "\n")
    return done


def read_log(path: Path) -> dict[str, float]:
    asked, before = SourceRequest(catalog=load_catalog()), _peak_mb()
    began, computed = time.perf_counter(), time.process_time()
    (report,) = LogSource().observe([path], asked)
    assert report.ledger is not None
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - computed,
        "peak_mb": _peak_mb(),
        "grown_mb": _peak_mb() - before,
        "steps": report.facts.steps,
        "restarts": len(report.facts.restarts),
        "wall_seconds": report.ledger.wall_seconds,
        "lost_seconds": report.ledger.booked("lost") / report.ledger.gpus,
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(read_log(arguments.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        steps = write_log(path, arguments.megabytes * 10**6)
        size = path.stat().st_size / 1e6
        command = [sys.executable, "-m", "benchmarks.measure_logs", "--read", str(path)]
        result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    rate = size / result["cpu_seconds"]
    report = {"megabytes": size, "steps_written": steps, "mb_per_cpu_second": rate, **result}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
