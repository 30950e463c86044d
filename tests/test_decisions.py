"""Decisions on a running job: what a move costs, what it gains, and when it is made."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.errors import InputError, UnknownNameError
from computeflow.scheduling import (
    Eviction,
    ExcludedNode,
    JobDecision,
    JobState,
    MovePolicy,
    MovePrice,
    PastMove,
    Persistence,
    Policy,
    PricedOption,
    Trouble,
    decide,
    trouble_from,
)
from computeflow.scheduling.persistence import COMMUNICATION, COMPUTATION
from computeflow.simulation import RunInputs, find_failures, usual_conditions
from computeflow.simulation.engine import RECOVERED, STRAGGLER, play
from computeflow.units import DAY_SECONDS, HOUR_SECONDS

NOW = 1_000_000.0


def state(**changes: Any) -> JobState:
    usual: dict[str, Any] = {
        "run": "llama",
        "job": "17",
        "now": NOW,
        "nodes": ("n1", "n2", "n3", "n4"),
        "gpus": 32,
        "done_steps": 1000,
        "remaining_steps": 10_000,
        "healthy_step_seconds": 4.0,
        "step_seconds": 6.0,
        "checkpoint_age_seconds": 1200.0,
        "checkpoint_interval_seconds": 1800.0,
        "save_seconds": 10.0,
        "persist_seconds": 20.0,
        "restart_seconds": 270.0,
        "spares": ("n5",),
        "can_checkpoint": True,
        "usd_per_gpu_hour": 2.0,
    }
    return JobState(**{**usual, **changes})


def slow(lasted: float = 2 * HOUR_SECONDS, **changes: Any) -> Trouble:
    usual: dict[str, Any] = {
        "kind": "slow-node",
        "run": "llama",
        "nodes": ("n3",),
        "slowdown": 0.5,
        "since": NOW - lasted,
        "seen": NOW,
        "valid_until": NOW + 120,
        "rule": "straggler-rank",
        "key": "abc",
    }
    return Trouble(**{**usual, **changes})


def dead(kind: str = "dead-node", silent: float = 60.0, **changes: Any) -> Trouble:
    return slow(silent, kind=kind, slowdown=0.0, rule="silent-rank", **changes)


def option(decision: JobDecision, action: str) -> PricedOption:
    return next(each for each in decision.options if each.action == action)


def test_a_node_that_has_been_slow_for_long_is_left_for_a_spare() -> None:
    """Worked out by hand: docs/decisions.md has the same figures."""
    decision = decide(state(), [slow()])
    chosen = decision.chosen
    assert (chosen.action, chosen.nodes_out, chosen.nodes_in) == (
        "restart-on-spare",
        ("n3",),
        ("n5",),
    )
    assert chosen.price.parts == {
        "lost_seconds": 0.0,
        "save_seconds": 30.0,
        "wait_seconds": 0.0,
        "drain_seconds": 0.0,
        "restart_seconds": 270.0,
        "queue_seconds": 0.0,
        "neighbour_seconds": 0.0,
    }
    left, age = 60_000.0, 600.0 + 7200.0
    assert chosen.gain_seconds == pytest.approx(age * left / (age + left) / 3)
    assert chosen.lasting_gain_seconds == pytest.approx(20_000.0)
    assert chosen.usd == pytest.approx(chosen.net_seconds * 32 * 2 / 3600)
    assert decision.troubles == ("abc",)
    assert decision.valid_until == NOW + 120
    assert "assumed: repair_seconds = 72000" in decision.rests_on
    assert "measured: save_seconds = 10" in decision.rests_on


def test_what_it_says_names_the_node_and_the_numbers() -> None:
    said = decide(state(), [slow()]).reason
    assert said == (
        "n3 makes steps 50 % longer, for 2 h now; a restart without it on n5 costs 5 min, gains "
        "38.3 min, net 33.3 min (-2.66 min to 88.7 min)"
    )


@pytest.mark.parametrize("lasted", [0.0, 60.0, 180.0, 299.0])
@pytest.mark.parametrize("slowdown", [0.1, 1.0, 100.0])
def test_a_blip_moves_nothing(lasted: float, slowdown: float) -> None:
    decision = decide(state(restart_seconds=1.0), [slow(lasted, slowdown=slowdown)])
    assert not decision.acts
    assert decision.held
    assert "blip" in decision.reason


def test_what_is_likelier_to_go_away_is_waited_for() -> None:
    quiet = state(checkpoint_interval_seconds=None, failures_per_node_day=0.0)
    decision = decide(quiet, [slow(900.0)])
    assert not decision.acts
    assert option(decision, "restart-on-spare").net_seconds > 0
    assert "until 20 min" in decision.held
    later = decide(quiet, [slow(1201.0)])
    assert later.chosen.action == "restart-on-spare"


def test_an_expired_or_closed_finding_or_one_of_another_run_is_void() -> None:
    for trouble in (
        slow(valid_until=NOW - 1),
        slow(closed=True),
        slow(run="other"),
        dead(valid_until=NOW - 1),
    ):
        assert not decide(state(), [trouble]).acts
    void = decide(state(), [slow(valid_until=NOW - 1, seen=NOW - 240)])
    assert void.reason == "1 finding void: over, or not seen for 4 min"
    assert decide(state(), []).reason == "nothing is wrong with the job"
    assert decide(state(), [slow()]).is_void(NOW + 121)


def test_a_job_whose_end_is_not_known_is_left_alone() -> None:
    decision = decide(state(remaining_steps=None), [slow()])
    assert not decision.acts
    assert "remaining steps" in decision.reason


def test_without_a_spare_or_a_known_queue_nothing_can_take_its_place() -> None:
    held = ExcludedNode(node="n5", since=NOW - 9, why="slow", until=NOW + 9)
    for other in ({"spares": ()}, {"excluded": (held,)}, {"spares": ("n3",)}):
        restart = option(decide(state(**other), [slow()]), "restart-on-spare")
        assert "spare" in restart.impossible
    past = ExcludedNode(node="n5", since=NOW - 9, why="slow", until=NOW - 1)
    assert decide(state(excluded=(past,)), [slow()]).chosen.nodes_in == ("n5",)
    queued = decide(state(spares=(), queue_seconds=60.0), [slow()]).chosen
    assert (queued.action, queued.nodes_in, queued.price.queue_seconds) == (
        "restart-on-spare",
        (),
        60.0,
    )


def test_a_job_that_cannot_save_waits_for_its_next_checkpoint_where_that_is_near() -> None:
    near = state(can_checkpoint=False, checkpoint_age_seconds=1700.0)
    chosen = decide(near, [slow()]).chosen
    assert chosen.action == "restart-after-checkpoint"
    assert chosen.not_before_seconds == 130.0
    assert chosen.lasting_net_seconds == pytest.approx((60_000 - 130) / 3 - 270)
    far = state(can_checkpoint=False, checkpoint_age_seconds=10.0)
    chosen = decide(far, [slow()]).chosen
    assert (chosen.action, chosen.price.save_seconds) == ("restart-on-spare", 0.0)
    assert chosen.price.lost_seconds == pytest.approx(10 / 1.5)


def test_another_order_of_ranks_needs_a_prediction() -> None:
    link = slow(kind="slow-link", nodes=(), ranks=(3, 4), swapped_slowdown=0.1)
    assert "order" in option(decide(state(), [link]), "swap-ranks").impossible
    chosen = decide(state(can_swap=True), [link]).chosen
    assert (chosen.action, chosen.ranks) == ("swap-ranks", (3, 4))
    assert chosen.lasting_gain_seconds == pytest.approx(20_000 * 0.8)
    unknown = replace(link, swapped_slowdown=None)
    assert "predicted" in option(decide(state(can_swap=True), [unknown]), "swap-ranks").impossible


def test_a_job_that_can_shrink_does_so_where_nothing_else_is_there() -> None:
    sick = slow(kind="degraded-hardware", slowdown=2.0)
    alone = state(spares=(), min_nodes=3)
    chosen = decide(alone, [sick]).chosen
    assert (chosen.action, chosen.nodes_out) == ("shrink", ("n3",))
    assert chosen.price.wait_seconds == pytest.approx(40_000 * 4 / 3 / 4)
    small = option(decide(state(spares=(), min_nodes=4), [sick]), "shrink")
    assert small.impossible == "3 nodes left, at least 4"


def test_hardware_that_does_not_mend_itself_is_left_at_once_and_for_its_risk_too() -> None:
    sick = slow(400.0, kind="degraded-hardware", slowdown=0.1)
    same = slow(400.0, slowdown=0.1)
    assert decide(state(), [sick]).chosen.action == "restart-on-spare"
    assert decide(state(), [same]).chosen.action != "restart-on-spare"
    risky = decide(state(failures_per_node_day=0.1), [sick]).chosen
    assert risky.gain_seconds > decide(state(failures_per_node_day=0.0), [sick]).chosen.gain_seconds


def test_a_checkpoint_now_is_worth_it_where_failures_are_near() -> None:
    calm = decide(state(spares=()), [slow(slowdown=0.02)])
    assert calm.chosen.action == "nothing"
    shaky = state(spares=(), failures_per_node_day=24.0, checkpoint_interval_seconds=None)
    assert decide(shaky, [slow(slowdown=0.02)]).chosen.action == "checkpoint-now"


def test_the_interval_of_daly_replaces_one_that_is_too_long() -> None:
    often = slow(kind="checkpoint-interval", nodes=(), slowdown=0.0)
    chosen = decide(state(checkpoint_interval_seconds=60.0), [often]).chosen
    assert chosen.action == "checkpoint-interval"
    between = DAY_SECONDS / (4 * 0.0042)
    assert chosen.new_interval_seconds == pytest.approx(math.sqrt(2 * 10 * between), rel=0.01)
    assert chosen.price.seconds == 0
    cannot = decide(state(can_checkpoint=False), [often])
    assert cannot.chosen.action == "nothing"


def test_power_is_capped_for_dollars_alone() -> None:
    slack = slow(kind="off-critical-path", nodes=(), ranks=(0, 1), slowdown=0.0, watts_saved=100.0)
    known = state(watts_per_gpu=700.0, usd_per_kwh=0.1)
    chosen = decide(known, [slack]).chosen
    assert (chosen.action, chosen.watts, chosen.net_seconds) == ("cap-power", 600.0, 0.0)
    assert chosen.usd == pytest.approx(2 * 0.1 * 40_000 / 3600 * 0.1)
    assert "power" in decide(known, [slack]).reason
    assert not decide(state(), [slack]).acts


def test_a_dead_node_is_replaced_from_the_last_good_checkpoint() -> None:
    decision = decide(state(step_seconds=None, checkpoint_age_seconds=500.0), [dead()])
    chosen = decision.chosen
    assert (chosen.action, chosen.nodes_out, chosen.nodes_in) == (
        "restart-on-spare",
        ("n3",),
        ("n5",),
    )
    assert (chosen.price.lost_seconds, chosen.price.restart_seconds) == (500.0, 270.0)
    assert chosen.net_seconds == pytest.approx(72_000.0)
    assert not decide(state(), [dead(silent=10.0)]).acts


def test_a_dead_node_without_a_spare_is_done_without_or_waited_for() -> None:
    assert not decide(state(spares=()), [dead()]).acts
    chosen = decide(state(spares=(), min_nodes=2), [dead()]).chosen
    assert (chosen.action, chosen.nodes_out) == ("shrink", ("n3",))


@pytest.mark.parametrize("kind", ["hang", "dead-rank"])
def test_a_hang_or_a_lost_rank_restarts_where_it_was_if_there_is_no_spare(kind: str) -> None:
    chosen = decide(state(spares=()), [dead(kind)]).chosen
    assert (chosen.action, chosen.nodes_out) == ("restart-on-spare", ())


def test_death_comes_before_slowness() -> None:
    decision = decide(state(spares=("n5", "n6")), [slow(), dead(nodes=("n1",))])
    assert decision.chosen.nodes_out == ("n1",)


def test_slow_nodes_leave_together() -> None:
    both = [slow(), slow(nodes=("n1",), slowdown=0.2)]
    assert decide(state(spares=("n5", "n6")), both).chosen.nodes_out == ("n1", "n3")
    assert not decide(state(), both).acts or decide(state(), both).chosen.nodes_out == ()


def test_moves_of_a_job_keep_their_distance_and_their_number() -> None:
    last = PastMove(job="17", action="restart-on-spare", at=NOW - 600)
    assert "since its last move" in decide(state(), [slow()], past=[last]).held
    assert decide(state(), [slow()], past=[replace(last, job="18")]).acts
    assert decide(state(), [slow()], past=[replace(last, at=NOW - 1801)]).acts
    assert decide(state(), [dead()], past=[last]).acts
    many = [replace(last, at=NOW - 3600 * n) for n in range(1, 7)]
    assert "6 moves of this job in 24 h" in decide(state(), [slow()], past=many).held
    assert decide(state(), [dead()], past=many).acts
    assert not decide(state(), [dead()], past=many * 2).acts


def test_a_save_on_request_does_not_delay_a_move_and_is_not_repeated_at_once() -> None:
    saved = PastMove(job="17", action="checkpoint-now", at=NOW - 60)
    assert decide(state(), [slow()], past=[saved]).chosen.action == "restart-on-spare"
    shaky = state(spares=(), failures_per_node_day=24.0, checkpoint_interval_seconds=None)
    again = decide(shaky, [slow(slowdown=0.02)], past=[saved])
    assert not again.acts
    assert "since its last move" in again.held


def test_claims_shrink_by_what_earlier_moves_really_gained() -> None:
    poor = PastMove(
        job="3", action="shrink", at=0.0, predicted_seconds=100.0, measured_seconds=10.0
    )
    policy = MovePolicy()
    assert policy.trust([]) == 1
    assert policy.trust([poor]) == pytest.approx((4 + 0.1) / 5)
    assert policy.trust([poor] * 96) < 0.2
    assert policy.trust([replace(poor, measured_seconds=1e9)] * 9) == 1
    assert policy.trust([replace(poor, measured_seconds=None)]) == 1
    whole = option(decide(state(), [slow()]), "restart-on-spare").gain_seconds
    less = option(decide(state(), [slow()], past=[poor]), "restart-on-spare").gain_seconds
    assert less == pytest.approx(0.82 * whole)


def test_a_finding_becomes_a_trouble_where_a_move_would_help() -> None:
    fields: dict[str, Any] = {"ranks": (16,), "share": 0.25, "onset": NOW - 60, "seen": NOW}
    trouble = trouble_from(state(), rule="straggler-rank", nodes=("n3",), **fields)
    assert trouble is not None
    assert (trouble.kind, trouble.slowdown) == ("slow-node", 0.5)
    assert trouble.slowdown_range == pytest.approx((1 / 3, 0.5))
    assert trouble.valid_until == NOW + 120
    sick = trouble_from(state(), rule="straggler-rank", nodes=("n3",), degraded=True, **fields)
    assert sick is not None and sick.kind == "degraded-hardware"
    gone = trouble_from(state(), rule="silent-rank", nodes=("n3",), **fields)
    assert gone is not None and gone.is_dead
    unknown = trouble_from(state(step_seconds=None), rule="straggler-rank", nodes=("n3",), **fields)
    assert unknown is not None and unknown.slowdown == pytest.approx(1 / 3)
    everywhere = ("n1", "n2", "n3", "n4")
    assert trouble_from(state(), rule="input-stall", nodes=everywhere, **fields) is None
    assert trouble_from(state(), rule="unfused-attention", nodes=("n3",), **fields) is None


def test_values_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"gpus": 0},
        {"save_seconds": -1.0},
        {"restart_seconds": math.inf},
        {"restart_range": (300.0, 400.0)},
        {"assumed": ("no_such_field",)},
    ):
        with pytest.raises(InputError):
            state(**wrong)
    for trouble in (
        {"slowdown": -0.1},
        {"slowdown_range": (0.6, 0.7)},
        {"confidence": 0.0},
        {"seen": 0.0},
    ):
        with pytest.raises(InputError):
            slow(**trouble)
    with pytest.raises(UnknownNameError):
        slow(kind="bored")
    with pytest.raises(UnknownNameError):
        PricedOption(action="pray")  # type: ignore[arg-type]
    with pytest.raises(InputError):
        MovePrice(lost_seconds=-1)
    for policy in (
        {"debounce_seconds": -1.0},
        {"max_moves_per_day": -1},
        {"prior_moves": 0.0},
    ):
        with pytest.raises(InputError):
            MovePolicy(**policy)
    with pytest.raises(InputError):
        Persistence(scale_seconds=0.0)
    with pytest.raises(InputError):
        Persistence(scale_seconds=1.0, shape=1.0)
    nothing, other = PricedOption(action="nothing"), PricedOption(action="shrink")
    with pytest.raises(InputError):
        JobDecision(run="", job="", at=0, chosen=other, options=(nothing,), reason="")
    with pytest.raises(InputError):
        JobDecision(run="", job="", at=0, chosen=other, options=(other,), reason="")


def test_what_has_lasted_longer_is_likelier_to_last() -> None:
    ages = np.array([0.0, 60.0, 600.0, 6000.0])
    still = COMPUTATION.survival(600.0, ages)
    assert np.all(np.diff(still) > 0)
    assert COMPUTATION.mean_seconds == 600
    assert COMMUNICATION.mean_seconds == 1440
    assert float(COMPUTATION.expected_seconds(0.0, 1e12)) == pytest.approx(600.0)
    times = np.linspace(0, 1e5, 2_000_001)
    curve = COMPUTATION.survival(times, 300.0)
    assert float(COMPUTATION.expected_seconds(300.0, 1e5)) == pytest.approx(
        float(np.trapezoid(curve, times)), rel=1e-6
    )
    assert float(COMPUTATION.survival(COMPUTATION.quantile(0.9, 77.0), 77.0)) == pytest.approx(0.1)


SPANS = st.floats(0, 1e6)


@st.composite
def states(draw: st.DrawFn) -> JobState:
    restart = draw(st.floats(0, 1e4))
    return state(
        remaining_steps=draw(st.integers(0, 10**6) | st.none()),
        healthy_step_seconds=draw(st.floats(0.01, 100)),
        step_seconds=draw(st.floats(0.01, 200) | st.none()),
        checkpoint_age_seconds=draw(SPANS | st.none()),
        checkpoint_interval_seconds=draw(st.floats(1, 1e5) | st.none()),
        save_seconds=draw(st.floats(0, 1000)),
        restart_seconds=restart,
        restart_range=draw(st.sampled_from([None, (restart / 2, 2 * restart)])),
        queue_seconds=draw(st.floats(0, 1e5)),
        drain_seconds=draw(st.floats(0, 100)),
        repair_seconds=draw(SPANS),
        spares=draw(st.sampled_from([(), ("n5",), ("n5", "n6")])),
        can_checkpoint=draw(st.booleans()),
        can_swap=draw(st.booleans()),
        min_nodes=draw(st.sampled_from([None, 1, 3])),
        neighbour_gpu_seconds=draw(SPANS),
        failures_per_node_day=draw(st.floats(0, 5)),
        usd_per_gpu_hour=draw(st.sampled_from([None, 2.5])),
    )


@st.composite
def troubles(draw: st.DrawFn) -> Trouble:
    kinds = st.sampled_from(
        ["slow-node", "slow-link", "degraded-hardware", "dead-node", "hang", "checkpoint-interval"]
    )
    slowdown = draw(st.floats(0, 10))
    return slow(
        draw(SPANS),
        kind=draw(kinds),
        slowdown=slowdown,
        slowdown_range=draw(st.sampled_from([None, (slowdown / 2, slowdown * 2)])),
        nodes=draw(st.sampled_from([(), ("n1",), ("n1", "n3"), ("n1", "n2", "n3", "n4")])),
        swapped_slowdown=draw(st.floats(0, 10) | st.none()),
        confidence=draw(st.floats(0.01, 1)),
        valid_until=NOW + draw(st.floats(-100, 100)),
    )


@given(states(), st.lists(troubles(), max_size=3))
def test_the_chosen_option_is_never_worse_than_doing_nothing(
    job: JobState, found: list[Trouble]
) -> None:
    decision = decide(job, found)
    nothing = option(decision, "nothing")
    assert (nothing.net_seconds, nothing.price.seconds) == (0.0, 0.0)
    assert decision.chosen.net_seconds >= 0
    assert decision.chosen.is_possible
    for each in decision.options:
        assert each.net_range[0] <= each.net_seconds + 1e-6 * abs(each.net_seconds) + 1e-6
        assert each.net_range[1] >= each.net_seconds - 1e-6 * abs(each.net_seconds) - 1e-6
    if all(trouble.expired(NOW) for trouble in found):
        assert not decision.acts
    assert decision.reason
    assert decision == decide(job, found)


@given(states(), troubles(), st.integers(0, 10**6))
def test_more_work_to_come_never_makes_a_move_less_attractive(
    job: JobState, trouble: Trouble, more: int
) -> None:
    if job.remaining_steps is None:
        return
    longer = replace(job, remaining_steps=job.remaining_steps + more)
    before = option_net(job, trouble)
    after = option_net(longer, trouble)
    if before is not None and after is not None:
        assert after >= before - 1e-6 * abs(before) - 1e-6


@given(states(), troubles(), st.floats(0, 1e4))
def test_a_dearer_restart_never_makes_a_move_more_attractive(
    job: JobState, trouble: Trouble, more: float
) -> None:
    plain = replace(job, restart_range=None)
    if trouble.kind == "degraded-hardware":  # a dearer restart also makes its failures dearer
        plain = replace(plain, failures_per_node_day=0.0)
    dearer = replace(plain, restart_seconds=plain.restart_seconds + more)
    before, after = option_net(plain, trouble), option_net(dearer, trouble)
    if before is not None and after is not None:
        assert after <= before + 1e-6 * abs(before) + 1e-6


def option_net(job: JobState, trouble: Trouble) -> float | None:
    """Net gain of a restart, where it is looked at and possible."""
    decision = decide(job, [replace(trouble, valid_until=NOW + 1)])
    found = [each for each in decision.options if each.action == "restart-on-spare"]
    return found[0].net_seconds if found and found[0].is_possible else None


@given(
    slowdown=st.floats(0, 10),
    lasted=st.floats(0, 1e6),
    steps=st.integers(0, 10**6),
    restart=st.floats(0, 1e5),
)
def test_the_simulated_policy_takes_the_decisions_of_the_live_one(
    slowdown: float, lasted: float, steps: int, restart: float
) -> None:
    """One formula: `decide` on a state, and `Eviction.evicts` on the same numbers as arrays."""
    job = state(
        remaining_steps=steps,
        restart_seconds=restart,
        checkpoint_age_seconds=1e9,
        checkpoint_interval_seconds=None,
        failures_per_node_day=0.0,
    )
    decision = decide(job, [slow(lasted, slowdown=slowdown)])
    price = option(decision, "restart-on-spare").price.seconds
    evicts = Eviction(stragglers="priced").evicts(
        np.array([slowdown]),
        np.array([steps * 4.0 * (1 + slowdown)]),
        np.array([price]),
        np.array([NOW - (NOW - lasted)]),
    )
    assert (decision.chosen.action == "restart-on-spare") == bool(evicts[0])


@given(
    slowdown=st.floats(0.01, 10),
    left=st.floats(60, 1e6),
    price=st.floats(1, 1e4),
    shape=st.floats(1.2, 4),
)
def test_a_policy_that_looks_again_and_again_moves_when_it_says_it_would(
    slowdown: float, left: float, price: float, shape: float
) -> None:
    policy = MovePolicy(computation=Persistence(scale_seconds=600.0, shape=shape))
    when = float(policy.earliest_move(slowdown, left, price))
    looks = np.linspace(0, left, 2000)
    moves = policy.moves_now(slowdown, looks, left - looks, price)
    first = float(looks[moves.argmax()]) if moves.any() else math.inf
    step = left / 1999
    if math.isfinite(when):
        assert first >= when - 1e-9
        assert first <= when + 2 * step or not moves.any()
    else:
        assert not moves.any()


def test_a_simulated_run_takes_a_node_out_when_the_live_policy_would() -> None:
    """A lane of the engine, event by event, against `decide` on the same state a second before and
    after.
    """
    slowdown, work = 0.5, 10 * DAY_SECONDS
    calm = replace(find_failures("stepfun"), per_node_day=0.0)
    conditions = usual_conditions(
        calm,
        stragglers_per_node_day=0.02,
        straggler_slowdown=slowdown,
        straggler_seconds=2 * DAY_SECONDS,
        notice_seconds=60.0,
        outages_per_year=0.0,
        startup_seconds=0.0,
    )
    run = RunInputs(
        label="calm",
        gpus=256,
        node_gpus=8,
        work_seconds=work,
        conditions=conditions,
        policy=Policy(eviction=Eviction(stragglers="priced")),
    )
    _, stretches = play((run,), 1, 3, watch=0)
    pairs = [
        (slows, out)
        for slows, out in itertools.pairwise(stretches)
        if (slows.event, out.event) == (STRAGGLER, RECOVERED)
    ]
    assert len(pairs) >= 3
    for slows, out in pairs:
        lasted = out.end - slows.end
        assert 60.0 < lasted < conditions.straggler_seconds
        left = work - out.position
        for seconds, moves in ((lasted - 1, False), (lasted + 1, True)):
            job = state(
                remaining_steps=round(left),
                healthy_step_seconds=1.0,
                checkpoint_age_seconds=1e9,
                checkpoint_interval_seconds=None,
                save_seconds=conditions.stall_seconds,
                persist_seconds=conditions.persist_seconds,
                restart_seconds=conditions.restart_seconds,
                failures_per_node_day=0.0,
            )
            decision = decide(job, [slow(seconds, slowdown=slowdown)])
            assert (decision.chosen.action == "restart-on-spare") == moves
