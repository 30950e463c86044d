"""Beside the offers: spot markets, moving data, several places, start windows, serving, sizing."""

from __future__ import annotations

import datetime
import itertools
import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import Catalog, find_model, load_catalog
from computeflow.comparison.comparisons import compare
from computeflow.comparison.moves import data_home, egress_usd, move
from computeflow.comparison.offers import ODD, offerings, usual_prices
from computeflow.comparison.planner import MachineShape, Planner, usual_job
from computeflow.comparison.providers import load_terms
from computeflow.comparison.request import ComparisonRequest, Market
from computeflow.comparison.results import Comparison
from computeflow.comparison.runs import RunSetup, run_on, simulate_on_demand, simulate_on_spot
from computeflow.comparison.serving import (
    REACHED,
    chains,
    estimate_serving,
    kv_bytes_per_token,
    places,
    roofline,
    round_trips,
)
from computeflow.comparison.sizes import JobSize, size
from computeflow.comparison.splits import hybrid, split
from computeflow.comparison.windows import Hour, best_starts, read_hours, regions_by_energy
from computeflow.economics import Price, ledger_cost
from computeflow.errors import InputError, UnknownNameError
from computeflow.planning import Plan
from computeflow.simulation import Simulation
from computeflow.units import HOUR_SECONDS
from computeflow.views.sizes import days_figure, size_tables

TODAY = datetime.date(2026, 11, 15)


@cache
def catalog() -> Catalog:
    return load_catalog()


def spot_runs(*rates: float) -> list[Simulation | None]:
    setting, plan = on_512()
    markets = [Market(preemptions_per_node_day=rate) for rate in rates]
    runs = [run_on(setting, plan, 1e12, catalog(), market, spot=True) for market in markets]
    return simulate_on_spot(runs, replicas=20, seed=0)


def on_512() -> tuple[RunSetup, Plan]:
    job = usual_job(find_model(catalog(), "llama-3.1-70b"))
    shape = MachineShape(accelerator="h100-sxm", devices=8, nic_bytes_per_second=50e9)
    plan = Planner(job, catalog()).plan(shape, 512)
    assert plan is not None
    return RunSetup(shape=shape, gpus=512), plan


def test_spot_costs_more_than_its_discount_and_more_so_the_oftener_it_is_taken_back() -> None:
    setting, plan = on_512()
    price = Price(usd_per_gpu_hour=1.6, source="a test", as_of="2026")
    usual = run_on(setting, plan, 1e12, catalog(), Market(), spot=False)
    (steady,) = simulate_on_demand([usual], [None], replicas=20, seed=0)
    simulations = [one for one in spot_runs(0.01, 0.05, 0.15) if one is not None]
    bills = [ledger_cost(one.ledger, price).usd for one in simulations]
    assert len(bills) == 3 and bills == sorted(bills)
    assert bills[0] > ledger_cost(steady.ledger, price).usd


def test_a_market_that_takes_machines_back_every_hour_gets_nowhere() -> None:
    assert spot_runs(20.0) == [None]


SIZES = st.floats(1e9, 1e16)


@given(SIZES, SIZES)
def test_moving_more_never_costs_less(one: float, other: float) -> None:
    for terms in load_terms().terms.values():
        low, high = (egress_usd(terms, size) for size in sorted((one, other)))
        assert (low is None) == (high is None) == (not terms.egress_tiers)
        assert low is None or high is None or low <= high


def test_egress_is_paid_by_the_tier() -> None:
    aws = load_terms().terms["aws"]
    assert egress_usd(aws, 10e12) == pytest.approx(10_000 * 0.09)
    assert egress_usd(aws, 50e12) == pytest.approx(10_000 * 0.09 + 40_000 * 0.085)


def test_an_egress_price_that_nobody_gives_is_not_known_and_the_same_provider_is_free() -> None:
    book = load_terms()
    unknown = move(1e14, "lambda", "gcp", book)
    assert unknown.usd is None and "unknown" in unknown.note
    here = move(1e14, "aws", "aws", book)
    assert here.usd == 0.0 and here.hours == (0.0, 0.0) and "known" in here.note
    assert move(4.5e12, "aws", "gcp", book, line=1.25e9).hours == (1.0, 1.0)
    with pytest.raises(UnknownNameError, match="lambda"):
        data_home("lamda", ["lambda", "aws"], book)
    with pytest.raises(InputError):
        move(0.0, "aws", "gcp", book)


