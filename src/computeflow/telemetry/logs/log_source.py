"""`LogSource`: logs of training frameworks and of collective benchmarks, as `SourceReport`."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from computeflow.files.limits import LOG_HEAD_BYTES
from computeflow.telemetry.logs import tables
from computeflow.telemetry.logs.framework_lines import Parser
from computeflow.telemetry.logs.learned_lines import LearnedLines, learn
from computeflow.telemetry.logs.line_events import (
    Event,
    Launch,
    LinePosition,
    SettingLine,
    StepLine,
)
from computeflow.telemetry.logs.line_times import LineClock
from computeflow.telemetry.logs.log_ledger import build_ledger
from computeflow.telemetry.logs.log_lines import LogLine, read
from computeflow.telemetry.logs.nccl_tests import Benchmark
from computeflow.telemetry.logs.run_files import Piece, RunFiles, group
from computeflow.telemetry.logs.run_log import RunLog
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest

_MARKS = re.compile(
    rb":::MLLOG |elapsed time per iteration \(ms\):|using world size: \d|time_per_iteration_ms: "
    rb"|train_step_timing in s: |completed step: \d{1,15}, seconds: |\[titan\] \d{4}-"
    rb"|step:\s{1,20}[\d,]{1,20}\s{1,20}(?:\x1b\[\d{1,3}m)?loss:"
    rb"|iter time \(s\): [\d.]{1,20} samples/sec|dist_world_size=\d"
    rb"|\{'(?:loss|eval_loss|train_runtime)': [^{\n]*'epoch': "
    rb"|(?<!\d)\d{1,3}%\|[^|\n\r]{0,1000}\| {0,8}\d{1,15}/\d{1,15} \[[\d:]{1,20}<"
    rb"|(?:^|\n)iter \d{1,15}: loss [^\n]{1,40}, time [\d.]{1,20}ms"
    rb"|\*\*\*\*\* Running training \*\*\*\*\*|Watchdog caught collective operation timeout"
    rb"|elastic\.multiprocessing\.errors\.ChildFailedError|torch\.(?:cuda\.)?OutOfMemoryError"
)
_BENCHMARKS = re.compile(
    rb"# +size +count +type|# nThread \d{1,9} nGpus \d{1,9} minBytes|\d data size: [\d.]{1,20} GB\s"
)
_COUNTED = re.compile(rb"(?i)loss|step|iter|epoch|batch|update|it/s|s/it|\d/\d")
"""Words of which a step line of unknown format has at least one."""
_Dated = tuple[float, Piece, LogLine, tuple[float, bool] | None]


class LogSource:
    kind = "log"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a framework's mark is in the first megabyte: scripts print much before it starts."""
        if b"\x00" in head[:512]:
            return False
        if tables.is_trainer_state(head) or tables.is_metrics_csv(head):
            return True
        if head.lstrip()[:1] == b"{" and b"{'" not in head[:2]:  # JSON is of other kinds
            return bool(_MARKS.match(head)) or _is_learned(path, head)
        whole = head_of(path, LOG_HEAD_BYTES)
        return _is_marked(head) or _is_marked(whole) or _is_learned(path, whole)

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        logs: list[Path] = []
        reports: list[SourceReport] = []
        for path in paths:
            head = head_of(path, LOG_HEAD_BYTES)
            if _BENCHMARKS.search(head):
                reports.append(_benchmark(path))
                if _MARKS.search(head):  # a check before training starts
                    logs.append(path)
            elif tables.is_trainer_state(head):
                reports += _summaries(_table_log(tables.trainer_state(path), path), request, [], [])
            elif tables.is_metrics_csv(head):
                broken: list[str] = []
                reports += _summaries(
                    _table_log(tables.metrics_csv(path, broken), path), request, broken, []
                )
            else:
                logs.append(path)
        for run in group(logs):
            reports += _observe(run, request)
        return reports


def _is_learned(path: Path, head: bytes) -> bool:
    """Whether lines count steps; a JSON document is no log, one object a line may be."""
    first = head.lstrip().partition(b"\n")[0].rstrip()
    if first[:1] in (b"{", b"[") and first[-1:] in (b"{", b"[", b","):
        return False
    return bool(_COUNTED.search(head)) and learn(read(path, [])) is not None


def _is_marked(text: bytes) -> bool:
    return bool(_MARKS.search(text) or _BENCHMARKS.search(text))


def _benchmark(path: Path) -> SourceReport:
    broken: list[str] = []
    benchmark = Benchmark(str(path))
    benchmark.read(_raw(path, broken))
    facts = benchmark.facts()
    if not facts.rows:
        broken.append(f"{path}: a benchmark's header without figures")
    if benchmark.more:
        broken.append(f"{path}: {benchmark.more:,} further lines of figures")
    return SourceReport(
        kind=LogSource.kind,
        sources=(str(path),),
        facts=facts,
        ledger_reason="a benchmark of collectives, not a training run",
        left_out=tuple(broken),
    )


