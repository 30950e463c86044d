"""`Positions`: which record of each rank comes next, so that every one is taken once.

A batch is new where each of its ranks begins at the next record, known where each ends before it, and
refused otherwise: a gap, or an overlap, which the sender mends by reading again from `next`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from computeflow.collection.store.state_database import RankKey
from computeflow.collection.wire.batches import Batch
from computeflow.errors import InputError

Verdict = Literal["new", "known", "refused"]
Load = Callable[[str], dict[RankKey, int]]


@dataclass(slots=True)
class _Run:
    next: dict[RankKey, int]
    journal: int = 0
    """File that its last batch went to."""


@dataclass(slots=True)
class Positions:
    load: Load
    """What was sealed of a run; asked once."""
    last: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """Number and time of the last batch of each agent and run, for batches without ranks."""
    _runs: dict[str, _Run] = field(default_factory=dict)

    def of(self, run: str) -> Mapping[RankKey, int]:
        """Next records of a run; a name that nobody sent yet takes no memory."""
        return self._runs[run].next if run in self._runs else self.load(run)

    def judge(self, batch: Batch) -> tuple[Verdict, int]:
        """What a batch is, and how many of its ranks were never heard of."""
        if not batch.ranks:
            same = self.last.get((batch.agent, batch.run)) == (batch.number, batch.sent)
            return ("known" if same else "new"), 0
        known = self._run(batch.run).next
        keys = [(rows.rank, rows.attempt) for rows in batch.ranks]
        if len(set(keys)) < len(keys):
            raise InputError("batch: a rank twice")
        follows = past = unheard = 0
        for key, rows in zip(keys, batch.ranks, strict=True):
            following = known.get(key, -1)
            if following < 0:
                unheard += 1
                following = 0
            follows += rows.first == following
            past += rows.first + rows.records <= following
        count = len(keys)
        verdict: Verdict = "new" if follows == count else "known" if past == count else "refused"
        return verdict, unheard

    def take(self, batch: Batch, journal: int) -> None:
        """Count a new batch as taken."""
        self.last[batch.agent, batch.run] = (batch.number, batch.sent)
        if not batch.ranks:
            return
        run = self._run(batch.run)
        run.journal = journal
        for rows in batch.ranks:
            run.next[rows.rank, rows.attempt] = rows.first + rows.records

    def take_back(self, batches: Iterable[Batch]) -> None:
        """Undo `take` of the last ones, the newest first: they did not get to the disk."""
        for batch in batches:
            self.last.pop((batch.agent, batch.run), None)
            if batch.ranks:
                following = self._run(batch.run).next
                for rows in batch.ranks:
                    following[rows.rank, rows.attempt] = rows.first

    def forget(self, sealed: int) -> int:
        """Drop runs whose batches are all sealed, which `load` knows; return how many are left."""
        for run in [name for name, run in self._runs.items() if run.journal <= sealed]:
            del self._runs[run]
        return len(self._runs)

    def next_of(self, batch: Batch) -> dict[str, int]:
        known = self._run(batch.run).next
        return {
            f"{rows.rank}.{rows.attempt}": known.get((rows.rank, rows.attempt), 0)
            for rows in batch.ranks
        }

    def _run(self, name: str) -> _Run:
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _Run(self.load(name))
        return run
