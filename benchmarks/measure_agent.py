"""What the agent costs: CPU share and memory beside eight ranks that make three steps a second.

    python -m benchmarks.measure_agent [--seconds 60] [--ranks 8] [--collector URL]

Starts `computeflow agent` as a process, with a recording of NVML (eight questions a GPU cost the driver
time that is not in this figure), and a collector double unless one is named; writes the ranks' files
itself. The first ten seconds, in which the agent imports and finds its runs, are apart.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from agent_collector import CollectorDouble, serving  # noqa: E402
from computeflow.recorder.frames import MAGIC, packed  # noqa: E402
from run_folder_maker import Training  # noqa: E402

NVML = ROOT / "tests" / "data" / "nvml" / "h200-made.json"
STEPS_PER_SECOND = 3
WARM_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class AgentCost:
    seconds: float
    ranks: int
    start_cpu_seconds: float
    cpu_share: float
    """CPU seconds for each second after the start."""
    resident_mb: float
    """The most that it had."""
    records: int
    """Records that came, all of them where no collector was named."""
    written: int


def measure(
    seconds: float, ranks: int, collector: str | None = None, more: tuple[str, ...] = ()
) -> AgentCost:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        double = CollectorDouble()
        url = collector or stack.enter_context(serving(double))
        run = folder / "runs" / "a"
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps({"name": "train", "started": time.time()}))
        (folder / "kernel.log").touch()
        words = ["--collector", url, "--runs", str(folder / "runs"), "--nvml", str(NVML)]
        words += ["--state", str(folder / "state"), "--kernel-log", str(folder / "kernel.log")]
        command = [sys.executable, "-m", "computeflow", "agent", *words, *more]
        process = subprocess.Popen(command)
        try:
            return _measured(process.pid, run, seconds, ranks, double)
        finally:
            process.terminate()
            process.wait()


def _measured(
    pid: int, run: Path, seconds: float, ranks: int, double: CollectorDouble
) -> AgentCost:
    steps = round((seconds + WARM_SECONDS) * STEPS_PER_SECOND) + 1
    files = Training(ranks=ranks, steps=steps, jitter=0.1).records()
    for records in files:
        records[0] |= {"host": socket.gethostname(), "pid": os.getpid()}
    heads: list[list[Any]] = [records[:1] for records in files]
    for rank, records in enumerate(heads):
        _append(run, rank, MAGIC + b"".join(map(packed, records)))
    written, began = ranks, time.monotonic()
    start_cpu, start = 0.0, began
    for step in range(steps):
        for rank, records in enumerate(files):
            pair = records[1 + 2 * step : 3 + 2 * step]
            _append(run, rank, b"".join(map(packed, pair)))
            written += len(pair)
        time.sleep(max(began + (step + 1) / STEPS_PER_SECOND - time.monotonic(), 0.0))
        if not start_cpu and time.monotonic() - began >= WARM_SECONDS:
            start_cpu, start = _cpu_seconds(pid), time.monotonic()
    spent, wall = _cpu_seconds(pid) - start_cpu, time.monotonic() - start
    resident = _most_resident_mb(pid)
    until = time.monotonic() + 300
    while _received(double) < written and double.requests and time.monotonic() < until:
        time.sleep(0.1)
    return AgentCost(
        seconds=wall,
        ranks=ranks,
        start_cpu_seconds=start_cpu,
        cpu_share=spent / wall,
        resident_mb=resident,
        records=_received(double),
        written=written,
    )


def _append(run: Path, rank: int, content: bytes) -> None:
    with (run / f"rank-{rank:05d}.attempt-0.cfr").open("ab") as file:
        file.write(content)


def _received(double: CollectorDouble) -> int:
    with double.lock:
        return sum(number for ranks in double.next.values() for number in ranks.values())


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _most_resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--collector")
    words = parser.parse_args()
    cost = measure(words.seconds, words.ranks, words.collector)
    print(f"{cost.ranks} ranks, {STEPS_PER_SECOND} steps a second, {cost.seconds:.0f} s")
    print(f"CPU                 {100 * cost.cpu_share:.2f} % of a core")
    print(f"CPU of the start    {cost.start_cpu_seconds:.2f} s")
    print(f"memory, the most    {cost.resident_mb:.1f} MB")
    print(f"records             {cost.records:,} came of {cost.written:,}")


if __name__ == "__main__":
    main()
