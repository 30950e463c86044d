"""A trace with a track for every account, for Perfetto or any other viewer of Kineto's format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from computeflow.errors import InputError
from computeflow.telemetry.kineto.chunks import Reading, pieces
from computeflow.telemetry.kineto.reading import read_trace
from computeflow.telemetry.lines import head_of
from computeflow.telemetry.sources import looks_like_trace
from computeflow.telemetry.traces.measured import Options
from computeflow.telemetry.traces.rank import cut_rank
from computeflow.telemetry.traces.trace import Trace

MADE = "computeflow.accounts"
"""A key that says that we wrote the file, so that it may be written again."""
PROCESS = 1_000_000_007
"""A process id that no trace has."""
_LINES = 1000


def write_perfetto(source: Path, target: Path, options: Options) -> None:
    """Copies the events of `source` as they are, in pieces, and adds the accounts."""
    trace = read_trace(source)
    try:
        _check(source, target)
        part = target.with_name(f".{target.name}.part")
        try:
            with part.open("wb") as file:
                if target.suffix == ".gz":
                    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=3, mtime=0) as packed:
                        _write(packed, trace, options)
                else:
                    _write(file, trace, options)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{target}: {error.strerror or error}") from None


def _check(source: Path, target: Path) -> None:
    """What is there already may be a file of ours or of another kind, and nothing else."""
    if not target.exists():
        return
    if not target.is_file():
        raise InputError(f"{target}: not a file")
    ours = MADE.encode() in head_of(target, 4096)
    if target.samefile(source) or (looks_like_trace(target) and not ours):
        raise InputError(f"{target}: a trace already; name another file")


def _write(file: BinaryIO | gzip.GzipFile, trace: Trace, options: Options) -> None:
    kept = {name: value for name, value in trace.header.items() if name and name != "traceEvents"}
    header = {MADE: True} | kept
    opening = json.dumps(header, allow_nan=True)[:-1]
    file.write(opening.encode() + (b", " if header else b"") + b'"traceEvents": [\n')

    def copied(text: bytes) -> None:
        file.write(text + b",\n")

    for _ in pieces(Reading(trace.path, raw=copied)):
        pass
    lines = _account_events(trace, options)
    file.write(next(lines).encode())
    for line in lines:
        file.write(b",\n" + line.encode())
    file.write(b"\n]}\n")


def _account_events(trace: Trace, options: Options) -> Iterator[str]:
    """Metadata and intervals, as JSON objects, many to a string."""
    parts = cut_rank(trace, options)
    yield _event("process_name", "M", 0, args={"name": "ComputeFlow: accounts"})
    tracks = {**parts.accounts, **{f"host: {name}": some for name, some in parts.host.items()}}
    for track, (name, some) in enumerate(tracks.items(), start=1):
        if not len(some):
            continue
        yield _event("thread_name", "M", track, args={"name": name})
        for first in range(0, len(some), _LINES):
            yield ",\n".join(
                _event(name, "X", track, ts=trace.base + start / 1e3, dur=(end - start) / 1e3)
                for start, end in zip(
                    some.start[first : first + _LINES].tolist(),
                    some.end[first : first + _LINES].tolist(), strict=True,
                )
            )  # fmt: skip


def _event(name: str, phase: str, track: int, **more: object) -> str:
    return json.dumps({"ph": phase, "cat": "computeflow", "name": name, "pid": PROCESS,
                       "tid": track, **more})  # fmt: skip
