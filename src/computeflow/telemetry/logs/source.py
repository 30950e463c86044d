"""`LogSource`: logs of training frameworks and of collective benchmarks, as `Observed`."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from computeflow.telemetry.logs import tables
from computeflow.telemetry.logs.bandwidth import Benchmark
from computeflow.telemetry.logs.book import build_ledger
from computeflow.telemetry.logs.clock import LineClock
from computeflow.telemetry.logs.events import Event, Launch, Place, Setting, Step
from computeflow.telemetry.logs.frameworks import Parser
from computeflow.telemetry.logs.grouping import Group, Piece, group
from computeflow.telemetry.logs.reading import Line, read
from computeflow.telemetry.logs.run_log import RunLog
from computeflow.telemetry.observed import Asked, Observed
from computeflow.telemetry.opening import head_of

_LOOK_FURTHER = 1 << 20
_MARKS = re.compile(
    rb":::MLLOG |elapsed time per iteration \(ms\):|using world size: \d|time_per_iteration_ms: "
    rb"|train_step_timing in s: |completed step: \d{1,15}, seconds: |\[titan\] \d{4}-"
    rb"|step:\s{1,20}[\d,]{1,20}\s{1,20}(?:\x1b\[\d{1,3}m)?loss:"
    rb"|iter time \(s\): [\d.]{1,20} samples/sec|dist_world_size=\d"
    rb"|\{'(?:loss|eval_loss|train_runtime)': [^{\n]*'epoch': "
    rb"|(?<!\d)\d{1,3}%\|[^|\n\r]{0,1000}\| {0,8}\d{1,15}/\d{1,15} \[[\d:]{1,20}<"
    rb"|\*\*\*\*\* Running training \*\*\*\*\*|Watchdog caught collective operation timeout"
    rb"|elastic\.multiprocessing\.errors\.ChildFailedError|torch\.(?:cuda\.)?OutOfMemoryError"
)
_BENCHMARKS = re.compile(
    rb"# +size +count +type|# nThread \d{1,9} nGpus \d{1,9} minBytes|\d data size: [\d.]{1,20} GB\s"
)
_Dated = tuple[float, Piece, Line, tuple[float, bool] | None]


class LogSource:
    kind = "log"

    def recognises(self, path: Path, head: bytes) -> bool:
        """By a mark of some framework in its first megabyte: scripts print much before it starts."""
        if b"\x00" in head[:512]:
            return False
        if tables.is_trainer_state(head) or tables.is_metrics_csv(head):
            return True
        if head.lstrip()[:1] == b"{" and b"{'" not in head[:2]:  # JSON is of other kinds
            return bool(_MARKS.match(head))
        return _is_marked(head) or _is_marked(head_of(path, _LOOK_FURTHER))

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        logs: list[Path] = []
        found: list[Observed] = []
        for path in paths:
            head = head_of(path, _LOOK_FURTHER)
            if _BENCHMARKS.search(head):
                found.append(_benchmark(path))
                if _MARKS.search(head):  # a check before training starts
                    logs.append(path)
            elif tables.is_trainer_state(head):
                found += _summaries(_of_table(tables.trainer_state(path), path), asked, [], [])
            elif tables.is_metrics_csv(head):
                broken: list[str] = []
                found += _summaries(
                    _of_table(tables.metrics_csv(path, broken), path), asked, broken, []
                )
            else:
                logs.append(path)
        for run in group(logs):
            found += _observe(run, asked)
        return found


def _is_marked(text: bytes) -> bool:
    return bool(_MARKS.search(text) or _BENCHMARKS.search(text))


def _benchmark(path: Path) -> Observed:
    broken: list[str] = []
    benchmark = Benchmark(str(path))
    benchmark.read(_raw(path, broken))
    facts = benchmark.facts()
    if not facts.rows:
        broken.append(f"{path}: a benchmark's header without figures")
    if benchmark.more:
        broken.append(f"{path}: {benchmark.more:,} further lines of figures")
    return Observed(
        kind=LogSource.kind,
        sources=(str(path),),
        facts=facts,
        ledger_reason="a benchmark of collectives, not a training run",
        left_out=tuple(broken),
    )


def _raw(path: Path, broken: list[str]) -> Iterator[str]:
    """Lines with the number that `reading` takes for a task's."""
    for line in read(path, broken):
        yield f"{line.stream} {line.text}" if line.stream else line.text


