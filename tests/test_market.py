"""Offers, providers, sites and grids as shipped, and price lists of others read into offers."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import price_lists, rows
from computeflow.catalog.loading import Catalog, CatalogTable
from computeflow.catalog.lookup import find_offers
from computeflow.catalog.own_price_list import HEADERS
from computeflow.catalog.price_lists import ImportResult, import_prices, write_offers
from computeflow.catalog.rows import Accelerator, Offer
from computeflow.errors import InputError

PRICES = Path(__file__).parent / "data" / "prices"
GIGABYTES = {
    "a100-40-sxm": 40, "a100-80-sxm": 80, "a100-40-pcie": 40, "a100-80-pcie": 80, "h100-sxm": 80,
    "h100-pcie": 80, "h100-nvl": 94, "h200-sxm": 141, "b200-sxm": 180, "gh200": 96, "l40s": 48,
    "rtx-4090": 24, "mi300x": 192, "trainium1": 32, "tpu-v5e": 16, "tpu-v5p": 95, "tpu-v6e": 32,
}  # fmt: skip
ACCELERATORS = CatalogTable(
    Accelerator,
    [
        Accelerator(
            name=name,
            source="for these tests",
            as_of="2026",
            vendor="any",
            launch_year=2022,
            dense_flops={"bf16": 1e14},
            hbm_bytes=gigabytes * 1e9,
            hbm_bytes_per_second=1e12,
        )
        for name, gigabytes in GIGABYTES.items()
    ],
)
CATALOG = Catalog()
ONE_80 = "'SizeInMiB': 81920, 'TotalGpuMemoryInMiB': 163840"
ALL_OF_TWO_40 = "'SizeInMiB': 81920, 'TotalGpuMemoryInMiB': 81920"
ALL_OF_TWO_94 = "'SizeInMiB': 191660, 'TotalGpuMemoryInMiB': 191660"
REQUIRED = (
    "aws", "azure", "gcp", "lambda", "coreweave", "together", "crusoe", "vast", "runpod",
    "jarvislabs",
)  # fmt: skip


def read(name: str, provider: str | None = None) -> ImportResult:
    return read_text((PRICES / name).read_text(), provider)


def read_text(text: str, provider: str | None = None) -> ImportResult:
    return import_prices(
        text,
        "list.csv",
        as_of="2026-08-22",
        source="a list",
        provider=provider,
        accelerators=ACCELERATORS,
        providers=CATALOG.providers,
    )


def test_every_offer_has_a_source_a_date_and_an_accelerator_of_the_catalog() -> None:
    known = CATALOG.accelerators.names
    for offer in CATALOG.offers:
        assert offer.source and offer.as_of
        assert offer.accelerator in known
        assert offer.name == f"{offer.provider}/{offer.instance}"


def test_the_ten_large_providers_and_every_term_are_there() -> None:
    offers = list(CATALOG.offers)
    assert set(REQUIRED) <= {offer.provider for offer in offers}
    assert {offer.term for offer in offers} == set(rows.TERMS)
    assert len(offers) > 1000


def test_every_provider_of_an_offer_is_described_and_one_without_says_why() -> None:
    sellers = {offer.provider for offer in CATALOG.offers}
    assert sellers <= set(CATALOG.providers.names)
    without = [row for row in CATALOG.providers if row.name not in sellers]
    assert {row.name for row in without} == {"scaleway", "seeweb"}
    assert all(row.note == "bills in euros: no offer" for row in without)


def test_no_price_is_listed_twice() -> None:
    listed = Counter(offer.key for offer in CATALOG.offers)
    assert [price for price, n in listed.items() if n > 1] == []


def test_spot_is_below_on_demand_of_the_same_machine() -> None:
    # No exceptions are needed: where a list repeats the on-demand price as spot, no spot is taken.
    on_demand = {(o.name, o.region): o for o in CATALOG.offers if o.term == "on-demand"}
    pairs = [
        (spot, on_demand[spot.name, spot.region])
        for spot in CATALOG.offers
        if spot.term == "spot" and (spot.name, spot.region) in on_demand
    ]
    assert len(pairs) > 400
    assert all(spot.usd_per_hour < full.usd_per_hour for spot, full in pairs)


def test_a_reserved_offer_says_for_how_long_and_no_other_does() -> None:
    for offer in CATALOG.offers:
        assert bool(offer.commitment) == (offer.term == "reserved")


def test_the_median_h100_costs_two_to_six_dollars_on_demand() -> None:
    by_provider = defaultdict(list)
    for offer in CATALOG.offers:
        if offer.accelerator == "h100-sxm" and offer.term == "on-demand":
            by_provider[offer.provider].append(offer.usd_per_device_hour)
    medians = [statistics.median(prices) for prices in by_provider.values()]
    assert len(medians) >= 15
    assert 2 < statistics.median(medians) < 6


def test_an_azure_h100_machine_has_eight_devices_not_the_twelve_of_the_list() -> None:
    machines = [o for o in CATALOG.offers if o.instance == "Standard_ND96isr_H100_v5"]
    assert {o.count for o in machines} == {8}
    assert min(o.usd_per_device_hour for o in machines) == pytest.approx(12.29)


def test_a_resellers_machine_has_the_form_that_its_owner_states() -> None:
    forms = {
        offer.instance: offer.accelerator
        for offer in CATALOG.offers
        if offer.provider == "shadeform"
    }
    assert forms["hyperstack_A100-80GBx4"] == CATALOG.offers["hyperstack/A100"].accelerator
    assert forms["crusoe_A100-80GB"] == CATALOG.offers["crusoe/a100-80gb.1x"].accelerator
    assert forms["scaleway_H100x2"] == "h100-pcie"
    assert forms["lambdalabs_A100x8"] == CATALOG.offers["lambda/gpu_8x_a100"].accelerator
    assert "lambdalabs_H100" not in forms  # beside lambdalabs_H100-sxm5: who knows


def test_no_price_is_from_a_test_of_somebodys_code() -> None:
    assert not [offer.name for offer in CATALOG.offers if "tests/" in offer.source]


def test_devices_cost_what_devices_cost() -> None:
    for offer in CATALOG.offers:
        assert 0.1 <= offer.usd_per_device_hour <= 30, offer


def test_tiers_stop_less_the_higher_they_are() -> None:
    tiers = [CATALOG.tiers[f"tier {n}"] for n in ("i", "ii", "iii", "iv")]
    downtimes = [tier.downtime_seconds_per_year for tier in tiers]
    assert downtimes == sorted(downtimes, reverse=True)
    assert downtimes[0] == pytest.approx(28.8 * 3600, rel=0.01)
    assert downtimes[3] == pytest.approx(26 * 60, rel=0.02)
    assert CATALOG.tiers["Uptime Tier IV"].fault_tolerant


def test_denser_cooling_spends_less_around_the_machines() -> None:
    ladder = [
        CATALOG.coolings[name]
        for name in ("air", "air-contained", "rear-door", "direct-liquid", "immersion")
    ]
    for worse, better in pairwise(ladder):
        assert better.pue_low < worse.pue_low
        assert better.pue_high < worse.pue_high
    watts = [cooling.rack_watts for cooling in ladder if cooling.rack_watts]
    assert watts == sorted(watts)


def test_large_operators_report_less_overhead_than_the_average_site() -> None:
    average = CATALOG.facilities["average-site"].pue
    for name in ("google-fleet", "meta-fleet", "aws-fleet", "microsoft-fleet"):
        assert CATALOG.facilities[name].pue < average


def test_swedish_power_is_cleaner_than_polish() -> None:
    sweden, poland = CATALOG.grids["sweden"], CATALOG.grids["poland"]
    assert sweden.grams_co2e_per_kwh and poland.grams_co2e_per_kwh
    assert sweden.grams_co2e_per_kwh * 10 < poland.grams_co2e_per_kwh


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("us-virginia", "us-virginia"),
        ("US Virginia", "us-virginia"),
        ("aws:us-east-1", "us-virginia"),
        ("azure:swedencentral", "sweden"),
        ("gcp:us-central1", "gcp-us-central1"),
        ("us-central1", "gcp-us-central1"),
        ("USA", "united-states"),
        ("world", "world"),
    ],
)
def test_a_grid_is_found_by_the_name_one_would_guess(spelling: str, name: str) -> None:
    assert CATALOG.grids[spelling].name == name


def test_old_carbon_figures_say_that_they_are_old() -> None:
    old = [grid for grid in CATALOG.grids if grid.carbon_as_of and grid.carbon_as_of < "2020"]
    assert len(old) == 51
    assert all("STALE" in grid.note for grid in old)


def test_names_of_sites_and_providers_are_each_given_once() -> None:
    tables = (CATALOG.tiers, CATALOG.coolings, CATALOG.facilities, CATALOG.grids, CATALOG.providers)
    names = [spelling for table in tables for row in table for spelling in (row.name, *row.aliases)]
    assert [name for name, n in Counter(names).items() if n > 1] == []


def test_a_skypilot_catalog_gives_one_offer_per_region_and_term() -> None:
    result = read("skypilot_aws.csv", "aws")
    found = {(o.instance, o.accelerator, o.count, o.term): o.usd_per_hour for o in result.offers}
    assert found == {
        ("p4d.24xlarge", "a100-40-sxm", 8, "on-demand"): 21.9576,
        ("p4d.24xlarge", "a100-40-sxm", 8, "spot"): 10.1302,
        ("p4de.24xlarge", "a100-80-sxm", 8, "on-demand"): 27.4471,
        ("p5.48xlarge", "h100-sxm", 8, "on-demand"): 55.04,
        ("p5.48xlarge", "h100-sxm", 8, "spot"): 21.0708,
        ("p5e.48xlarge", "h200-sxm", 8, "spot"): 15.2175,
        ("trn1.32xlarge", "trainium1", 16, "on-demand"): 21.5,
        ("trn1.32xlarge", "trainium1", 16, "spot"): 2.15,
    }
    assert result.left_out == {
        "no accelerator in it": 1,
        "unknown accelerator 'T4'": 1,
        "spot price not below the on-demand price: taken as none given": 1,
        "another price of the same instance, region and term (the best is taken)": 2,
    }


def test_google_machines_and_accelerators_are_added_up_and_slices_counted_in_chips() -> None:
    result = read("skypilot_gcp.csv", "gcp")
    on_demand = {o.instance: o for o in result.offers if o.term == "on-demand"}
    assert on_demand["a3-highgpu-8g"].usd_per_hour == pytest.approx(87.83246)
    assert on_demand["tpu-v5litepod-8"].accelerator == "tpu-v5e"
    assert on_demand["tpu-v5litepod-8"].count == 8
    assert on_demand["tpu-v5p-8"].count == 4
    assert result.left_out["no price"] == 1  # the H100s of a zone without a machine price
    assert result.left_out["price outside 0.02..60 USD per device-hour"] == 2  # a placeholder
    assert "tpu-v6e-1" not in on_demand


@pytest.mark.parametrize(
    ("device", "instance", "info", "accelerator", "note"),
    [
        ("H100", "gpu_1x_h100_pcie", "", "h100-pcie", ""),
        ("H100", "gpu_8x_h100_sxm5", "", "h100-sxm", ""),
        ("H100", "H100x8", "", "h100-sxm", "form not stated"),
        ("H100", "x", "'Name': 'H100 NVL', 'SizeInMiB': 94", "h100-nvl", ""),
        ("H100", "x", "'Name': 'NVIDIA-H100-80GB-HBM3'", "h100-sxm", ""),
        ("H100", "2x-H100_NVL-32", ALL_OF_TWO_94, "h100-nvl", ""),
        ("A100", "epyc-a100-pcie_2x8v16gb", ONE_80, "a100-80-pcie", ""),
        ("A100", "2x-A100_SXM4", ALL_OF_TWO_40, "a100-40-sxm", ""),
        ("A100-80GB-SXM", "2x_A100", "", "a100-80-sxm", ""),
        ("A100-80G-PCIe-NVLink", "n3", "", "a100-80-pcie", ""),
        ("A100", "Standard_ND96asr_v4", "", "a100-40-sxm", ""),
        ("RTX4090", "2x-RTX_4090", "", "rtx-4090", ""),
        ("H200", "Standard_ND96isr_H200_v5", "", "h200-sxm", ""),
    ],
)
def test_memory_and_form_are_found_wherever_a_list_states_them(
    device: str, instance: str, info: str, accelerator: str, note: str
) -> None:
    text = (
        "InstanceType,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region\n"
        f'{instance},{device},2,"{info}",4.0,,here\n'
    )
    (offer,) = read_text(text, "any").offers
    assert (offer.accelerator, offer.note) == (accelerator, note)


def test_a_bare_name_beside_sxm_is_not_taken_for_sxm() -> None:
    text = "instance,gpu,gpus,price\na,H100-SXM5,8,30\nb,H100,8,20\nc,A100-80GB,8,12\n"
    result = read_text(text, "any")
    found = [(offer.instance, offer.accelerator, offer.note) for offer in result.offers]
    assert found == [("a", "h100-sxm", ""), ("c", "a100-80-sxm", "form not stated")]
    (reason,) = result.left_out
    assert "'H100': form not stated, and the list writes SXM elsewhere" in reason


def test_a_skypilot_catalog_in_euros_is_refused() -> None:
    text = "InstanceType,AcceleratorName,AcceleratorCount,Price\nECS1GPU8,H100,1,1.89\n"
    with pytest.raises(InputError, match="euros, not US dollars"):
        read_text(text, "Seeweb")


def test_a_form_that_the_catalog_lacks_is_not_taken_for_another() -> None:
    with pytest.raises(InputError, match="unknown accelerator 'H200 NVL'"):
        read_text("gpu,gpus,price\nH200 NVL,8,30\n", "any")


def test_a_list_of_ones_own_is_read_by_its_headers() -> None:
    result = read("own.csv")
    found = {(o.instance, o.term): (o.usd_per_hour, o.commitment) for o in result.offers}
    assert found == {
        ("big-8", "on-demand"): (31.92, ""),
        ("big-8", "spot"): (16.0, ""),
        ("big-8", "reserved"): (20.0, "1y"),
        ("pci-4", "on-demand"): (6.2, ""),
    }
    assert {o.provider for o in result.offers} == {"example-cloud"}
    assert result.left_out["price not a number in US dollars"] == 2
    assert result.left_out["price outside 0.02..60 USD per device-hour"] == 1
    assert result.left_out["price below zero"] == 1
    assert result.left_out["no price"] == 1
    assert any("memory not stated" in reason for reason in result.left_out)
    assert sum(result.left_out.values()) == 7


def test_a_price_per_device_is_multiplied() -> None:
    (offer,) = read_text("gpu,gpus,price_per_gpu_hour\nh100-sxm,8,2.5\n", "mine").offers
    assert (offer.count, offer.usd_per_hour, offer.region) == (8, 20.0, "all")


@pytest.mark.parametrize("header", HEADERS["device_price"])
def test_every_header_for_the_price_of_a_device_is_read(header: str) -> None:
    assert read_text(f"device,{header}\nl40s,1\n", "mine").offers


@pytest.mark.parametrize(
    ("price", "per_gpu"), [("", "2.5"), ("20", ""), ("20", "2.5"), ("-", "2.5")]
)
def test_either_price_will_do_if_both_are_asked_for(price: str, per_gpu: str) -> None:
    (offer,) = read_text(
        f"gpu,gpus,price,price_per_gpu\nh100-sxm,8,{price},{per_gpu}\n", "mine"
    ).offers
    assert offer.usd_per_hour == 20


def test_prices_that_contradict_each_other_are_left_out() -> None:
    text = "gpu,gpus,price,price_per_gpu\nh100-sxm,8,20,2.5\nl40s,8,20,20\n"
    result = read_text(text, "mine")
    assert [offer.accelerator for offer in result.offers] == ["h100-sxm"]
    assert result.left_out == {"price and price per device contradict each other": 1}


def test_of_two_prices_of_one_thing_the_newer_then_the_cheaper_is_taken() -> None:
    text = "gpu,gpus,price,date\nl40s,8,8,2026-01\nl40s,8,12,2026-05\nl40s,8,10,2026-05\n"
    result = read_text(text, "mine")
    assert [offer.usd_per_hour for offer in result.offers] == [10]
    assert sum(result.left_out.values()) == 2


def test_a_provider_gets_the_name_that_the_catalog_gives_it() -> None:
    text = "vendor,gpu,price_per_gpu\nAmazon Web Services,l40s,1\n,h100-sxm,3\n"
    assert {offer.provider for offer in read_text(text, "Amazon").offers} == {"aws"}
    assert {offer.provider for offer in read_text(text, "My Lab").offers} == {"aws", "my-lab"}


def test_a_list_that_stops_within_a_line_gets_a_note() -> None:
    text = "gpu,price_per_gpu\nl40s,1.2"
    assert "may be cut off" in read_text(text, "mine").notes[0]
    assert read_text(text + "\n", "mine").notes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("gpu,price\n", "a header and no rows"),
        ("gpu,price\nh100-sxm,3\n", "count"),
        ("gpus,price\n8,3\n", "accelerator"),
        ("gpu,gpus\nh100-sxm,3\n", "price"),
        ("gpu,accelerator,price_per_gpu\nh100-sxm,h100-sxm,3\n", "'accelerator' and 'gpu'"),
        ("gpu,gpu,price_per_gpu\nh100-sxm,h100-sxm,3\n", "two columns are called 'gpu'"),
        ("gpu,gpus,price\nh100-sxm,8,20\nh100-sxm,8\n", "line 3 has 2 of 3 columns"),
        ('gpu,gpus,price\nh100-sxm,8,"20\n', "line 2"),
        ("gpu;gpus;price\nh100-sxm;8;20\n", "separated by semicolons: save it with commas"),
        ("gpu\tgpus\tprice\nh100-sxm\t8\t20\n", "separated by tabs"),
        ("gpu,gpus,price\nv100,8,20\n", "no usable price in 1 rows: unknown accelerator 'v100'"),
    ],
)
def test_a_list_that_cannot_be_read_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_text(text, "mine")


def test_a_list_without_a_provider_asks_for_one() -> None:
    with pytest.raises(InputError, match="provider"):
        read_text("gpu,price_per_gpu\nh100-sxm,3\n")
    with pytest.raises(InputError, match="does not name its provider"):
        read("skypilot_aws.csv")


def test_a_file_cut_off_in_the_middle_of_a_row_is_an_error() -> None:
    text = (PRICES / "skypilot_aws.csv").read_text()
    with pytest.raises(InputError, match="line"):
        read_text(text[: text.rindex("Trainium")], "aws")


def test_offers_come_back_from_their_own_csv(tmp_path: Path) -> None:
    offers = read("skypilot_aws.csv", "aws").offers + read("own.csv").offers
    path = tmp_path / "mine.csv"
    path.write_text(write_offers(offers), encoding="utf-8")
    loaded = [o for o in Catalog([path]).offers if o.source == "a list"]
    assert sorted(loaded, key=lambda o: o.key) == sorted(offers, key=lambda o: o.key)
    assert read_text(path.read_text(encoding="utf-8")).offers == offers


def test_the_packaged_offers_are_written_as_the_writer_writes() -> None:
    packaged = Path(price_lists.__file__).parent / "data" / "offers.csv"
    text = packaged.read_text(encoding="utf-8")
    assert write_offers(CATALOG.offers) == text


def test_offers_are_narrowed_down_cheapest_first() -> None:
    found = find_offers(
        CATALOG, accelerator="H100", provider="Amazon", region="US-EAST", term="spot"
    )
    assert {(o.accelerator, o.provider, o.term) for o in found} == {("h100-sxm", "aws", "spot")}
    assert all("us-east" in offer.region for offer in found)
    prices = [offer.usd_per_device_hour for offer in found]
    assert prices == sorted(prices)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"region": "us-eest-1"}, "no such offer with region 'us-eest-1'; nearest: us-"),
        ({"provider": "amazn"}, "unknown provider 'amazn'; nearest: aws"),
        ({"provider": "scaleway"}, "no such offer with provider 'scaleway'"),
        ({"provider": "lambda", "region": "mars"}, "region 'mars'; there is all"),
        ({"accelerator": "groq-lpu"}, "no such offer with accelerator 'groq-lpu'"),
        ({"accelerator": "h100-smx"}, "unknown accelerator 'h100-smx'; nearest: h100-sxm"),
        ({"provider": "hyperstack", "accelerator": "b300", "term": "spot"}, "there is on-demand"),
        ({"name": "aws/p5.48xlarg"}, "unknown offer 'aws/p5.48xlarg'; nearest: aws/p5.48xlarge"),
    ],
)
def test_a_filter_that_leaves_nothing_says_what_there_is(
    filters: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        find_offers(CATALOG, **filters)


CELLS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            "H100",
            "h100-sxm",
            "a3-highgpu-8g",
            "8",
            "0",
            "-1",
            "1e400",
            "nan",
            "$2.49",
            "1,234.5",
            "€3",
            "tpu-v5p-8",
            "tpu-v4-99999999",
            "spot",
            "reserved",
            "3y",
            "2026-13",
            "a\tb\nc",
            "99999GB",
        ]
    ),
)
SKYPILOT = (
    "InstanceType",
    "AcceleratorName",
    "AcceleratorCount",
    "GpuInfo",
    "Price",
    "SpotPrice",
    "Region",
    "AvailabilityZone",
)
OWN = (
    "vendor",
    "sku",
    "gpu",
    "count",
    "price",
    "spot",
    "region",
    "term",
    "contract",
    "date",
    "url",
)


@given(st.sampled_from([SKYPILOT, OWN]), st.data())
def test_hostile_cells_end_in_offers_or_in_an_input_error(
    columns: tuple[str, ...], data: st.DataObject
) -> None:
    header = data.draw(st.lists(st.sampled_from(columns), min_size=3, unique=True))
    table = data.draw(
        st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=4)
    )
    lines = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in table]
    text = "\n".join([",".join(header), *lines])
    try:
        offers = read_text(text, "any").offers
    except InputError:
        return
    assert all(isinstance(offer, Offer) for offer in offers)
    assert read_text(write_offers(offers)).offers == offers


@given(st.text(max_size=200))
def test_any_text_ends_in_offers_or_in_an_input_error(text: str) -> None:
    try:
        read_text(text, "any")
    except InputError:
        return
