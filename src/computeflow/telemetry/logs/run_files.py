"""Log files grouped into runs, in order.

Files are one run where their names are those of one rotated file (`train.log.1.gz`, `train.log`) or
of one launch's ranks (`attempt_0/3/stdout.log`), or where they say that they save to the same folder
with the same world size, and a later one resumes a checkpoint: launches of one run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path

from computeflow.files.limits import LOG_HEAD_LINES, LOG_TAIL_BYTES
from computeflow.telemetry.logs.framework_lines import Parser
from computeflow.telemetry.logs.learned_lines import LearnedFormat, learn
from computeflow.telemetry.logs.line_events import Checkpoint, Event, SettingLine, StepLine
from computeflow.telemetry.logs.line_times import line_time
from computeflow.telemetry.logs.log_lines import read
from computeflow.telemetry.opening import tail_of

_ROTATED = re.compile(r"(?:\.\d{1,4}|[.-]\d{8}(?:-\d+)?|\.\d{4}-\d\d-\d\d\S{0,9})?(?:\.gz)?$")
_RANKED = re.compile(r"(.*/attempt_\d+)/(\d+)/(?:stdout|stderr)\.log$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A log file, with what its beginning and its end state."""

    path: Path
    first: float | None
    last: float | None
    iteration: int | None
    job: tuple[str, ...]
    """Settings that identify its run; empty where they are not stated."""
    rank: int | None = None
    resumes: bool = False
    """Whether it loads a checkpoint before its first step."""
    strong: bool = False
    """Whether it has better step lines than progress bars."""
    learned: LearnedFormat | None = None
    """The format of its step lines, where no known framework wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The files of one run: launches in order, and the rotated or per-rank files of each."""

    launches: tuple[tuple[Piece, ...], ...]

    @property
    def pieces(self) -> list[Piece]:
        return [piece for launch in self.launches for piece in launch]


@dataclass(slots=True)
class _Head:
    """The beginning of a file, up to its first step."""

    first: float | None = None
    iteration: int | None = None
    resumes: bool = False
    strong: bool = False
    weak: bool = False
    by_epoch: bool = False
    """Whether its progress bars name their epoch."""
    settings: dict[str, str] = field(default_factory=dict)

    def take(self, text: str, event: Event | None) -> None:
        self.first = self.first or _time(text)
        match event:
            case SettingLine():
                self.settings |= event.values
            case Checkpoint(phase="loaded") if self.iteration is None:
                self.resumes = bool(event.iteration)
            case StepLine() if event.iteration >= 0:
                self.iteration = event.iteration if self.iteration is None else self.iteration
                self.strong = self.strong or not event.weak
                self.weak = self.weak or event.weak
                self.by_epoch = self.by_epoch or event.bar.startswith("Epoch")

    @property
    def job(self) -> tuple[str, ...]:
        job = tuple(self.settings.get(n, "") for n in ("save", "world_size", "layers", "hidden"))
        return job if job[0] and job[1] else ()


def look(path: Path) -> Piece:
    parser, head = Parser(), _Head()
    for line in islice(read(path, []), LOG_HEAD_LINES):
        head.take(line.text, parser.event(line.text, line.stream))
        if head.strong and head.first is not None:
            break
    learned = None if head.strong else _learn(path, head)
    ranked = _RANKED.match(path.as_posix())
    return Piece(
        path=path,
        first=head.first,
        last=_last_time(path),
        iteration=head.iteration,
        job=head.job,
        rank=int(ranked[2]) if ranked else None,
        resumes=head.resumes,
        strong=head.strong or learned is not None,
        learned=learned,
    )


def _learn(path: Path, head: _Head) -> LearnedFormat | None:
    """The format of the step lines; a known bar is left for lines that tell more than it does."""
    learned = learn(read(path, []))
    if learned is None or not head.weak:
        return learned
    more = not learned.is_bar or (learned.by_epoch and not head.by_epoch)
    return learned if learned.is_timed and more else None


def _time(text: str) -> float | None:
    stamp = line_time(text)
    return stamp[0] if stamp else None


def _last_time(path: Path) -> float | None:
    """The last time in a plain file; None for a compressed one, whose end is slow to reach."""
    lines = tail_of(path, LOG_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    return next((stamp for line in reversed(lines) if (stamp := _time(line))), None)


def group(paths: Sequence[Path]) -> list[RunFiles]:
    named: dict[str, list[Piece]] = {}
    for path in paths:
        named.setdefault(_family(path), []).append(look(path))
    launches = [tuple(sorted(pieces, key=_order)) for pieces in named.values()]
    runs = _Runs()
    for launch in sorted(launches, key=lambda pieces: _order(pieces[0])):
        runs.add(launch)
    return [RunFiles(launches=tuple(run)) for run in runs.runs]


@dataclass(slots=True)
class _Runs:
    """Launches in order of time, joined where they are one run: the same stated settings, one after
    the other, resumed from a checkpoint.
    """

    runs: list[list[tuple[Piece, ...]]] = field(default_factory=list)
    _going: dict[tuple[str, ...], list[tuple[float, int]]] = field(default_factory=dict)
    """Ends of runs with their indices in `runs`, by job; earliest end first."""
    _ended: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    """Indices of runs that ended before the last launch started, by job; lowest first."""

    def add(self, launch: tuple[Piece, ...]) -> None:
        job = next((piece.job for piece in launch if piece.job), ())
        index = self._before(job, launch)
        if index is None:
            index = len(self.runs)
            self.runs.append([])
        self.runs[index].append(launch)
        end = launch[-1].last
        if job and end is not None:
            heappush(self._going.setdefault(job, []), (end, index))

    def _before(self, job: tuple[str, ...], launch: Sequence[Piece]) -> int | None:
        """Index of the first run that this launch continues."""
        start = launch[0].first
        if start is None or not job or not any(piece.resumes for piece in launch):
            return None
        going, ended = self._going.get(job, []), self._ended.setdefault(job, [])
        while going and going[0][0] <= start:
            heappush(ended, heappop(going)[1])
        return heappop(ended) if ended else None


def _family(path: Path) -> str:
    """The path without its suffix of rotation; the launch folder of a rank's file."""
    text = path.as_posix()
    if match := _RANKED.match(text):
        return match[1]
    return _ROTATED.sub("", text)


def _order(piece: Piece) -> tuple[float, float, str]:
    rest = piece.iteration if piece.iteration is not None else float("inf")
    return (piece.first if piece.first is not None else float("inf"), rest, str(piece.path))
