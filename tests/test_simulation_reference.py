"""The engine against a plain one: a single replica, one save after another, no arrays.

It shares the engine's random marks and nothing else: no closed forms for work and saves, no accounts by
difference. What it books as lost it has counted as lost.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.scheduling import Checkpoints, Eviction, Policy, Spares
from computeflow.simulation import RunInputs, find_failures, usual_conditions
from computeflow.simulation.conditions import MAX_OUTAGES_PER_YEAR
from computeflow.simulation.draws import GAP, NORMAL, Stream
from computeflow.simulation.failures import causes
from computeflow.simulation.simulate import play_many
from computeflow.units import YEAR_SECONDS
from simulated_conditions import CONDITIONS


@dataclass
class Plain:
    """One replica. `work` stands, `saved` is safe, `since` is run time since then."""

    run: RunInputs
    now: float = 0.0
    up: float = 0.0
    noticed: float = 0.0
    ready: float = 0.0
    corrupt: float = 0.0
    work: float = 0.0
    saved: float = 0.0
    writing: float = 0.0
    slow_until: float = 0.0
    pending: list[tuple[float, float]] = field(default_factory=list)
    """Saves that are still being written: when they are safe, and the work in them."""
    pool: list[float] = field(default_factory=list)
    booked: dict[str, float] = field(default_factory=dict)
    parts: tuple[str, str] = ("restart", "startup")

    def book(self, account: str, seconds: float) -> None:
        self.booked[account] = self.booked.get(account, 0.0) + max(seconds, 0.0)

    def pass_down(self, until: float) -> None:
        """Spend downtime, one account after the other."""
        marks = [
            (self.corrupt, "lost"),
            (self.noticed, self.parts[0]),
            (self.ready, "idle"),
            (self.up, self.parts[1]),
        ]
        for end, account in marks:
            if self.now < min(end, until):
                self.book(account, min(end, until) - self.now)
                self.now = min(end, until)

    def pass_up(self, until: float, speed: float, done: float) -> None:
        """Work to the next save or the end, save, and repeat."""
        interval, stall = self.run.interval_seconds, self.run.conditions.stall_seconds
        while self.now < until and self.work < done - 1e-9:
            boundary = (math.floor(self.work / interval + 1e-9) + (self.writing == 0)) * interval
            if self.writing == 0:
                step = min(boundary, done) - self.work
                wall = min(step / speed, until - self.now)
                self.work += wall * speed
                self.book("run", wall)
                self.now += wall
                if self.work < boundary - 1e-7 or self.work >= done - 1e-7:
                    continue
                self.work = boundary
            wall = min(stall - self.writing, until - self.now)
            self.writing += wall
            self.book("checkpoint", wall)
            self.now += wall
            if self.writing >= stall - 1e-9:
                self.writing = 0.0
                self.pending.append((self.now + self.run.conditions.persist_seconds, self.work))
                self.work += 1e-7  # past the boundary

    def fall_back(self) -> None:
        if self.up <= self.now:  # else it fell back before
            safe = [work for when, work in self.pending if when <= self.now]
            self.saved = max([self.saved, *safe])
        self.pending.clear()
        self.work, self.writing = self.saved, 0.0

    def stop(self, noticed: float, ready: float, restart: float, first: str) -> None:
        self.noticed, self.ready = noticed, max(self.ready, ready)
        self.up = max(self.up, max(noticed, self.ready, self.corrupt) + restart)
        self.parts = (first, "restart")

    def plan_stop(self, hold: float, restart: float) -> None:
        if self.writing:  # this save is in the one that the stop makes
            self.writing = 0.0
            self.work += 1e-7
        self.saved = self.work
        self.pending.clear()
        saved = self.now + self.run.conditions.stall_seconds + self.run.conditions.persist_seconds
        self.stop(saved, saved + hold, restart, "checkpoint")


def lived(run: RunInputs, seed: int) -> Plain:
    met, me = run.conditions, Plain(run=run)
    me.up = met.startup_seconds
    me.pool = [-math.inf] * run.policy.spares.nodes
    streams = {kind: Stream(seed, 0, kind, 1, 1) for kind in ("failure", "straggler", "outage")}
    rates = {
        "failure": run.nodes * met.failures.per_node_day / 86400,
        "straggler": run.nodes * met.stragglers_per_node_day / 86400,
        "outage": MAX_OUTAGES_PER_YEAR / YEAR_SECONDS if met.outages_per_year else 0.0,
    }
    events: list[tuple[float, str, Any]] = [(run.limit_seconds, "end", None)]
    for kind, rate in rates.items():
        when = 0.0
        while rate > 1e-30 and when <= run.limit_seconds:
            marks = streams[kind].take(np.array([0]))[0]
            when += float(marks[GAP]) / rate
            events.append((when, kind, marks))
    every = met.maintenance_every_seconds
    if every:
        events += [
            (n * every, "maintenance", None) for n in range(1, int(run.limit_seconds / every) + 1)
        ]
    heapq.heapify(events)
    restart = met.init_seconds + met.load_seconds + met.warm_seconds
    assert run.work_seconds is not None
    while True:
        when, kind, marks = heapq.heappop(events)
        slow = 1 + met.straggler_slowdown * (me.now < me.slow_until)
        me.pass_down(when)
        me.pass_up(when, 1 / (slow * (1 + met.throttle)), run.work_seconds)
        if kind == "end" or me.work >= run.work_seconds - 1e-6:
            return me
        me.now = when
        if kind == "failure":
            fail(me, marks, restart)
        elif kind == "outage" and marks[0] < met.outages_per_year / MAX_OUTAGES_PER_YEAR:
            me.fall_back()
            me.stop(when, when + met.outage_seconds, restart, "restart")
        elif kind == "maintenance":
            me.plan_stop(met.maintenance_seconds, restart)
        elif kind == "straggler":
            evicts = run.policy.eviction.stragglers == "always"
            evicts &= met.notice_seconds < met.straggler_seconds
            end = when + (met.notice_seconds if evicts else met.straggler_seconds)
            me.slow_until = max(me.slow_until, end)
            heapq.heappush(events, (end, "fast" if not evicts else "evict", None))
        elif kind == "evict" and when >= me.slow_until:
            me.plan_stop(0.0, restart)


def fail(me: Plain, marks: np.ndarray, restart: float) -> None:
    met = me.run.conditions
    bounds = np.cumsum(list(met.failures.shares.values()))
    cause = causes()[list(met.failures.shares)[int((marks[0] >= bounds).sum())]]
    me.fall_back()
    if cause.silent:
        me.corrupt = max(me.corrupt, me.now + met.silent_seconds)
        notice = 0.0
    else:
        notice = cause.inspected_seconds if marks[1] < met.inspected else met.timeout_seconds
    ready, swap = me.now, 0.0
    if cause.hardware and marks[2] < met.repaired:
        repair = met.repair_seconds * math.exp(met.repair_spread * float(marks[NORMAL]))
        heapq.heappush(me.pool, me.now + repair)
        ready, swap = max(heapq.heappop(me.pool), me.now + notice), met.swap_seconds
    me.stop(me.now + notice, ready, restart + swap, "restart")


@st.composite
def runs(draw: st.DrawFn) -> RunInputs:
    changes: dict[str, Any] = {name: draw(values) for name, values in CONDITIONS.items()}
    policy = Policy(
        checkpoints=Checkpoints(interval_seconds=draw(st.floats(300, 20000))),
        spares=Spares(nodes=draw(st.integers(0, 6))),
        eviction=Eviction(stragglers=draw(st.sampled_from(["always", "never"]))),
    )
    persist = draw(st.sampled_from([0.0, 40.0, 290.0]))
    if persist:  # the engine takes the present speed for what a save's writing has seen
        changes["stragglers_per_node_day"] = 0.0
    met = usual_conditions(find_failures("llama-3"), persist_seconds=persist, **changes)
    gpus = draw(st.sampled_from([256, 2048, 8192]))
    return RunInputs(
        label="a run",
        gpus=gpus,
        node_gpus=8,
        work_seconds=5 * 86400.0,
        conditions=met,
        policy=policy,
    )


@given(runs(), st.integers(0, 1000))
def test_the_engine_and_the_plain_one_agree(run: RunInputs, seed: int) -> None:
    (books,) = play_many([run], replicas=1, seed=seed)
    plain = lived(run, seed)
    assert plain.now == pytest.approx(float(books.seconds[0]), rel=1e-6)
    for account in ("restart", "startup", "idle"):
        mine = plain.booked.get(account, 0.0)
        assert mine == pytest.approx(float(books.accounts[account][0]), rel=1e-5, abs=1.0), account
    assert plain.work == pytest.approx(float(books.accounts["useful"][0]), rel=1e-6, abs=1.0)