def _of_table(events: Iterator[tuple[Event, Place]], path: Path) -> list[RunLog]:
    log = RunLog()
    log.files.append(str(path))
    log.take(Launch(), Place(file=str(path), line=1))
    for event, place in events:
        log.lines = max(log.lines, place.line)
        log.take(event, place)
    if log.stated_seconds and not log.timeline.seen:
        log.spread_steps(log.stated_seconds)
    return [log]


def _observe(run: Group, asked: Asked) -> list[Observed]:
    broken: list[str] = []
    strong = any(piece.strong for piece in run.pieces)
    logs = [RunLog()]
    for number, launch in enumerate(run.launches):
        if number:
            logs[-1].leave_gap()
        _read_launch(launch, logs, asked, broken, strong)
    notes = []
    if len(run.launches) > 1:
        notes.append(f"{len(run.launches)} launches of one run: they save to the same place")
    return _summaries(logs, asked, broken, notes)


def _read_launch(
    launch: Sequence[Piece], logs: list[RunLog], asked: Asked, broken: list[str], strong: bool
) -> None:
    parsers = {piece.path: Parser() for piece in launch}
    for now, piece, line, stamp in _lines_of(launch, broken):
        if not asked.covers(now):
            continue
        log, parser = logs[-1], parsers[piece.path]
        log.read_line(str(piece.path))
        event = parser.event(line.text, line.stream)
        if strong and isinstance(event, Step) and event.weak:
            event = None
        if log.is_over and _launches(event):
            logs.append(log := RunLog())
            log.files.append(str(piece.path))
        if event is not None or stamp is not None:
            log.take(event, _place(piece, line, stamp))
            log.settings.framework = parser.framework or log.settings.framework


def _lines_of(launch: Sequence[Piece], broken: list[str]) -> Iterator[_Dated]:
    """Rotated files one after the other; files of ranks side by side, by their times."""
    files = [_dated(piece, broken) for piece in launch]
    if any(piece.rank is not None for piece in launch):
        return heapq.merge(*files, key=lambda item: item[0])
    return chain.from_iterable(files)


def _launches(event: Event | None) -> bool:
    return isinstance(event, Launch) or (isinstance(event, Setting) and event.launch)


def _place(piece: Piece, line: Line, stamp: tuple[float, bool] | None) -> Place:
    rank = line.rank if line.rank is not None else piece.rank
    stream = f"{piece.rank}/{line.stream}" if piece.rank is not None else line.stream
    seconds, dated = stamp if stamp else (None, True)
    return Place(
        file=str(piece.path),
        line=line.number,
        rank=rank,
        node=line.node,
        stream=stream,
        seconds=seconds,
        dated=dated,
    )


def _dated(piece: Piece, broken: list[str]) -> Iterator[_Dated]:
    """Lines with the time that they were written at or after, and their own time."""
    clock = LineClock()
    for line in read(piece.path, broken):
        stamp = clock.take(line.text)
        yield clock.now, piece, line, stamp


def _summaries(
    logs: list[RunLog], asked: Asked, broken: list[str], notes: list[str]
) -> list[Observed]:
    found = []
    for log in logs:
        if len(logs) > 1 and not log.stepped and not log.journal.happenings:
            continue
        run = log.summary()
        ledger, reason, how = build_ledger(log, run, asked)
        found.append(
            Observed(
                kind=LogSource.kind,
                sources=run.files,
                facts=run,
                ledger=ledger,
                ledger_reason=reason,
                happenings=tuple(log.journal.happenings),
                left_out=(
                    *broken,
                    *(f"{n:,} further {what}" for what, n in log.journal.left.items()),
                ),
                notes=(*notes, *how),
            )
        )
    return found
