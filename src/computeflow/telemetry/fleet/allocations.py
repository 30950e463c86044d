"""Who held a node when: `Allocations`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.accounting.accounting_source import JobColumns
from computeflow.telemetry.accounting.attempts_by_node import pairs_of, short_name

Piece = tuple[int, float, float]
"""Attempt, start, end."""


@dataclass(frozen=True, slots=True)
class _Held:
    attempt: int
    start: float
    end: float
    gpus: float
    """GPUs of the attempt on this node."""


class Allocations:
    """Attempts by node and by job, within the period."""

    def __init__(self, columns: JobColumns, first: float, last: float) -> None:
        self.columns, self.first, self.last = columns, first, last
        jobs = columns.jobs
        self.start = np.maximum(np.nan_to_num(jobs.start, nan=math.inf), first)
        self.end = np.minimum(np.nan_to_num(jobs.end, nan=math.inf), last)
        self.began = columns.share.used > 0
        self.by_node: dict[str, list[_Held]] = {}
        self.node_gpus = {short_name(node.name): node.gpus for node in columns.nodes}
        pairs = pairs_of(jobs, self.began)
        if pairs is not None:
            for attempt, node, part in zip(pairs.attempt, pairs.node, pairs.part, strict=True):
                held = _Held(
                    int(attempt),
                    float(self.start[attempt]),
                    float(self.end[attempt]),
                    float(jobs.gpus[attempt] * part),
                )
                self.by_node.setdefault(pairs.names[node], []).append(held)
        self.by_job: dict[str, list[int]] = {}
        for attempt in np.flatnonzero(self.began):
            name = jobs.words["job"][jobs.job_of[attempt]]
            self.by_job.setdefault(name, []).append(int(attempt))

    @property
    def nodes(self) -> set[str]:
        return self.by_node.keys() | self.node_gpus.keys()

    def job_of(self, attempt: int) -> str:
        jobs = self.columns.jobs
        return str(jobs.words["job"][jobs.job_of[attempt]])

    def runs(self, attempt: int) -> bool:
        """Whether it had not ended."""
        return bool(np.isnan(self.columns.jobs.end[attempt]))

    def is_lost(self, attempt: int) -> bool:
        return bool(self.columns.share.lost[attempt] > 0)

    def pieces(self, node: str, start: float, end: float, holder: str) -> list[Piece]:
        """Parts of a time on a GPU that belong to an attempt: the holder's, else the only one's that
        has the whole node.
        """
        near = [
            held
            for held in self.by_node.get(short_name(node), ())
            if held.start < end and held.end > start
        ]
        own = [held for held in near if holder and self.job_of(held.attempt) == holder]
        if not own and (holder in self.by_job or not self._alone(node, near)):
            return []
        return [(held.attempt, max(held.start, start), min(held.end, end)) for held in own or near]

    def _alone(self, node: str, near: list[_Held]) -> bool:
        """Whether each of these had the whole node."""
        whole = self.node_gpus.get(short_name(node))
        return whole is not None and all(held.gpus >= whole for held in near)

    def without_gaps(self, piece: Piece) -> float:
        """Seconds of a piece without the times between a failed step and the next."""
        attempt, start, end = piece
        jobs = self.columns.jobs
        which = jobs.gap_of == attempt
        gaps = np.minimum(jobs.gap_end[which], end) - np.maximum(jobs.gap_start[which], start)
        return end - start - float(np.maximum(gaps, 0.0).sum())
