"""What a run's own files say of its steps, attempt by attempt: `read_attempts`.

The files lie on a disk that the controller shares with the run. Only the lowest rank is read, and of a
long file its beginning and its end: steps since a finding's onset, not weeks of them.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computeflow.recorder.frames import DamagedError, FrameReader

WARM_STEPS = 3
"""First steps of an attempt, which warm up: as the collector's."""
_HEAD_BYTES, _TAIL_BYTES = 1 << 18, 8 << 20
_FILE = re.compile(r"rank-(\d+)\.attempt-(\d+)\.cfr")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    number: int
    """Counted in its attempt, from 1 on."""
    own: int | None
    """The optimizer's own count, which goes on over restarts; None where it is unknown."""
    end: float
    """Unix seconds."""
    seconds: float


@dataclass(slots=True, kw_only=True)
class AttemptSteps:
    """The lowest rank of one attempt."""

    attempt: int
    rank: int
    node: str
    """The scheduler's name of it; "" where there was none."""
    host: str
    began: float
    """Unix seconds at which its process began."""
    steps: list[RecordedStep] = field(default_factory=list)
    saves: list[tuple[float, float]] = field(default_factory=list)
    """End and seconds of each."""
    answers: dict[str, str] = field(default_factory=dict)
    """What came of commands, by their names."""
    takes: tuple[str, ...] = ()
    """Commands that its code registered for."""
    ended: str | None = None

    def usual_seconds(self, begin: float, end: float, most: int = 200) -> float | None:
        """Median step between two moments, without the first ones; None for fewer than five."""
        chosen = [
            step.seconds
            for step in self.steps
            if step.number > WARM_STEPS and begin < step.end <= end
        ][-most:]
        return statistics.median(chosen) if len(chosen) >= _MIN_STEPS else None

    @property
    def last_end(self) -> float | None:
        return self.steps[-1].end if self.steps else None

    @property
    def done(self) -> int:
        """Steps done since the run began, as far as its optimizer says; else those of the attempt."""
        if not self.steps:
            return 0
        last = self.steps[-1]
        return last.number if last.own is None else last.own


_MIN_STEPS = 5


def read_attempts(folder: Path) -> list[AttemptSteps]:
    """All attempts, the first one first; none where there are no files that can be read."""
    paths: dict[int, tuple[int, Path]] = {}
    for path in _files(folder):
        named = _FILE.fullmatch(path.name)
        if named is not None:
            rank, attempt = int(named[1]), int(named[2])
            paths[attempt] = min(paths.get(attempt, (rank, path)), (rank, path))
    read = [_read(path) for _, (_, path) in sorted(paths.items())]
    return [attempt for attempt in read if attempt is not None]


def _files(folder: Path) -> Sequence[Path]:
    try:
        return sorted(folder.glob("rank-*.cfr"))
    except OSError:
        return ()


def node_of_rank(folder: Path, rank: int) -> str:
    """The scheduler's node of a rank in its last attempt; "" where it is not known."""
    paths = [
        (int(named[2]), path)
        for path in _files(folder)
        if (named := _FILE.fullmatch(path.name)) is not None and int(named[1]) == rank
    ]
    if not paths:
        return ""
    start = next(_records(max(paths)[1], 0, 1 << 16), {})
    return str(start.get("node") or start.get("host") or "")


def _read(path: Path) -> AttemptSteps | None:
    try:
        size = path.stat().st_size
    except OSError:
        return None
    head = list(_records(path, 0, size if size <= _HEAD_BYTES + _TAIL_BYTES else _HEAD_BYTES))
    if not head or head[0].get("k") != "start":
        return None
    start, records = head[0], head
    if size > _HEAD_BYTES + _TAIL_BYTES:
        records = [*head, *_records(path, size - _TAIL_BYTES, _TAIL_BYTES)]
    epoch = float(start["unix_ns"]) / 1e9
    attempt = AttemptSteps(
        attempt=int(start.get("attempt", 0)),
        rank=int(start.get("rank", 0)),
        node=str(start.get("node") or ""),
        host=str(start.get("host") or ""),
        began=epoch + float(start.get("began_us", 0)) / 1e6,
    )
    base: int | None = None
    for record in records[1:]:
        kind = record.get("k")
        if kind == "s":
            if isinstance(record.get("o"), int):
                base = record["o"] - record["n"]
            attempt.steps.append(_step(record, epoch, base))
        elif kind == "e":
            _take_event(attempt, record, epoch)
        elif kind == "end":
            attempt.ended = str(record.get("how", ""))
    return attempt


def _step(record: dict[str, Any], epoch: float, base: int | None) -> RecordedStep:
    return RecordedStep(
        number=int(record["n"]),
        own=None if base is None else base + int(record["n"]),
        end=epoch + record["t"] / 1e6,
        seconds=record["d"] / 1e6,
    )


def _take_event(attempt: AttemptSteps, record: dict[str, Any], epoch: float) -> None:
    what, text = record.get("w"), str(record.get("text", ""))
    if what == "command":
        name, _, answer = text.partition(": ")
        attempt.answers[name] = answer
    elif what == "takes":
        attempt.takes = tuple(text.split())
    elif what == "checkpoint":
        seconds = record.get("d", 0) / 1e6
        attempt.saves.append((epoch + record["t"] / 1e6 + seconds, seconds))


def _records(path: Path, offset: int, most: int) -> Iterator[dict[str, Any]]:
    """Records from an offset on, of about so many bytes."""
    read = 0
    try:
        with path.open("rb") as file:
            for record in FrameReader(file, offset).read():
                yield record
                read += 8 + len(record) * 12  # of the order of their bytes
                if offset == 0 and read > most:
                    return
    except (OSError, DamagedError):
        return
