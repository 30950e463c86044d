"""Offers of the same device differ, and the comparison shows by how much."""

from __future__ import annotations

import datetime
from dataclasses import replace
from functools import cache

import pytest

import computeflow as cf
from computeflow.answers.comparison_data import comparison_data
from computeflow.answers.comparisons import CompareAnswer
from computeflow.catalog import Catalog, find_model, load_catalog
from computeflow.comparison import planner
from computeflow.comparison.advice import advise
from computeflow.comparison.comparisons import compare
from computeflow.comparison.costs import committed_days
from computeflow.comparison.energy import host_watts
from computeflow.comparison.moves import move
from computeflow.comparison.offers import Offering, in_countries, offerings
from computeflow.comparison.own_sites import own_offerings
from computeflow.comparison.planner import MachineShape, Planner, usual_job
from computeflow.comparison.providers import Quality, load_terms, where_is
from computeflow.comparison.request import ComparisonRequest, Market
from computeflow.comparison.results import Comparison, Result
from computeflow.economics import ledger_cost, price_of
from computeflow.errors import InputError, UnknownNameError
from computeflow.planning import plan
from computeflow.simulation import inputs
from computeflow.units import format_share, format_usd
from computeflow.views.comparisons import (
    advice_table,
    comparison_tables,
    detail_table,
    front_figure,
    summary_table,
)

TODAY = datetime.date(2026, 11, 15)
DAY = 86400.0
pytestmark = pytest.mark.usefixtures("kept_plans")


@cache
def catalog() -> Catalog:
    return load_catalog()


def ask(
    model: str = "llama-3.1-70b", tokens: float = 1e12, days: float = 30.0
) -> ComparisonRequest:
    job = usual_job(find_model(catalog(), model))
    return ComparisonRequest(
        job=job, tokens=tokens, deadline_seconds=days * DAY, today=TODAY, replicas=20
    )


@cache
def ampere() -> Comparison:
    """A100s of 40 GB at two clouds whose networks are both published."""
    found = offerings(catalog(), load_terms(), accelerators=["a100-40-sxm"], assumed_nic=None)
    return compare(ask(), [o for o in found if o.provider in ("gcp", "azure")], catalog())


def result_at(found: Comparison, name: str) -> Result:
    return next(result for result in found.results if result.offering.name == name)


def test_the_cheapest_list_price_is_not_the_cheapest_run() -> None:
    """One 100 Gb/s port for eight A100s at Google, eight of 200 at Azure, for a tenth more."""
    cheap = result_at(ampere(), "gcp/a2-highgpu-8g us-west1")
    dear = result_at(ampere(), "azure/Standard_ND96asr_v4 southcentralus")
    listed, paid = cheap.cost("on-demand"), dear.cost("on-demand")
    assert listed is not None and paid is not None
    assert cheap.offering.network_known and dear.offering.network_known
    assert listed.usd_per_device_hour < paid.usd_per_device_hour
    assert listed.usd > 1.2 * paid.usd


def test_the_better_network_has_the_higher_mfu() -> None:
    slow = result_at(ampere(), "gcp/a2-highgpu-8g us-west1").plan.prediction.ledger.mfu
    fast = result_at(
        ampere(), "azure/Standard_ND96asr_v4 southcentralus"
    ).plan.prediction.ledger.mfu
    assert slow is not None and fast is not None and slow < fast


def test_dollars_are_the_simulated_ledger_at_the_price() -> None:
    for result in ampere().results:
        for cost, price in zip(result.costs, result.offering.prices, strict=True):
            if cost.term != "spot":
                assert cost.run is not None
                assert cost.usd == ledger_cost(cost.run.simulation.ledger, price_of(price)).usd


def test_spot_costs_more_than_a_flat_discount() -> None:
    for result in hopper(30.0).results:
        spot = result.cost("spot")
        if spot is None:
            continue
        assert spot.run is not None
        work = spot.run.simulation.run.work_seconds
        assert work is not None
        assert spot.usd > spot.usd_per_device_hour * spot.run.gpus * work / 3600


