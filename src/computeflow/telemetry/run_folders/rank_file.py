"""What one rank kept of an attempt, as columns: `RankFile`, whole or a part of it.

`join_parts` makes one of parts that follow each other, `cut` takes the steps of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.files.limits import RUN_EVENTS, RUN_PHASE_NAMES
from computeflow.telemetry.run_folders.arrivals import Arrivals, join_arrivals
from computeflow.telemetry.run_folders.phases import HOLE, Ints, renamed_kinds

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """What a process says of itself."""

    rank: int
    world: int
    attempt: int
    host: str
    device: str
    gpu: str
    gpu_uuid: str
    framework: dict[str, str]
    versions: dict[str, str]
    epoch: int
    """Unix time in microseconds that all times of the file are counted from."""
    began: int
    """Start of the process, in microseconds before the epoch; not positive."""
    pid: int = 0
    """Its number on its host; 0 where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """Steps of a rank; times are Unix microseconds."""

    number: Ints
    own: Ints
    """The optimizer's own count; -1 where it is not known."""
    begin: Ints
    end: Ints
    tokens: Ints
    samples: Ints
    profiled: NDArray[np.bool_]
    loss: Floats
    collections: Ints
    collecting: Ints
    """Microseconds in garbage collections, short ones included."""

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A rank's time as pieces one after the other, without a hole between its first and last."""

    start: Ints
    end: Ints
    kind: Ints

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that happened once; `start` to `end` is how long it took."""

    what: str
    start: int
    end: int
    text: str = ""
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A second without a step."""

    at: int
    inside: str
    """Letter of the phase that the rank is in; "" for none."""
    since: int
    """When it came into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """Memory as a rank's recorder noted it, in bytes; -1 where a note does not say."""

    at: Ints
    """Unix microseconds."""
    allocated: Ints
    reserved: Ints
    host: Ints

    def __len__(self) -> int:
        return len(self.at)


def no_memory_rows() -> MemoryRows:
    none = np.zeros(0, np.int64)
    return MemoryRows(at=none, allocated=none, reserved=none, host=none)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    path: str
    start: RankStart
    steps: StepRows
    pieces: Pieces
    """The host's time, step by step."""
    leads: Pieces
    """What the device did: `start` is when the host began a span, `end` when the device came to its
    end; empty where the rank has no device or no leads were kept."""
    names: tuple[str, ...]
    """Names of the user's phases."""
    arrivals: Arrivals
    events: tuple[RunEvent, ...]
    beats: tuple[Beat, ...]
    """Those after the last step."""
    memory: dict[str, int]
    """The largest figures."""
    parameters: int | None
    config: dict[str, Any]
    dtype: str
    dropped: int
    errors: dict[str, int]
    ended: str | None
    """How the process ended; None where it does not say."""
    last: int
    """Unix microseconds of the last record."""
    left_out: tuple[str, ...]
    memory_rows: MemoryRows = field(default_factory=no_memory_rows)
    """Empty where the rank came over the wire, which has the largest figures alone."""


def no_pieces() -> Pieces:
    none = np.zeros(0, np.int64)
    return Pieces(start=none, end=none, kind=none)


