"""Owning against renting: costs add up, more rent never favours renting, published costs come near."""

from __future__ import annotations

import datetime
import json
import math
import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.comparison.build_or_rent import (
    BuiltFleet,
    Decision,
    decide,
    load_cases,
    need_of,
)
from computeflow.comparison.build_or_rent.break_even import break_even, own_and_rent
from computeflow.comparison.build_or_rent.build_rules import rules
from computeflow.comparison.build_or_rent.cost_inputs import (
    BOUNDS,
    cost_inputs,
    draw_inputs,
    inputs_for,
    middle_inputs,
    network_share,
)
from computeflow.comparison.build_or_rent.ownership_costs import (
    capital_costs,
    monthly_costs,
    owned_costs,
    owned_usd,
    rented_usd,
)
from computeflow.comparison.build_or_rent.published_figures import check_published
from computeflow.comparison.rents import age_text, find_rents
from computeflow.errors import InputError, UnknownNameError
from computeflow.views.builds import (
    break_even_figure,
    decisions_table,
    sources_table,
    swings_table,
)

FACTS = load_catalog(())
TODAY = datetime.date(2026, 11, 15)
pytestmark = pytest.mark.usefixtures("kept_plans")
ROWS = inputs_for("h100-sxm", find_rents(FACTS, "h100-sxm"), {})


def fleet(gpus: int = 1024, **changes: object) -> BuiltFleet:
    return BuiltFleet(gpus=gpus, node_gpus=8, rated_watts=1390, drawn_watts=1056, **changes)  # type: ignore[arg-type]


@cache
def decision(name: str) -> Decision:
    return decide(need_of(load_cases()[name], FACTS, replicas=50), FACTS, draws=200)


def test_owning_is_the_sum_of_its_parts_by_hand() -> None:
    terms = middle_inputs(ROWS, bringup_months=0.0, capital_rate=0.0, network_factor=0.0)
    parts = owned_costs(fleet(), terms, 36.0)
    servers = 1024 * 27_425
    assert math.isclose(parts["servers"][0], servers)
    assert math.isclose(parts["resale"][0], -servers * 0.8 * 0.2)
    assert math.isclose(parts["hall"][0], 1024 * 1.39 * 165 * 36)
    assert math.isclose(parts["energy"][0], 1024 * 1.056 * 730 * 36 * 1.3 * 0.08)
    assert math.isclose(parts["people"][0], 4 * 300_000 * 3)
    assert math.isclose(owned_usd(fleet(), terms, 36.0)[0], sum(p[0] for p in parts.values()))


def test_renting_takes_the_cheaper_of_on_demand_and_contract() -> None:
    terms = middle_inputs(ROWS, on_demand_usd=4.0, contract_usd=2.0, rent_extras=0.0)
    hours = 1024 * 730 * 12
    for busy, hourly in ((0.25, 1.0), (0.9, 2.0)):
        usd = rented_usd(fleet(), {**terms, "busy": np.array([busy])}, 12.0)
        assert math.isclose(usd[0], hours * hourly)


def test_a_contract_is_paid_for_its_year_so_a_run_of_weeks_is_on_demand() -> None:
    terms = middle_inputs(ROWS, on_demand_usd=4.0, contract_usd=2.0, rent_extras=0.0, busy=1.0)
    month = 1024 * 730
    for months, usd in (
        (1.0, 4.0),
        (5.0, 20.0),
        (6.0, 24.0),
        (9.0, 24.0),
        (12.0, 24.0),
        (18.0, 36.0),
    ):
        assert math.isclose(rented_usd(fleet(), terms, months)[0], month * usd)


def test_network_and_storage_are_counted_once() -> None:
    """The middle of an H100's machine with both comes to what a source has for all of it."""
    parts = capital_costs(fleet(), middle_inputs(ROWS))
    assert math.isclose(sum(usd[0] for usd in parts.values()) / 1024, 250_000 / 8, rel_tol=1e-3)
    rack = capital_costs(fleet(1008, all_in=True), middle_inputs(ROWS))
    assert set(rack) == {"servers"}


def test_spares_are_housed_fed_and_joined_like_the_others() -> None:
    terms = middle_inputs(ROWS)
    for hall in ("colocation", "own"):
        plain, spare = (fleet(1024, hall=hall, spare_gpus=n) for n in (0, 64))
        more = 1 + 64 / 1024
        assert math.isclose(
            monthly_costs(spare, terms)["energy"][0],
            more * monthly_costs(plain, terms)["energy"][0],
        )
        assert math.isclose(
            capital_costs(spare, terms)["network"][0],
            more * capital_costs(plain, terms)["network"][0],
            rel_tol=1e-6,
        )
    terms_of = [
        capital_costs(fleet(1024, hall="own", spare_gpus=n), terms)["hall"][0] for n in (0, 64)
    ]
    assert math.isclose(terms_of[1], terms_of[0] * 1088 / 1024)


