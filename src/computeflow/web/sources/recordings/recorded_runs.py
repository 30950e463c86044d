"""`RecordingOpening`: run folders of `computeflow record`, or anything else that `audit` reads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from computeflow.answers.audits import AuditAnswer, audit
from computeflow.answers.run_histories import RunsAnswer
from computeflow.auditing.run_history import RunHistory, RunRanks, RunRow, read_history
from computeflow.economics import GpuPrice, find_price, usd_per_hour
from computeflow.errors import ComputeFlowError, InputError, UnknownNameError
from computeflow.files.limits import FILES, RUN_BYTES
from computeflow.files.names import shown_whole
from computeflow.telemetry.opening import read_head
from computeflow.telemetry.recording_files import ENDINGS
from computeflow.telemetry.run_folders.attempt_time import AttemptTime
from computeflow.telemetry.run_folders.run_folder_source import (
    find_run_folders,
    has_begun,
    rank_files_of,
    read_run,
)
from computeflow.telemetry.source_registry import holds_recording
from computeflow.telemetry.source_reports import SourceRequest
from computeflow.telemetry.trace_formats import format_of, read_rank
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.web.sources.opening import AuditOptions, Kind, RunLine, Table
from computeflow.web.sources.reading_curves import ReadingCurves, recorded_memory
from computeflow.web.sources.recordings.recording_state import RecordingState, look_at
from computeflow.web.sources.recordings.traced_spans import traced_spans
from computeflow.web.sources.remembered import Remembered, file_stamp
from computeflow.web.sources.step_spans import StepSpans, recorded_spans
from computeflow.web.sources.step_table import AttemptColumns, StepTable

T = TypeVar("T")
_MAX_READ = 4
"""Runs of which all columns are kept: those of a large one are hundreds of megabytes."""
_AS_IT_RUNS = "as it runs, without the profiler"
_UNIX_NANOSECONDS = 10**18
"""September 2001: no machine has run for so long."""
_CELLS, _CELLS_A_ROW = 8_000_000, 4
"""Cells of a table of ranks and steps, at most, or so many for each step that there is: ranks of one
run make the same steps, and a file that says otherwise must not fill the memory."""
_ONE_ATTEMPT = 0
"""The number of the attempt of a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadRun:
    """A run in the history, what of it was left out, and where its ranks were."""

    row: RunRow | None = None
    left_out: tuple[str, ...] = ()
    ranks: RunRanks | None = None


