"""A simulated run: closed ledgers, the formulas where they hold, and no later for better conditions."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.errors import InputError
from computeflow.ledger import ledger_from_data, ledger_to_data
from computeflow.scheduling import Checkpoints, Eviction, Policy, Shrinking, Spares
from computeflow.simulation import (
    RunInputs,
    change_conditions,
    failure_models,
    find_failures,
    inputs,
    simulate,
    simulate_many,
    usual_conditions,
)
from computeflow.simulation.curves import interval_curve, spares_curve
from computeflow.simulation.run_timeline import timelines
from computeflow.simulation.sensitivity import sensitivities, variations
from computeflow.simulation.simulate import play_many
from simulated_conditions import CONDITIONS

DAY = 86400.0
CALM: dict[str, Any] = {
    "stragglers_per_node_day": 0, "outages_per_year": 0, "inspected": 1, "silent_seconds": 0,
    "repaired": 0, "startup_seconds": 0, "persist_seconds": 0, "swap_seconds": 0,
    "load_seconds": 0, "warm_seconds": 0, "throttle": 0,
}  # fmt: skip
"""What the formulas assume: constant rates, one recovery time, saves that are safe at once."""


def a_run(
    gpus: int = 16384, days: float = 30, policy: Policy | None = None, **changes: float
) -> RunInputs:
    met = usual_conditions(find_failures("llama-3"), **changes)
    return RunInputs(
        label="a run",
        gpus=gpus,
        node_gpus=8,
        work_seconds=days * DAY,
        conditions=met,
        policy=policy or Policy(spares=Spares(nodes=32)),
    )


def by_time(run: RunInputs, days: float) -> RunInputs:
    return replace(run, work_seconds=None, wall_seconds=days * DAY)


SETTINGS = CONDITIONS | {
    "persist_seconds": st.floats(0, 300),
    "stragglers_per_node_day": st.floats(0, 0.003),
    "infant_factor": st.floats(0, 4),
    "lemon_share": st.floats(0.001, 0.02),
    "lemon_failures": st.floats(0, 0.7),
}


@st.composite
def runs(draw: st.DrawFn, rule: str | None = None) -> RunInputs:
    changes: dict[str, Any] = {name: draw(values) for name, values in SETTINGS.items()}
    rules = st.sampled_from(["always", "never"] if rule is None else [rule])
    lemons = draw(st.sampled_from([None, 1, 3]))
    sizes = [None, Shrinking(groups=32, least_groups=24)] if rule == "auto" else [None]
    policy = Policy(
        shrinking=draw(st.sampled_from(sizes)),
        checkpoints=Checkpoints(interval_seconds=draw(st.floats(300, 20000))),
        spares=Spares(nodes=draw(st.integers(0, 6))),
        eviction=Eviction(stragglers=draw(rules), lemon_failures=lemons),  # type: ignore[arg-type]
    )
    return a_run(gpus=draw(st.sampled_from([256, 2048, 8192])), days=10, policy=policy, **changes)


@settings(max_examples=25, deadline=None)
@given(runs(rule="auto"), st.integers(0, 1000))
def test_the_books_of_every_replica_add_up_to_the_time_it_took(run: RunInputs, seed: int) -> None:
    (books,) = play_many([run], replicas=20, seed=seed)
    total = sum(books.accounts.values())
    assert np.allclose(np.asarray(total), books.seconds, rtol=1e-9)
    assert all((values >= 0).all() for values in books.accounts.values())
    done = books.seconds < run.limit_seconds
    assert np.allclose(books.accounts["useful"][done], run.work_seconds or 0, rtol=1e-9)


def test_the_ledger_closes_counts_spares_as_idle_and_survives_a_file() -> None:
    found = simulate(a_run(gpus=1024, days=5), replicas=50)
    ledger = found.ledger
    assert ledger.basis == "simulated"
    assert ledger.gpus == 1024 + 32 * 8
    assert ledger.booked("idle") >= 32 * 8 * ledger.wall_seconds
    assert ledger_from_data(ledger_to_data(ledger), "here").accounts == ledger.accounts


@pytest.mark.parametrize(
    ("gpus", "stall", "recovery"),
    [(1024, 60, 1200), (4096, 30, 300), (16384, 20, 600), (16384, 1, 300)],
)
def test_the_formulas_hold_where_their_assumptions_do(
    gpus: int, stall: float, recovery: float
) -> None:
    run = a_run(gpus=gpus, days=60, **CALM | {"stall_seconds": stall, "init_seconds": recovery})
    found = simulate(run, replicas=300)
    assert abs(found.ettr.mean - found.closed.exact_ettr) < 0.003
    assert abs(found.ettr.mean - found.closed.meta_ettr) < 0.01


def test_metas_formula_misses_by_points_where_losses_are_large() -> None:
    run = a_run(gpus=131072, days=5, **CALM | {"stall_seconds": 20, "init_seconds": 600})
    found = simulate(run, replicas=100)
    assert abs(found.ettr.mean - found.closed.exact_ettr) < 0.005
    assert found.ettr.mean - found.closed.meta_ettr > 0.05


@pytest.mark.parametrize(("gpus", "stall", "days"), [(1024, 60, 300), (16384, 20, 30)])
def test_dalys_interval_is_near_the_simulated_best_where_it_holds(
    gpus: int, stall: float, days: float
) -> None:
    run = a_run(gpus=gpus, days=days, **CALM | {"stall_seconds": stall, "init_seconds": 600})
    curve = interval_curve(run, replicas=300)
    assert abs(curve.best_seconds / curve.daly_seconds - 1) < 0.1
    assert abs(curve.best_seconds / curve.young_seconds - 1) < 0.1


def test_dalys_interval_is_wrong_where_saves_take_long_behind_the_training() -> None:
    run = a_run(**CALM | {"stall_seconds": 0.5, "persist_seconds": 595.0})
    curve = interval_curve(run, replicas=50)
    assert curve.daly_seconds < 120
    assert curve.best_seconds >= 595


def test_a_save_that_is_not_yet_safe_is_lost_with_the_one_before_it_kept() -> None:
    policy = Policy(checkpoints=Checkpoints(interval_seconds=1000))
    slow, fast = (
        a_run(policy=policy, **CALM | {"stall_seconds": 1.0, "persist_seconds": p})
        for p in (900.0, 0.0)
    )
    late, early = simulate_many([slow, fast], replicas=50)
    behind = late.ledger.booked("lost") - early.ledger.booked("lost")
    expected = late.interruptions.mean * 900 * slow.gpus  # each failure loses 900 s of work more
    assert behind == pytest.approx(expected, rel=0.15)


@settings(max_examples=25, deadline=None)
@given(runs(), st.integers(1, 10), st.integers(0, 100))
def test_more_spares_are_never_later(run: RunInputs, more: int, seed: int) -> None:
    nodes = run.policy.spares.nodes + more
    richer = replace(run, policy=replace(run.policy, spares=Spares(nodes=nodes)))
    few, many = play_many([run, richer], replicas=10, seed=seed)
    assert (many.seconds <= few.seconds * (1 + 1e-9) + 1e-6).all()


@settings(max_examples=25, deadline=None)
@given(runs(), st.floats(0, 1), st.integers(0, 100))
def test_a_faster_restart_is_never_later(run: RunInputs, factor: float, seed: int) -> None:
    names = ("init_seconds", "load_seconds", "warm_seconds", "swap_seconds", "timeout_seconds")
    better = {name: factor * getattr(run.conditions, name) for name in names}
    faster = replace(run, conditions=change_conditions(run.conditions, better))
    slow, fast = play_many([run, faster], replicas=10, seed=seed)
    assert (fast.seconds <= slow.seconds * (1 + 1e-9) + 1e-6).all()


@settings(max_examples=25, deadline=None)
@given(runs(), st.floats(0, 1), st.floats(0, 1), st.integers(0, 100))
def test_a_better_tier_is_never_later(
    run: RunInputs, fewer: float, shorter: float, seed: int
) -> None:
    met = run.conditions
    better = {
        "outages_per_year": fewer * met.outages_per_year,
        "outage_seconds": shorter * met.outage_seconds,
    }
    calmer = replace(run, conditions=change_conditions(met, better))
    worse, fine = play_many([run, calmer], replicas=10, seed=seed)
    assert (fine.seconds <= worse.seconds * (1 + 1e-9) + 1e-6).all()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    run = a_run(gpus=2048, days=5)
    one, same, other = (
        play_many([run], replicas=30, seed=seed)[0].seconds.tobytes() for seed in (1, 1, 2)
    )
    assert one == same != other


def test_a_replica_does_not_depend_on_the_runs_beside_it() -> None:
    run, beside = a_run(gpus=2048, days=5), a_run(gpus=4096, days=9)
    alone = play_many([run], replicas=20)[0]
    together = play_many([beside, run], replicas=20)[1]
    assert alone.seconds.tobytes() == together.seconds.tobytes()


def test_ten_thousand_replicas_of_54_days_on_16384_gpus_take_under_20_cpu_seconds() -> None:
    """A tenth of the simulations is timed: chunks of a thousand cost the same."""
    run = by_time(a_run(), 54)
    before = time.process_time()
    found = simulate(run, replicas=1000)
    assert time.process_time() - before < 2.0
    assert found.interruptions.mean == pytest.approx(419, rel=0.02)


def test_interruptions_come_at_the_published_rate_and_mix() -> None:
    found = simulate(by_time(a_run(), 54), replicas=300)
    assert found.by_cause["hbm"] == pytest.approx(72, rel=0.05)
    assert found.mtbi_seconds == pytest.approx(3.09 * 3600, rel=0.02)


def test_lemons_that_are_thrown_out_leave_fewer_failures() -> None:
    changes: dict[str, Any] = {"lemon_share": 0.01, "lemon_failures": 0.5}
    kept = by_time(a_run(**changes), 54)
    policy = replace(kept.policy, eviction=Eviction(lemon_failures=2))
    dropped = replace(kept, policy=policy)
    many, few = simulate_many([kept, dropped], replicas=50)
    assert many.interruptions.mean == pytest.approx(419, rel=0.05)
    assert few.interruptions.mean < 0.75 * many.interruptions.mean


def test_early_failures_come_early() -> None:
    calm = by_time(a_run(), 5)
    rough = replace(calm, conditions=change_conditions(calm.conditions, {"infant_factor": 2.0}))
    usual, early = simulate_many([calm, rough], replicas=100)
    share = 14 / 5 * (1 - np.exp(-5 / 14))  # mean of exp(-t / 14 days) over five days
    assert early.interruptions.mean / usual.interruptions.mean == pytest.approx(
        1 + 2 * share, rel=0.05
    )


def test_a_job_that_shrinks_does_not_wait_for_repair() -> None:
    changes: dict[str, Any] = {"repaired": 1.0, "repair_seconds": 40000.0, "repair_spread": 0.3}
    waits = a_run(gpus=2048, days=5, policy=Policy(), **changes)
    policy = replace(waits.policy, shrinking=Shrinking(groups=64, least_groups=48))
    shrinks = replace(waits, policy=policy)
    stays, goes_on = simulate_many([waits, shrinks], replicas=50)
    assert goes_on.seconds.mean < 0.8 * stays.seconds.mean
    assert goes_on.ledger.booked("idle") > 0


def test_a_job_that_loses_more_replicas_with_a_node_is_never_ahead() -> None:
    changes: dict[str, Any] = {"repaired": 1.0, "repair_seconds": 40000.0, "repair_spread": 0.3}
    run = a_run(gpus=2048, days=5, policy=Policy(), **changes)
    few, many = (
        replace(
            run, policy=Policy(shrinking=Shrinking(groups=1024, least_groups=512, lost_groups=n))
        )
        for n in (1, 4)
    )
    ahead, behind = simulate_many([few, many], replicas=50)
    assert behind.ledger.booked("idle") > 2 * ahead.ledger.booked("idle")
    assert behind.seconds.mean > ahead.seconds.mean


def test_preemptions_are_one_more_cause() -> None:
    run = by_time(a_run(gpus=512, preemptions_per_node_day=0.1, repair_seconds=600.0), 20)
    found = simulate(run, replicas=50)
    assert found.by_cause["preemption"] == pytest.approx(64 * 0.1 * 20, rel=0.05)


def test_a_run_that_would_never_end_is_given_up_and_says_so() -> None:
    run = a_run(gpus=16384, days=5, policy=Policy(), repaired=1.0)
    found = simulate(run, replicas=5)
    assert found.finished == 0
    assert found.seconds.p50 == pytest.approx(run.limit_seconds)


def test_spares_are_worth_their_price_up_to_a_point() -> None:
    curve = spares_curve(a_run(gpus=2048, days=10, policy=Policy()), replicas=100)
    times = [point.seconds for point in curve.points]
    assert times == sorted(times, reverse=True)
    assert 1 <= curve.cheapest <= curve.fastest + 2
    assert curve.points[0].seconds > 1.2 * times[-1]


def test_a_curve_has_the_runs_own_mean_where_replicas_are_given_up() -> None:
    run = a_run(gpus=256, days=40, policy=Policy())
    own = simulate(run, replicas=200)
    assert own.finished < 1
    point = spares_curve(run, replicas=200).points[0]
    assert point.finished == own.finished
    assert point.seconds == pytest.approx(own.seconds.mean)
    assert point.gpu_seconds == pytest.approx(own.ledger.gpu_seconds)
    assert point.pace_seconds > point.seconds  # of all of the work, also what was not done


def test_curves_of_a_run_by_time_vary_with_the_work_that_is_done() -> None:
    curve = spares_curve(by_time(a_run(gpus=2048, policy=Policy()), 10), replicas=100)
    for point in curve.points:
        assert point.work_p10 < point.work_seconds < point.work_p90 <= 10 * DAY
        assert point.p10 < point.p90
    works = [point.work_seconds for point in curve.points]
    assert works == sorted(works)


def test_throttling_is_no_work_in_the_sensitivity_of_a_run_by_time() -> None:
    run = by_time(a_run(gpus=2048), 10)
    found = sensitivities(run, variations(run, only=["throttle"]), replicas=50)
    (one,) = found
    assert one.goodput_high == pytest.approx(one.goodput / 1.02, rel=0.005)
    assert one.swing == pytest.approx(one.goodput - one.goodput_high)


def test_timelines_are_of_the_same_replicas_and_cover_all_of_the_time() -> None:
    run = a_run(gpus=4096, days=10)
    (books,) = play_many([run], replicas=100, seed=1)
    for one in timelines(run, replicas=100, seed=1):
        end = one.stretches[-1].end
        assert end == pytest.approx(float(books.seconds[one.replica]))
        covered = sum(s.end - s.start for s in one.stretches)
        assert covered == pytest.approx(end, rel=1e-9)
        assert one.progress[-1][1] == pytest.approx(run.work_seconds)


def test_failures_by_size_follow_what_was_measured() -> None:
    jobs = find_failures("rsc-1-jobs")
    assert jobs.at(8).per_node_day == pytest.approx(1 / 47.7, rel=0.001)
    assert jobs.at(1024).per_node_day == pytest.approx(24 / 7.9 / 128, rel=0.001)
    fleet = find_failures("ft-hsdp")
    assert (
        fleet.at(32768).per_node_day < fleet.at(60000).per_node_day < fleet.at(100000).per_node_day
    )


@pytest.mark.parametrize("name", failure_models())
def test_every_failure_model_has_causes_that_add_up(name: str) -> None:
    assert sum(failure_models()[name].shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", inputs())
def test_every_input_has_a_source_and_a_basis(name: str) -> None:
    row = inputs()[name]
    assert row.source
    assert row.as_of
    assert row.basis in ("published", "assumed")


WRONG: list[dict[str, Any]] = [
    {"inspected": 1.5}, {"load_seconds": -1.0}, {"outages_per_year": 100.0},
    {"lemon_failures": 0.5}, {"no_such": 1.0},
    {"maintenance_every_seconds": 1.0, "maintenance_seconds": 3600.0},
    {"maintenance_every_seconds": 400.0},
]  # fmt: skip


@pytest.mark.parametrize("changes", WRONG)
def test_conditions_that_cannot_be_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError):
        usual_conditions(find_failures("llama-3"), **changes)


def test_runs_and_settings_that_cannot_be_are_refused() -> None:
    run = a_run()
    with pytest.raises(InputError, match="work is done"):
        replace(run, work_seconds=None)
    with pytest.raises(InputError, match="simulations"):
        simulate(run, replicas=0)
    with pytest.raises(InputError, match="pile up"):
        simulate(replace(run, policy=Policy(checkpoints=Checkpoints(interval_seconds=10))))
    with pytest.raises(InputError, match="spare"):
        replace(run, policy=Policy(spares=Spares(nodes=5000)))
    with pytest.raises(InputError, match="nearest: llama-3"):
        find_failures("lama-3")


def test_nodes_of_half_the_size_fail_and_slow_down_half_as_often() -> None:
    whole, half = (usual_conditions(find_failures("llama-3"), node_gpus=n) for n in (8, 4))
    assert half.failures.per_node_day == pytest.approx(whole.failures.per_node_day / 2)
    assert half.stragglers_per_node_day == pytest.approx(whole.stragglers_per_node_day / 2)
    stated = usual_conditions(find_failures("llama-3"), node_gpus=4, stragglers_per_node_day=0.5)
    assert stated.stragglers_per_node_day == 0.5
