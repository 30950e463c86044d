"""A site takes the least of its limits; lifting the binding one buys what the next one leaves."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.comparison.machines import machine_of, rack_rows
from computeflow.comparison.rents import find_rents
from computeflow.comparison.site_limits import SiteCapacity, deploy
from computeflow.comparison.tiers import tier_losses
from computeflow.errors import InputError, UnknownNameError
from computeflow.views.site_limits import limits_figure, limits_headline, limits_table

FACTS = load_catalog(())
HALL = SiteCapacity(
    contracted_watts=24e6,
    racks=400,
    rack_watts=32e3,
    floor_kg_per_m2=1200,
    cooling=FACTS.coolings["air-contained"],
    cable_metres=50,
    switch_ports=64,
)
ASKED = [
    "site-limits",
    "--power",
    "24MW",
    "--racks",
    "400",
    "--rack-power",
    "32kW",
    "--floor-load",
    "1200",
    "--cooling",
    "air-contained",
    "--cable",
    "50",
    "--switch-ports",
    "64",
]


def test_a_24_mw_hall_of_h100_is_bound_by_its_racks_and_then_by_its_power() -> None:
    found = deploy(HALL, machine_of("h100-sxm", FACTS))
    assert found.gpus == 400 * 3 * 8
    assert (found.binding, found.next) == ("rack feed", "contracted power")
    first = found.limits[0]
    assert first.alone is not None
    assert first.alone == found.lifts[0].gpus > found.gpus
    assert first.needed == "40.8 kW a rack"


def test_power_follows_pue_and_rated_watts_by_hand() -> None:
    machine = machine_of("h100-sxm", FACTS)
    found = deploy(SiteCapacity(contracted_watts=24e6, pue=1.25), machine)
    assert found.gpus == int(24e6 / (10_200 * 1.09 * 1.25)) * 8
    assert found.high == int(24e6 / (7_750 * 1.06 * 1.25)) * 8


def test_a_rack_without_an_air_cooled_version_does_not_go_into_an_air_cooled_hall() -> None:
    found = deploy(HALL, machine_of("gb200", FACTS))
    assert found.gpus == 0
    lifted = [lift.lifted for lift in found.lifts if lift.gpus == 0 or lift.gained]
    assert {"rack feed", "rack cooling", "floor load"} <= set(lifted)


def test_a_limit_that_was_not_given_is_said_and_limits_nothing() -> None:
    found = deploy(SiteCapacity(contracted_watts=24e6), machine_of("b300-sxm", FACTS))
    assert [limit.name for limit in found.limits] == ["contracted power"]
    assert any(text.startswith("floor load: not given") for text in found.unknown)
    heavy = deploy(SiteCapacity(racks=10, floor_kg_per_m2=900), machine_of("b300-sxm", FACTS))
    assert "floor load: the mass of dgx-b300 is not published" in heavy.unknown


@given(
    watts=st.floats(1e5, 1e9),
    racks=st.integers(1, 10_000),
    feed=st.floats(5e3, 300e3),
    floor=st.floats(300, 4000),
    metres=st.floats(3, 500),
    ports=st.integers(8, 512),
    name=st.sampled_from(["h100-sxm", "b200-sxm", "gb200", "mi300x"]),
)
def test_the_least_limit_binds_and_no_lift_takes_gpus_away(
    watts: float, racks: int, feed: float, floor: float, metres: float, ports: int, name: str
) -> None:
    site = SiteCapacity(
        contracted_watts=watts,
        racks=racks,
        rack_watts=feed,
        floor_kg_per_m2=floor,
        cable_metres=metres,
        switch_ports=ports,
        cooling=FACTS.coolings["direct-liquid"],
    )
    found = deploy(site, machine_of(name, FACTS))
    assert found.gpus == min(limit.gpus for limit in found.limits)
    assert found.low <= found.gpus <= found.high
    assert all(limit.alone is None or limit.alone >= found.gpus for limit in found.limits)
    assert all(lift.gained >= 0 for lift in found.lifts)
    sizes = [found.gpus, *(lift.gpus for lift in found.lifts)]
    assert sizes == sorted(sizes)


@settings(max_examples=30, deadline=None)
@given(watts=st.floats(1e6, 1e8), more=st.floats(1.0, 3.0))
def test_more_power_never_takes_fewer_gpus(watts: float, more: float) -> None:
    machine = machine_of("h100-sxm", FACTS)
    one, other = (deploy(SiteCapacity(contracted_watts=w), machine) for w in (watts, more * watts))
    assert other.gpus >= one.gpus


def test_a_better_tier_loses_less_and_all_of_it_is_little() -> None:
    found = {one.name: one for one in tier_losses(FACTS, gpus=1024, node_gpus=8, replicas=100)}
    assert found["tier-1"].lost_days > found["tier-3"].lost_days > 0
    assert found["tier-3"].lost_days >= found["tier-4"].lost_days
    assert found["tier-1"].lost_days < 3
    assert 0.9 < found["tier-1"].goodput < 1


def test_every_machine_that_can_be_racked_is_a_node_with_rated_watts() -> None:
    for name in rack_rows():
        assert machine_of(FACTS.nodes[name].accelerator, FACTS).rated_watts > 1e3


def test_the_figure_carries_the_limits_of_the_table() -> None:
    found = deploy(HALL, machine_of("h100-sxm", FACTS))
    figure = limits_figure(found)
    assert figure.data[0]["customdata"] == [limit.gpus for limit in found.limits]
    assert figure.numbers == limits_table(found)
    assert "Renting" in limits_headline(found, 2.5)


def test_a_limit_far_beyond_the_others_does_not_hide_them() -> None:
    found = deploy(HALL, machine_of("h100-sxm", FACTS))
    figure = limits_figure(found)
    end = figure.layout["xaxis"]["range"][1]
    assert end < 6 * found.gpus < max(limit.gpus for limit in found.limits)
    assert all(drawn <= end for drawn in figure.data[0]["x"])
    assert "  65,536 (cut)" in figure.data[1]["text"]
    assert "cut at" in figure.summary


def test_the_command_answers_as_json_with_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "--no-tiers", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "computeflow.site/1"
    assert data["binding"] == "rack feed"
    assert {"gpus", "low", "high", "alone", "needed"} <= set(data["limits"][0])
    assert len(data["others"]) == len(rack_rows())


def test_dollars_of_a_small_site_are_not_rounded_away(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--power", "500kW", "--racks", "40", "--rack-power", "15kW", "--cooling", "air"]
    assert run(["site-limits", *small, "--price", "2.4"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Renting 72 GPUs instead would cost $1.51M a year" in shown
    tier = next(line for line in shown.split("tier-") if line.startswith("4 "))
    assert "$" in tier
    assert "$0 " not in tier


def test_a_site_that_takes_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["site-limits", "--power", "1W"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "The site takes no GPU: contracted power is too little for one dgx-h100 of 8 GPUs." in shown
    )
    assert "Lifting the limits one after another" not in shown


def test_a_price_stands_with_its_dates_and_its_age(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "--no-tiers", "--today", "2036-01-01", "-o", "json"]) == 0
    priced = json.loads(capsys.readouterr().out)["priced"]
    rent = find_rents(FACTS, "h100-sxm").on_demand
    assert rent is not None
    assert priced.endswith(
        f"{rent.oldest} to {rent.newest}, {rent.providers} of {rent.providers} old"
    )
    assert run([*ASKED, "--no-tiers", "--price", "2.5", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["priced"] == "as stated"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["site-limits"], "contracted power"),
        (["site-limits", "--power", "24"], ""),
        (["site-limits", "--power", "24 apples"], "apples"),
        (["site-limits", "--power", "24MW", "--cooling", "ari"], "air"),
        (["site-limits", "--power", "24MW", "--racks", "-3"], "racks"),
        (["site-limits", "--power", "24MW", "--pue", "0.9"], "PUE"),
        (["site-limits", "--power", "24MW", "--accelerator", "rtx-4090"], "rtx-4090"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([*arguments, "--no-tiers"])
    error = capsys.readouterr().err
    if said:
        assert code == 2
        assert said in error
    assert "Traceback" not in error


def test_a_site_without_any_size_and_a_device_without_watts_are_refused() -> None:
    with pytest.raises(InputError):
        SiteCapacity(floor_kg_per_m2=1200)
    with pytest.raises(UnknownNameError):
        machine_of("a100-80-pcie", FACTS)
