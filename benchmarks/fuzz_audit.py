"""Traces that no profiler wrote, thrown at the reader until the time is up.

    python -m benchmarks.fuzz_audit --seconds 60              guided by coverage where atheris is there
    python -m benchmarks.fuzz_audit --seconds 60 --plain      recorded traces, damaged at random
    python -m benchmarks.fuzz_audit --gigabytes 2             one line of that length: memory and time

Whatever the bytes are, a trace is refused with `InputError` or its ledger closes; anything else, and
whatever takes longer than it may, is a finding: its bytes are kept, and the exit code is 1. Atheris is
installed by whoever wants it, in an environment of its own (pip install atheris msgspec numpy click
rich, PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "tests" / "data" / "h200_traces"
MOST_SECONDS = 20.0
"""That one input may take."""
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_STRANGE = (
    b"NaN", b"-Infinity", b"1e400", b"-1", b"0", b"1180591620717411303424", b'"7"', b'"x"', b"null",
    b"[]", b"{}", b"[[[]]]", b"true", b"1e-300", b"9" * 5000, b'"\\ud800"', b'"\xff"', b'"\x00"',
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Verbatim)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="without atheris, damage only")
    parser.add_argument("--gigabytes", type=float, help="write and read one long line instead")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzz_audit",
                        help="where inputs go that are findings")  # fmt: skip
    asked = parser.parse_args()
    if asked.gigabytes:
        return long_line(int(asked.gigabytes * 1e9))
    asked.keep.mkdir(parents=True, exist_ok=True)
    if asked.plain:
        return damaged(asked.seconds, asked.seed, asked.keep)
    return guided(asked.seconds, asked.seed, asked.keep)


class _Verbatim(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    pass


def check(content: bytes, path: Path) -> str:
    """Measured or refused; an AssertionError, or whatever escaped, where it is neither."""
    from computeflow.errors import InputError, LedgerError
    from computeflow.telemetry.kineto.reading import read_trace
    from computeflow.telemetry.traces.job import job_ledger
    from computeflow.telemetry.traces.measured import Options
    from computeflow.telemetry.traces.rank import measure_trace

    path.write_bytes(content)
    began = time.monotonic()
    try:
        rank = measure_trace(read_trace(path), Options())
        job_ledger([rank], None)
    except LedgerError:
        raise
    except InputError:
        return "refused"
    finally:
        assert time.monotonic() - began < MOST_SECONDS, "takes too long"
    whole = sum(round(1e9 * seconds) for seconds in rank.accounts.values())
    assert all(seconds >= 0 for seconds in rank.accounts.values()), "a negative account"
    assert whole == rank.window_end - rank.window_start, "the accounts are not the window"
    return "measured"


def guided(seconds: int, seed: int, keep: Path) -> int:
    """By atheris, from small pieces of the recorded traces; ends at the first finding."""
    try:
        atheris: Any = importlib.import_module("atheris")  # has no types
    except ImportError:
        print("fuzz_audit: needs atheris (pip install atheris, in an environment of its own), "
              "or --plain", file=sys.stderr)  # fmt: skip
        return 2
    with atheris.instrument_imports(include=["computeflow.telemetry"]):
        import computeflow.telemetry.kineto.reading
        import computeflow.telemetry.traces.job
        import computeflow.telemetry.traces.rank  # noqa: F401

    folder = keep / "corpus"
    folder.mkdir(exist_ok=True)
    chance = random.Random(seed)
    for number in range(64):
        (folder / f"seed{number}").write_bytes(small(chance, most=12))
    (folder / "zipped").write_bytes(gzip.compress(small(chance, most=12)))
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={keep}/",
               f"-timeout={MOST_SECONDS:.0f}", "-max_len=16384", "-rss_limit_mb=4096"]  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace.json"

        def one(content: bytes) -> None:
            check(content, path)

        atheris.Setup([sys.argv[0], *options, str(folder)], one)
        atheris.Fuzz()  # ends the process
    return 0


def damaged(seconds: int, seed: int, keep: Path) -> int:
    """The recorded traces with bytes flipped, lost, doubled and numbers replaced."""
    chance = random.Random(seed)
    ends, findings = time.monotonic() + seconds, 0
    outcomes = {"measured": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace.json"
        while time.monotonic() < ends:
            content = damage(chance, _source(chance))
            try:
                outcomes[check(content, path)] += 1
            except Exception:
                findings += 1
                kept = keep / f"finding{findings}"
                kept.write_bytes(content)
                print(f"{kept}:\n{traceback.format_exc()}", file=sys.stderr)
    print(f"{outcomes['measured']:,} measured, {outcomes['refused']:,} refused, "
          f"{findings:,} findings in {seconds} s, seed {seed}")  # fmt: skip
    return 1 if findings else 0


def _source(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.05:
        name = chance.choice(_recorded())
        return name.read_bytes() if chance.random() < 0.5 else gzip.decompress(name.read_bytes())
    content = small(chance, most=300)
    return gzip.compress(content, 1) if kind < 0.15 else content


def small(chance: random.Random, most: int) -> bytes:
    """Some of a recorded trace's events that follow each other, its steps and its header."""
    whole = _parsed(chance.choice(_recorded()[:4]))
    events = whole["traceEvents"]
    at = chance.randrange(len(events))
    steps = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep")]
    chosen = [*chance.sample(steps, min(2, len(steps))), *events[at : at + chance.randint(1, most)]]
    launched = {e.get("args", {}).get("correlation") for e in chosen} - {None}
    chosen += [e for e in events if e.get("args", {}).get("correlation") in launched][:most]
    return json.dumps(whole | {"traceEvents": chosen}).encode()


