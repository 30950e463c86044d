"""One policy object in a simulated run and in a controller: the same states, the same decisions.

Stragglers of a simulated run are given to a controller with a fake engine, a moment before and a moment
after the simulator took them out. The other way around, states of a real Slurm are given to the policy
of a simulated run in test_control_live.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from computeflow.actions.control_limits import ControlLimits
from computeflow.actions.controller import Controller, ControlOptions
from computeflow.actions.job_states import LiveJob
from computeflow.actions.journal import ActionJournal
from computeflow.collection.outputs.snapshots import LiveSnapshot
from computeflow.collection.store.state_database import StateDatabase
from computeflow.scheduling import Eviction, JobState, MovePolicy, Policy, Trouble
from computeflow.simulation import RunInputs, find_failures, usual_conditions
from computeflow.simulation.simulate import play_many
from computeflow.units import DAY_SECONDS
from fake_engine import FakeEngine
from live_value_maker import live_run

Floats = NDArray[np.float64]
STEP = 0.01
"""Healthy, so that a count of steps is as good as a time."""
ONSET = 1e6


@dataclass(frozen=True)
class Straggler:
    """One of a simulated run, as the policy saw it at its onset."""

    slowdown: float
    left_seconds: float
    price_seconds: float
    moved_after: float
    """Seconds; infinite: left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedEviction(Eviction):
    """The policy of a run, which notes what it was asked and what it answered."""

    seen: list[Straggler] = field(default_factory=list, compare=False)

    def evicts_after(
        self, slowdown: Floats, left_seconds: Floats, restart_seconds: Floats
    ) -> Floats:
        after = Eviction.evicts_after(self, slowdown, left_seconds, restart_seconds)
        rows = np.broadcast_arrays(slowdown, left_seconds, restart_seconds, after)
        self.seen.extend(Straggler(*map(float, row)) for row in zip(*rows, strict=True))
        return after


def simulated_stragglers(policy: MovePolicy, slowdown: float) -> list[Straggler]:
    eviction = NotedEviction(stragglers="priced", moves=policy)
    run = RunInputs(
        label="a run",
        gpus=256,
        node_gpus=8,
        work_seconds=2 * DAY_SECONDS,
        conditions=usual_conditions(
            find_failures("stepfun"),
            stragglers_per_node_day=0.05,
            straggler_seconds=1800.0,
            straggler_slowdown=slowdown,
            outages_per_year=0.0,
        ),
        policy=Policy(eviction=eviction),
    )
    play_many([run], replicas=4, seed=3)
    return eviction.seen


def live_straggler(straggler: Straggler, age: float, engine: FakeEngine) -> LiveJob:
    """The same straggler as a controller meets it at this age."""
    job = engine.jobs["1"]
    left = max(straggler.left_seconds - age, 0.0) / (1 + straggler.slowdown)
    state = JobState(
        run="run",
        job=job.job,
        now=ONSET + age,
        nodes=job.nodes,
        gpus=16,
        done_steps=1000,
        remaining_steps=round(left / STEP),
        healthy_step_seconds=STEP,
        step_seconds=STEP * (1 + straggler.slowdown),
        checkpoint_age_seconds=0.0,
        restart_seconds=straggler.price_seconds,
        spares=engine.observe().spares("train"),
    )
    trouble = Trouble(
        kind="slow-node",
        run="run",
        nodes=job.nodes[:1],
        slowdown=straggler.slowdown,
        since=ONSET,
        seen=ONSET + age,
        valid_until=ONSET + age + 60,
        rule="straggler-rank",
        key="finding",
    )
    return LiveJob(
        run=live_run(run="run", job=job.job),
        job=job,
        findings=(),
        attempts=(),
        saved=None,
        state=state,
        troubles=(trouble,),
    )


Decides = Callable[[Straggler, float], str]


@pytest.fixture
def decides(tmp_path: Path, policy: MovePolicy) -> Decides:
    """What a controller with this policy decides on a straggler of some age."""
    limits = ControlLimits(
        max_drains_per_day=0,
        min_healthy_nodes=0,
        min_seconds_between_actions=0.0,
        partitions=("train",),
        accounts=("research",),
        policy=policy,
    )

    def decided(straggler: Straggler, age: float) -> str:
        engine = FakeEngine.with_nodes(4)
        engine.add_job(2)
        engine.at = ONSET + age
        path = tmp_path / f"{straggler.left_seconds}-{age}.sqlite"
        state = StateDatabase(path)
        journal = ActionJournal(state)
        controller = Controller(
            engine,
            journal,
            ControlOptions(mode="ask", limits=limits),
            store="store",
            read=lambda: LiveSnapshot(
                source="", taken=engine.at, runs=(live_run(run="run", job="1"),)
            ),
            now=lambda: engine.at,
            say=lambda _: None,
            look=lambda run, findings, cluster, out: live_straggler(straggler, age, engine),
        )
        controller.tick()
        (action,) = journal.all()
        state.close()
        assert action.inputs is not None
        again = action.inputs.decide()
        assert (again.chosen.action, again.reason) == (action.kind, action.reason)
        return action.kind

    return decided


@pytest.mark.parametrize("policy", [MovePolicy(), MovePolicy(debounce_seconds=30.0)])
@pytest.mark.parametrize("slowdown", [0.1, 0.5, 2.0])
def test_a_controller_moves_when_the_simulator_does(
    policy: MovePolicy, slowdown: float, decides: Decides
) -> None:
    seen = simulated_stragglers(policy, slowdown)
    moved = [each for each in seen if math.isfinite(each.moved_after)][:4]
    left = [each for each in seen if not math.isfinite(each.moved_after)][:4]
    assert moved
    for each in moved:
        assert decides(each, each.moved_after - 1.0) == "nothing"
        assert decides(each, each.moved_after + 1.0) == "restart-on-spare"
    for each in left:
        ages = [policy.debounce_seconds, 0.5 * each.left_seconds]
        assert {decides(each, age) for age in ages} == {"nothing"}
