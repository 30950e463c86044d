"""Dollars, joules and grams add up to the ledger, whatever is in it."""

from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.economics import (
    Price,
    Supply,
    TrainingTotals,
    age_days,
    energy_of,
    fill_joules,
    finding_usd_per_hour,
    flops_per_joule,
    is_stale,
    ledger_cost,
    ledger_energy,
    price_of,
    supply_of,
    training_totals,
    usd_of,
    usd_per_hour,
)
from computeflow.errors import InputError
from computeflow.ledger import (
    ACCOUNTS,
    ClaimedSeconds,
    Entry,
    Evidence,
    Finding,
    Ledger,
    PeakFlops,
    Window,
)

PRICES = st.floats(0, 1e3).map(
    lambda usd: Price(usd_per_gpu_hour=usd, source="a test", as_of="2026-08")
)
SUPPLIES = st.builds(
    Supply, pue=st.floats(1, 2), usd_per_kwh=st.floats(0, 1), grams_per_kwh=st.floats(0, 1e3)
)


@st.composite
def ledgers(draw: st.DrawFn, *, powered: bool = True) -> Ledger:
    watts = st.floats(1, 2e3)
    parts = draw(
        st.lists(
            st.tuples(
                st.sampled_from(sorted(ACCOUNTS)),
                st.floats(1e-3, 1e6),
                watts if powered else st.none() | watts,
            ),
            min_size=1,
            max_size=12,
        )
    )
    gpus = draw(st.integers(1, 10_000))
    entries = [
        Entry(account=name, gpu_seconds=s, joules=None if w is None else s * w)
        for name, s, w in parts
    ]
    wall = math.fsum(entry.gpu_seconds for entry in entries) / gpus
    return Ledger(
        gpus=gpus,
        wall_seconds=wall,
        entries=tuple(entries),
        basis="simulated",
        window=Window(label="test"),
    )


@given(ledgers(powered=False), PRICES)
def test_dollars_add_up_to_the_ledger(ledger: Ledger, price: Price) -> None:
    found = ledger_cost(ledger, price)
    assert found.usd == pytest.approx(ledger.gpu_seconds / 3600 * price.usd_per_gpu_hour, rel=1e-9)
    assert set(found.by_account) == set(ledger.accounts)


@given(ledgers(), SUPPLIES, st.floats(0, 1e3))
def test_joules_and_grams_add_up_to_the_ledger(
    ledger: Ledger, supply: Supply, host_watts: float
) -> None:
    found = ledger_energy(ledger, supply, host_watts=host_watts)
    assert ledger.joules is not None
    assert found.device_joules == pytest.approx(ledger.joules, rel=1e-9)
    meter = (ledger.joules + host_watts * ledger.gpu_seconds) * supply.pue
    assert found.joules == pytest.approx(meter, rel=1e-9)
    assert supply.usd_per_kwh is not None and supply.grams_per_kwh is not None
    assert found.usd == pytest.approx(meter / 3.6e6 * supply.usd_per_kwh, rel=1e-9, abs=1e-300)
    assert found.grams == pytest.approx(meter / 3.6e6 * supply.grams_per_kwh, rel=1e-9, abs=1e-300)


@given(ledgers(powered=False), SUPPLIES)
def test_energy_is_unknown_as_a_whole_where_the_power_of_a_part_is(
    ledger: Ledger, supply: Supply
) -> None:
    found = ledger_energy(ledger, supply)
    assert (found.joules is None) == (ledger.joules is None)


@given(ledgers(powered=False), st.floats(1, 500))
def test_filling_joules_keeps_the_known_ones_and_the_seconds(ledger: Ledger, watts: float) -> None:
    filled = fill_joules(ledger, watts)
    assert filled.accounts == ledger.accounts
    known = [entry.joules for entry in ledger.entries]
    assert all(b.joules == a for a, b in zip(known, filled.entries, strict=True) if a is not None)
    assert (filled.joules is None) == (not any(joules is not None for joules in known))


def test_a_region_without_a_grid_has_joules_and_no_grams() -> None:
    ledger = _two_accounts()
    found = ledger_energy(ledger, supply_of(None, 1.2))
    assert found.joules == pytest.approx(1.2 * 1000.0)
    assert found.grams is None and found.usd is None


