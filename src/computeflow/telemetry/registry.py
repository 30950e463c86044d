"""Every kind of source, and which files are whose: `sort_files`, then `observe`.

A file belongs to the first kind that knows its content; the most talkative kind (logs) is asked last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from computeflow.errors import ComputeFlowError, InputError
from computeflow.telemetry.formats import KINDS, TraceFile, format_of
from computeflow.telemetry.observed import Asked, Observed, Source
from computeflow.telemetry.opening import PACKED, read_head
from computeflow.telemetry.sources import ENDINGS, files_of, other_kinds

MAX_NOTES = 100
"""Of files in folders that cannot be opened."""
_KindOf = Callable[[Path, bytes], str | None]


@cache
def sources() -> tuple[Source, ...]:
    """In the order in which they are asked. Imported when a file is no trace: most audits need none."""
    from computeflow.telemetry.accounting.source import AccountingSource
    from computeflow.telemetry.flight.source import FlightRecorder
    from computeflow.telemetry.kernel.burn import GpuBurnSource
    from computeflow.telemetry.kernel.source import KernelLogSource
    from computeflow.telemetry.logs.source import LogSource
    from computeflow.telemetry.memory.source import MemorySnapshots
    from computeflow.telemetry.metrics.source import MetricsSource
    from computeflow.telemetry.whatif.source import OpTimelines

    return (
        FlightRecorder(),
        MemorySnapshots(),
        OpTimelines(),
        AccountingSource(),
        KernelLogSource(),
        GpuBurnSource(),
        MetricsSource(),
        LogSource(),
    )


def _by_kind() -> dict[str, Source]:
    return {source.kind: source for source in sources()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    files: Mapping[str, tuple[Path, ...]]
    """By kind."""
    left_out: tuple[str, ...]

    @property
    def traces(self) -> tuple[TraceFile, ...]:
        """Files of profilers."""
        kinds = (kind for kind in KINDS if kind in self.files)
        return tuple(TraceFile(kind=kind, path=path) for kind in kinds for path in self.files[kind])


def sort_files(paths: Sequence[Path], kind_of: _KindOf | None = None) -> Sorted:
    """Files as named must be of some kind; of folders, other files are counted by their ending.
    `kind_of`: by content, where only some kinds are wanted.
    """
    known = kind_of or _any_kind
    found: dict[str, dict[Path, None]] = {}
    others: Counter[str] = Counter()
    notes: list[str] = []
    for path in paths:
        before = len(notes), sum(map(len, found.values()))
        for file in files_of(path, notes):
            kind = _kind_as_named(path, known, notes) if file == path else _kind(file, known, notes)
            if kind is not None:
                found.setdefault(kind, {})[file] = None
            elif file != path:
                others[file.suffix or "no ending"] += 1
        if before == (len(notes), sum(map(len, found.values()))):
            notes.append(f"{path}: nothing to read in it")
    notes += other_kinds(others)
    if not found:
        raise InputError("; ".join(notes) or "no files to read")
    return Sorted(
        files={kind: tuple(files) for kind, files in found.items()}, left_out=tuple(notes)
    )


def _kind_as_named(path: Path, known: _KindOf, notes: list[str]) -> str | None:
    """Of a file that the user named: it is read, or a note says why not."""
    if not path.stat().st_size:
        notes.append(f"{path}: an empty file")
        return None
    try:
        kind = known(path, read_head(path))
    except InputError as error:
        kind = known(path, b"")
        if kind is None:
            notes.append(str(error))
        return kind
    if kind is None and path.name.endswith(ENDINGS):
        return KINDS[0]  # it will say what it is not
    if kind is None:
        notes.append(f"{path}: none of {', '.join((*KINDS, *_by_kind()))} by its content")
    return kind


def _kind(file: Path, known: _KindOf, notes: list[str]) -> str | None:
    """Of a file of a folder: what may be a recording and cannot be opened is said."""
    try:
        return known(file, read_head(file))
    except InputError as error:
        kind = known(file, b"")
        if kind is None and file.name.endswith((*ENDINGS, *PACKED)) and len(notes) < MAX_NOTES:
            notes.append(str(error))
        return kind


def _any_kind(path: Path, head: bytes) -> str | None:
    found = format_of(path, head)
    if found is not None:
        return found
    return next((source.kind for source in sources() if source.recognises(path, head)), None)


def observe(
    files: Mapping[str, Sequence[Path]], addresses: Sequence[str], asked: Asked
) -> tuple[list[Observed], list[str]]:
    """What all sources but traces say; a source that fails is left out with its reason."""
    found: list[Observed] = []
    left_out = []
    for kind, paths in files.items():
        if kind in KINDS:
            continue
        try:
            found += _by_kind()[kind].observe(paths, asked)
        except ComputeFlowError as error:
            left_out.append(str(error))
    if addresses:
        from computeflow.telemetry.metrics.server import observe_server

        for address in addresses:
            found += observe_server(address, asked)
    return found, left_out