@given(gpus=st.integers(1, 5000), spare=st.integers(0, 500), node=st.sampled_from([4, 8, 72]))
def test_whole_machines_are_bought(gpus: int, spare: int, node: int) -> None:
    one = BuiltFleet(gpus=gpus, node_gpus=node, rated_watts=1e3, drawn_watts=800, spare_gpus=spare)
    assert one.owned_gpus % node == 0
    assert gpus + spare <= one.owned_gpus < gpus + spare + 2 * node


@settings(max_examples=40, deadline=None)
@given(months=st.floats(1, 72), more=st.floats(1.0, 4.0), seed=st.integers(0, 1000))
def test_dearer_rent_never_favours_renting(months: float, more: float, seed: int) -> None:
    terms = draw_inputs(ROWS, 16, seed)
    dear = {
        **terms,
        "on_demand_usd": more * terms["on_demand_usd"],
        "contract_usd": more * terms["contract_usd"],
    }
    assert np.all(rented_usd(fleet(), dear, months) >= rented_usd(fleet(), terms, months))
    assert np.all(break_even(fleet(), dear) <= break_even(fleet(), terms))


@settings(max_examples=40, deadline=None)
@given(
    gpus=st.integers(8, 100_000),
    months=st.floats(0.5, 72),
    seed=st.integers(0, 1000),
    hall=st.sampled_from(["colocation", "own"]),
)
def test_parts_of_owning_are_positive_but_for_resale_and_add_up(
    gpus: int, months: float, seed: int, hall: str
) -> None:
    terms = draw_inputs(ROWS, 16, seed)
    one = fleet(gpus, hall=hall, spare_gpus=8)
    parts = owned_costs(one, terms, months)
    assert all(np.all(usd >= 0) for name, usd in parts.items() if name != "resale")
    assert np.all(parts["resale"] <= 0)
    assert np.allclose(sum(parts.values()), owned_usd(one, terms, months))
    assert np.all(owned_usd(one, terms, months) > 0)
    assert np.all(sum(capital_costs(one, terms).values()) > 0)
    assert np.all(sum(monthly_costs(one, terms).values()) > 0)


def test_a_small_fleet_pays_more_for_people_and_less_for_its_network() -> None:
    assert network_share(512) < network_share(4096) < network_share(65_536)
    terms = middle_inputs(ROWS)
    per_gpu = [monthly_costs(fleet(gpus), terms)["people"][0] / gpus for gpus in (64, 1024)]
    assert per_gpu[0] > 10 * per_gpu[1]


def test_break_even_falls_with_size_and_a_single_run_is_rented() -> None:
    shares = [decision(name).life.build_share for name in ("7B", "70B", "400B")]
    assert shares == sorted(shares)
    runs = [decision(name).one_run for name in ("7B", "70B", "400B")]
    assert runs[0].build_share < 0.05
    assert all(run.build_share < 0.3 for run in runs)
    assert all(run.rent_usd[1] < run.own_usd[1] for run in runs)
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
    low, _, high = (sum(values[end] for values in found.spending.values()) for end in range(3))
    assert low < found.life.own_usd[1] < high  # parts of one draw add up; their medians need not
    price = found.life.own_usd_per_hour[1]
    assert math.isclose(sum(found.waste.values()), price * found.need.gpu_hours, rel_tol=1e-9)


def test_leaving_the_next_generation_out_moves_no_other_draw() -> None:
    need = need_of(load_cases()["7B"], FACTS, replicas=20)
    asked, alone = (decide(need, FACTS, upgrade=name, draws=64) for name in ("gb200", None))
    assert asked.life == alone.life
    assert asked.break_even == alone.break_even
    assert len(asked.ways) == len(alone.ways) + 1


def test_inputs_are_drawn_apart_and_each_evenly_around_its_middle() -> None:
    terms = draw_inputs(ROWS, 4000, 0)
    ranks = np.array([terms[name] for name, row in ROWS.items() if row.low < row.high])
    off = np.corrcoef(ranks) - np.eye(len(ranks))
    assert np.abs(off).max() < 0.08  # five deviations of 4,000 independent draws
    for name, row in ROWS.items():
        assert np.median(terms[name]) == pytest.approx(row.value, rel=0.01, abs=0.01)


