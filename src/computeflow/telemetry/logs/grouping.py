"""Which files are one run, and in which order.

Files are one run where their names are those of one rotated file (`train.log.1.gz`, `train.log`) or
of one launch's ranks (`attempt_0/3/stdout.log`), or where they say that they save to the same place
with the same world size, and a later one takes up a checkpoint: launches of one run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path

from computeflow.telemetry.logs.clock import stamp_of
from computeflow.telemetry.logs.events import Checkpoint, Event, Setting, Step
from computeflow.telemetry.logs.frameworks import Parser
from computeflow.telemetry.logs.reading import read
from computeflow.telemetry.opening import tail_of

_ROTATED = re.compile(r"(?:\.\d{1,4}|[.-]\d{8}(?:-\d+)?|\.\d{4}-\d\d-\d\d\S{0,9})?(?:\.gz)?$")
_RANKED = re.compile(r"(.*/attempt_\d+)/(\d+)/(?:stdout|stderr)\.log$")
_LOOK_LINES = 400_000
_LOOK_SECONDS_FROM_END = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file, and what its beginning and its end say."""

    path: Path
    first: float | None
    last: float | None
    iteration: int | None
    job: tuple[str, ...]
    """What tells its run from others; empty: nothing does."""
    rank: int | None = None
    resumes: bool = False
    """It loads a checkpoint before its first step."""
    strong: bool = False
    """It has better lines than progress bars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One run. Launches follow each other; the files of a launch are continued or side by side."""

    launches: tuple[tuple[Piece, ...], ...]

    @property
    def pieces(self) -> list[Piece]:
        return [piece for launch in self.launches for piece in launch]


@dataclass(slots=True)
class _Head:
    """The beginning of a file, up to the first step that counts."""

    first: float | None = None
    iteration: int | None = None
    resumes: bool = False
    strong: bool = False
    settings: dict[str, str] = field(default_factory=dict)

    def take(self, text: str, event: Event | None) -> None:
        self.first = self.first or _time(text)
        match event:
            case Setting():
                self.settings |= event.values
            case Checkpoint(phase="loaded") if self.iteration is None:
                self.resumes = bool(event.iteration)
            case Step() if event.iteration >= 0:
                self.iteration = event.iteration if self.iteration is None else self.iteration
                self.strong = self.strong or not event.weak

    @property
    def job(self) -> tuple[str, ...]:
        job = tuple(self.settings.get(n, "") for n in ("save", "world_size", "layers", "hidden"))
        return job if job[0] and job[1] else ()


def look(path: Path) -> Piece:
    parser, head = Parser(), _Head()
    for line in islice(read(path, []), _LOOK_LINES):
        head.take(line.text, parser.event(line.text, line.stream))
        if head.strong and head.first is not None:
            break
    ranked = _RANKED.match(path.as_posix())
    return Piece(
        path=path,
        first=head.first,
        last=_last_time(path),
        iteration=head.iteration,
        job=head.job,
        rank=int(ranked[2]) if ranked else None,
        resumes=head.resumes,
        strong=head.strong,
    )


def _time(text: str) -> float | None:
    stamp = stamp_of(text)
    return stamp[0] if stamp else None


def _last_time(path: Path) -> float | None:
    """From the end of a plain file; None for compressed ones, whose end is far to read."""
    lines = tail_of(path, _LOOK_SECONDS_FROM_END).decode("utf-8", "replace").splitlines()
    return next((stamp for line in reversed(lines) if (stamp := _time(line))), None)


def group(paths: Sequence[Path]) -> list[Group]:
    named: dict[str, list[Piece]] = {}
    for path in paths:
        named.setdefault(_family(path), []).append(look(path))
    launches = [tuple(sorted(pieces, key=_order)) for pieces in named.values()]
    runs = _Runs()
    for launch in sorted(launches, key=lambda pieces: _order(pieces[0])):
        runs.add(launch)
    return [Group(launches=tuple(run)) for run in runs.found]


@dataclass(slots=True)
class _Runs:
    """Launches in order of time, put together where they are of one run: the same job by its own
    words, one after the other, taken up again.
    """

    found: list[list[tuple[Piece, ...]]] = field(default_factory=list)
    _going: dict[tuple[str, ...], list[tuple[float, int]]] = field(default_factory=dict)
    """By job: when runs end, and their places in `found`; the first to end first."""
    _ended: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    """By job: those that had ended at the start of the last launch; the first in `found` first."""

    def add(self, launch: tuple[Piece, ...]) -> None:
        job = next((piece.job for piece in launch if piece.job), ())
        at = self._before(job, launch)
        if at is None:
            at = len(self.found)
            self.found.append([])
        self.found[at].append(launch)
        end = launch[-1].last
        if job and end is not None:
            heappush(self._going.setdefault(job, []), (end, at))

    def _before(self, job: tuple[str, ...], launch: Sequence[Piece]) -> int | None:
        """The first run that this launch goes on with."""
        start = launch[0].first
        if start is None or not job or not any(piece.resumes for piece in launch):
            return None
        going, ended = self._going.get(job, []), self._ended.setdefault(job, [])
        while going and going[0][0] <= start:
            heappush(ended, heappop(going)[1])
        return heappop(ended) if ended else None


def _family(path: Path) -> str:
    """The name without its place in a rotation."""
    text = path.as_posix()
    if found := _RANKED.match(text):
        return found[1]
    return _ROTATED.sub("", text)


def _order(piece: Piece) -> tuple[float, float, str]:
    rest = piece.iteration if piece.iteration is not None else float("inf")
    return (piece.first if piece.first is not None else float("inf"), rest, str(piece.path))
