"""The ledger of a cluster from its jobs: `account_usage`.

    contracted = GPUs of the cluster x the period
    compute    = GPU-seconds of jobs, except:
    lost       = attempts that failed and were not retried
    restart    = from a failed step to the next, in an allocation that was held
    idle       = the rest: allocated to nobody

An attempt that failed and was retried (the same job ID, or the same user, name and GPUs, from its end
on) may have resumed from a checkpoint, which accounting does not know: it stays in `compute`, and is
summed separately as `unsure`. Jobs stopped by a person, a time limit or a preemption may have kept
their work: they are in `compute`, too, and summed separately as `stopped`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.ledger import Entry, Ledger, Window, describe
from computeflow.telemetry.accounting.jobs import Floats, Indices, JobAttempts
from computeflow.telemetry.accounting.slurm_text import NodeState
from computeflow.telemetry.accounting.usage import Accounting, AttemptShares, Flags, facts_of
from computeflow.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUsage:
    facts: Accounting
    ledger: Ledger | None
    reason: str
    notes: tuple[str, ...]
    share: AttemptShares


def account_usage(
    jobs: JobAttempts,
    nodes: Sequence[NodeState] = (),
    *,
    start: float | None = None,
    end: float | None = None,
    gpus: int | None = None,
) -> ClusterUsage:
    """The ledger of a cluster of `gpus` GPUs; by default those of `nodes`, or the most in use."""
    notes: list[str] = []
    first, last = _period(jobs, start, end, notes)
    share = _shares(jobs, first, last)
    facts = facts_of(
        jobs, nodes, share, first, last, _cluster(jobs, nodes, gpus, first, last, notes)
    )
    ledger, reason = None, ""
    if facts.gpus is None or facts.contracted_gpu_seconds is None:
        reason = _no_ledger_reason(jobs, first, last)
    else:
        ledger = _ledger(facts, jobs, share)
        notes += _notes(facts, jobs, share)
    return ClusterUsage(facts=facts, ledger=ledger, reason=reason, notes=tuple(notes), share=share)


def _period(
    jobs: JobAttempts, start: float | None, end: float | None, notes: list[str]
) -> tuple[float, float]:
    """The requested period; else from the first start to the last end of jobs with GPUs."""
    used = (jobs.gpus > 0) & ~np.isnan(jobs.start)
    starts, ends = jobs.start[used], jobs.end[used & ~np.isnan(jobs.end)]
    if not len(starts):
        return math.nan, math.nan
    seen = jobs.start[used] + np.nan_to_num(jobs.took[used])  # for a running job: up to the export
    first = float(starts.min()) if start is None else start
    last = float(max(seen.max(), ends.max(initial=-math.inf))) if end is None else end
    if start is None and len(ends) and ends.min() - first > 0.05 * (last - first):
        notes.append(
            "the period begins with the first start, long before the first end: an export from a "
            "given time on (`sacct -S`) lacks jobs that ended before it; if so, state that time"
        )
    return first, last


def _shares(jobs: JobAttempts, first: float, last: float) -> AttemptShares:
    length = _within(jobs.start, jobs.end, first, last)
    if math.isnan(first):  # durations are all there is
        length = np.where(np.isnan(jobs.took), 0.0, jobs.took)
    used = jobs.gpus * length
    whole = np.where(np.isnan(jobs.end), last, jobs.end) - jobs.start
    gap = np.zeros(len(jobs))
    np.add.at(gap, jobs.gap_of, _within(jobs.gap_start, jobs.gap_end, first, last))
    restart = np.minimum(jobs.gpus * gap, used)
    failed = jobs.having("failed")
    again = failed & _retried(jobs) | jobs.having("requeued")
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(whole > 0, length / whole, 1.0)
    return AttemptShares(
        used=used,
        restart=restart,
        lost=np.where(failed & ~again, used - restart, 0.0),
        unsure=np.where(again, used - restart, 0.0),
        joules=jobs.joules * np.where(np.isnan(part), 1.0, part),
        failed=failed,
    )


def _within(start: Floats, end: Floats, first: float, last: float) -> Floats:
    """Seconds of each stretch within the period, to its end for one without an end."""
    open_end = np.where(np.isnan(end), math.inf, end)
    length = np.minimum(open_end, last) - np.maximum(start, first)
    return np.where(length > 0, length, 0.0)  # NaN is not above 0


def _retried(jobs: JobAttempts) -> Flags:
    """Whether the same job, or one of the same user, name and GPUs, started at its end or later.

    Tasks of an array share a name and are not retries of each other.
    """
    again = _starts_later(jobs.job_of, jobs)
    named = np.array([bool(word) for word in jobs.words["name"]] or [False])[jobs.name_of]
    named &= ~jobs.in_array
    keys = np.stack([jobs.user_of, jobs.name_of, jobs.gpus.astype(np.int64)], axis=1)
    if not len(keys):
        return again
    _, same = np.unique(keys, axis=0, return_inverse=True)
    return again | named & _starts_later(same.reshape(-1), jobs)


def _starts_later(key: Indices, jobs: JobAttempts) -> Flags:
    latest = np.full(int(key.max()) + 1 if len(key) else 0, -math.inf)
    np.maximum.at(latest, key, np.where(np.isnan(jobs.start), -math.inf, jobs.start))
    return np.asarray((latest[key] >= jobs.end) & (latest[key] > jobs.start))


def _cluster(
    jobs: JobAttempts,
    nodes: Sequence[NodeState],
    stated: int | None,
    first: float,
    last: float,
    notes: list[str],
) -> tuple[int | None, str]:
    """GPUs of the cluster, and how that is known."""
    if math.isnan(first) or last <= first:
        return None, ""
    most = math.ceil(_most_in_use(jobs, first, last) - 1e-6)
    if most <= 0:
        return None, ""
    listed = round(sum({node.name: node.gpus for node in nodes}.values()))
    known, source = (stated, "stated") if stated else (listed, "nodes")
    if not known:
        notes.append(
            f"the cluster is assumed to have {most:,} GPUs, the most that jobs had at once: add its "
            "nodes (`scontrol show node`) to know what else was idle"
        )
        return most, "the largest number in use at once"
    if known < most:
        notes.append(
            f"{known:,} GPUs ({source}), but jobs had {most:,} at once: {most:,} are assumed"
        )
        return most, "the largest number in use at once"
    return known, source


def _most_in_use(jobs: JobAttempts, first: float, last: float) -> float:
    low = np.maximum(jobs.start, first)
    high = np.minimum(np.where(np.isnan(jobs.end), math.inf, jobs.end), last)
    keep = high > low
    times = np.concatenate([high[keep], low[keep]])  # at one moment, ends come first
    change = np.concatenate([-jobs.gpus[keep], jobs.gpus[keep]])
    order = np.argsort(times, kind="stable")
    return float(np.cumsum(change[order]).max(initial=0.0))


def _no_ledger_reason(jobs: JobAttempts, first: float, last: float) -> str:
    if not len(jobs):
        return "no jobs"
    if not (jobs.gpus > 0).any():
        return "no job has GPUs: Slurm counts them where AccountingStorageTRES has gres/gpu"
    if math.isnan(first):
        return "no start times of jobs: GPU-hours are known, but not when they were used"
    return "no job had GPUs in the period" if last > first else "the period is empty"


def _ledger(facts: Accounting, jobs: JobAttempts, share: AttemptShares) -> Ledger:
    assert facts.gpus is not None and facts.start is not None and facts.end is not None
    parts = {
        "compute": share.used - share.restart - share.lost,
        "restart": share.restart,
        "lost": share.lost,
    }
    with np.errstate(divide="ignore", invalid="ignore"):
        per = np.where(share.used > 0, share.joules / share.used, 0.0)
    entries = []
    for name, seconds in parts.items():
        total = math.fsum(seconds)
        joules = math.fsum((per * seconds)[seconds > 0])
        if total > 0:
            known = None if math.isnan(joules) else joules
            entries.append(Entry(account=name, gpu_seconds=total, joules=known))
    wall = facts.end - facts.start
    idle = facts.gpus * wall - math.fsum(entry.gpu_seconds for entry in entries)
    if idle > 0:
        entries.append(Entry(account="idle", gpu_seconds=idle))
    missing = {"compute.model": "the model's FLOPs"}
    if not jobs.steps_seen:
        missing["restart"] = "job steps"
    if not share.lost.any() and not (jobs.having("done", "failed") & (share.used > 0)).any():
        missing["lost"] = "the states of jobs"
    elif share.unsure.any():
        missing["lost"] = "checkpoints, for attempts that were retried"
    return Ledger(
        gpus=facts.gpus,
        wall_seconds=wall,
        entries=tuple(entries),
        basis="measured",
        window=Window(label="accounting", start_seconds=facts.start, end_seconds=facts.end),
        unavailable=missing,
    )


def _notes(facts: Accounting, jobs: JobAttempts, share: AttemptShares) -> list[str]:
    unit, size = describe.time_unit(facts.contracted_gpu_seconds or 0.0)

    def amount(seconds: float) -> str:
        return f"{seconds / size:,.1f} {unit}"

    notes = []
    if share.lost.any():
        notes.append(
            "lost: attempts that failed and were not retried, as if none of their work was kept"
        )
    if facts.unsure_gpu_seconds:
        notes.append(
            f"{amount(facts.unsure_gpu_seconds)} of attempts that failed and were retried "
            "are in compute: what they had to repeat is unknown without checkpoints"
        )
    if facts.stopped_gpu_seconds:
        notes.append(
            f"{amount(facts.stopped_gpu_seconds)} of jobs that were cancelled, preempted "
            "or out of time are in compute: whether their work was kept is unknown"
        )
    if facts.running:
        notes.append(
            f"{format_count(facts.running, 'job')} had not ended: counted to the end of the period"
        )
    if facts.nodes_unread:
        notes.append(
            f"{facts.nodes_unread:,} lists of nodes could not be parsed: not counted by node"
        )
    unknown = jobs.having("unknown") & (share.used > 0)
    if unknown.any():
        seconds = math.fsum(share.used[unknown])
        notes.append(f"{amount(seconds)} of jobs with unknown states are in compute")
    if not math.isnan(facts.end or math.nan):
        lost = ~np.isnan(jobs.start) & np.isnan(jobs.end) & ~jobs.having("running")
        if lost.any():
            notes.append(
                f"{int(lost.sum()):,} jobs have a start and no end: counted to the end of the period"
            )
    return notes
