"""Real torch training on a real Slurm, steered by `computeflow control --mode auto`.

A slow node is left, a lost one replaced, a blip ignored; what was gained and lost is in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from computeflow.actions.journal import ActionRecord
from computeflow.collection.online.live_values import LiveFinding
from computeflow.collection.outputs.snapshots import read_store
from computeflow.scheduling import Eviction
from slurm_control import (
    LIMITS,
    ControlLab,
    control_lab,
    slurm_for_control,
    wait_for,
    why_no_quota,
)
from slurm_lab import SlurmLab, why_not

pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(why_not()), reason=why_not())]
QUOTA = 0.1
"""Share of a core for the slow node: its steps take three times as long or more."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmLab]:
    with slurm_for_control() as lab:
        yield lab


@pytest.fixture
def lab(slurm: SlurmLab, tmp_path: Path) -> Iterator[ControlLab]:
    with control_lab(slurm, tmp_path) as lab:
        yield lab


def limits(lab: ControlLab, *, debounce: float, drains: int = 2, healthy: int = 3) -> str:
    stop = lab.folder / "stop"
    return LIMITS.format(debounce=debounce, drains=drains, healthy=healthy, stop=stop)


def measured(lab: ControlLab) -> ActionRecord:
    return wait_for(
        lambda: [each for each in lab.actions("done") if each.outcome], "a measured outcome"
    )[-1]


def slow_ranks(lab: ControlLab) -> list[LiveFinding]:
    findings = read_store(lab.store).open_findings
    return [each for each in findings if each.rule == "straggler-rank"]


@pytest.mark.skipif(bool(why_no_quota()), reason=why_no_quota())
def test_a_slow_node_is_left_and_a_blip_moves_nothing(lab: ControlLab) -> None:
    lab.collect()
    job = lab.train()
    before = lab.placed()[f"{job}.0"]
    controller = lab.control(limits(lab, debounce=3))
    with lab.slow(before[1], QUOTA):
        action = measured(lab)
    assert (action.kind, action.nodes_out) == ("restart-on-spare", (before[1],))
    done = [step.step["do"] for step in action.steps]
    assert done == ["checkpoint-now", "check-saved", "drain", "requeue"]
    assert action.approved_by == "limits limits.toml"
    assert action.evidence and any(each.action == "nothing" for each in action.options)

    after = lab.placed()[f"{job}.1"]
    assert before[1] not in after
    state = lab.slurm.run("sinfo", "-h", "-n", before[1], "-o", "%T %E")
    assert state.startswith("drain") and "computeflow:" in state
    assert_loss_goes_on(lab, f"{job}.0", f"{job}.1")

    outcome = action.outcome
    assert outcome is not None and outcome.step_seconds_before and outcome.step_seconds_after
    steps = outcome.step_seconds_before - outcome.step_seconds_after
    formula = steps * (outcome.remaining_steps or 0) - (outcome.move_seconds or 0.0)
    assert outcome.measured_gain_seconds == pytest.approx(formula)
    print(gain_figures(action))
    predicted = action.predicted_gain_seconds
    assert outcome.measured_gain_seconds == pytest.approx(predicted, rel=0.3), gain_figures(action)
    report = lab.cli("actions", "report", "--store", str(lab.store))
    assert report["measured"] == 1

    controller.terminate()
    assert controller.wait(60) == 0
    lab.control(limits(lab, debounce=300))
    with lab.slow(after[1], QUOTA):
        wait_for(lambda: any("blip" in each.reason for each in lab.actions("nothing")), "a blip")
    wait_for(lambda: not slow_ranks(lab), "the blip is over")
    states = [each.state for each in lab.actions()]
    assert [state for state in states if state != "nothing"] == ["done"]
    assert_simulated_policy_agrees(lab)


def assert_simulated_policy_agrees(lab: ControlLab) -> None:
    """The states of the journal, in the hands of the policy that a simulated run has."""
    records = [each for each in lab.actions() if each.inputs is not None]
    simulated = []
    for record in records:
        assert record.inputs is not None
        again = record.inputs.decide()
        assert (again.chosen.action, again.reason) == (record.kind, record.reason)
        assert [each.net_seconds for each in again.options] == [
            each.net_seconds for each in record.options
        ]
        if record.inputs.past:  # a simulated run has no distance between two moves
            continue
        (trouble,), job = record.inputs.troubles, record.inputs.state
        restart = next(each for each in record.options if each.action == "restart-on-spare")
        eviction = Eviction(stragglers="priced", moves=record.inputs.policy)
        evicts = eviction.evicts(
            np.array([trouble.slowdown]),
            np.array([(job.left_seconds or 0.0) * (1 + trouble.slowdown)]),
            np.array([restart.price_seconds]),
            np.array([trouble.lasted()]),
        )
        assert bool(evicts[0]) == (record.kind == "restart-on-spare")
        simulated.append(bool(evicts[0]))
    assert True in simulated


def gain_figures(action: ActionRecord) -> str:
    """What a gain was predicted from, and what was measured of it."""
    assert action.inputs is not None
    state, outcome = action.inputs.state, action.outcome
    price = next(each.price_seconds for each in action.options if each.action == action.kind)
    return (
        f"predicted {action.predicted_gain_seconds:.1f} s from steps of {state.step_seconds:.4f} and "
        f"{state.healthy_step_seconds:.4f} s, {state.remaining_steps} left, price {price:.1f} s; "
        f"measured {outcome}"
    )


def assert_loss_goes_on(lab: ControlLab, first: str, second: str) -> None:
    """The second attempt begins behind a checkpoint of the first, and repeats its losses from there."""
    losses = {name: {} for name in (first, second)}  # type: dict[str, dict[int, float]]
    for name, step, loss in lab.steps():
        losses[name][step] = loss
    begin = min(losses[second])
    assert begin > 1
    assert begin - 1 in losses[first]
    both = sorted(losses[first].keys() & losses[second].keys())
    assert both[0] == begin
    assert [losses[first][n] for n in both] == pytest.approx([losses[second][n] for n in both])


def test_a_lost_node_is_replaced_by_a_new_submission(lab: ControlLab) -> None:
    lab.collect()
    job = lab.train("--no-requeue")
    before = lab.placed()[f"{job}.0"]
    lab.control(limits(lab, debounce=12))
    lab.lose(before[1])
    action = measured(lab)
    assert [step.step["do"] for step in action.steps] == ["check-saved", "drain", "resubmit"]
    new = action.new_job
    assert new != job
    assert before[1] not in lab.placed()[f"{new}.0"]
    assert_loss_goes_on(lab, f"{job}.0", f"{new}.0")
    outcome = action.outcome
    assert outcome is not None
    ledger = lab.cli("audit", str(lab.run_folder))["ledger"]
    booked = (ledger["accounts"]["lost"] + ledger["accounts"]["restart"]) / ledger["gpus"]
    spent = (outcome.lost_seconds or 0.0) + (outcome.restart_seconds or 0.0)
    assert spent == pytest.approx(booked, rel=0.1)
    assert len(lab.actions("done")) == 1
