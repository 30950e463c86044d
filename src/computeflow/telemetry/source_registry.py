"""All kinds of sources, and which files belong to which: `sort_files`, then `observe`.

A file belongs to the first kind that recognises its content; the least specific kind (logs) comes
last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from computeflow.errors import ComputeFlowError, InputError
from computeflow.files.reading import looks_like_utf16
from computeflow.telemetry.opening import PACKED, read_head
from computeflow.telemetry.recording_files import (
    ENDINGS,
    empty_files,
    files_of,
    is_empty_trace,
    other_kinds,
)
from computeflow.telemetry.source_reports import Source, SourceReport, SourceRequest
from computeflow.telemetry.trace_formats import KINDS, TraceFile, format_of

MAX_NOTES = 100
"""Most notes about files in folders that cannot be opened."""
_KindOf = Callable[[Path, bytes], str | None]


@cache
def sources() -> tuple[Source, ...]:
    """All sources, in the order in which they are tried. Imported when a file is no trace: most
    audits need none.
    """
    from computeflow.telemetry.accounting.accounting_source import AccountingSource
    from computeflow.telemetry.flight_recorder.flight_source import FlightRecorder
    from computeflow.telemetry.kernel_logs.gpu_burn import GpuBurnSource
    from computeflow.telemetry.kernel_logs.kernel_log_source import KernelLogSource
    from computeflow.telemetry.logs.log_source import LogSource
    from computeflow.telemetry.memory.memory_source import MemorySnapshots
    from computeflow.telemetry.metrics.metrics_source import MetricsSource
    from computeflow.telemetry.op_timelines.op_timeline_source import OpTimelines
    from computeflow.telemetry.outages.outage_source import OutageTables
    from computeflow.telemetry.run_folders.run_folder_source import RunFolders

    return (
        RunFolders(),
        FlightRecorder(),
        MemorySnapshots(),
        OpTimelines(),
        AccountingSource(),
        OutageTables(),
        KernelLogSource(),
        GpuBurnSource(),
        MetricsSource(),
        LogSource(),
    )


def _by_kind() -> dict[str, Source]:
    return {source.kind: source for source in sources()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedFiles:
    files: Mapping[str, tuple[Path, ...]]
    """Files by kind."""
    left_out: tuple[str, ...]

    @property
    def traces(self) -> tuple[TraceFile, ...]:
        """Files that a profiler wrote."""
        kinds = (kind for kind in KINDS if kind in self.files)
        return tuple(TraceFile(kind=kind, path=path) for kind in kinds for path in self.files[kind])


def sort_files(paths: Sequence[Path], kind_of: _KindOf | None = None) -> SortedFiles:
    """Sort files by kind. A file given by name must be of some kind; other files in folders are
    counted by their ending. `kind_of` recognises files where only some kinds are wanted.
    """
    recognise = kind_of or _any_kind
    by_kind: dict[str, dict[Path, None]] = {}
    others: Counter[str] = Counter()
    notes: list[str] = []
    empty: list[Path] = []
    for path in paths:
        before = len(notes), len(empty), sum(map(len, by_kind.values()))
        for file in files_of(path, notes):
            noted = len(notes), len(empty)
            kind = (
                _kind_as_named(path, recognise, notes, empty)
                if file == path
                else _kind(file, recognise, notes, empty)
            )
            if kind is not None:
                by_kind.setdefault(kind, {})[file] = None
            elif file != path and (len(notes), len(empty)) == noted:
                others[file.suffix or "no ending"] += 1
        if before == (len(notes), len(empty), sum(map(len, by_kind.values()))):
            notes.append(f"{path}: nothing to read in it")
    notes += [*empty_files(empty), *other_kinds(others)]
    if not by_kind:
        raise InputError("; ".join(notes) or "no files to read")
    files_by_kind = {kind: tuple(files) for kind, files in by_kind.items()}
    if "recording" in files_by_kind:
        from computeflow.telemetry.run_folders.run_folder_source import join_traces

        files_by_kind = join_traces(files_by_kind)
    return SortedFiles(files=files_by_kind, left_out=tuple(notes))


def holds_recording(path: Path) -> bool:
    """Whether a file, or any in a folder, begins like one that is read; the first such is enough."""
    notes: list[str] = []
    empty: list[Path] = []
    return any(_kind(file, _any_kind, notes, empty) for file in files_of(path, notes))


def _kind_as_named(
    path: Path, recognise: _KindOf, notes: list[str], empty: list[Path]
) -> str | None:
    """The kind of a file given by name: where it cannot be read, a note says why."""
    try:
        head = read_head(path)
        kind = recognise(path, head)
    except InputError as error:
        kind = recognise(path, b"")
        if kind is None:
            notes.append(str(error))
        return kind
    if kind is None and is_empty_trace(path, head):
        empty.append(path)
        return None
    if kind is None and (not head or looks_like_utf16(head)):
        notes.append(_utf16(path) if head else f"{path}: an empty file")
        return None
    if kind is None and path.name.endswith(ENDINGS):
        return KINDS[0]  # its reader says why it is none
    if kind is None:
        notes.append(f"{path}: none of {', '.join((*KINDS, *_by_kind()))} by its content")
    return kind


def _kind(file: Path, recognise: _KindOf, notes: list[str], empty: list[Path]) -> str | None:
    """The kind of a file in a folder; a note names a possible recording that cannot be read."""
    try:
        head = read_head(file)
        kind = recognise(file, head)
        if kind is None and is_empty_trace(file, head):
            empty.append(file)
        elif kind is None and looks_like_utf16(head) and len(notes) < MAX_NOTES:
            notes.append(_utf16(file))
        return kind
    except InputError as error:
        kind = recognise(file, b"")
        if kind is None and file.name.endswith((*ENDINGS, *PACKED)) and len(notes) < MAX_NOTES:
            notes.append(str(error))
        return kind


def _utf16(path: Path) -> str:
    return f"{path}: UTF-16 without a byte-order mark: save it as UTF-8"


def _any_kind(path: Path, head: bytes) -> str | None:
    trace_format = format_of(path, head)
    if trace_format is not None:
        return trace_format
    return next((source.kind for source in sources() if source.recognises(path, head)), None)


def observe(
    files: Mapping[str, Sequence[Path]], addresses: Sequence[str], request: SourceRequest
) -> tuple[list[SourceReport], list[str]]:
    """Read all sources but traces; a source that fails is left out with its reason."""
    reports: list[SourceReport] = []
    left_out = []
    for kind, paths in files.items():
        if kind in KINDS:
            continue
        try:
            reports += _by_kind()[kind].observe(paths, request)
        except ComputeFlowError as error:
            left_out.append(str(error))
    if addresses:
        from computeflow.telemetry.metrics.prometheus_server import observe_server

        for address in addresses:
            reports += observe_server(address, request)
    return reports, left_out