@cache
def hopper(days: float) -> Comparison:
    """Spot that is late on 512 GPUs for a deadline that the on-demand run keeps, and in time on
    1,024.
    """
    found = offerings(
        catalog(), load_terms(), providers=["crusoe", "nebius"], accelerators=["h100-sxm"]
    )
    return compare(ask(days=days), found, catalog())


def test_a_looser_deadline_never_costs_more() -> None:
    last: dict[tuple[str, str], float] = {}
    for days in (19.0, 20.0, 22.5, 23.0, 30.0, 45.0):
        for result in hopper(days).results:
            for term in ("on-demand", "spot"):
                cost = result.cost(term)
                if cost is not None and cost.meets:
                    key = (result.offering.name, term)
                    assert cost.usd <= last.get(key, cost.usd)
                    last[key] = cost.usd


def test_spot_has_a_size_of_its_own() -> None:
    result = hopper(20.0).meeting[0]
    spot, steady = result.cost("spot"), result.cost("on-demand")
    assert spot is not None and spot.run is not None and spot.meets
    assert steady is not None and steady.run is not None and steady.meets
    assert spot.run.gpus > steady.run.gpus
    assert result.gpus == spot.run.gpus and spot.usd < steady.usd


def test_what_a_result_says_is_of_its_best_term() -> None:
    result = hopper(30.0).meeting[0]
    assert result.best is not None and result.best.term == "spot"
    assert result.run is result.best.run
    assert result.seconds == (result.simulation.seconds.p50, result.simulation.seconds.p90)
    energy = result.meter.energy
    assert set(energy.by_account) == set(result.simulation.ledger.accounts)


def test_an_offer_that_meets_over_the_range_meets_and_not_all_that_meet_do() -> None:
    strict, loose = hopper(26.0), hopper(37.0)
    assert strict.meeting and not strict.sure
    assert loose.sure and set(map(id, loose.sure)) <= set(map(id, loose.meeting))
    sure = [cost for result in loose.sure for cost in result.costs if cost.sure]
    assert sure  # by a term that is not the cheapest
    for cost in sure:
        assert cost.run is not None and cost.p90_seconds is not None and cost.meets
        assert cost.run.slowness[1] * cost.p90_seconds <= loose.request.deadline_seconds


def test_the_cheapest_list_price_has_the_bill_of_its_own_term() -> None:
    found = hopper(30.0)
    listed = found.cheapest_list_price
    assert listed is not None and listed.best is not None
    cost = listed.cost("on-demand")
    assert cost is not None and listed.best.term == "spot"
    said = {row[0]: row[1] for row in summary_table(found).rows}["cheapest list price"]
    assert format_usd(cost.usd) in said and format_usd(listed.best.usd) not in said


def test_a_reservation_holds_for_its_days_only() -> None:
    assert committed_days("1-182 days") == (1.0, 182.0)
    assert committed_days("unstated") is None
    offers = offerings(catalog(), load_terms(), providers=["aws"], accelerators=["h100-sxm"])
    long = compare(ask("llama-3.1-8b", 15e12, 400.0), offers, catalog())
    reserved = [c for r in long.results for c in r.costs if c.term == "reserved"]
    assert any(c.meets for c in reserved)
    for cost in reserved:
        assert cost.p90_seconds is not None
        assert cost.problem or cost.p90_seconds <= 182 * DAY
    far = replace(ask("llama-3.1-8b", 15e12, 400.0), most_gpus=64)
    small = [c for r in compare(far, offers, catalog()).results for c in r.costs]
    assert all("182 days" in c.problem and not c.meets for c in small if c.term == "reserved")


def test_a_commitment_that_nobody_states_does_not_win_silently() -> None:
    offers = offerings(
        catalog(),
        load_terms(),
        providers=["together", "nebius"],
        accelerators=["b200-sxm", "h100-sxm"],
    )
    found = compare(ask(days=60.0), offers, catalog())
    costs = [cost for result in found.results for cost in result.costs]
    assert any(cost.unstated and cost.meets for cost in costs)
    advice = advise(found, "production")
    assert advice.cost is not None and not advice.cost.unstated