@cache
def compared() -> Comparison:
    offers = offerings(
        catalog(),
        load_terms(),
        accelerators=["h100-sxm"],
        providers=["crusoe", "nebius", "coreweave", "runpod"],
    )
    job = usual_job(find_model(catalog(), "llama-3.1-8b"))
    request = ComparisonRequest(
        job=job, tokens=2e11, deadline_seconds=30 * 86400, today=TODAY, replicas=20
    )
    return compare(request, offers, catalog())


def test_runs_go_to_the_cheapest_places_within_what_they_hold() -> None:
    few, many = split(compared(), 1), split(compared(), 40)
    assert len(few.shares) == 1 and few.left == 0
    assert few.shares[0].result is compared().meeting[0]
    assert sum(share.runs for share in many.shares) + many.left == 40
    costs = [share.usd / share.runs for share in many.shares]
    assert costs == sorted(costs)
    assert len({share.result.offering.provider for share in many.shares}) == len(many.shares)
    for share in many.shares:
        most = share.result.offering.most_gpus
        assert most is None or share.at_once * share.result.simulation.run.allocated_gpus <= most


def test_a_split_is_never_dearer_than_one_place_for_all() -> None:
    for runs in (1, 2, 3, 8):
        found = split(compared(), runs)
        if found.single is not None and not found.left:
            assert found.usd <= found.single.usd * (1 + 1e-9)
    with pytest.raises(InputError):
        split(compared(), 0)


DEMANDS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda d: max(d) > 0)


@given(DEMANDS, st.floats(0.1, 5), st.floats(0.1, 5))
def test_the_owned_base_is_the_cheapest_of_all(
    demand: list[int], owned: float, rented: float
) -> None:
    found = hybrid(demand, period_seconds=HOUR_SECONDS, owned_usd=owned, rented_usd=rented)

    def bill(base: int) -> float:
        return math.fsum(base * owned + max(gpus - base, 0) * rented for gpus in demand)

    assert found.usd == pytest.approx(min(bill(base) for base in range(41)))
    assert found.usd <= found.all_owned_usd * (1 + 1e-9)
    assert found.usd <= found.all_rented_usd * (1 + 1e-9)


def test_an_empty_demand_is_refused() -> None:
    with pytest.raises(InputError):
        hybrid([0, 0], period_seconds=HOUR_SECONDS, owned_usd=1.0, rented_usd=2.0)


VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(VALUES, st.integers(1, 10))
def test_no_other_start_has_a_cheaper_window(values: list[float], length: int) -> None:
    hours = [Hour(hour=str(n), usd_per_kwh=v, grams_per_kwh=None) for n, v in enumerate(values)]
    if length > len(values):
        with pytest.raises(InputError, match="does not fit"):
            best_starts(hours, length * 3600.0, "usd_per_kwh")
        return
    found = best_starts(hours, length * 3600.0, "usd_per_kwh")
    means = [math.fsum(values[n : n + length]) / length for n in range(len(values) - length + 1)]
    assert found.mean == pytest.approx(min(means), abs=1e-9)


def test_hours_that_are_no_hours_are_refused_by_line() -> None:
    head = "hour,usd_per_kwh,grams_per_kwh\n"
    assert read_hours(head + "00:00,0.1,\n")[0].grams_per_kwh is None
    with pytest.raises(InputError, match="line 2"):
        read_hours(head + "00:00,cheap,1\n")
    with pytest.raises(InputError, match="columns"):
        read_hours("a,b\n1,2\n")


def test_the_same_energy_emits_less_on_a_cleaner_grid() -> None:
    found = regions_by_energy(3.6e12, catalog(), ["poland", "sweden"])
    assert [one.grid for one in found] == ["sweden", "poland"]
    assert found[0].tonnes == pytest.approx(41.0)


@pytest.mark.parametrize(("device", "measured"), [("b200-sxm", 103e3 / 8), ("gb200", 865e3 / 72)])
def test_the_range_of_the_roofline_holds_published_benchmarks(device: str, measured: float) -> None:
    """MLPerf's Llama-2-70B in FP4 (see `serving.REACHED`)."""
    row = catalog().accelerators[device]
    batch, seconds = roofline(
        catalog().models["llama-2-70b"], row, 1, prompt=294, output=294, precision="fp4"
    )
    reached = measured / (batch / seconds)
    assert 0.3 < reached < 0.4
    assert REACHED[0] < reached < REACHED[1]


def test_a_cache_is_two_vectors_of_every_layer() -> None:
    assert kv_bytes_per_token(catalog().models["llama-3.1-70b"], "bf16") == 80 * 2 * 8 * 128 * 2


