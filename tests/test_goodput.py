"""Goodput is what the flow shows: the part of the time that passed in steps that were kept."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.ledger import ACCOUNTS, Entry, Ledger, Window, goodput_of
from computeflow.views.flow_bands import flow_bands
from page_client import RUNS, page_client

NO_PROGRESS = {"startup", "restart", "lost", "checkpoint", "evaluation", "idle", "unexplained"}
SECONDS = st.floats(0, 1e9)
BOOKED = st.dictionaries(st.sampled_from(sorted(ACCOUNTS)), SECONDS)


@given(BOOKED)
def test_goodput_is_a_share_and_unknown_only_where_nothing_is_booked(
    booked: dict[str, float],
) -> None:
    goodput = goodput_of(booked)
    assert (goodput is None) == (not any(booked.values()))
    assert goodput is None or 0 <= goodput <= 1


@given(BOOKED, st.floats(1e-3, 1e9))
def test_goodput_is_the_sum_of_the_bands_of_steps_that_are_shown(
    booked: dict[str, float], compute: float
) -> None:
    booked["compute.model"] = compute
    ledger = Ledger.closed(
        [Entry(account=name, gpu_seconds=seconds) for name, seconds in booked.items()],
        gpus=1,
        wall_seconds=math.fsum(booked.values()),
        basis="measured",
        window=Window(label="run"),
    )
    shown = sum(band.share for band in flow_bands(ledger) if band.account not in NO_PROGRESS)
    folded = 0.0005 * len(booked)  # accounts of less take no room in a flow
    assert goodput_of(ledger.accounts) == pytest.approx(shown, abs=folded)


@given(st.sampled_from(sorted(NO_PROGRESS)), st.floats(1e-3, 1e9))
def test_a_run_that_has_kept_no_step_has_a_goodput_of_zero(account: str, seconds: float) -> None:
    assert goodput_of({account: seconds}) == 0
    assert goodput_of({account: seconds, f"{account}.part": seconds}) == 0


@given(st.sampled_from(sorted({*ACCOUNTS} - NO_PROGRESS)), st.floats(1e-3, 1e9))
def test_goodput_does_not_say_how_fast_steps_are(account: str, seconds: float) -> None:
    assert goodput_of({account: seconds}) == 1


@given(BOOKED, st.sampled_from(sorted(NO_PROGRESS)), SECONDS)
def test_more_time_outside_of_steps_is_never_a_higher_goodput(
    booked: dict[str, float], account: str, seconds: float
) -> None:
    before = goodput_of(booked)
    after = goodput_of(booked | {account: booked.get(account, 0.0) + seconds})
    assert before is None or after is None or after <= before + 1e-12


def test_the_list_of_runs_and_the_flow_agree() -> None:
    client = page_client(RUNS)
    runs = client.get("/runs").json()["runs"]
    assert len(runs) > 3
    for run in runs:
        bands = client.get(f"/flow?run={run['id']}").json()["bands"]
        steps = sum(band["share"] for band in bands if band["account"] not in NO_PROGRESS)
        assert run["goodput"] == pytest.approx(steps)