def test_bringing_the_data_takes_money_and_time() -> None:
    offers = offerings(catalog(), load_terms(), providers=["nebius"], accelerators=["h100-sxm"])
    moves = {"nebius": move(1e15, "aws", "nebius", load_terms(), line=12.5e9)}
    plain, moved = (compare(replace(ask(), moves=m), offers, catalog()) for m in ({}, moves))
    one, other = (c.results[0].cost("on-demand") for c in (plain, moved))
    assert one is not None and other is not None and one.p90_seconds and other.p90_seconds
    assert other.move_usd and other.usd == pytest.approx(one.usd + other.move_usd)
    assert other.p90_seconds == pytest.approx(one.p90_seconds + 80_000)
    late = replace(ask(days=0.5), moves=moves)
    assert "arrive after" in compare(late, offers, catalog()).refused[0].reason


def test_energy_and_carbon_add_up_and_say_what_they_rest_on() -> None:
    found = result_at(ampere(), "gcp/a2-highgpu-8g us-west1")
    energy = found.meter.energy
    assert energy.joules is not None and energy.grams is not None
    parts = sum(line.joules or 0.0 for line in energy.by_account.values())
    assert parts == pytest.approx(energy.joules)
    grid = found.offering.grid
    assert grid is not None and grid.grams_co2e_per_kwh is not None
    assert energy.grams == pytest.approx(energy.joules / 3.6e6 * grid.grams_co2e_per_kwh)
    assert energy.supply.pue == catalog().facilities["google-fleet"].pue


def test_an_unknown_pue_and_grid_are_said() -> None:
    offers = offerings(catalog(), load_terms(), providers=["crusoe"], accelerators=["h100-sxm"])
    found = compare(ask(), offers, catalog()).results[0]
    assert any("PUE" in note for note in found.meter.notes)
    assert found.meter.energy.grams is None and found.offering.country is None


def test_results_that_meet_the_ask_come_first_cheapest_first() -> None:
    found = ampere()
    meets = [result.meets for result in found.results]
    assert meets == sorted(meets, reverse=True)
    usd = [result.best.usd for result in found.meeting if result.best is not None]
    assert usd == sorted(usd)
    assert all(result.seconds[1] <= found.request.deadline_seconds for result in found.meeting)


def test_nothing_on_the_front_is_beaten() -> None:
    points = [(r.seconds[0], r.best.usd) for r in ampere().results if r.best is not None]
    for result in ampere().front:
        assert result.best is not None
        x, y = result.seconds[0], result.best.usd
        assert not [p for p in points if p[0] < x and p[1] < y]


def test_a_budget_that_nothing_meets_has_a_nearest_answer() -> None:
    offers = offerings(catalog(), load_terms(), providers=["crusoe"], accelerators=["h100-sxm"])
    found = compare(replace(ask(), budget_usd=1000.0), offers, catalog())
    assert not found.meeting
    assert found.nearest is not None and found.nearest.seconds[1] <= found.request.deadline_seconds
    assert advise(found, "production").result is None


def test_old_prices_are_flagged() -> None:
    stale = {cost.as_of: cost.stale for result in ampere().results for cost in result.costs}
    assert stale and all(old == (as_of < "2026-05-19") for as_of, old in stale.items())


def test_the_same_seed_gives_the_same_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "plan", plan)
    offers = offerings(catalog(), load_terms(), providers=["coreweave"], accelerators=["h100-sxm"])
    one, two = (comparison_data(compare(ask(), offers, catalog())) for _ in range(2))
    assert one == two


TERMS = """
[[terms]]
name = "crusoe"
tier = "{tier}"
cooling = "{cooling}"
source = "a contract"
as_of = "2026-11"
"""


def with_terms(tier: str, cooling: str) -> Result:
    book = load_terms(TERMS.format(tier=tier, cooling=cooling))
    offers = offerings(catalog(), book, providers=["crusoe"], accelerators=["h100-sxm"])
    return compare(ask(days=60.0), offers, catalog()).results[0]