def test_served_tokens_have_a_range_and_a_dated_price() -> None:
    found = estimate_serving(
        catalog().models["llama-3.1-70b"], catalog(), ["h100-sxm", "b200-sxm", "gaudi3"]
    )
    assert {one.accelerator for one in found} == {"h100-sxm", "b200-sxm", "gaudi3"}
    for one in found:
        low, high = one.tokens_per_second_per_gpu
        assert low < high
        assert one.usd_per_million is None or (one.as_of and one.usd_per_million[0] > 0)
    with pytest.raises(InputError, match="no device holds"):
        estimate_serving(catalog().models["llama-3.1-70b"], catalog(), ["h100-sxm"], output=10**9)
    with pytest.raises(UnknownNameError, match="fp8"):
        estimate_serving(
            catalog().models["llama-3.1-70b"], catalog(), ["h100-sxm"], precision="fp9"
        )


def test_every_pair_of_regions_has_a_round_trip_and_chains_are_calls_times_hops() -> None:
    names = places()
    assert len(round_trips()) == len(list(itertools.combinations(names, 2)))
    one, many = chains("japan")[0], chains("japan", calls=10, hops=3, onramp_seconds=0.01)[0]
    assert many.network_seconds == pytest.approx(30 * (one.round_trip_seconds + 0.01))
    assert one.place == "japan" and len(chains("japan")) == len(names)
    with pytest.raises(InputError, match="nearest: japan"):
        chains("japn")


@cache
def sized() -> JobSize:
    return size(usual_job(find_model(catalog(), "llama-3.1-70b")), 1e12, catalog(), today=TODAY)


def test_a_size_has_flops_days_memory_network_power_and_dollars() -> None:
    found = sized()
    assert found.flops == pytest.approx(6 * 70e9 * 1e12, rel=0.1)
    for device in found.devices:
        days = [cell.days for cell in device.cells]
        assert len(days) == 3 and days == sorted(days, reverse=True)
        assert device.floor is not None
        assert device.floor.bytes_per_gpu <= device.floor.limit_bytes
        assert device.price is not None and device.price.oldest <= device.price.newest
        for cell in device.cells:
            assert cell.days_range[0] < cell.days < cell.days_range[1]
            assert cell.mfu_range[0] < cell.mfu < cell.mfu_range[1] and cell.mfu < cell.mfu_palm
            assert cell.watts is not None and cell.watts > 300 * cell.gpus


def test_dollars_of_a_size_have_the_range_of_days_and_no_odd_price() -> None:
    device = next(device for device in sized().devices if device.name == "h100-sxm")
    assert device.price is not None
    usual = usual_prices(catalog())["h100-sxm", "on-demand"]
    assert ODD * usual <= device.price.low < device.price.high
    for cell in device.cells:
        ends, middle = device.usd_ends(cell), device.usd(cell)
        assert ends is not None and middle is not None
        assert ends[0] == pytest.approx(device.price.low * 24 * cell.gpus * cell.days_range[0])
        assert ends[1] == pytest.approx(device.price.high * 24 * cell.gpus * cell.days_range[1])
        assert ends[0] < middle[0] < middle[1] < ends[1]
        assert middle[1] < 3 * middle[0], "the lists of all providers span 16 times"


def test_a_larger_cluster_needs_a_network_no_slower() -> None:
    needs = [need.bytes_per_second for need in sized().network]
    assert None not in needs and needs == sorted(needs, key=lambda rate: rate or 0.0)
    for need in sized().network:
        assert [mfu for _, mfu in need.mfus] == sorted(mfu for _, mfu in need.mfus)


def test_fewer_gpus_than_the_floor_hold_no_plan() -> None:
    planner = Planner(sized().job, catalog())
    floor = next(device.floor for device in sized().devices if device.name == "h100-sxm")
    assert floor is not None
    shape = MachineShape(accelerator="h100-sxm", devices=8, nic_bytes_per_second=50e9)
    assert planner.plan(shape, floor.gpus) is not None
    assert planner.plan(shape, floor.gpus // 2) is None


def test_the_heat_map_has_a_cell_for_every_device_and_count() -> None:
    figure = days_figure(sized())
    (heat,) = figure.data
    assert len(heat["z"]) == len(heat["y"]) == 5 and len(heat["x"]) == 3
    assert "Fastest" in figure.summary
    assert len(size_tables(sized())) == 4


def test_no_tokens_and_no_gpus_are_refused() -> None:
    job = sized().job
    with pytest.raises(InputError, match="tokens"):
        size(job, 0.0, catalog(), today=TODAY)
    with pytest.raises(InputError, match="at most"):
        size(job, 1e300, catalog(), today=TODAY)
    with pytest.raises(InputError, match="GPUs"):
        size(job, 1e12, catalog(), today=TODAY, counts=(0,))
