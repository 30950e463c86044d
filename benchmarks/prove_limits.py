"""Time and memory of every reader at doubling sizes, natural and hostile; benchmarks/reports/limits.md.

    python -m benchmarks.prove_limits                         all readers
    python -m benchmarks.prove_limits --no-largest            without the largest contents
    python -m benchmarks.prove_limits --reader kineto         some of them: their rows are replaced

Each shape of content is read at growing sizes in a process of its own. CPU time beyond that of an
almost empty content is fitted against size, in logarithms, over the largest sizes; the slope is at
most `EXPONENT`. Memory is the highest resident size less that before reading. The shape
that takes the most memory for each byte is read once more at the size of the largest file that is read
whole; there it stays below `limits.READING_BYTES`, refused or not.

A shape that comes out too steep is measured again, and only that counts: at larger sizes, because
what grows is often a step (data leave a processor's cache, the garbage collector begins to scan the
old objects) that ends there, while a superlinear reader stays steep; and in rounds of one run for
each size, of which the least counts, because other programs make a run slower, never faster, and
more runs of the small sizes than of the large ones would favour the small ones.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import pkgutil
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

import computeflow
from benchmarks.readers import Reader, all_readers
from computeflow import codec
from computeflow.errors import ComputeFlowError
from computeflow.files import limits

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "limits.md"
DATA = REPORT.with_suffix(".json")
"""Every run of the report."""
_NOT_NEEDED = ("computeflow.lab", "computeflow.__main__", "computeflow.cli.__main__")
EXPONENT = 1.15
TINY_BYTES = 256
"""Size of a content whose time is the start of a reader."""
SIZES = tuple(1 << power for power in range(16, 25))
SURE_BYTES = 1 << 20
"""All shapes are read up to this size, if it does not take too long."""
MIN_SECONDS = 0.05
"""Time above the start; less is noise. What noise makes steep is measured again."""
FLAT_SECONDS_PER_BYTE = 12e-9
"""Below it a shape is flat, however its time grows: 0.2 s for 16 MiB, 0.8 s for the largest file."""
POINTS = 3
"""Sizes above `MIN_SECONDS` that the slope is fitted to; then no larger content is tried."""
ENOUGH_SECONDS = 2.0
"""No larger content is tried after a run of this time."""
FURTHER = 3
MAX_RUN_SECONDS = 8.0
"""Times that the sizes are doubled while a shape comes out too steep, and the longest run of them."""
MAX_SECONDS = 60
"""CPU time for all sizes of one shape."""
MAX_LARGE_SECONDS = 600
"""CPU time for the largest content."""
REPEATS = 3
MIN_ROUNDS = 3
ROUNDS = 6
"""Runs of each size, of a shape that came out too steep: all of them while it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    size: int
    seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    reader: str
    shape: str
    start_seconds: float
    runs: tuple[Measured, ...]
    failure: str = ""

    @property
    def exponent(self) -> float | None:
        """Slope over the largest sizes; None where they take next to no time."""
        times = [(run.size, run.seconds - self.start_seconds) for run in self.runs]
        points = [(size, seconds) for size, seconds in times if seconds > MIN_SECONDS][-POINTS:]
        if len(points) < 2 or points[-1][1] < FLAT_SECONDS_PER_BYTE * points[-1][0]:
            return None
        x, y = ([math.log(value) for value in values] for values in zip(*points, strict=True))
        return linear_regression(x, y).slope

    @property
    def memory_per_byte(self) -> float:
        return max((run.memory_bytes / run.size for run in self.runs[-1:]), default=0.0)

    @property
    def steep(self) -> bool:
        return self.exponent is not None and self.exponent > EXPONENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """Result of a reader at the size of the largest file."""

    reader: str
    shape: str
    run: Measured | None
    failure: str = ""

    @property
    def beyond(self) -> bool:
        return self.run is None or self.run.memory_bytes > limits.READING_BYTES


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reader", action="append", default=[])
    parser.add_argument("--shape", default="", help="part of a shape's name")
    parser.add_argument("--no-largest", action="store_true", help="doubling sizes only")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for module in pkgutil.walk_packages(computeflow.__path__, "computeflow."):
        if not module.name.startswith(_NOT_NEEDED):  # once, not in every process
            importlib.import_module(module.name)
    chosen = [r for r in all_readers() if not arguments.reader or r.name in arguments.reader]
    results: list[Result] = []
    largest: list[Largest] = []
    for reader in chosen:
        of_reader = [_settled(reader, shape) for shape in reader.shapes if arguments.shape in shape]
        results += of_reader
        if of_reader and not arguments.no_largest:
            hungry = max(of_reader, key=lambda result: result.memory_per_byte)
            largest.append(_at_largest(reader, hungry.shape))
        _say(reader, of_reader, largest[-1:], every=bool(arguments.reader))
        if not arguments.shape and not arguments.no_largest:
            _write(*_with_others(results, largest))
    bad = [r for r in results if r.steep or r.failure], [at for at in largest if at.beyond]
    print(
        f"{len(results)} shapes of {len(chosen)} readers; steep or failed {len(bad[0])}, "
        f"beyond the memory {len(bad[1])}"
    )
    return int(any(bad))