def test_a_site_that_is_stated_changes_days_and_dollars() -> None:
    """Everything else equal: air that throttles and tier 1 against liquid and tier 4."""
    worse, better = with_terms("tier-1", "air"), with_terms("tier-4", "direct-liquid")
    assert worse.offering.quality == Quality(tier="tier-1", cooling="air")
    assert worse.simulation.seconds.mean > better.simulation.seconds.mean
    dear, cheap = worse.cost("on-demand"), better.cost("on-demand")
    assert dear is not None and cheap is not None and dear.usd > cheap.usd


def test_a_device_without_the_precision_says_so() -> None:
    offers = offerings(catalog(), load_terms(), providers=["coreweave"])
    job = usual_job(find_model(catalog(), "llama-3.1-8b"), precision="fp8")
    found = compare(replace(ask(tokens=1e11), job=job), offers, catalog())
    reasons = {refused.offering.accelerator: refused.reason for refused in found.refused}
    assert reasons["a100-80-sxm"] == "a100-80-sxm has no peak in fp8"
    assert "h100-sxm" in {result.offering.accelerator for result in found.meeting}


def test_where_all_are_late_the_fastest_are_still_simulated() -> None:
    offers = offerings(catalog(), load_terms(), providers=["coreweave"])
    found = compare(replace(ask(days=1.0), most_gpus=512), offers, catalog())
    assert not found.meeting and found.nearest is not None
    assert found.nearest.seconds[1] == min(result.seconds[1] for result in found.results)


def test_machines_that_are_not_joined_run_what_fits_in_one() -> None:
    offers = offerings(catalog(), load_terms(), providers=["vast"], accelerators=["h100-sxm"])
    assert all(offer.most_gpus == offer.devices for offer in offers)
    large = compare(ask(), offers, catalog())
    assert not large.meeting and large.refused
    small = compare(ask("llama-3.2-1b", 5e9, 3.0), offers, catalog())
    assert small.meeting and all(r.gpus <= r.offering.devices for r in small.results)


def test_an_offer_of_machines_that_are_not_joined_says_so_where_it_falls_out() -> None:
    """It used to say "fits in no layout on up to 8 GPUs", as if it had no more than those."""
    offers = offerings(catalog(), load_terms(), providers=["vast", "runpod"])
    refused = compare(ask(), offers, catalog()).refused
    apart = {o.offering.name: o.reason for o in refused if not o.offering.joined}
    assert apart["vast/2x-H100_SXM-32-65536 South Korea, KR, AS"] == (
        "does not fit in one machine, and such machines are not joined for training"
    )
    assert apart["runpod/2x_B200_SECURE all"] == (
        "does not fit in one machine, and such machines are not joined: its Instant Clusters are"
    )
    assert not any("fits in no layout" in o.reason for o in refused if not o.offering.joined)


def test_single_machines_of_a_provider_that_sells_clusters_have_no_assumed_network() -> None:
    """Lambda's joined machines are 1-Click Clusters; its single ones were judged by 12.5 Gb/s."""
    for provider, single in (("lambda", 15), ("nebius", 17), ("crusoe", 3)):
        offers = offerings(catalog(), load_terms(), providers=[provider])
        apart = {offer.instance for offer in offers if not offer.joined}
        assert len(apart) == single
        assert all(offer.network_known for offer in offers)
    (lone,) = offerings(catalog(), load_terms(), providers=["lambda"], accelerators=["gh200"])
    (refused,) = compare(ask(), [lone], catalog()).refused
    assert refused.reason.endswith("its 1-Click Clusters are")
    clusters = {
        offer.instance: offer for offer in offerings(catalog(), load_terms(), providers=["lambda"])
    }
    for name in ("1-click-h100", "1-click-b200"):
        assert clusters[name].joined and clusters[name].devices == 8
        assert [price.term for price in clusters[name].prices] == ["reserved"]
    own = """
    [[network]]
    name = "ours"
    provider = "lambda"
    instances = ["gpu_8x_h100_sxm5"]
    gigabits_per_device = 400
    source = "our contract"
    as_of = "2026-11"
    """
    stated = offerings(catalog(), load_terms(own), providers=["lambda"], accelerators=["h100-sxm"])
    (ours,) = (offer for offer in stated if offer.instance == "gpu_8x_h100_sxm5")
    assert ours.joined and ours.shape.nic_bytes_per_second == 50e9


