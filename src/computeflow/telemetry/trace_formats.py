"""Formats of profilers' files: which format a file has, and the `Trace`s in it.

A file of Nsight Systems or JAX holds several devices, each a trace of its own, so a rank is a file
and a part of it. Start with `measure_file`; `read_rank` reads a measured rank's trace again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.recording_files import ENDINGS
from computeflow.telemetry.traces.rank import measure_trace
from computeflow.telemetry.traces.rank_measurements import (
    FileMeasurement,
    RankMeasurement,
    TraceOptions,
)
from computeflow.telemetry.traces.trace import Trace

KINDS = ("kineto", "nsys", "xplane")
"""Trace formats; each is a package whose `*_reader` module recognises and reads its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    recognises: Callable[[Path, bytes], bool]
    """Whether a file has this format, by its path and the first bytes of its decompressed content."""
    read: Callable[..., Generator[Trace | InputError]]
    """Yields one trace per device; a device that cannot be read yields the error that says why.
    `detailed`: with what a replay needs of the host."""


@cache
def _format_named(kind: str) -> TraceFormat:
    """The format, imported on first use: most audits need one."""
    module = import_module(f"computeflow.telemetry.{kind}.{kind}_reader")
    return TraceFormat(recognises=module.recognises, read=module.read)


def format_of(path: Path, head: bytes) -> str | None:
    """The format of a file, or None where no profiler wrote it."""
    return next((kind for kind in KINDS if _format_named(kind).recognises(path, head)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    kind: str
    path: Path


def without_copies(files: Sequence[TraceFile]) -> tuple[list[TraceFile], list[str]]:
    """Drop the Chrome traces that JAX writes beside each `xplane.pb`: they are copies that hold
    less.
    """
    whole = {file.path.parent for file in files if file.kind == "xplane" and not _is_json(file)}
    kept = [
        file
        for file in files
        if file.kind != "xplane" or not _is_json(file) or file.path.parent not in whole
    ]
    dropped = len(files) - len(kept)
    text = f"Chrome traces beside profiles (xplane.pb), which hold more: {dropped:,}"
    return kept, [text] if dropped else []


def _is_json(file: TraceFile) -> bool:
    return file.path.name.endswith(ENDINGS) and ".xplane.pb" not in file.path.name


def measure_file(file: TraceFile, options: TraceOptions) -> FileMeasurement:
    """Measure a file device by device, keeping only what was measured."""
    ranks: list[RankMeasurement] = []
    left_out: list[str] = []
    for trace in _format_named(file.kind).read(file.path, detailed=options.replay):
        try:
            if isinstance(trace, InputError):
                raise trace
            ranks.append(replace(measure_trace(trace, options), source=str(file.path)))
        except InputError as error:
            left_out.append(str(error))
    if not ranks:
        raise InputError("; ".join(left_out))
    if options.rank_from is not None and len(ranks) > 1:
        raise InputError(f"{file.path.name}: --rank-from: it holds {len(ranks)} devices")
    return FileMeasurement(ranks=tuple(ranks), left_out=tuple(left_out))


def read_rank(rank: RankMeasurement) -> Trace:
    """The trace that a rank was measured from."""
    with closing(_format_named(rank.origin.kind).read(Path(rank.source))) as traces:
        trace = next(islice(traces, rank.origin.part, None), None)
    if not isinstance(trace, Trace):
        raise trace or InputError(f"{rank.source}: no longer has part {rank.origin.part}")
    return trace
