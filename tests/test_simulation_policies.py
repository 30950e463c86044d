"""Policies are values that decide how often to save, what to keep, when to wait."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.errors import InputError
from computeflow.scheduling import (
    Checkpoints,
    Eviction,
    Policy,
    Shrinking,
    Spares,
    daly_seconds,
    spares_for,
    young_seconds,
)
from computeflow.simulation import RunInputs, find_failures, usual_conditions
from computeflow.simulation.closed_form import exact_ettr, meta_ettr
from computeflow.simulation.simulate import play_many
from computeflow.units import DAY_SECONDS


def test_young_and_daly_give_what_their_papers_say() -> None:
    assert young_seconds(20, 3.09 * 3600) == pytest.approx(667, abs=1)
    part = 20 / (2 * 11124)
    expected = math.sqrt(2 * 20 * 11124) * (1 + math.sqrt(part) / 3 + part / 9) - 20
    assert daly_seconds(20, 11124) == pytest.approx(expected)
    assert daly_seconds(30000, 11124) == 11124


@given(st.floats(0.01, 1000), st.floats(3600, 1e6))
def test_dalys_interval_is_close_to_the_best_of_the_exact_form(
    write: float, between: float
) -> None:
    """Within a tenth of a point of ETTR over the whole range in which it is meant to be used."""
    intervals = np.geomspace(write / 10 + 1, 3 * between, 400)

    def ettr(interval: float) -> float:
        return exact_ettr(
            per_second=1 / between,
            recovery_seconds=300,
            interval_seconds=interval,
            write_seconds=write,
        )

    best = max(ettr(float(interval)) for interval in intervals)
    assert ettr(max(daly_seconds(write, between), 1e-3)) > best - 0.001 * (1 + write / 60)


@given(st.floats(0, 1e-3), st.floats(0, 5000), st.floats(1, 50000), st.floats(0, 500))
def test_shares_of_time_stay_shares(rate: float, u: float, interval: float, write: float) -> None:
    for formula in (meta_ettr, exact_ettr):
        found = formula(
            per_second=rate, recovery_seconds=u, interval_seconds=interval, write_seconds=write
        )
        assert 0 <= found <= 1


def test_an_interval_is_stated_or_dalys_but_not_shorter_than_a_write() -> None:
    known = {"write_seconds": 0.5, "between_seconds": 10000.0}
    assert Checkpoints(interval_seconds=7).interval(persist_seconds=0, **known) == 7
    assert Checkpoints().interval(persist_seconds=0, **known) == pytest.approx(100, abs=1)
    assert Checkpoints().interval(persist_seconds=595, **known) == 595
    assert (
        Checkpoints().interval(persist_seconds=0, write_seconds=1, between_seconds=math.inf)
        == 86400
    )


def test_a_straggler_is_evicted_when_it_costs_more_than_the_restart() -> None:
    slow, left, restart = (np.array([0.1, 0.1]), np.array([1e4, 1e3]), np.array([600.0, 600.0]))
    assert Eviction().evicts(slow, left, restart).tolist() == [True, False]
    assert Eviction(stragglers="always").evicts(slow, left, restart).all()
    assert not Eviction(stragglers="never").evicts(slow, left, restart).any()


def test_a_node_that_failed_too_often_is_dropped() -> None:
    failures = np.array([0, 2, 3])
    assert Eviction(lemon_failures=3).drops(failures).tolist() == [False, False, True]
    assert not Eviction().drops(failures).any()


def test_a_job_shrinks_when_waiting_costs_more_than_growing_back() -> None:
    policy = Shrinking(groups=8, least_groups=6)
    missing, wait = np.array([1, 1, 3]), np.array([36000.0, 60.0, 36000.0])
    assert policy.shrinks(missing, wait, np.full(3, 600.0)).tolist() == [True, False, False]
    assert policy.speed(np.array([0, 2])).tolist() == [1.0, 0.75]


def test_a_lost_node_takes_all_replicas_that_it_holds() -> None:
    policy = Shrinking(groups=128, least_groups=120, lost_groups=4)
    assert policy.speed(np.array([1])).tolist() == [1 - 1 / 32]
    missing, wait = np.array([2, 3]), np.full(2, 36000.0)
    assert policy.shrinks(missing, wait, np.full(2, 600.0)).tolist() == [True, False]


@given(st.floats(0, 400), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_pool_covers_what_is_in_repair_with_its_confidence(
    mean: float, confidence: float
) -> None:
    pool = spares_for(repairs_per_day=mean, repair_days=1, confidence=confidence)
    drawn = np.random.default_rng(0).poisson(mean, 20000)
    assert (drawn <= pool).mean() > confidence - 0.02


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Checkpoints(interval_seconds=0),
        lambda: Spares(nodes=-1),
        lambda: Eviction(stragglers="sometimes"),  # type: ignore[arg-type]
        lambda: Eviction(lemon_failures=0),
        lambda: Shrinking(groups=4, least_groups=5),
        lambda: Shrinking(groups=4, least_groups=2, lost_groups=0),
        lambda: Shrinking(groups=4, least_groups=2, lost_groups=5),
        lambda: young_seconds(-1, 10),
        lambda: spares_for(repairs_per_day=-1, repair_days=1),
    ],
)
def test_policies_that_cannot_be_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(InputError):
        wrong()


def test_a_priced_policy_leaves_blips_alone_and_takes_sick_nodes_out() -> None:
    """Against never and always acting, on the same random numbers."""

    def seconds(rule: str, **changes: float) -> tuple[float, float]:
        calm = replace(find_failures("stepfun"), per_node_day=0.0)
        conditions = usual_conditions(
            calm,
            stragglers_per_node_day=0.02,
            notice_seconds=60.0,
            outages_per_year=0.0,
            **changes,
        )
        run = RunInputs(
            label="calm",
            gpus=256,
            node_gpus=8,
            work_seconds=10 * DAY_SECONDS,
            conditions=conditions,
            policy=Policy(eviction=Eviction(stragglers=rule)),  # type: ignore[arg-type]
        )
        (totals,) = play_many([run], replicas=50, seed=1)
        return float(totals.seconds.mean()), float(totals.planned.mean())

    blips = {"straggler_seconds": 180.0, "straggler_slowdown": 0.5}
    assert seconds("priced", **blips) == seconds("never", **blips)
    assert seconds("priced", **blips)[0] < seconds("always", **blips)[0]
    sick = {"straggler_seconds": 3 * DAY_SECONDS, "straggler_slowdown": 0.5}
    assert seconds("priced", **sick)[0] < 0.9 * seconds("never", **sick)[0]
    assert seconds("priced", **sick)[0] < 1.01 * seconds("always", **sick)[0]


def test_slow_nodes_stay_slow_for_unequal_times_around_their_median() -> None:
    calm = replace(find_failures("stepfun"), per_node_day=0.0)

    def slow_seconds(spread: float) -> float:
        conditions = usual_conditions(
            calm,
            stragglers_per_node_day=0.005,
            straggler_seconds=3600.0,
            straggler_spread=spread,
            straggler_slowdown=0.5,
            outages_per_year=0.0,
        )
        run = RunInputs(
            label="calm",
            gpus=64,
            node_gpus=8,
            work_seconds=20 * DAY_SECONDS,
            conditions=conditions,
            policy=Policy(eviction=Eviction(stragglers="never")),
        )
        (totals,) = play_many([run], replicas=2000, seed=1)
        return float(totals.accounts["straggler"].mean())

    assert slow_seconds(1.0) / slow_seconds(0.0) == pytest.approx(math.exp(0.5), rel=0.1)