def test_commodity_compute_is_fine_for_a_small_experiment_and_not_for_a_large_one() -> None:
    offers = offerings(
        catalog(), load_terms(), accelerators=["h100-sxm"], providers=["vast", "crusoe", "nebius"]
    )
    small = advise(compare(ask("llama-3.2-1b", 5e9, 3.0), offers, catalog()), "exploration")
    large = advise(compare(ask(), offers, catalog()), "exploration")
    assert small.commodity and "commodity compute is fine" in small.reason
    assert not large.commodity and "network" in large.reason


def test_frontier_wants_time_and_production_a_steady_price() -> None:
    offers = offerings(
        catalog(),
        load_terms(),
        accelerators=["h100-sxm", "b200-sxm"],
        providers=["crusoe", "nebius", "coreweave"],
    )
    found = compare(ask(), offers, catalog())
    fast, cheap = advise(found, "frontier").result, advise(found, "production").result
    assert fast is not None and cheap is not None
    steady = [c for r in found.meeting for c in r.costs if c.meets and c.term != "spot"]
    assert advise(found, "frontier").cost in fast.costs
    assert advise(found, "production").cost in cheap.costs
    p90s, bills = ([c.p90_seconds for c in steady], [c.usd for c in steady])
    first, least = advise(found, "frontier").cost, advise(found, "production").cost
    assert first is not None and first.p90_seconds == min(p90 for p90 in p90s if p90)
    assert least is not None and least.usd == min(bills)
    said = advice_table(advise(found, "production")).rows[0][0]
    assert format_usd(least.usd) in said and "spot" not in said


def test_unpublished_networks_are_said_or_left_out() -> None:
    every = offerings(catalog(), load_terms(), providers=["hyperstack"])
    assert every and all("assumed" in offer.network for offer in every)
    known = offerings(catalog(), load_terms(), accelerators=["h100-sxm"], assumed_nic=None)
    assert known and all(offer.network_known for offer in known)


def test_every_price_of_the_catalog_is_in_one_offering() -> None:
    found = offerings(catalog(), load_terms())
    assert sum(len(offer.prices) for offer in found) == len(catalog().offers)


def test_a_network_of_the_providers_own_words_is_used() -> None:
    def rate(provider: str, instance: str) -> float | None:
        found = offerings(catalog(), load_terms(), providers=[provider])
        return next(o.shape.nic_bytes_per_second for o in found if o.instance == instance)

    assert rate("crusoe", "h100-80gb-sxm-ib.8x") == 50e9
    assert rate("aws", "p4d.24xlarge") == 6.25e9
    assert rate("gcp", "a3-highgpu-8g") == 12.5e9


@pytest.mark.parametrize(
    ("provider", "region", "country"),
    [
        ("aws", "us-east-1", "united-states"),
        ("aws", "eu-south-2", "spain"),
        ("gcp", "europe-west9", "france"),
        ("shadeform", "oslo-norway-3", "norway"),
        ("vast", "Taiwan, TW, AS", "taiwan"),
        ("primeintellect", "FI", "finland"),
        ("lambda", "all", None),
    ],
)
def test_a_region_is_in_its_country_or_nowhere_known(
    provider: str, region: str, country: str | None
) -> None:
    assert where_is(catalog(), provider, region).country == country