@cache
def _recorded() -> list[Path]:
    return sorted(TRACES.glob("*.json.gz"), key=lambda path: path.stat().st_size)


@cache
def _parsed(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def damage(chance: random.Random, content: bytes) -> bytes:
    some = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        if some:
            chance.choice(_DAMAGES)(chance, some)
    return bytes(some)


def _flip(chance: random.Random, some: bytearray) -> None:
    some[chance.randrange(len(some))] ^= 1 << chance.randrange(8)


def _lose(chance: random.Random, some: bytearray) -> None:
    at = chance.randrange(len(some))
    del some[at : at + chance.choice([1, 1, 10, 500])]


def _double(chance: random.Random, some: bytearray) -> None:
    at = chance.randrange(len(some))
    other = chance.randrange(len(some))
    some[other:other] = some[at : at + chance.choice([1, 10, 500, 5000])]


def _end(chance: random.Random, some: bytearray) -> None:
    del some[chance.randrange(len(some)) :]


def _replace(chance: random.Random, some: bytearray) -> None:
    found = _NUMBER.search(some, chance.randrange(len(some)))
    if found:
        some[found.start() : found.end()] = chance.choice(_STRANGE)


_DAMAGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _flip, _lose, _double, _end, _replace, _replace, _replace, _replace,
)  # fmt: skip


def long_line(size: int) -> int:
    """A trace of `size` bytes without a line break, and one event with a text of that size."""
    some = b"".join(
        b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":%.3f,"dur":1.5,'
        b'"args":{"External id":%d}},' % (1.7e15 + i / 10, i)
        for i in range(10_000)
    )
    kernel = b'{"ph":"X","cat":"kernel","name":"k","ts":1.7e15,"dur":90,"args":{"correlation":1}}'
    head = b'{"deviceProperties":[{"name":"NVIDIA H200"}],"traceEvents":['
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace.json"
        for name, opening, part, closing in (
            ("events", head, some, kernel + b"]}"),
            ("one text", head + kernel + b',{"ph":"X","name":"', b"x" * 10**6, b'"}]}'),
        ):
            with path.open("wb") as file:
                file.write(opening)
                file.writelines(part for _ in range(size // len(part)))
                file.write(closing)
            began = time.monotonic()
            outcome = check_long(path)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"{size / 1e9:g} GB, {name}: {outcome}, {time.monotonic() - began:.1f} s, "
                  f"at most {grown:,} MiB")  # fmt: skip
    return 0


def check_long(path: Path) -> str:
    from computeflow.telemetry.kineto.reading import read_trace
    from computeflow.telemetry.traces.measured import Options
    from computeflow.telemetry.traces.rank import measure_trace

    found = measure_trace(read_trace(path), Options())
    return "; ".join([f"{found.events:,} events", *found.left_out])


if __name__ == "__main__":
    sys.exit(main())