class RecordingOpening:
    kind: Kind = "recording"

    def __init__(self, path: Path, options: AuditOptions) -> None:
        self.path, self._options = path, options
        self._rows, self._audits = Remembered(FILES), Remembered()
        self._columns, self._tables = Remembered(_MAX_READ), Remembered(_MAX_READ)
        self._drawn, self._beside = Remembered(), Remembered(1)
        self._places: dict[str, Path] = {}

    def revision(self) -> Hashable:
        if not self.path.exists():
            raise InputError(f"{self.path}: there is no such file or folder any more")
        folders = self._folders()
        return tuple(map(look_at, folders or [self.path])), self._traces_beside(folders)

    def runs(self) -> list[RunLine]:
        folders = self._folders()
        if not folders:
            answer = self._audit(self.path)
            return [] if answer is None else [self._traced_line(answer)]
        states = [state for path in folders if not (state := look_at(path)).unread_reason]
        read = [(state.path, self._row(state).row) for state in states]
        found = [(path, row) for path, row in read if row is not None]
        return [self._line(*each) for each in sorted(found, key=lambda each: -each[1].start)]

    def runs_answer(self) -> RunsAnswer | None:
        left_out: list[str] = []
        folders = self._folders(left_out)
        if not folders:
            return None
        states = [look_at(path) for path in folders]
        read = [self._row(state) for state in states if not state.unread_reason]
        left_out += (note for each in read for note in each.left_out)
        left_out += (state.unread_reason for state in states if state.unread_reason)
        left_out += self._traces_beside(folders)
        rows = [each.row for each in read if each.row is not None]
        history = RunHistory(
            rows=tuple(sorted(rows, key=lambda row: -row.start)),
            against=None,
            left_out=tuple(left_out),
        )
        return RunsAnswer(folder=str(self.path), history=history, price=self._price)

    def audit(self, run: str) -> AuditAnswer | None:
        return self._audit(self._find(run))

    def top(self) -> None:
        return None

    def actions(self) -> None:
        return None

    def steps(self, run: str) -> StepTable | None:
        path = self._find(run)
        return _read(self._tables, look_at(path), path, lambda: self._steps(path))

    def spans(self, run: str, step: int, most: int, attempt: int | None = None) -> StepSpans | None:
        path = self._find(run)
        attempts = self._attempts(path)
        if attempts:
            return recorded_spans(attempts, step, most, attempt)
        if attempt not in (None, _ONE_ATTEMPT):
            return None
        return _read(
            self._drawn, look_at(path), (path, step, most), lambda: self._traced(path, step, most)
        )

    def _traced(self, path: Path, step: int, most: int) -> StepSpans | None:
        answer = self._audit(path)
        if answer is None or answer.report.traces is None:
            return None
        report = answer.report
        return traced_spans(report.traces, report.request.trace, step, most, read_rank)

    def ranks(self, run: str) -> RunRanks | None:
        path = self._find(run)
        return self._row(look_at(path)).ranks if rank_files_of(path) else None

    def readings(self, run: str) -> ReadingCurves | None:
        return recorded_memory(self._attempts(self._find(run)))

    def left_out(self, run: str | None, *_: Table) -> list[str]:
        answer = self.runs_answer() if run is None else None
        if answer is not None:
            return [*answer.history.left_out]
        path = self.path if run is None else self._find(run)
        if rank_files_of(path):
            return [*self._row(look_at(path)).left_out]
        audited = self._audit(path)
        return [] if audited is None else audited.to_dict()["left_out"]

    def _attempts(self, path: Path) -> list[AttemptTime]:
        """What every rank did, step by step; nothing where the source is not a run folder."""
        return _read(self._columns, look_at(path), path, lambda: _attempts(path))

    def _steps(self, path: Path) -> StepTable | None:
        attempts = self._attempts(path)
        if attempts:
            return _recorded_steps(attempts)
        answer = self._audit(path)
        traces = None if answer is None else answer.report.traces
        return None if traces is None else _traced_steps(traces)

    def _folders(self, left_out: list[str] | None = None) -> list[Path]:
        """Those of runs; none where the whole is one recording, whatever its files are."""
        notes = [] if left_out is None else left_out
        return find_run_folders(self.path, notes) if self.path.is_dir() else []

    def _traces_beside(self, folders: Sequence[Path]) -> tuple[str, ...]:
        """A note where traces lie beside runs, not in one."""
        if not folders or self.path in folders:
            return ()
        places = {self.path, *(folder.parent for folder in folders)}
        files = [file for place in sorted(places) for file in _files_in(place)]
        files = sorted(file for file in files if file.name.endswith(ENDINGS))
        stamp = tuple((str(file), *file_stamp(file)) for file in files)
        if not self._beside.get(self.path, stamp, lambda: any(map(_is_trace, files))):
            return ()
        return (f"{self.path}: traces beside the runs are not shown; serve their folder alone",)

    def _find(self, run: str) -> Path:
        """Its place; all folders are only gone through where it is new or gone."""
        path = self._places.get(run)
        if path is None or not path.exists():
            self._places = {self._id(path): path for path in self._folders() or [self.path]}
        if run not in self._places:
            raise UnknownNameError("run", run, self._places)
        return self._places[run]

    def _audit(self, path: Path) -> AuditAnswer | None:
        if _is_empty(path) or _only_begun(path):
            return None
        words = self._options.audit_words
        return _read(self._audits, look_at(path), path, lambda: audit(path, **words))

    def _row(self, state: RecordingState) -> _ReadRun:
        return _read(self._rows, state, state.path, lambda: self._read_row(state.path))

    def _read_row(self, folder: Path) -> _ReadRun:
        try:
            usd = None if self._price is None else self._price.usd
            history = read_history(folder, self._request, usd_per_gpu_hour=usd)
        except ComputeFlowError as error:
            return _ReadRun(left_out=(str(error),))
        (row,) = history.rows
        return _ReadRun(row=row, left_out=history.left_out, ranks=history.ranks[row.folder])

    @cached_property
    def _request(self) -> SourceRequest:
        return self._options.request().asked

    @cached_property
    def _price(self) -> GpuPrice | None:
        if self._options.price is None:
            return None
        return find_price(self._options.price, self._request.catalog, self._options.device)

    def _id(self, folder: Path) -> str:
        """Its place below the served folder: a link and what it points to are two runs.

        One that ends in `.json`, as addresses of JSON do, gets a slash.
        """
        own = folder == self.path
        place = shown_whole(folder.resolve().name if own else str(folder.relative_to(self.path)))
        return f"{place}/" if place.endswith(".json") else place

    def _line(self, folder: Path, row: RunRow) -> RunLine:
        return RunLine(
            id=self._id(folder),
            name=shown_whole(row.name),
            state=row.state,
            gpus=row.ranks,
            device=row.device,
            started=row.start,
            updated=row.start + row.wall_seconds,
            step=row.steps,
            step_seconds=row.step_seconds,
            tokens_per_second=row.tokens_per_second,
            mfu=row.mfu,
            mfu_palm=row.mfu_palm,
            peak_precision=row.peak_precision,
            goodput=row.goodput,
            restarts=row.restarts,
            usd_per_hour=self._usd(row.ranks),
        )

    def _traced_line(self, answer: AuditAnswer) -> RunLine:
        report = answer.report
        ledger = report.shown_ledger
        rank = report.traces.ranks[0] if report.traces is not None else None
        running = None if report.diagnosis is None else report.diagnosis.as_it_runs
        times = rank.step_seconds if rank is not None else ()
        step = float(np.median(times)) if times else None
        return RunLine(
            id=self._id(self.path),
            name=shown_whole(self.path.name),
            state="recorded",
            gpus=ledger.gpus if ledger is not None else 0,
            device=rank.device if rank is not None else "",
            started=None if rank is None else _start_of(rank.window_start),
            updated=self.path.stat().st_mtime,
            step=len(rank.steps) if rank is not None else 0,
            step_seconds=step if running is None else running.step_seconds,
            step_seconds_recorded=None if running is None else running.step_seconds_recorded,
            basis="whole recording" if running is None else _AS_IT_RUNS,
            tokens_per_second=None,
            mfu=None if ledger is None else ledger.mfu,
            mfu_palm=None if ledger is None else ledger.mfu_palm,
            peak_precision="" if ledger is None or ledger.peak is None else ledger.peak.precision,
            goodput=None,
            restarts=0,
            usd_per_hour=None if ledger is None else self._usd(ledger.gpus),
        )

    def _usd(self, gpus: int) -> float | None:
        price = self._options.price
        return None if price is None else usd_per_hour(gpus, 1.0, price)