def test_what_the_recommendation_rests_on_is_of_its_own_run() -> None:
    """The details had days, range and goodput of the spot run under an on-demand answer."""
    found = cf.compare(
        "llama-3.1-70b",
        tokens="1T",
        deadline="30d",
        providers=["crusoe"],
        devices=["h100-sxm"],
        simulations=20,
        today=TODAY,
    )
    assert isinstance(found, CompareAnswer)
    cost, best = found.advice.cost, found.best
    assert cost is not None and cost.run is not None and best is not None
    assert found.comparison.meeting[0].best is not cost, "the cheapest term is another one"
    assert best.run is cost.run and best.seconds == (cost.p50_seconds, cost.p90_seconds)
    assert best.meter != found.comparison.meeting[0].meter
    rows = {row[0]: row[1] for row in detail_table(best).rows}
    low, high = (end * cost.run.simulation.seconds.p50 / DAY for end in cost.run.slowness)
    assert rows["predicted range"].startswith(f"{low:.1f} to {high:.1f} days")
    assert rows["goodput"] == format_share(cost.run.simulation.goodput.p50)


def test_sovereignty_keeps_offers_in_its_countries() -> None:
    every = offerings(catalog(), load_terms(), accelerators=["h100-sxm"])
    found = in_countries(every, catalog(), ["eu"])
    assert {o.country for o in found} <= {
        "finland",
        "france",
        "germany",
        "netherlands",
        "belgium",
        "sweden",
        "spain",
        "poland",
        "italy",
    }
    assert "norway" not in {o.country for o in found}


def _offers(**names: list[str]) -> list[Offering]:
    return offerings(catalog(), load_terms(), **names)  # type: ignore[arg-type]


def test_names_that_are_not_there_have_a_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="gcp"):
        _offers(providers=["gogle"])
    with pytest.raises(InputError, match="us-east-1"):
        _offers(regions=["us-estt-1"])
    with pytest.raises(UnknownNameError, match="france"):
        in_countries(_offers(), catalog(), ["frnce"])
    with pytest.raises(InputError, match="india"):
        in_countries(_offers(providers=["jarvislabs"]), catalog(), ["france"])
    with pytest.raises(InputError, match="no offer has all of"):
        _offers(providers=["jarvislabs"], regions=["us-east-1"])


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 0.0},
        {"deadline_seconds": 0.0},
        {"deadline_seconds": 1e12},
        {"budget_usd": -1.0},
        {"least_gpus": 99999},
        {"tokens": 1e300},
    ],
)
def test_impossible_asks_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError):
        replace(ask(), **change)  # type: ignore[arg-type]


def test_terms_that_do_not_load_say_where() -> None:
    with pytest.raises(InputError, match="mine"):
        load_terms("[[terms]]\nname = 'x'\nsource = 's'\nas_of = '2026'\nteir = 'tier-1'", "mine")
    with pytest.raises(InputError, match="egress_tiers"):
        load_terms(
            "[[terms]]\nname = 'x'\nsource = 's'\nas_of = '2026'\n"
            "egress_tiers = [[2.0, 1.0], [1.0, 1.0]]"
        )
    with pytest.raises(InputError, match="preemptions"):
        Market(preemptions_per_node_day=100.0)


def test_a_quick_plan_is_as_good_as_a_whole_search_on_a_fast_network() -> None:
    planner = Planner(usual_job(find_model(catalog(), "llama-3.1-70b")), catalog())
    shape = MachineShape(accelerator="h100-sxm", devices=8, nic_bytes_per_second=50e9)
    quick = planner.plan(shape, 512)
    assert quick is not None
    from computeflow.comparison.planner import shape_cluster

    whole = plan(planner.job, shape_cluster(shape, 512, catalog()), top=1).plans[0]
    assert quick.prediction.step_seconds < 1.05 * whole.prediction.step_seconds


def test_plans_are_searched_once_for_the_same_hardware() -> None:
    offers = offerings(catalog(), load_terms(), providers=["aws"], accelerators=["h100-sxm"])
    same = [offer for offer in offers if offer.instance == "p5.48xlarge"]
    assert len(same) > 3
    alone = compare(ask(), same[:1], catalog()).searches
    assert compare(ask(), same, catalog()).searches == alone


