"""The run, event by event, all lanes at once. Start with `play`.

In every round each lane goes on to its own next event, and what has happened there is done to it.
Failures come in wall time at the nodes' rate, also while a job is down, when they start its
recovery over. So every event does the same to all runs that share a replica, and one that is ahead
before it is not behind after it: more spares, a faster restart or fewer outages are never later,
replica by replica.

Neglected: the extra load of background saves; a straggler that is taken out needs no spare; a node
that comes back is as good as new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from computeflow.scheduling import Eviction, Shrinking
from computeflow.simulation.conditions import MAX_OUTAGES_PER_YEAR
from computeflow.simulation.draws import CHUNK, GAP, NORMAL, Floats, Ints, Stream
from computeflow.simulation.lanes import (
    FACILITY,
    HARDWARE,
    INSPECTED,
    PREEMPTION,
    SILENT,
    Lanes,
    lanes_of,
    outage_gap_seconds,
)
from computeflow.simulation.run_inputs import RunInputs
from computeflow.simulation.state import RESTART, State

Mask = NDArray[np.bool_]
K = TypeVar("K")
FAILURE, STRAGGLER, OUTAGE, MAINTENANCE, RECOVERED, RETURN = range(6)
_CAUSE, _QUICK, _BROKEN, _LEMON = range(4)
"""Uniform marks of a failure: its cause, if checks notice it, if the node goes, whose it is."""

_OF_FAILURES = (
    "inspected",
    "timeout_seconds",
    "silent_seconds",
    "repaired",
    "repair_seconds",
    "repair_spread",
    "swap_seconds",
)
_OF_STRAGGLERS = (
    "straggler_slowdown",
    "straggler_seconds",
    "straggler_spread",
    "notice_seconds",
    "stall_seconds",
    "persist_seconds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStretch:
    """One stretch of one lane between two events, for a timeline."""

    start: float
    end: float
    noticed: float
    ready: float
    corrupt: float
    up: float
    first_part: int
    last_part: int
    before: float
    """Work that stood at its start."""
    position: float
    """Work that stands at its end."""
    event: int
    """That ended it; -1: the run's end."""


def play(
    runs: tuple[RunInputs, ...], replicas: int, seed: int, chunk: int = 0, watch: int | None = None
) -> tuple[State, list[LaneStretch]]:
    """One chunk of replicas of every run, with the same random numbers for all runs."""
    assert 1 <= replicas <= CHUNK
    world = _World(lanes_of(runs, replicas, MAX_OUTAGES_PER_YEAR), seed, chunk)
    watched: list[LaneStretch] = []
    while world.alive.any():
        world.round(watch, watched)
    return world.state, watched