def _with_others(
    results: Sequence[Result], largest: Sequence[Largest]
) -> tuple[list[Result], list[Largest]]:
    """These, and those of other readers in the report so far, in the order of the readers."""
    known: dict[str, Any] = {"results": [], "largest": []}
    if DATA.is_file():
        known = json.loads(DATA.read_text(encoding="utf-8"))
    old = codec.decode(list[Result], known["results"], DATA.name)
    old_largest = codec.decode(list[Largest], known["largest"], DATA.name)
    new = {result.reader for result in results}
    order = {reader.name: number for number, reader in enumerate(all_readers())}
    both = [*results, *(r for r in old if r.reader in order.keys() - new)]
    both_largest = [*largest, *(at for at in old_largest if at.reader in order.keys() - new)]
    return (
        sorted(both, key=lambda result: order[result.reader]),
        sorted(both_largest, key=lambda at: order[at.reader]),
    )


def _write(results: Sequence[Result], largest: Sequence[Largest]) -> None:
    REPORT.write_text("\n".join(_lines(results, largest)) + "\n", encoding="utf-8")
    data = {"results": codec.encode(results), "largest": codec.encode(largest)}
    DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _say(
    reader: Reader, results: Sequence[Result], largest: Sequence[Largest], *, every: bool
) -> None:
    slopes = [result.exponent for result in results if result.exponent is not None]
    spent = os.times().children_user
    highest = max(slopes, default=0.0)
    print(f"{reader.name}: {len(results)} shapes, at most {highest:.2f}; {spent:.0f} CPU-s so far")
    for result in results:
        if every or result.steep or result.failure:
            print("  " + _line(result))
    for at in largest:
        if at.reader == reader.name:
            print("  " + _large_line(at), flush=True)


def _settled(reader: Reader, shape: str) -> Result:
    """The result of a shape; while it is too steep it is measured again, at larger sizes."""
    result = _measured(reader, shape, SIZES)
    largest = SIZES[len(result.runs) - 1]
    for _ in range(FURTHER):
        if not result.steep or result.failure or 2 * result.runs[-1].seconds > MAX_RUN_SECONDS:
            break
        largest *= 2
        result = _in_rounds(reader, shape, [largest >> n for n in reversed(range(POINTS))])
    return result


def _in_rounds(reader: Reader, shape: str, sizes: Sequence[int]) -> Result:
    """The least time of some rounds at each size."""
    best = _measured(reader, shape, sizes, repeats=1)
    for number in range(1, ROUNDS):
        if number >= MIN_ROUNDS and not best.steep:
            break
        again = _measured(reader, shape, sizes, repeats=1)
        pairs = zip(best.runs, again.runs, strict=False)  # one may have ended before the other
        best = Result(
            reader=reader.name,
            shape=shape,
            runs=tuple(min(pair, key=lambda run: run.seconds) for pair in pairs),
            start_seconds=min(best.start_seconds, again.start_seconds),
            failure=best.failure or again.failure,
        )
    return best


def _measured(reader: Reader, shape: str, sizes: Sequence[int], repeats: int = REPEATS) -> Result:
    rows, failure = _in_process(reader, shape, (TINY_BYTES, *sizes), MAX_SECONDS, repeats)
    return Result(
        reader=reader.name,
        shape=shape,
        start_seconds=rows[0].seconds if rows else 0.0,
        runs=tuple(rows[1:]),
        failure=failure,
    )


def _at_largest(reader: Reader, shape: str) -> Largest:
    rows, failure = _in_process(reader, shape, (limits.TEXT_BYTES,), MAX_LARGE_SECONDS, REPEATS)
    return Largest(reader=reader.name, shape=shape, run=rows[0] if rows else None, failure=failure)


