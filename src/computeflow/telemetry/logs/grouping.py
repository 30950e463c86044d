"""Which files are one run, and in which order.

Files are one run where their names are those of one rotated file (`train.log.1.gz`, `train.log`) or
of one launch's ranks (`attempt_0/3/stdout.log`), or where they say that they save to the same place
with the same world size, and a later one takes up a checkpoint: launches of one run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    runs: list[list[tuple[Piece, ...]]] = []
    for launch in sorted(launches, key=lambda pieces: _order(pieces[0])):
        for run in runs:
            if _continues(run[-1], launch):
                run.append(launch)
                break
        else:
            runs.append([launch])
    return [Group(launches=tuple(run)) for run in runs]


def _family(path: Path) -> str:
    """The name without its place in a rotation."""
    text = path.as_posix()
    if found := _RANKED.match(text):
        return found[1]
    return _ROTATED.sub("", text)


def _order(piece: Piece) -> tuple[float, float, str]:
    rest = piece.iteration if piece.iteration is not None else float("inf")
    return (piece.first if piece.first is not None else float("inf"), rest, str(piece.path))


def _continues(one: Sequence[Piece], other: Sequence[Piece]) -> bool:
    """Launches of one run: the same job by its own words, one after the other, taken up again."""
    if not any(piece.resumes for piece in other) or not _job(one) or _job(one) != _job(other):
        return False
    end, start = one[-1].last, other[0].first
    return end is not None and start is not None and start >= end


def _job(launch: Sequence[Piece]) -> tuple[str, ...]:
    return next((piece.job for piece in launch if piece.job), ())