class _World:
    def __init__(self, lanes: Lanes, seed: int, chunk: int) -> None:
        self.lanes, self.state = lanes, State(lanes)
        self.alive: Mask = np.ones(len(lanes), dtype=np.bool_)
        every = np.arange(len(lanes))
        copies = len(lanes.runs)
        self._streams = [
            Stream(seed, chunk, kind, lanes.replicas, copies)
            for kind in ("failure", "straggler", "outage")
        ]
        self._hazard = np.zeros((3, len(lanes)))
        self._marks = np.zeros((3, len(lanes), NORMAL + 1))
        outages = np.full(len(lanes), 1 / outage_gap_seconds(MAX_OUTAGES_PER_YEAR))
        outages[lanes.outage_share == 0] = 0.0
        self._rates = [lanes.failures_per_second, lanes.stragglers_per_second, outages]
        self.next: Floats = np.full((6, len(lanes)), np.inf)
        for kind in (FAILURE, STRAGGLER, OUTAGE):
            self._schedule(kind, every[self._rates[kind] > 1e-30])
        planned = lanes.conditions["maintenance_every_seconds"]
        self.next[MAINTENANCE] = np.where(planned > 0, planned, np.inf)
        self._evicting: Mask = np.zeros(len(lanes), dtype=np.bool_)
        self._pool = self._spares()
        lemons = int(lanes.lemons.max())
        self._lemon_failures: Ints = np.zeros((len(lanes), lemons), dtype=np.int64)
        conditions = lanes.conditions
        self._restart = (
            conditions["init_seconds"] + conditions["load_seconds"] + conditions["warm_seconds"]
        )

    def _spares(self) -> Floats:
        """When each node outside the job is there; infinite: no such node."""
        shrinking = [run.policy.shrinking for run in self.lanes.runs]
        lost = [policy.most_missing for policy in shrinking if policy is not None]
        width = int(self.lanes.spares.max()) + 1 + max(lost, default=0)
        places = np.arange(width)
        return np.where(places < self.lanes.spares[:, None], -np.inf, np.inf)

    def _schedule(self, kind: int, at: Ints) -> None:
        if not at.size:
            return
        marks = self._streams[kind].take(at)
        self._marks[kind, at] = marks
        self._hazard[kind, at] += marks[:, GAP]
        age = self._hazard[kind, at] / self._rates[kind][at]
        if kind == FAILURE:
            conditions = self.lanes.conditions
            age = _aged(age, conditions["infant_factor"][at], conditions["infant_seconds"][at])
        self.next[kind, at] = age

    def round(self, watch: int | None, watched: list[LaneStretch]) -> None:
        state = self.state
        kind = self.next.argmin(axis=0)
        when = self.next[kind, np.arange(len(kind))]
        end = np.minimum(state.finish(), self.lanes.horizon)
        ends = self.alive & (end <= when)
        until = np.where(self.alive, np.where(ends, end, when), state.now)
        if watch is not None and self.alive[watch]:
            before = self._seen(watch)
            state.advance(until)
            event = -1 if ends[watch] else int(kind[watch])
            position = float(state.position[watch])
            watched.append(
                LaneStretch(**before, end=float(until[watch]), position=position, event=event)
            )
        else:
            state.advance(until)
        self.alive &= ~ends
        for number, act in enumerate(
            (self._fail, self._slow_down, self._cut, self._maintain, self._recover, self._grow)
        ):
            at = np.flatnonzero(self.alive & (kind == number))
            if at.size:
                act(at)

    def _seen(self, lane: int) -> dict[str, Any]:
        state = self.state
        parts = ("noticed", "ready", "corrupt", "up")
        return {
            "start": float(state.now[lane]),
            "before": float(state.position[lane]),
            **{name: float(getattr(state, name)[lane]) for name in parts},
            "first_part": int(state.first_part[lane]),
            "last_part": int(state.last_part[lane]),
        }

    def _fail(self, at: Ints) -> None:
        marks = self._marks[FAILURE, at].copy()
        self._schedule(FAILURE, at)
        gone = self._of_dropped_lemon(at, marks[:, _LEMON])
        at, marks = at[~gone], marks[~gone]
        conditions = self._conditions(at, _OF_FAILURES)
        bounds = self.lanes.cause_bounds[self.lanes.of_run[at]]
        cause = (marks[:, _CAUSE, None] >= bounds[:, :-1]).sum(axis=1)
        self.state.counts[at, cause] += 1
        quick = np.where(
            marks[:, _QUICK] < conditions["inspected"],
            INSPECTED[cause],
            conditions["timeout_seconds"],
        )
        notice = np.where(SILENT[cause] | (cause == PREEMPTION), 0.0, quick)
        failed = HARDWARE[cause] & (marks[:, _BROKEN] < conditions["repaired"])
        broken = failed | (cause == PREEMPTION)
        repair = conditions["repair_seconds"] * np.exp(
            conditions["repair_spread"] * marks[:, NORMAL]
        )
        self.state.roll_back(at)
        now = self.state.now[at]
        unseen = now + np.where(SILENT[cause], conditions["silent_seconds"], 0.0)
        self.state.corrupt[at] = np.maximum(self.state.corrupt[at], unseen)
        noticed = now + notice
        ready = now.copy()
        swap = np.zeros(at.size)
        if broken.any():
            there, stays = self._replace(at[broken], noticed[broken], repair[broken])
            ready[broken] = there
            swap[broken] = np.where(stays, conditions["swap_seconds"][broken], 0.0)
        self.state.stop(at, noticed, ready, swap + self._restart[at], RESTART)

    def _conditions(self, at: Ints, names: tuple[str, ...]) -> dict[str, Floats]:
        return {name: self.lanes.conditions[name][at] for name in names}

    def _of_dropped_lemon(self, at: Ints, mark: Floats) -> Mask:
        """Whether a failure is of a node that was thrown out before."""
        gone = np.zeros(at.size, dtype=np.bool_)
        share = self.lanes.conditions["lemon_failures"][at]
        lemons = self.lanes.lemons[at]
        lemon = np.flatnonzero((mark < share) & (lemons > 0))
        if lemon.size:
            which = (mark[lemon] / share[lemon] * lemons[lemon]).astype(np.int64)
            lane = at[lemon]
            failures = self._lemon_failures[lane, which]
            for eviction, part in self._by_eviction(lane):
                gone[lemon[part]] = eviction.drops(failures[part])
            self._lemon_failures[lane, which] += 1
        return gone

    def _replace(self, at: Ints, noticed: Floats, repair: Floats) -> tuple[Floats, Mask]:
        """When a node is there for each broken one, and whether it is waited for."""
        pool = self._pool[at]
        rows = np.arange(at.size)
        pool[rows, pool.argmax(axis=1)] = self.state.now[at] + repair
        best = pool.argmin(axis=1)
        there = np.maximum(pool[rows, best], noticed)
        shrinks = self._shrinks(at, there - noticed)
        pool[rows[~shrinks], best[~shrinks]] = np.inf
        self._pool[at] = pool
        self.state.waits[at] += there > noticed
        self._resize(at[shrinks], 1)
        return np.where(shrinks, noticed, there), ~shrinks

    def _shrinks(self, at: Ints, wait: Floats) -> Mask:
        shrinks = np.zeros(at.size, dtype=np.bool_)
        for shrinking, part in self._by_shrinking(at):
            lane = at[part]
            shrinks[part] = (wait[part] > 0) & shrinking.shrinks(
                self.state.missing[lane] + 1, wait[part], self._restart[lane]
            )
        return shrinks

    def _resize(self, at: Ints, more: int) -> None:
        if not at.size:
            return
        self.state.missing[at] += more
        for shrinking, part in self._by_shrinking(at):
            self.state.size[at[part]] = shrinking.speed(self.state.missing[at[part]])
        there = self._pool[at].min(axis=1)
        now = self.state.now[at]
        later = np.maximum(there, now)
        self.next[RETURN, at] = np.where(self.state.missing[at] > 0, later, np.inf)

    def _grow(self, at: Ints) -> None:
        pool = self._pool[at]
        pool[np.arange(at.size), pool.argmin(axis=1)] = np.inf
        self._pool[at] = pool
        self._resize(at, -1)
        swap = self.lanes.conditions["swap_seconds"][at]
        self.state.stop_planned(at, 0.0, swap + self._restart[at])

    def _slow_down(self, at: Ints) -> None:
        marks = self._marks[STRAGGLER, at].copy()
        self._schedule(STRAGGLER, at)
        conditions = self._conditions(at, _OF_STRAGGLERS)
        state, now = self.state, self.state.now[at]
        lasts = conditions["straggler_seconds"] * np.exp(
            conditions["straggler_spread"] * marks[:, NORMAL]
        )
        evicted = np.full(at.size, np.inf)
        for eviction, part in self._by_eviction(at):
            evicted[part] = self._evicted_after(eviction, at[part], lasts[part])
        evicts = evicted < lasts
        until = now + np.where(evicts, evicted, lasts)
        before = np.where(state.slow[at], self.next[RECOVERED, at], 0.0)
        self._evicting[at] = np.where(until >= before, evicts, self._evicting[at])
        self.next[RECOVERED, at] = np.maximum(before, until)
        state.slow[at] = True

    def _evicted_after(self, eviction: Eviction, at: Ints, lasts: Floats) -> Floats:
        """Seconds after its onset at which the policy takes a straggler out; infinite: it does not."""
        conditions = self._conditions(at, _OF_STRAGGLERS)
        slowdown, notice = conditions["straggler_slowdown"], conditions["notice_seconds"]
        left = (self.lanes.work[at] - self.state.position[at]) * (1 + slowdown)
        cost = self._restart[at] + conditions["stall_seconds"] + conditions["persist_seconds"]
        if eviction.stragglers == "priced":
            left = np.minimum(left, self.lanes.horizon[at] - self.state.now[at])
            return np.maximum(eviction.evicts_after(slowdown, left, cost), notice)
        evicts = eviction.evicts(slowdown, np.minimum(lasts - notice, left), cost)
        return np.where(evicts, notice, np.inf)

    def _recover(self, at: Ints) -> None:
        """The slow node is taken out, or is fast again."""
        self.state.slow[at] = False
        self.next[RECOVERED, at] = np.inf
        out = at[self._evicting[at]]
        if out.size:
            self.state.stop_planned(out, 0.0, self._restart[out])

    def _cut(self, at: Ints) -> None:
        """Power or cooling of the site fails."""
        share = self._marks[OUTAGE, at, 0]
        self._schedule(OUTAGE, at)
        at = at[share < self.lanes.outage_share[at]]
        if not at.size:
            return
        self.state.counts[at, FACILITY] += 1
        self.state.roll_back(at)
        now = self.state.now[at]
        ready = now + self.lanes.conditions["outage_seconds"][at]
        self.state.stop(at, now.copy(), ready, self._restart[at], RESTART)

    def _maintain(self, at: Ints) -> None:
        conditions = self.lanes.conditions
        self.next[MAINTENANCE, at] += conditions["maintenance_every_seconds"][at]
        self.state.stop_planned(at, conditions["maintenance_seconds"][at], self._restart[at])

    def _by_eviction(self, at: Ints) -> Iterator[tuple[Eviction, Ints]]:
        kinds = [run.policy.eviction for run in self.lanes.runs]
        yield from self._grouped(at, kinds)

    def _by_shrinking(self, at: Ints) -> Iterator[tuple[Shrinking, Ints]]:
        kinds = [run.policy.shrinking for run in self.lanes.runs]
        for kind, part in self._grouped(at, kinds):
            if kind is not None:
                yield kind, part

    def _grouped(self, at: Ints, kinds: list[K]) -> Iterator[tuple[K, Ints]]:
        """Places in `at` by the policy of their run; one group where all runs have the same."""
        different = list(dict.fromkeys(kinds))
        if len(different) == 1:
            yield different[0], np.arange(at.size)
            return
        number = np.array([different.index(kind) for kind in kinds])[self.lanes.of_run[at]]
        for index, kind in enumerate(different):
            part = np.flatnonzero(number == index)
            if part.size:
                yield kind, part


def _aged(age: Floats, factor: Floats, seconds: Floats) -> Floats:
    """The time at which a hazard of 1 + factor exp(-t / seconds) has summed up to `age`.

    Newton's steps from the left, where the concave sum lies under its tangent: they never
    overshoot.
    """
    if not factor.any():
        return age
    time = age / (1 + factor)
    for _ in range(40):
        falling = np.exp(-time / seconds)
        gap = age - time - factor * seconds * (1 - falling)
        time = time + gap / (1 + factor * falling)
        if float(np.abs(gap).max()) < 1e-6:
            break
    return time