def join_parts(parts: Sequence[RankFile]) -> RankFile:
    """One rank's parts that follow each other, as one."""
    first, last = parts[0], parts[-1]
    names: dict[str, int] = {}
    for part in parts:
        for name in part.names:
            if len(names) < RUN_PHASE_NAMES:
                names.setdefault(name, len(names))
    models = [part for part in parts if part.parameters]
    model = max(models, key=lambda part: part.parameters or 0, default=first)
    return replace(
        first,
        steps=_joined_steps([part.steps for part in parts]),
        pieces=fill_holes(_joined_pieces(parts, "pieces", names)),
        leads=_joined_pieces(parts, "leads", names),
        names=tuple(names),
        arrivals=join_arrivals([part.arrivals for part in parts]),
        events=tuple(event for part in parts for event in part.events)[-RUN_EVENTS:],
        beats=_joined_beats(parts),
        memory=_largest([part.memory for part in parts]),
        memory_rows=MemoryRows(
            **{
                name: np.concatenate([getattr(part.memory_rows, name) for part in parts])
                for name in MemoryRows.__dataclass_fields__
            }
        ),
        parameters=model.parameters,
        config=model.config,
        dtype=model.dtype,
        dropped=max(part.dropped for part in parts),
        errors=_largest([part.errors for part in parts]),
        ended=next((part.ended for part in reversed(parts) if part.ended), None),
        last=max(part.last for part in parts),
        left_out=tuple(dict.fromkeys(note for part in parts for note in part.left_out)),
        path=last.path,
    )


def _joined_steps(parts: Sequence[StepRows]) -> StepRows:
    return StepRows(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in StepRows.__dataclass_fields__
        }
    )


def _joined_pieces(parts: Sequence[RankFile], table: str, names: dict[str, int]) -> Pieces:
    rows: list[Pieces] = [getattr(part, table) for part in parts]
    return Pieces(
        start=np.concatenate([some.start for some in rows]),
        end=np.concatenate([some.end for some in rows]),
        kind=np.concatenate(
            [
                renamed_kinds(some.kind, part.names, names)
                for some, part in zip(rows, parts, strict=True)
            ]
        ),
    )


def _joined_beats(parts: Sequence[RankFile]) -> tuple[Beat, ...]:
    """Beats after the last step."""
    beats: tuple[Beat, ...] = ()
    for part in parts:
        beats = part.beats if len(part.steps) else (*beats, *part.beats)
    return beats[:1] + beats[1:][-RUN_EVENTS:]


def _largest(tables: Sequence[dict[str, int]]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for table in tables:
        for name, value in table.items():
            merged[name] = max(merged.get(name, 0), value)
    return merged


def fill_holes(pieces: Pieces) -> Pieces:
    """The pieces, with holes where steps were lost between two."""
    holes = np.flatnonzero(pieces.start[1:] > pieces.end[:-1])
    if not len(holes):
        return pieces
    starts = np.concatenate([pieces.start, pieces.end[holes]])
    order = np.argsort(starts, kind="stable")
    ends = np.concatenate([pieces.end, pieces.start[holes + 1]])
    kinds = np.concatenate([pieces.kind, np.full(len(holes), HOLE)])
    return Pieces(start=starts[order], end=ends[order], kind=kinds[order])


def cut(file: RankFile, begin: int, end: int) -> RankFile:
    """The steps that ended after `begin` and up to `end`, and what passed meanwhile; arrivals at the
    collectives of a step that has not ended, too.
    """
    rows = (file.steps.end > begin) & (file.steps.end <= end)
    chosen = _chosen_steps(file.steps, rows)
    low = int(chosen.begin[0]) if len(chosen) else begin
    high = int(chosen.end[-1]) if len(chosen) else begin
    arrivals = file.arrivals
    inside = (arrivals.at >= low) & (arrivals.at <= max(high, end))
    return replace(
        file,
        steps=chosen,
        pieces=_between(file.pieces, low, high),
        leads=_between(file.leads, low, high),
        arrivals=arrivals.chosen(inside),
        events=tuple(event for event in file.events if low <= event.start and event.end <= end),
        beats=tuple(beat for beat in file.beats if beat.at <= end),
    )


def _chosen_steps(steps: StepRows, rows: NDArray[np.bool_]) -> StepRows:
    return StepRows(**{name: getattr(steps, name)[rows] for name in StepRows.__dataclass_fields__})


def _between(pieces: Pieces, low: int, high: int) -> Pieces:
    rows = (pieces.start >= low) & (pieces.start < high)
    return Pieces(start=pieces.start[rows], end=pieces.end[rows], kind=pieces.kind[rows])