def _in_process(
    reader: Reader, shape: str, sizes: Sequence[int], most_seconds: int, repeats: int
) -> tuple[list[Measured], str]:
    """Measure in a process of its own, which reports size after size; and why it ended early."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_end)
        try:
            with os.fdopen(write_end, "w", buffering=1) as out:
                _limit_process(most_seconds)
                _work(reader, reader.shapes[shape], sizes, repeats, out.write)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as output:
        reports: list[dict[str, Any]] = [json.loads(line) for line in output if line.endswith("\n")]
    _, status, _ = os.wait4(pid, 0)
    failure = next((row["failure"] for row in reports if "failure" in row), "")
    rows = [Measured(**row) for row in reports if "failure" not in row]
    if not failure and status:
        last = f"{rows[-1].size:,} bytes" if rows else "the beginning"
        failure = f"ended after {last}: {most_seconds} s of CPU, or memory"
    return rows, failure


def _limit_process(most_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _work(
    reader: Reader,
    build: Callable[[int], bytes],
    sizes: Sequence[int],
    repeats: int,
    write: Callable[[str], object],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        for variable in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            os.environ[variable] = name
        for size in (TINY_BYTES, 4096):  # what is imported late is imported
            with suppress(Exception):
                reader.read(build(size), folder)
        timed = 0
        for size in sizes:
            content = build(size)
            try:
                run = _run(reader, content, folder, repeats)
            except Exception as error:
                what = f"{size:,} bytes: {type(error).__name__}: {str(error)[:200]}"
                write(json.dumps({"failure": what}) + "\n")
                break
            write(json.dumps(run) + "\n")
            timed += run["seconds"] > 1.5 * MIN_SECONDS
            enough = run["seconds"] > ENOUGH_SECONDS or (size >= SURE_BYTES and timed >= POINTS)
            if repeats > 1 and enough:
                break


def _run(reader: Reader, content: bytes, folder: Path, repeats: int) -> dict[str, float]:
    times: list[float] = []
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size is counted anew
    before = _peak_bytes()
    while len(times) < repeats and sum(times) < 0.3 and min(times, default=1) > MIN_SECONDS:
        began = time.process_time()
        with suppress(ComputeFlowError):
            reader.read(content, folder)
        times.append(time.process_time() - began)
    peak = max(_peak_bytes() - before, 0)
    return {"size": len(content), "seconds": min(times), "memory_bytes": peak}


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) << 10


def _slope(exponent: float | None) -> str:
    return "flat" if exponent is None else f"{exponent:.2f}"


def _line(result: Result) -> str:
    last = result.runs[-1] if result.runs else None
    largest = "nothing"
    if last is not None:
        largest = (
            f"{last.size >> 10:,} KiB in {last.seconds:.2f} s, {last.memory_bytes >> 20:,} MiB"
        )
    return f"{result.shape}: {_slope(result.exponent)}; {largest}; {result.failure}".rstrip("; ")


def _large_line(at: Largest) -> str:
    if at.run is None:
        return f"largest, {at.shape}: {at.failure}"
    taken = f"{at.run.seconds:.1f} s, {at.run.memory_bytes >> 20:,} MiB"
    return f"largest, {at.shape}: {at.run.size >> 20:,} MiB in {taken}"


def _lines(results: Sequence[Result], largest: Sequence[Largest]) -> Iterator[str]:
    steep = [result for result in results if result.steep or result.failure]
    beyond = [at for at in largest if at.beyond]
    readers = dict.fromkeys(result.reader for result in results)
    yield "# Time and memory of the readers"
    yield ""
    yield (
        "Made by `make proofs` (`benchmarks/prove_limits.py`). Every reader is fed contents of "
        "doubling size, natural and hostile (one long line, deep nesting, many keys, many distinct "
        "names, many short events, pieces of real lines again and again). The exponent is that of CPU "
        "time over size, the start subtracted, over the largest sizes (1 to 16 MiB); the "
        "steepest shape stands here. Memory is what reading the largest file adds to the process, of "
        "the shape that takes the most. Rows may be of different runs: `--reader` replaces its own."
    )
    yield ""
    yield "| what | aim | found | met |"
    yield "|---|---|---|---|"
    slopes = [result.exponent for result in results if result.exponent is not None]
    every = sum(bool(reader.shapes) for reader in all_readers())
    met = "yes" if len(readers) == every else "so far"
    yield (
        f"| exponent of time, {len(results)} shapes of {len(readers)} of {every} readers "
        f"| at most {EXPONENT} "
        f"| {max(slopes):.2f} | {'no' if steep else met} |"
    )
    most = max((at.run.memory_bytes for at in largest if at.run is not None), default=0)
    yield (
        f"| memory at {limits.TEXT_BYTES >> 20} MiB | at most {limits.READING_BYTES >> 20:,} MiB "
        + (f"| {most >> 20:,} MiB | {'no' if beyond else met} |" if largest else "| - | not run |")
    )
    yield ""
    yield "| reader | shapes | exponent | shape | slowest, CPU-s | memory | of | CPU-s |"
    yield "|---|--:|--:|---|--:|--:|---|--:|"
    by_reader = {at.reader: at for at in largest}
    for reader in readers:
        at = by_reader.get(reader, Largest(reader=reader, shape="", run=None, failure="not run"))
        own = [result for result in results if result.reader == at.reader]
        worst = max(own, key=lambda result: result.exponent or 0.0)
        slowest = max(run.seconds for result in own for run in result.runs[-1:])
        memory = at.failure if at.run is None else f"{at.run.memory_bytes >> 20:,} MiB"
        seconds = "" if at.run is None else f"{at.run.seconds:.1f}"
        yield (
            f"| {at.reader} | {len(own)} | {_slope(worst.exponent)} | {worst.shape} | {slowest:.2f} "
            f"| {memory} | {at.shape} | {seconds} |"
        )
    if steep:
        yield ""
        yield from (f"- {result.reader}: {_line(result)}" for result in steep)


if __name__ == "__main__":
    sys.exit(main())