def test_a_grid_of_the_catalog_prices_the_energy() -> None:
    grid = load_catalog().grids["france"]
    found = ledger_energy(_two_accounts(), supply_of(grid, 1.0))
    assert found.grams == pytest.approx(1000 / 3.6e6 * 56)


def test_flops_per_joule_is_the_models_work_over_the_meter() -> None:
    ledger = _two_accounts()
    energy = ledger_energy(ledger, Supply(pue=2.0))
    assert flops_per_joule(ledger, energy) == pytest.approx(4.0 * 1e12 / 2000)


def test_a_price_is_the_offers_per_device() -> None:
    offer = next(iter(load_catalog().offers))
    assert price_of(offer).usd_per_gpu_hour == offer.usd_per_hour / offer.count
    assert price_of(offer).as_of == offer.as_of


def test_a_price_of_half_a_year_ago_is_stale_and_a_month_counts_from_its_first_day() -> None:
    today = datetime.date(2026, 8, 22)
    assert age_days("2026-08-21", today) == 1
    assert not is_stale("2026-02-23", today)
    assert is_stale("2026-02", today)
    assert is_stale("2026", today)
    assert not is_stale("2027-01", today)


def test_gpu_seconds_cost_by_the_hour_of_a_gpu() -> None:
    assert usd_of(2 * 3600.0, 2.5) == pytest.approx(5.0)
    assert usd_per_hour(50.0, 100.0, 2.0) == pytest.approx(1.0)


def test_a_finding_has_a_price_by_the_hour_where_it_is_steady_and_the_price_known() -> None:
    ledger, finding = _two_accounts(), _idle_finding(steady=True)
    assert finding_usd_per_hour(finding, ledger, 2.0) == pytest.approx(1.0 / 5.0 * 2.0)
    assert finding_usd_per_hour(finding, ledger, None) is None
    assert finding_usd_per_hour(finding, None, 2.0) is None
    assert finding_usd_per_hour(_idle_finding(steady=False), ledger, 2.0) is None


def test_energy_that_was_read_is_priced_by_the_grid_and_unknown_energy_stays_unknown() -> None:
    grid = load_catalog().grids["france"]
    energy = energy_of(3.6e6, grid)
    assert energy.kilowatt_hours == 1.0
    assert energy.kg_co2e == pytest.approx(0.056)
    unknown = energy_of(None, grid)
    assert unknown.kilowatt_hours is unknown.usd is unknown.kg_co2e is None
    assert unknown.grid == "france"


def test_a_training_is_its_steps_in_days_dollars_and_megawatt_hours() -> None:
    whole = training_totals(
        step_seconds=2.0,
        joules_per_step=3.6e6,
        tokens=43_200e3,
        step_tokens=1e3,
        gpus=8,
        usd_per_gpu_hour=2.0,
    )
    assert whole.days == 1.0
    assert whole.megawatt_hours == pytest.approx(43.2)
    assert whole.usd == pytest.approx(24 * 8 * 2.0)
    without = training_totals(
        step_seconds=2.0,
        joules_per_step=None,
        tokens=None,
        step_tokens=1e3,
        gpus=8,
        usd_per_gpu_hour=None,
    )
    assert without == TrainingTotals()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Price(usd_per_gpu_hour=-1.0, source="x", as_of="2026"),
        lambda: Price(usd_per_gpu_hour=math.inf, source="x", as_of="2026"),
        lambda: Supply(pue=0.9),
        lambda: Supply(pue=1.1, usd_per_kwh=-0.1),
        lambda: ledger_energy(_two_accounts(), Supply(pue=1.1), host_watts=-1.0),
    ],
)
def test_impossible_prices_and_supplies_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(InputError):
        make()


def _idle_finding(*, steady: bool) -> Finding:
    return Finding(
        rule="idle-allocation",
        title="idle",
        account="idle",
        steady=steady,
        confidence=1.0,
        claims=(ClaimedSeconds(account="idle", gpu_seconds=1.0),),
        evidence=(Evidence(what="idle", where="the window", value=1.0),),
    )


def _two_accounts() -> Ledger:
    entries = (
        Entry(account="compute.model", gpu_seconds=4.0, joules=900.0),
        Entry(account="idle", gpu_seconds=1.0, joules=100.0),
    )
    return Ledger(
        gpus=1,
        wall_seconds=5.0,
        entries=entries,
        basis="predicted",
        window=Window(label="test"),
        peak=PeakFlops(flops=1e12, precision="bf16"),
    )
