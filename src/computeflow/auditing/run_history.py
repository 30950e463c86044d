"""Recorded runs one below the other: `read_history`, and one run against another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from computeflow.economics import usd_of
from computeflow.errors import ComputeFlowError, InputError, UnknownNameError
from computeflow.ledger import goodput_of
from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.telemetry.run_folders.run_folder_source import find_run_folders, read_run_folder
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from computeflow.units import HOUR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One recorded run in a history."""

    name: str
    folder: str
    start: float
    """Unix time."""
    wall_seconds: float
    state: str
    ranks: int
    device: str
    """Its GPU's name; "cpu" where the host computed."""
    steps: int
    """Steps that were kept: those done again count once."""
    step_seconds: float | None
    tokens_per_second: float | None
    mfu: float | None
    """Over the whole run; None where the model's FLOPs or the device are not known."""
    mfu_palm: float | None
    """The MFU by the PaLM convention, which counts attention without its causal mask."""
    peak_precision: str
    """The precision of the dense peak that both are shares of; "" where they are not known."""
    goodput: float | None
    """Share of all GPU-seconds that passed in kept steps: `ledger.goodput_of`."""
    restarts: int
    gpu_hours: float
    usd: float | None
    step_ratio: float | None
    """Median step over that of the run it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRanks:
    """Where the ranks of a run were, and for how long others waited for each."""

    rank: NDArray[np.int32]
    hosts: tuple[str, ...]
    host: NDArray[np.int32]
    """Place in `hosts`."""
    wait_seconds: NDArray[np.float64]
    """In a step; NaN where nobody knows."""
    waits_missing: str
    """Why it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    rows: tuple[RunRow, ...]
    """The latest first."""
    against: RunRow | None
    left_out: tuple[str, ...]
    ranks: dict[str, RunRanks] = field(default_factory=dict)
    """By the run's folder."""


def read_history(
    folder: Path,
    request: SourceRequest,
    *,
    usd_per_gpu_hour: float | None = None,
    against: str | None = None,
    say: Callable[[str], None] | None = None,
) -> RunHistory:
    """The runs in a folder; `against` is the name or the folder of an earlier one."""
    rows, left_out, ranks = list[RunRow](), list[str](), dict[str, RunRanks]()
    folders = find_run_folders(folder, left_out)
    if not folders:
        raise InputError(f"{folder}: no recorded runs in it (computeflow record -- COMMAND)")
    for number, path in enumerate(folders, 1):
        if say is not None:
            say(f"{number:,} of {len(folders):,} runs read")
        report = _read(path, request, left_out)
        if report is not None:
            rows.append(_row(report, usd_per_gpu_hour))
            ranks[rows[-1].folder] = _ranks(report.facts)
    if not rows:
        raise InputError("; ".join(left_out))
    rows.sort(key=lambda row: -row.start)
    other = None if against is None else _find(against, rows, request, usd_per_gpu_hour)
    return RunHistory(
        rows=tuple(_compared(row, other) for row in rows),
        against=other,
        left_out=tuple(left_out),
        ranks=ranks,
    )


def _read(folder: Path, request: SourceRequest, left_out: list[str]) -> SourceReport | None:
    try:
        report = read_run_folder(folder, request)
    except ComputeFlowError as error:
        left_out.append(str(error))
        return None
    left_out += report.left_out
    return report


def _ranks(run: RecordedRun) -> RunRanks:
    hosts = dict.fromkeys(rank.host for rank in run.per_rank)
    places = {host: place for place, host in enumerate(hosts)}
    steps = max((rank.booked_steps for rank in run.per_rank), default=0) or 1
    known = not run.waits_missing and any(rank.came_last is not None for rank in run.per_rank)
    waits = [rank.waited_for_seconds / steps if known else np.nan for rank in run.per_rank]
    return RunRanks(
        rank=np.array([rank.rank for rank in run.per_rank], np.int32),
        hosts=tuple(hosts),
        host=np.array([places[rank.host] for rank in run.per_rank], np.int32),
        wait_seconds=np.array(waits, np.float64),
        waits_missing="" if known else run.waits_missing or "collectives that several ranks share",
    )


def _row(report: SourceReport, usd: float | None) -> RunRow:
    run: RecordedRun = report.facts
    ledger = report.ledger
    wall = run.end - run.start
    gpu_seconds = wall * run.ranks
    return RunRow(
        name=run.name,
        folder=run.folder,
        start=run.start,
        wall_seconds=wall,
        state=run.state,
        ranks=run.ranks,
        device=run.device if run.device == "cpu" else run.gpu or run.device,
        steps=max(run.steps - run.redone_steps, 0),
        step_seconds=run.step_seconds,
        tokens_per_second=run.tokens_per_second,
        mfu=None if ledger is None else ledger.mfu,
        mfu_palm=None if ledger is None else ledger.mfu_palm,
        peak_precision="" if ledger is None or ledger.peak is None else ledger.peak.precision,
        goodput=None if ledger is None else goodput_of(ledger.accounts),
        restarts=len(run.attempts) - 1,
        gpu_hours=gpu_seconds / HOUR_SECONDS,
        usd=None if usd is None else usd_of(gpu_seconds, usd),
        step_ratio=None,
    )


def _find(name: str, rows: Sequence[RunRow], request: SourceRequest, usd: float | None) -> RunRow:
    """The run of this name, the latest of several, or in this folder."""
    for row in rows:
        if name in (row.name, row.folder, Path(row.folder).name):
            return row
    left_out: list[str] = []
    try:
        folders = find_run_folders(Path(name), left_out)
    except InputError:
        raise UnknownNameError("run", name, [row.name for row in rows]) from None
    found = _read(folders[0], request, left_out) if len(folders) == 1 else None
    if found is None:
        raise InputError(f"--against {name}: {'; '.join(left_out) or 'not one recorded run'}")
    return _row(found, usd)


def _compared(row: RunRow, other: RunRow | None) -> RunRow:
    if other is None or not other.step_seconds or row.step_seconds is None:
        return row
    return replace(row, step_ratio=row.step_seconds / other.step_seconds)