def _raw(path: Path, broken: list[str]) -> Iterator[str]:
    """Lines with the leading number that `log_lines` takes for a task's."""
    for line in read(path, broken):
        yield f"{line.stream} {line.text}" if line.stream else line.text


def _table_log(events: Iterator[tuple[Event, LinePosition]], path: Path) -> list[RunLog]:
    log = RunLog()
    log.files.append(str(path))
    log.take(Launch(), LinePosition(file=str(path), line=1))
    for event, place in events:
        log.lines = max(log.lines, place.line)
        log.take(event, place)
    if log.stated_seconds and not log.timeline.seen:
        log.spread_steps(log.stated_seconds)
    return [log]


def _observe(run: RunFiles, request: SourceRequest) -> list[SourceReport]:
    broken: list[str] = []
    strong = any(piece.strong for piece in run.pieces)
    logs = [RunLog()]
    for index, launch in enumerate(run.launches):
        if index:
            logs[-1].leave_gap()
        _read_launch(launch, logs, request, broken, strong)
    notes = []
    if len(run.launches) > 1:
        notes.append(f"{len(run.launches)} launches of one run: they save to the same folder")
    return _summaries(logs, request, broken, notes)


def _read_launch(
    launch: Sequence[Piece],
    logs: list[RunLog],
    request: SourceRequest,
    broken: list[str],
    strong: bool,
) -> None:
    parsers = {piece.path: _PieceParser(piece) for piece in launch}
    for now, piece, line, stamp in _lines_of(launch, broken):
        if not request.covers(now):
            continue
        log, parser = logs[-1], parsers[piece.path]
        log.read_line(str(piece.path))
        event = parser.event(line.text, line.stream)
        if strong and isinstance(event, StepLine) and event.weak:
            event = None
        if parser.starts is not None and not log.stepped and isinstance(event, StepLine):
            log.take(Launch(after=parser.starts), _place(piece, line, None))
        if log.is_over and _is_launch(event):
            logs.append(log := RunLog())
            log.files.append(str(piece.path))
        if event is not None or stamp is not None:
            log.take(event, _place(piece, line, stamp))
            log.settings.framework = parser.framework or log.settings.framework
            log.learned = log.learned or parser.learned


class _PieceParser:
    """Events of a file's lines: of known frameworks, and of the step lines learned from it."""

    def __init__(self, piece: Piece) -> None:
        self._parser = Parser()
        self._lines = None if piece.learned is None else LearnedLines(piece.learned)
        self.learned = () if piece.learned is None else piece.learned.shown
        self.starts = None if piece.learned is None else piece.learned.starts_after

    @property
    def framework(self) -> str:
        return "" if self._lines else self._parser.framework

    def event(self, text: str, stream: str) -> Event | None:
        event = self._parser.event(text, stream)
        if self._lines is None or (event is not None and not isinstance(event, StepLine)):
            return event
        return self._lines.event(text)


def _lines_of(launch: Sequence[Piece], broken: list[str]) -> Iterator[_Dated]:
    """Lines of rotated files one after the other; lines of ranks' files merged by time."""
    files = [_dated(piece, broken) for piece in launch]
    if any(piece.rank is not None for piece in launch):
        return heapq.merge(*files, key=lambda item: item[0])
    return chain.from_iterable(files)


def _is_launch(event: Event | None) -> bool:
    return isinstance(event, Launch) or (isinstance(event, SettingLine) and event.launch)


def _place(piece: Piece, line: LogLine, stamp: tuple[float, bool] | None) -> LinePosition:
    rank = line.rank if line.rank is not None else piece.rank
    stream = f"{piece.rank}/{line.stream}" if piece.rank is not None else line.stream
    seconds, dated = stamp if stamp else (None, True)
    return LinePosition(
        file=str(piece.path),
        line=line.number,
        rank=rank,
        node=line.node,
        stream=stream,
        seconds=seconds,
        dated=dated,
    )


def _dated(piece: Piece, broken: list[str]) -> Iterator[_Dated]:
    """Lines with the latest time so far, and with their own time."""
    clock = LineClock()
    for line in read(piece.path, broken):
        stamp = clock.take(line.text)
        yield clock.now, piece, line, stamp


def _summaries(
    logs: list[RunLog], request: SourceRequest, broken: list[str], notes: list[str]
) -> list[SourceReport]:
    reports = []
    for log in logs:
        if len(logs) > 1 and not log.stepped and not log.journal.happenings:
            continue
        run = log.summary()
        ledger, reason, ledger_notes = build_ledger(log, run, request)
        reports.append(
            SourceReport(
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
                notes=(*notes, *ledger_notes),
            )
        )
    return reports
