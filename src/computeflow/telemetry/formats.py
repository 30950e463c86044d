"""Profilers whose files are read into one `Trace`: which format a file has, and its traces.

A file of Nsight Systems or JAX holds several devices, each a trace of its own: a rank is a file and a
part of it. Start with `measure_file`; `read_rank` reads a measured rank's trace again.
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
from computeflow.telemetry.sources import ENDINGS
from computeflow.telemetry.traces.measured import FileMeasured, Options, RankMeasured
from computeflow.telemetry.traces.rank import measure_trace
from computeflow.telemetry.traces.trace import Trace

KINDS = ("kineto", "nsys", "xplane")
"""A package each, whose module `reading` knows its files and reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    recognises: Callable[[Path, bytes], bool]
    """By content; the bytes are the beginning of the file, decompressed."""
    read: Callable[[Path], Generator[Trace | InputError]]
    """Device after device; one that cannot be read is the error that says why."""


@cache
def _format_named(kind: str) -> Format:
    """Imported when a file of it is looked for: most audits need one."""
    module = import_module(f"computeflow.telemetry.{kind}.reading")
    return Format(recognises=module.recognises, read=module.read)


def format_of(path: Path, head: bytes) -> str | None:
    """The kind of a file, or None where it is no profiler's."""
    return next((kind for kind in KINDS if _format_named(kind).recognises(path, head)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    kind: str
    path: Path


def without_copies(files: Sequence[TraceFile]) -> tuple[list[TraceFile], list[str]]:
    """JAX writes a profile twice: without Chrome traces that lie beside their `xplane.pb`."""
    whole = {file.path.parent for file in files if file.kind == "xplane" and not _is_json(file)}
    kept = [
        file
        for file in files
        if file.kind != "xplane" or not _is_json(file) or file.path.parent not in whole
    ]
    left = len(files) - len(kept)
    text = f"Chrome traces beside profiles (xplane.pb), which tell more: {left:,}"
    return kept, [text] if left else []


def _is_json(file: TraceFile) -> bool:
    return file.path.name.endswith(ENDINGS) and ".xplane.pb" not in file.path.name


def measure_file(file: TraceFile, options: Options) -> FileMeasured:
    """Device after device: of each, only what was measured is kept."""
    ranks: list[RankMeasured] = []
    left_out: list[str] = []
    for trace in _format_named(file.kind).read(file.path):
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
    return FileMeasured(ranks=tuple(ranks), left_out=tuple(left_out))


def read_rank(rank: RankMeasured) -> Trace:
    """The trace that a rank was measured from."""
    with closing(_format_named(rank.origin.kind).read(Path(rank.source))) as traces:
        found = next(islice(traces, rank.origin.part, None), None)
    if not isinstance(found, Trace):
        raise found or InputError(f"{rank.source}: no part {rank.origin.part} any more")
    return found