def test_the_case_of_all_middles_is_told_from_the_median_draw() -> None:
    found = decision("70B")
    low, middle_of_draws, high = found.gap_draws
    assert low < middle_of_draws < high
    assert middle_of_draws == pytest.approx(
        found.life.own_usd_per_hour[1] - found.life.rent_usd_per_hour[1], abs=0.3
    )
    (note,) = swings_table(found).notes
    assert f"not the median of the draws ({middle_of_draws:+.2f} $" in note


def test_waiting_is_one_of_three_ways_and_shares_add_up() -> None:
    ways = decision("400B").ways
    assert [way.name for way in ways] == ["rent", "build now", "wait, then build"]
    later = int(ways[2].doc.split("then ")[1].split()[0].replace(",", ""))
    assert later % 72 == 0  # racks of GB200
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
    assert by_text["a single 7B run: rent"].outcome == "comes out"
    assert by_text["a single 400B run: rent"].outcome in ("depends", "comes out")
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


@pytest.mark.parametrize("name", [*BOUNDS, "hall_usd_per_watt", "least_engineers"])
def test_both_ends_of_what_may_be_stated_give_numbers_without_warnings(name: str) -> None:
    rents = find_rents(FACTS, "h100-sxm")
    for value in BOUNDS.get(name, (0.0, 1e6)):
        rows = inputs_for("h100-sxm", rents, {name: value})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            terms = draw_inputs(rows, 16, 0)
            life = own_and_rent(fleet(hall="own"), terms, 12 * terms["life_years"])
            even = break_even(fleet(hall="own"), terms)
        assert all(math.isfinite(v) for v in (*life.own_usd_per_hour, *life.rent_usd_per_hour))
        assert not np.isnan(even).any()


def test_packaged_inputs_lie_within_what_may_be_stated() -> None:
    for name, row in ROWS.items():
        least, most = BOUNDS.get(name, (0.0, 1e6))
        assert least <= row.low <= row.high <= most


def test_prices_stand_with_their_dates_and_how_many_are_old() -> None:
    found = decision("70B")
    notes = str(sources_table(found, TODAY).rows)
    dates = found.inputs["on_demand_usd"].dates
    assert list(dates) == sorted(dates)
    assert f"{dates[0]} to {dates[-1]}" in notes
    assert age_text(("2025-08",), TODAY) == "2025-08, 1 of 1 old"
    assert age_text(("2026-05", "2026-10-01"), TODAY) == "2026-05 to 2026-10-01, 1 of 2 old"
    later = datetime.date(2036, 1, 1)
    assert f"{len(dates)} of {len(dates)} old" in str(sources_table(found, later).rows)


SMALL = [
    "build",
    "llama-2-7b",
    "--on",
    "h100-sxm:64",
    "--tokens",
    "2T",
    "--seq-len",
    "4096",
    "--next",
    "none",
    "--draws",
    "50",
]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*SMALL, "--set", "busy=2"], "busy"),
        (["build", "llama-3.1-70b", "--set", "busy"], "NAME=VALUE"),
        ([*SMALL, "--set", "busy=much"], "much"),
        ([*SMALL, "--set", "pue=nan"], "pue"),
        (["build", "llama-3.1-70b", "--on", "h100-sxm"], "accelerator:count"),
        (["build", "lama-3.1-70b"], "llama-3.1-70b"),
        (["build", "llama-3.1-70b", "--next", "h100-pcie"], "server price"),
        (["build", "llama-3.1-405b", "--on", "h100-sxm:8"], "leanest layout needs 115 GB"),
        (["build", "llama-3.1-70b", "--tokens", "0"], "tokens"),
        (["build", "llama-3.1-70b", "--tokens", "1e300"], "tokens"),
        ([*SMALL, "--set", "busy=0"], "busy"),
        ([*SMALL, "--set", "pue=0.1"], "pue"),
        ([*SMALL, "--set", "life_years=1e300"], "life_years"),
        ([*SMALL, "--set", "on_demand_usd=0"], "on_demand_usd"),
        ([*SMALL, "--set", "rent_trend=-1"], "rent_trend"),
        (["build", "llama-3.1-70b", "--today", "soon"], "--today"),
        (["build", "--on", "h100-sxm:64"], "--on"),
        (["build", "--tokens", "1T"], "--tokens"),
        (["build", "--seq-len", "8192"], "--seq-len"),
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
    assert run([*SMALL, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "computeflow.build/1"
    assert len(data["break_even"]) == 3
    assert {"servers", "people", "energy"} <= set(data["spending"])
    assert len(data["ways"]) == 2