def test_a_hosts_share_is_the_nodes_draw_less_that_of_busy_devices() -> None:
    node, device = catalog().nodes["dgx-h100"], catalog().accelerators["h100-sxm"]
    assert host_watts(node, device) == pytest.approx(7750 / 8 - 0.985 * 700)
    rated = host_watts(catalog().nodes["dgx-a100"], catalog().accelerators["a100-80-sxm"])
    assert rated == pytest.approx(0.76 * 6500 / 8 - 0.985 * 400)
    assert host_watts(None, device) is None


def test_what_is_stated_of_a_provider_leaves_what_is_known() -> None:
    head = "[[terms]]\nname = 'aws'\nsource = 's'\nas_of = '2026-11'\n"
    own = load_terms(head + "tier = 'tier-3'\npreemptions_per_node_day = 2.0").terms["aws"]
    known = load_terms().terms["aws"]
    assert own.tier == "tier-3" and own.egress_tiers == known.egress_tiers
    assert own.most_gpus_reserved == known.most_gpus_reserved and known.source in own.source
    for wrong in (
        "most_gpus = 0",
        "most_gpus = -8",
        "egress_tiers = [[nan, 1.0]]",
        "egress_tiers = [[1.0, nan]]",
        "preemptions_per_node_day = nan",
    ):
        with pytest.raises(InputError):
            load_terms(head + wrong)
    with pytest.raises(UnknownNameError, match="aws"):
        load_terms(head.replace("'aws'", "'awss'"), providers=["aws"])


def test_preemptions_of_a_provider_go_into_its_spot_runs() -> None:
    text = (
        "[[terms]]\nname = 'crusoe'\nsource = 's'\nas_of = '2026-11'\npreemptions_per_node_day = {}"
    )
    bills = []
    for rate in (0.0, 0.1):
        offers = offerings(
            catalog(),
            load_terms(text.format(rate)),
            providers=["crusoe"],
            accelerators=["h100-sxm"],
        )
        cost = compare(ask(), offers, catalog()).results[0].cost("spot")
        assert cost is not None
        bills.append(cost.usd)
    assert bills[0] < bills[1]


def test_tables_and_the_figure_show_the_offers() -> None:
    found = ampere()
    tables = comparison_tables(found, 3)
    assert len(tables[1].rows) == 3
    assert any("unknown" in cell for row in detail_table(found.results[0]).rows for cell in row)
    figure = front_figure(found)
    named = [name for trace in figure.data for name in trace.get("text", [])]
    assert all(
        "<" not in name for name in named
    )  # the page forbids the styles Plotly makes of tags
    assert any(name.startswith(("gcp,", "azure,")) for name in named)
    assert "Cheapest" in figure.summary


SITE = """
[[site]]
name = "our-hall"
accelerator = "h100-sxm"
usd_per_gpu_hour = 1.9
source = "our books"
as_of = "2026-11"
"""


def own_site(more: str) -> Offering:
    (found,) = own_offerings(SITE + more, "sites.toml", catalog())
    return found


def test_a_site_of_ones_own_is_compared_like_an_offer() -> None:
    hall = own_site('most_gpus = 512\ngrid = "norway"\npue = 1.1\n')
    rented = offerings(catalog(), load_terms(), providers=["crusoe"], accelerators=["h100-sxm"])
    found = compare(ask(days=60.0), [hall, *rented], catalog())
    own = next(result for result in found.results if result.offering is hall)
    other = next(result for result in found.results if result.offering is not hall)
    cost = own.cost("owned")
    assert cost is not None and own.best == cost and not cost.odd
    hours = own.simulation.run.allocated_gpus * own.simulation.seconds.mean / 3600
    assert cost.usd == pytest.approx(1.9 * hours)
    assert own.meter.pue_known and own.meter.energy.supply.pue == 1.1
    assert own.offering.country == "norway" and own.meter.energy.grams
    assert other.offering.provider == "crusoe"


