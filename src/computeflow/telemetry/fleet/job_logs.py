"""Logs of the accounting's jobs: which job a log belongs to, and what its restarts cost."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from computeflow.telemetry.fleet.allocations import Allocations
from computeflow.telemetry.fleet.fleet_facts import Loss
from computeflow.telemetry.logs.log_facts import LoggedRun, Restart
from computeflow.telemetry.source_reports import SourceReport

_NUMBER = re.compile(r"\d+(?:_\d+)?")
"""Job IDs in file names: `slurm-812.out`, `llama-812_3.log`."""


@dataclass(frozen=True, slots=True)
class JobLog:
    """A log and the job that wrote it."""

    job: str
    report: SourceReport
    attempts: tuple[int, ...]
    """In order of time."""

    @property
    def run(self) -> LoggedRun:
        run: LoggedRun = self.report.facts
        return run


def match_logs(reports: Sequence[SourceReport], held: Allocations) -> list[JobLog]:
    """Logs whose file name has the ID of a job that ran while the log was written."""
    found = []
    for report in reports:
        if isinstance(report.facts, LoggedRun) and (job := _job_of(report, held)) is not None:
            attempts = sorted(held.by_job[job], key=lambda attempt: held.start[attempt])
            found.append(JobLog(job, report, tuple(attempts)))
    return found


def _job_of(report: SourceReport, held: Allocations) -> str | None:
    times = [point.at for point in report.facts.series if point.at is not None]
    if not times:
        return None
    numbers = {n for path in report.sources for n in _NUMBER.findall(PurePath(path).name)}
    known: set[str] = numbers & held.by_job.keys()
    for job in sorted(known):
        attempts = held.by_job[job]
        if any(held.start[a] <= max(times) and held.end[a] >= min(times) for a in attempts):
            return job
    return None


def restart_losses(log: JobLog, held: Allocations) -> list[tuple[int, Loss]]:
    """What each restart of a logged job cost, with the attempt that failed before it.

    Time between two attempts is nobody's: it is taken off the restart's. Where job steps show the
    restart, the accounting has booked it.
    """
    run, ledger = log.run, log.report.ledger
    if ledger is None or not run.restarts:
        return []
    steps = sum(restart.lost_steps for restart in run.restarts)
    repeated = ledger.booked("lost") / ledger.gpus
    share = held.columns.share
    losses = []
    for restart in run.restarts:
        attempt, waited = _failed_attempt(log, restart, held)
        gpus = float(held.columns.jobs.gpus[attempt])
        lost = repeated * restart.lost_steps / steps if steps else 0.0
        idle = max((restart.seconds or 0.0) - waited, 0.0) * gpus
        row = held.columns.jobs.row(attempt)
        losses.append(
            (
                attempt,
                Loss(
                    job=row.job,
                    user=row.user,
                    name=row.name,
                    state=row.state,
                    gpus=gpus,
                    end=row.end,
                    lost_gpu_seconds=lost * gpus,
                    restart_gpu_seconds=0.0 if share.restart[attempt] > 0 else idle,
                    known_by="log",
                ),
            )
        )
    return losses


def _failed_attempt(log: JobLog, restart: Restart, held: Allocations) -> tuple[int, float]:
    """The attempt before a restart, and the seconds in which the job had no GPUs."""
    at = math.inf if restart.at is None else restart.at
    begun = [attempt for attempt in log.attempts if held.start[attempt] <= at]
    if not begun:
        return log.attempts[0], 0.0
    own = begun[-1]
    first = not any(
        other.at is not None and held.start[own] <= other.at < at for other in log.run.restarts
    )
    if len(begun) == 1 or not first:
        return own, 0.0
    before = begun[-2]
    return before, max(float(held.start[own] - held.end[before]), 0.0)
