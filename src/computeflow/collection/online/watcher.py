"""`Watcher`: the rule book over all runs that batches come of, tick by tick.

The clock is passed in, so that a recorded hour is watched as fast as it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from computeflow.catalog import Catalog, load_catalog
from computeflow.collection.online.cohorts import Cohort
from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRun
from computeflow.collection.online.looks import Judged, RunLooks
from computeflow.collection.online.node_watch import NodeWatch
from computeflow.collection.online.rank_memory import KEPT_RANKS, RankMemory, RunMemory
from computeflow.collection.online.run_views import old_books, view_run
from computeflow.collection.online.state_findings import STATE_RULES, StateFindings, WatchedRun
from computeflow.collection.online.tracking import Changes, Costs, FindingBook
from computeflow.collection.wire.batches import Batch
from computeflow.errors import InputError
from computeflow.telemetry.run_folders.rank_file import RankStart
from computeflow.telemetry.source_reports import SourceRequest

_FORGOTTEN_SECONDS = 1800.0
"""Seconds after the end of a run in which it is still shown."""
_RUNS_PER_TICK = 32
MAX_RUNS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    price_usd_per_gpu_hour: float | None = None
    catalog: Catalog = field(default_factory=load_catalog)


@dataclass(slots=True)
class _Run:
    memory: RunMemory
    looks: RunLooks
    book: FindingBook
    cohort: Cohort | None = None
    looked: float = 0.0
    window: Judged | None = None
    """The last window that shows how the run is."""
    ended: float | None = None


class Watcher:
    """`findings`: those that were told before a restart, open or lately closed."""

    def __init__(self, options: WatchOptions, findings: Sequence[LiveFinding] = ()) -> None:
        self._options = options
        self._request = SourceRequest(catalog=options.catalog)
        self._runs: dict[str, _Run] = {}
        self._nodes = NodeWatch()
        self._states = StateFindings(self._nodes, options.price_usd_per_gpu_hour)
        self._states.know(each for each in findings if each.rule in STATE_RULES and each.is_open)
        self._before: dict[str, list[LiveFinding]] = {}
        for finding in findings:
            if finding.rule not in STATE_RULES:
                self._before.setdefault(finding.run, []).append(finding)

    def take(self, batch: Batch, received: float, body: bytes | None = None) -> None:
        """Take a batch whose records are new; `body` is what it was unpacked from."""
        self._nodes.take(batch, received)
        self._states.take(batch, received)
        if not batch.run:
            return
        run = self._run(batch.run, received)
        attempt = run.memory.attempt
        run.memory.take(batch, received, body)
        run.ended = None
        world = run.memory.world
        if run.cohort is None or attempt != run.memory.attempt or run.cohort.world != world:
            run.cohort = Cohort(world)
        run.cohort.take(batch)

    def knows(self, run: str) -> bool:
        """Whether it was heard of, and not forgotten since."""
        return run in self._runs

    def know(self, run: str, start: RankStart, now: float) -> None:
        """Know the beginning of a rank that came before this watcher was there."""
        self._run(run, now).memory.starts[start.rank, start.attempt] = start

    def know_booked(self, before: LiveRun, now: float) -> None:
        """Go on with the books of a run that was watched before."""
        if before.booked:
            totals = self._run(before.run, now).looks.totals
            totals.restore(before.books or old_books(before), before.kept_steps)

    def _run(self, name: str, now: float) -> _Run:
        run = self._runs.get(name)
        if run is None:
            if len(self._runs) >= MAX_RUNS:
                self._forget_one()
            run = self._runs[name] = _Run(
                memory=RunMemory(run=name, began=now, heard=now),
                looks=RunLooks(self._request),
                book=FindingBook(name, self._before.pop(name, [])),
            )
        return run

    def _forget_one(self) -> None:
        oldest = min(self._runs, key=lambda name: self._runs[name].memory.heard)
        del self._runs[oldest]

    def tick(self, now: float) -> Changes:
        """Look at the runs that were not looked at for longest; at most 32 of them."""
        opened: list[LiveFinding] = []
        updated: list[LiveFinding] = []
        closed: list[LiveFinding] = []
        due = sorted(self._runs.values(), key=lambda run: run.looked)[:_RUNS_PER_TICK]
        for run in due:
            run.looked = now
            changes = self._look(run, now)
            opened += changes.opened
            updated += changes.updated
            closed += changes.closed
        states = self._states.update(self._watched(), now)
        self._forget(now)
        return Changes(
            opened=(*map(self._explained, opened), *states.opened),
            updated=(*map(self._explained, updated), *states.updated),
            closed=(*map(self._explained, closed), *states.closed),
        )

    def _watched(self) -> list[WatchedRun]:
        """Runs that go on."""
        return [
            WatchedRun(run.memory, run.book.findings())
            for run in self._runs.values()
            if run.ended is None
        ]

    def _look(self, run: _Run, now: float) -> Changes:
        memory, book = run.memory, run.book
        if run.ended is not None:
            return Changes()
        if _has_ended(memory):
            run.ended = now
            run.looks.end(memory, self._chosen(run))
            return Changes(closed=book.close_all(now, "the run ended"))
        if run.cohort is not None:
            run.cohort.tick()
        ranks = self._chosen(run)
        suspects = {} if run.cohort is None else run.cohort.suspects()
        judged = run.looks.look(memory, ranks, suspects, now)
        judged = self._states.without_unseen(judged, memory, now)
        lasting = [each for each in judged if each.kind == "lasting"]
        run.window = lasting[-1] if lasting else run.window
        nodes = {rank: each.node for rank, each in memory.latest().items()}
        changes = book.update(judged, nodes, self._costs(memory), now)
        edge = max((each.step_end for each in ranks), default=0) / 1e6
        gone = (*book.close_pauses(edge, now), *book.expire(memory.heard, now))
        return replace(changes, closed=(*changes.closed, *gone))

    def _chosen(self, run: _Run) -> list[RankMemory]:
        """All ranks of a small run; of a large one those that are kept, and the suspects."""
        latest = run.memory.latest()
        if run.cohort is None or len(latest) <= KEPT_RANKS:
            return list(latest.values())
        suspects = run.cohort.suspects()
        kept = [rank for rank, each in latest.items() if each.long]
        chosen = dict.fromkeys([*suspects, *kept])
        return [latest[rank] for rank in list(chosen)[:KEPT_RANKS] if rank in latest]

    def _costs(self, memory: RunMemory) -> Costs:
        return Costs(world=memory.world, usd_per_gpu_hour=self._options.price_usd_per_gpu_hour)

    def _explained(self, finding: LiveFinding) -> LiveFinding:
        """The finding with what its nodes said of themselves."""
        said = self._nodes.evidence(finding.nodes, finding.onset)
        return replace(finding, evidence=(*finding.evidence, *said)) if said else finding

    def _forget(self, now: float) -> None:
        self._nodes.forget(now - _FORGOTTEN_SECONDS)
        over = [
            name
            for name, run in self._runs.items()
            if now - max(run.memory.heard, run.ended or 0.0) > _FORGOTTEN_SECONDS
        ]
        for name in over:
            del self._runs[name]

    def silence(self, key: str, until: float) -> LiveFinding:
        """Keep a finding without reporting it until then."""
        for run in self._runs.values():
            if run.book.has(key):
                return run.book.silence(key, until)
        if (silenced := self._states.silence(key, until)) is not None:
            return silenced
        raise InputError(f"finding '{key}': none is open under this key")

    def findings(self) -> tuple[LiveFinding, ...]:
        """Open findings, the most expensive first."""
        found = [
            self._explained(each) for run in self._runs.values() for each in run.book.findings()
        ]
        found += self._states.findings()
        return tuple(sorted(found, key=lambda each: -(each.usd_per_hour or each.share)))

    def runs(self) -> tuple[LiveRun, ...]:
        return tuple(
            view_run(
                run.memory,
                run.window,
                run.cohort,
                run.looks.totals,
                findings=run.book.findings(),
                ended=run.ended is not None,
                usd_per_gpu_hour=self._options.price_usd_per_gpu_hour,
            )
            for run in self._runs.values()
            if run.memory.ranks
        )

    def nodes(self, now: float) -> tuple[LiveNode, ...]:
        return self._nodes.views(now)


def _has_ended(memory: RunMemory) -> bool:
    latest = memory.latest().values()
    return bool(latest) and all(each.ended for each in latest)
