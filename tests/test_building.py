"""Owning against renting: costs add up, more rent never favours renting, published costs come near."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.comparison.building import Decision, Fleet, decide, load_cases, need_of
from computeflow.comparison.building.costs import (
    capital,
    monthly,
    owned,
    owned_usd,
    rented_usd,
)  # fmt: skip
from computeflow.comparison.building.decide import break_even
from computeflow.comparison.building.inputs import (
    cost_inputs,
    drawn,
    inputs_for,
    middle,
    network_share,
)  # fmt: skip
from computeflow.comparison.building.published import check_published
from computeflow.comparison.building.rules import rules
from computeflow.comparison.rents import find_rents
from computeflow.errors import InputError, UnknownNameError
from computeflow.views.building_views import break_even_figure, decisions_table

FACTS = load_catalog(())
ROWS = inputs_for("h100-sxm", find_rents(FACTS, "h100-sxm"), {})


def fleet(gpus: int = 1024, **changes: object) -> Fleet:
    return Fleet(gpus=gpus, node_gpus=8, rated_watts=1390, drawn_watts=1056, **changes)  # type: ignore[arg-type]


@cache
def decision(name: str) -> Decision:
    return decide(need_of(load_cases()[name], FACTS, replicas=50), FACTS, draws=200)


def test_owning_is_the_sum_of_its_parts_by_hand() -> None:
    terms = middle(ROWS, bringup_months=0.0, capital_rate=0.0, network_factor=0.0)
    parts = owned(fleet(), terms, 36.0)
    servers = 1024 * 31_250
    assert math.isclose(parts["servers"][0], servers)
    assert math.isclose(parts["resale"][0], -servers * 0.8 * 0.2)
    assert math.isclose(parts["hall"][0], 1024 * 1.39 * 165 * 36)
    assert math.isclose(parts["energy"][0], 1024 * 1.056 * 730 * 36 * 1.3 * 0.08)
    assert math.isclose(parts["people"][0], 4 * 300_000 * 3)
    assert math.isclose(owned_usd(fleet(), terms, 36.0)[0], sum(p[0] for p in parts.values()))


def test_renting_takes_the_cheaper_of_on_demand_and_contract() -> None:
    terms = middle(ROWS, on_demand_usd=4.0, contract_usd=2.0, rent_extras=0.0)
    hours = 1024 * 730 * 12
    for busy, hourly in ((0.25, 1.0), (0.9, 2.0)):
        usd = rented_usd(fleet(), {**terms, "busy": np.array([busy])}, 12.0)
        assert math.isclose(usd[0], hours * hourly)


@settings(max_examples=40, deadline=None)
@given(months=st.floats(1, 72), more=st.floats(1.0, 4.0), seed=st.integers(0, 1000))
def test_dearer_rent_never_favours_renting(months: float, more: float, seed: int) -> None:
    terms = drawn(ROWS, 16, seed)
    dear = {**terms, "on_demand_usd": more * terms["on_demand_usd"],
            "contract_usd": more * terms["contract_usd"]}  # fmt: skip
    assert np.all(rented_usd(fleet(), dear, months) >= rented_usd(fleet(), terms, months))
    assert np.all(break_even(fleet(), dear) <= break_even(fleet(), terms))


@settings(max_examples=40, deadline=None)
@given(gpus=st.integers(8, 100_000), months=st.floats(0.5, 72), seed=st.integers(0, 1000),
       hall=st.sampled_from(["colocation", "own"]))  # fmt: skip
def test_parts_of_owning_are_positive_but_for_resale_and_add_up(
    gpus: int, months: float, seed: int, hall: str
) -> None:
    terms = drawn(ROWS, 16, seed)
    one = fleet(gpus, hall=hall, spare_gpus=8)
    parts = owned(one, terms, months)
    assert all(np.all(usd >= 0) for name, usd in parts.items() if name != "resale")
    assert np.all(parts["resale"] <= 0)
    assert np.allclose(sum(parts.values()), owned_usd(one, terms, months))
    assert np.all(owned_usd(one, terms, months) > 0)
    assert np.all(sum(capital(one, terms).values()) > 0)
    assert np.all(sum(monthly(one, terms).values()) > 0)


def test_a_small_fleet_pays_more_for_people_and_less_for_its_network() -> None:
    assert network_share(512) < network_share(4096) < network_share(65_536)
    terms = middle(ROWS)
    per_gpu = [monthly(fleet(gpus), terms)["people"][0] / gpus for gpus in (64, 1024)]
    assert per_gpu[0] > 10 * per_gpu[1]


def test_break_even_falls_with_size_and_a_single_run_is_rented() -> None:
    shares = [decision(name).life.build_share for name in ("7B", "70B", "400B")]
    assert shares == sorted(shares)
    assert all(decision(name).one_run.build_share < 0.05 for name in ("7B", "70B", "400B"))
    small, large = decision("7B"), decision("400B")
    assert small.never > large.never
    low, mid, _ = large.break_even
    assert low is not None
    assert mid is not None
    assert 6 < low < mid < 60


def test_the_inputs_that_move_it_most_come_first_and_move_it() -> None:
    swings = decision("70B").swings
    assert [one.swing for one in swings] == sorted((one.swing for one in swings), reverse=True)
    assert all(one.swing > 0.3 for one in swings[:3])
    assert any(one.input.name == "rent_trend" for one in swings[:3])


def test_spending_adds_up_to_the_cost_and_waste_to_the_run() -> None:
    found = decision("70B")
    parts = sum(values[1] for values in found.spending.values())
    assert math.isclose(parts, found.life.own_usd[1], rel_tol=0.05)  # medians of parts
    price = found.life.own_usd_per_hour[1]
    assert math.isclose(sum(found.waste.values()), price * found.need.gpu_hours, rel_tol=1e-9)


def test_waiting_is_one_of_three_ways_and_shares_add_up() -> None:
    ways = decision("400B").ways
    assert [way.name for way in ways] == ["rent", "build now", "wait, then build"]
    assert math.isclose(sum(way.cheapest for way in ways), 1.0)


def test_published_costs_come_within_a_quarter_and_several_meet() -> None:
    found = {one.published.name: one for one in check_published(FACTS, draws=200)}
    for name in ("10,000 H100 with their hall", "1 GW of GB200, upfront"):
        assert found[name].agrees
    loose = {"H100 running cost without capital", "break-even utilisation"}
    assert all(abs(one.off) < 0.25 for name, one in found.items() if name not in loose)
    assert sum(one.agrees for one in found.values()) >= 4


def test_rules_come_out_as_results() -> None:
    found = rules({name: decision(name) for name in ("7B", "70B", "400B")})
    by_text = {rule.text: rule for rule in found}
    assert by_text["under 70B: rent"].outcome == "comes out"
    assert by_text["a single 400B run: rent"].outcome == "comes out"
    assert by_text["above 400B: build"].outcome in ("depends", "comes out")
    assert all(rule.why for rule in found)


def test_every_input_has_a_source_a_date_and_ends() -> None:
    for row in cost_inputs().values():
        assert row.source
        assert row.as_of
        assert row.low <= row.value <= row.high


def test_the_figure_shows_both_medians_and_their_bands() -> None:
    found = decision("70B")
    figure = break_even_figure(found)
    named = {trace["name"]: trace for trace in figure.data}
    assert set(named) == {"own", "own, P10 to P90", "rent", "rent, P10 to P90"}
    assert np.allclose(named["own"]["y"], [point[1] / 1e6 for point in found.curve.own])
    assert len(decisions_table({"70B": found}).rows) == 1


def test_what_is_stated_has_no_range_and_unknown_names_are_refused() -> None:
    rents = find_rents(FACTS, "h100-sxm")
    rows = inputs_for("h100-sxm", rents, {"busy": 0.5})
    assert rows["busy"].low == rows["busy"].high == 0.5
    with pytest.raises(UnknownNameError, match="busy"):
        inputs_for("h100-sxm", rents, {"bussy": 0.5})
    with pytest.raises(InputError, match="server_usd_per_gpu"):
        inputs_for("b200-sxm", find_rents(FACTS, "b200-sxm"), {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "llama-3.1-70b", "--set", "busy=2"], "busy"),
        (["build", "llama-3.1-70b", "--set", "busy"], "NAME=VALUE"),
        (["build", "llama-3.1-70b", "--set", "busy=much"], "much"),
        (["build", "llama-3.1-70b", "--set", "pue=nan"], "pue"),
        (["build", "llama-3.1-70b", "--on", "h100-sxm"], "accelerator:count"),
        (["build", "lama-3.1-70b"], "llama-3.1-70b"),
        (["build", "llama-3.1-70b", "--next", "h100-pcie"], "server price"),
        (["build", "llama-3.1-405b", "--on", "h100-sxm:8"], "no layout"),
        (["build", "llama-3.1-70b", "--tokens", "0"], "tokens"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_the_command_answers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["build", "llama-2-7b", "--on", "h100-sxm:64", "--tokens", "2T", "--seq-len", "4096",
                 "--next", "none", "--draws", "50", "-o", "json"]  # fmt: skip
    assert run(arguments) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "computeflow.build/1"
    assert len(data["break_even"]) == 3
    assert {"servers", "people", "energy"} <= set(data["spending"])
    assert len(data["ways"]) == 2