def _start_of(nanoseconds: int) -> float | None:
    """Unix time of a trace's first step; None where its clock is another one, such as since boot."""
    return nanoseconds / 1e9 if nanoseconds > _UNIX_NANOSECONDS else None


def _read(memory: Remembered, state: RecordingState, key: Hashable, make: Callable[[], T]) -> T:
    """What is made of a recording, once for each of its states; a link of another user that is put into
    it meanwhile shows nothing either.
    """

    def make_and_look() -> T:
        made = make()
        _refuse_unread(look_at(state.path))
        return made

    _refuse_unread(state)
    return memory.get(key, state, make_and_look)


def _refuse_unread(state: RecordingState) -> None:
    if state.unread_reason:
        raise InputError(state.unread_reason)


def _is_empty(path: Path) -> bool:
    """Whether it is a folder with nothing in it; InputError where it cannot be looked into."""
    try:
        return path.is_dir() and not any(path.iterdir())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _only_begun(path: Path) -> bool:
    """Whether it is a run of which no rank has written yet."""
    return has_begun(path) and not holds_recording(path)


def _files_in(folder: Path) -> list[Path]:
    """None where the folder is gone meanwhile."""
    try:
        return [*islice(folder.iterdir(), FILES)]
    except OSError:
        return []


def _is_trace(file: Path) -> bool:
    try:
        return format_of(file, read_head(file)) is not None
    except ComputeFlowError:
        return False


def _attempts(path: Path) -> list[AttemptTime]:
    files = rank_files_of(path) if path.is_dir() else []
    return read_run(files, max(RUN_BYTES // len(files), 1), []) if files else []


def _recorded_steps(attempts: list[AttemptTime]) -> StepTable | None:
    """None where no rank has ended a step yet."""
    attempts = [each for each in attempts if any(len(rank.steps.number) for rank in each.ranks)]
    if not attempts:
        return None
    ranks = sorted({rank.rank for attempt in attempts for rank in attempt.ranks})
    row = {rank: index for index, rank in enumerate(ranks)}
    numbers: list[int] = []
    begins: list[AttemptColumns] = []
    parts: list[Any] = []
    for attempt in attempts:
        found = np.unique(np.concatenate([each.steps.number for each in attempt.ranks]))
        _check_size(attempt, len(ranks) * len(found))
        table = np.full((2, len(ranks), len(found)), np.nan)
        for each in attempt.ranks:
            columns = np.searchsorted(found, each.steps.number)
            table[0, row[each.rank], columns] = (each.steps.end - each.steps.begin) / 1e6
            table[1, row[each.rank], columns] = each.own / 1e6
        begins.append(
            AttemptColumns(
                number=attempt.number,
                column=len(numbers),
                first=int(found[0]),
                last=int(found[-1]),
            )
        )
        numbers += found.tolist()
        parts.append(table)
    joined = np.concatenate(parts, axis=2)
    missing = next((each.waits_missing for each in attempts if each.waits_missing), "")
    return StepTable(
        ranks=tuple(ranks),
        steps=tuple(numbers),
        seconds=joined[0],
        own_seconds=None if missing else joined[1],
        waits_missing=missing,
        attempts=tuple(begins),
    )


def _check_size(attempt: AttemptTime, cells: int) -> None:
    rows = sum(len(each.steps.number) for each in attempt.ranks)
    if cells > max(_CELLS, _CELLS_A_ROW * rows):
        raise InputError(
            f"attempt {attempt.number + 1}: its {len(attempt.ranks):,} ranks have too few steps in "
            "common to be shown side by side"
        )


def _traced_steps(traces: TracedJob) -> StepTable | None:
    steps = sorted({step for rank in traces.ranks for step in rank.steps})
    if not steps:
        return None
    table = np.full((len(traces.ranks), len(steps)), np.nan)
    for row, rank in enumerate(traces.ranks):
        table[row, np.searchsorted(steps, rank.steps)] = rank.step_seconds
    return StepTable(
        ranks=tuple(rank.rank for rank in traces.ranks),
        steps=tuple(steps),
        seconds=table,
        waits_missing="a trace has only steps with their waits",
        attempts=(AttemptColumns(number=_ONE_ATTEMPT, column=0, first=steps[0], last=steps[-1]),),
    )
