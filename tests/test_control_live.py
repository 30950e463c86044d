"""Real torch training on a real Slurm, steered by `computeflow control`, with the page beside it.

A slow node is left once a person has approved it in the browser, a lost one is replaced without
anybody, a blip ignored; what was gained and lost is in the journal and on the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from computeflow.actions.journal import ActionRecord
from computeflow.collection.online.live_values import LiveFinding
from computeflow.collection.outputs.snapshots import read_store
from computeflow.scheduling import Eviction
from page_browser import opened, operator_file, served, sign_in, visit
from page_watching import gains, gains_shown, read_every_page, watch_run
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
TOKEN = "operator-token-0123456789"


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


MOVES = {
    "restart-on-spare": ["checkpoint-now", "check-saved", "drain", "requeue"],
    "restart-after-checkpoint": ["check-saved", "drain", "requeue"],
}
"""Steps away from a slow node; which is cheaper depends on when the next checkpoint comes."""


@pytest.mark.skipif(bool(why_no_quota()), reason=why_no_quota())
def test_a_slow_node_is_left_as_approved_on_the_page_and_a_blip_moves_nothing(
    lab: ControlLab, browser: Any
) -> None:
    lab.collect()
    job = lab.train(steps=20_000)  # more than a busy machine does while pages are looked at
    before = lab.placed()[f"{job}.0"]
    controller = lab.control(limits(lab, debounce=3), mode="ask")
    action = approved_on_the_page(lab, browser, before[1])
    assert action.nodes_out == (before[1],)
    done = [step.step["do"] for step in action.steps]
    assert done == MOVES[action.kind]
    assert action.approved_by == "ada"
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
    moved = [state for state in states if state not in ("nothing", "void")]  # void: nobody said yes
    assert moved == ["done"]
    assert_simulated_policy_agrees(lab)


def approved_on_the_page(lab: ControlLab, browser: Any, slow: str) -> ActionRecord:
    """What was measured after a person saw the finding of a slow node come up, and said yes."""
    run = wait_for(lambda: read_store(lab.store).runs, "the run in the store")[0].run
    operators = operator_file(lab.folder, "ada", TOKEN)
    with served(lab.store, "--operator-token-file", str(operators)) as server:
        page, other = opened(browser, server), opened(browser, server)
        visit(page, server, "/findings")
        sign_in(page, TOKEN)
        assert page.query_selector("article.finding") is None
        with lab.slow(slow, QUOTA):
            watch_run(other, server, run)
            page.wait_for_selector("article.finding >> text=straggler-rank")
            page.click("article.finding >> text='Approve'")
            page.wait_for_selector("text=approved by ada")
            read_every_page(other, server, run)
            action = measured(lab)
        wait_for(lambda: gains_shown(page, action) == gains(page, action), "the outcome")
        assert page.said == other.said == []
        page.close()
        other.close()
    return action


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
        if record.kind != "restart-after-checkpoint":  # a simulated run saves before it moves
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
    assert action.approved_by == "limits limits.toml"
    assert before[1] not in lab.placed()[f"{new}.0"]
    assert_loss_goes_on(lab, f"{job}.0", f"{new}.0")
    outcome = action.outcome
    assert outcome is not None
    ledger = lab.cli("audit", str(lab.run_folder))["ledger"]
    booked = (ledger["accounts"]["lost"] + ledger["accounts"]["restart"]) / ledger["gpus"]
    spent = (outcome.lost_seconds or 0.0) + (outcome.restart_seconds or 0.0)
    assert spent == pytest.approx(booked, rel=0.1)
    assert len(lab.actions("done")) == 1
