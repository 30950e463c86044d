"""Usage of a cluster by its jobs in a period, summed by team, user, job, node, state and size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.accounting.attempts_by_node import ByNode, pairs_of
from computeflow.telemetry.accounting.jobs import Floats, Indices, JobAttempt, JobAttempts
from computeflow.telemetry.accounting.slurm_text import NodeState
from computeflow.telemetry.accounting.suspect_nodes import SuspectNode, find_suspect_nodes

MAX_ROWS = 1000
"""Rows of a table in the JSON; the rest is summed in one row."""
_MAX_FAILED = 10_000
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Usage of one user, team, job, node or state in the period."""

    name: str
    attempts: int
    failed: int
    gpu_seconds: float
    lost_gpu_seconds: float
    unsure_gpu_seconds: float
    """GPU-seconds of attempts that failed and were retried."""
    joules: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWaits:
    """Waiting times from submission to start."""

    attempts: int
    median_seconds: float
    p90_seconds: float
    most_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Jobs of about the same number of GPUs."""

    gpus: str
    attempts: int
    failed: int
    gpu_seconds: float
    waits: QueueWaits | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOut:
    """A node that took no jobs when the nodes were listed."""

    name: str
    gpus: float
    state: str
    reason: str
    since: float | None
    gpu_seconds: float | None
    """GPU-seconds from `since` to the end of the period, the most of `idle` that it explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """The facts of job accounting; GPU-seconds are those within the period."""

    start: float | None
    end: float | None
    gpus: int | None
    gpus_from: str
    """Source of `gpus`: nodes, stated, or the largest number in use at once."""
    contracted_gpu_seconds: float | None
    used_gpu_seconds: float
    jobs: int
    attempts: int
    requeues: int
    without_gpus: int
    running: int
    """Attempts that had not ended."""
    stopped_gpu_seconds: float
    unsure_gpu_seconds: float
    waits: QueueWaits | None
    sizes: tuple[SizeClass, ...]
    by_team: tuple[UsageRow, ...]
    by_user: tuple[UsageRow, ...]
    by_job: tuple[UsageRow, ...]
    by_node: tuple[UsageRow, ...]
    by_state: tuple[UsageRow, ...]
    suspects: tuple[SuspectNode, ...]
    suspects_reason: str
    """Why no node stands out."""
    nodes_unread: int
    """Attempts whose list of nodes could not be parsed."""
    nodes_out: tuple[NodeOut, ...]
    failed: tuple[JobAttempt, ...]
    """Failed attempts, most GPU-seconds first, to be joined with faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptShares:
    """GPU-seconds and joules of each attempt within the period."""

    used: Floats
    restart: Floats
    lost: Floats
    unsure: Floats
    joules: Floats
    failed: Flags


def facts_of(
    jobs: JobAttempts,
    nodes: Sequence[NodeState],
    share: AttemptShares,
    first: float,
    last: float,
    cluster: tuple[int | None, str],
) -> Accounting:
    began = share.used > 0
    gpus, gpus_from = cluster
    untimed = math.isnan(first)
    pairs = pairs_of(jobs, began)
    suspects, reason = find_suspect_nodes(jobs, pairs)
    failed = np.flatnonzero(share.failed & began)
    failed = failed[np.argsort(-share.used[failed], kind="stable")][:_MAX_FAILED]
    stopped = jobs.having("stopped")
    return Accounting(
        start=None if untimed else first,
        end=None if untimed else last,
        gpus=gpus,
        gpus_from=gpus_from,
        contracted_gpu_seconds=None if gpus is None else gpus * (last - first),
        used_gpu_seconds=math.fsum(share.used),
        jobs=len(np.unique(jobs.job_of[began])),
        attempts=int(began.sum()),
        requeues=int(began.sum()) - len(np.unique(jobs.job_of[began])),
        without_gpus=int((jobs.gpus <= 0).sum()),
        running=int((jobs.having("running") & np.isnan(jobs.end) & began).sum()),
        stopped_gpu_seconds=math.fsum(share.used[stopped]),
        unsure_gpu_seconds=math.fsum(share.unsure),
        waits=_waits(jobs, began),
        sizes=_sizes(jobs, share, began),
        by_team=_rows(jobs.team_of, jobs.words["team"], share, began),
        by_user=_rows(jobs.user_of, jobs.words["user"], share, began),
        by_job=_rows(jobs.job_of, jobs.words["job"], share, began),
        by_node=_node_rows(pairs, share),
        by_state=_rows(jobs.state_of, jobs.words["state"], share, jobs.gpus > 0),
        suspects=suspects,
        suspects_reason=reason,
        nodes_unread=0 if pairs is None else pairs.unread,
        nodes_out=tuple(_out(node, last) for node in nodes if node.out and node.gpus),
        failed=tuple(jobs.row(int(index)) for index in failed),
    )


def _rows(
    key: Indices, words: Sequence[str], share: AttemptShares, which: Flags
) -> tuple[UsageRow, ...]:
    """Usage by the word that `key` points at, most GPU-seconds first; none where all are unnamed."""
    if not any(words):
        return ()
    weight = np.ones(len(key))
    return _summed(key[which], words, _picked(share, np.flatnonzero(which), weight[which]))


def _node_rows(pairs: ByNode | None, share: AttemptShares) -> tuple[UsageRow, ...]:
    if pairs is None or not len(pairs.node):
        return ()
    return _summed(pairs.node, pairs.names, _picked(share, pairs.attempt, pairs.part))


def _picked(share: AttemptShares, attempts: Indices, part: Floats) -> list[Floats]:
    return [
        np.ones(len(attempts)),
        share.failed[attempts].astype(np.float64),
        share.used[attempts] * part,
        share.lost[attempts] * part,
        share.unsure[attempts] * part,
        share.joules[attempts] * part,
    ]


def _summed(key: Indices, words: Sequence[str], columns: list[Floats]) -> tuple[UsageRow, ...]:
    sums = [np.bincount(key, weights=column, minlength=len(words)) for column in columns]
    present = np.flatnonzero(sums[0])
    present = present[np.argsort(-sums[2][present], kind="stable")]
    rows = [
        _row(words[index] or "(none)", *(float(column[index]) for column in sums))
        for index in present[:MAX_ROWS]
    ]
    rest = present[MAX_ROWS:]
    if len(rest):
        rows.append(_row(f"({len(rest):,} more)", *(math.fsum(c[rest]) for c in sums)))
    return tuple(rows)


def _row(
    name: str,
    attempts: float,
    failed: float,
    used: float,
    lost: float,
    unsure: float,
    joules: float,
) -> UsageRow:
    return UsageRow(
        name=name,
        attempts=int(attempts),
        failed=int(failed),
        gpu_seconds=used,
        lost_gpu_seconds=lost,
        unsure_gpu_seconds=unsure,
        joules=None if math.isnan(joules) else joules,
    )


def _waits(jobs: JobAttempts, which: Flags) -> QueueWaits | None:
    waits = (jobs.start - jobs.submit)[which]
    waits = waits[waits >= 0]
    if not len(waits):
        return None
    median, p90 = np.percentile(waits, [50, 90])
    return QueueWaits(
        attempts=len(waits),
        median_seconds=float(median),
        p90_seconds=float(p90),
        most_seconds=float(waits.max()),
    )


def _sizes(jobs: JobAttempts, share: AttemptShares, began: Flags) -> tuple[SizeClass, ...]:
    """Attempts by number of GPUs, in powers of two: 1, 2, 3-4, 5-8, ..."""
    if not began.any():
        return ()
    size = np.where(began, np.ceil(np.log2(np.maximum(jobs.gpus, 1))), -1).astype(np.int64)
    sizes = []
    for power in np.unique(size[began]):
        which = size == power
        low, high = 2 ** (int(power) - 1) + 1, 2 ** int(power)
        label = f"{low}-{high}" if power > 1 else str(high) if power else "up to 1"
        sizes.append(
            SizeClass(
                gpus=label,
                attempts=int(which.sum()),
                failed=int(share.failed[which].sum()),
                gpu_seconds=math.fsum(share.used[which]),
                waits=_waits(jobs, which),
            )
        )
    return tuple(sizes)


def _out(node: NodeState, last: float) -> NodeOut:
    seconds = None
    if node.since is not None and not math.isnan(last):
        seconds = node.gpus * max(last - node.since, 0.0)
    return NodeOut(
        name=node.name,
        gpus=node.gpus,
        state=node.state,
        reason=node.reason,
        since=node.since,
        gpu_seconds=seconds,
    )