def test_limits_of_a_site_are_its_largest_cluster() -> None:
    hall = own_site("contracted_watts = 24e6\nracks = 400\nrack_watts = 32e3\n")
    assert (hall.most_gpus, hall.limit) == (
        9600,
        "rack feed",
    )  # as `computeflow site-limits` has it
    stated = own_site("contracted_watts = 24e6\nracks = 400\nrack_watts = 32e3\nmost_gpus = 64\n")
    assert (stated.most_gpus, stated.limit) == (64, "as stated")


def test_a_run_takes_no_spares_that_a_site_does_not_have() -> None:
    for most, spares in ((256, 0), (4096, 1)):
        hall = own_site(f"most_gpus = {most}\nreplace_seconds = 864000\n")
        limited = replace(ask(days=60.0), least_gpus=256, most_gpus=256)
        (found,) = compare(limited, [hall], catalog()).results
        assert found.gpus == 256 and found.simulation.run.policy.spares.nodes >= spares
        assert found.simulation.run.allocated_gpus <= most


def test_a_site_of_an_odd_size_runs_on_what_it_has() -> None:
    """Between doublings too, in whole machines; and nobody brings another node in half an hour."""
    hall = own_site("most_gpus = 250\n")
    (found,) = compare(ask(days=60.0), [hall], catalog()).results
    assert found.gpus == 192 and found.meets
    assert found.offering.quality.replace_seconds == inputs()["repair_seconds"].value


def test_a_tighter_deadline_is_not_missed_by_a_margin() -> None:
    """The smallest cluster whose steps keep the deadline is tried, however close it comes."""
    hall = own_site("most_gpus = 4096\n")
    loose = compare(ask(days=60.0), [hall], catalog()).results[0]
    close = loose.seconds[1] / 86400 * 1.001
    assert compare(ask(days=close), [hall], catalog()).results[0].gpus == loose.gpus


def test_worse_failures_and_slower_repairs_take_longer() -> None:
    days = {
        more: compare(ask(days=60.0), [own_site(f"most_gpus = 256\n{more}")], catalog())
        .results[0]
        .simulation.seconds.mean
        for more in ("", 'failures = "rsc-1"\n', "replace_seconds = 864000\n")
    }
    usual, *worse = days.values()
    assert all(seconds > usual for seconds in worse)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "state most_gpus"),
        ("most_gpus = 0\n", "one or more"),
        ("most_gpus = 8\npue = 0.5\n", "pue"),
        ("most_gpus = 8\nwrong = 1\n", "wrong"),
        ("most_gpus = 8\ngigabits_per_device = -1\n", "gigabits"),
        ('most_gpus = 8\ngrid = "atlantis"\n', "unknown grid"),
        ("contracted_watts = 100.0\n", "takes no h100-sxm"),
        ("contracted_watts = -1.0\n", "above zero"),
        ("most_gpus = 8\nusd_per_gpu_hour = 2.0\n", "not TOML"),
    ],
)
def test_a_wrong_site_is_one_line(more: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        own_site(more)


def test_a_file_without_a_site_is_said() -> None:
    with pytest.raises(InputError, match="no \\[\\[site"):
        own_offerings("", "sites.toml", catalog())


def test_a_site_has_a_name_of_its_own() -> None:
    for name in ("crusoe", "our-hall"):
        twice = SITE.replace("our-hall", name) + "most_gpus = 8\n" + SITE + "most_gpus = 8\n"
        with pytest.raises(InputError, match="name of its own"):
            own_offerings(twice, "sites.toml", catalog())


def test_a_sure_deadline_is_kept_at_the_slow_end_of_the_range() -> None:
    hall = own_site("most_gpus = 4096\n")
    usual = compare(ask(days=25.0), [hall], catalog()).results[0]
    safe = compare(replace(ask(days=25.0), sure=True), [hall], catalog()).results[0]
    assert usual.meets and safe.meets and safe.best is not None and safe.best.sure
    assert safe.gpus > usual.gpus
    assert safe.run.slowness[1] * safe.simulation.seconds.p90 <= 25 * 86400
