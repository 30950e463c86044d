"""Claims about power, energy and cooling."""

from __future__ import annotations

from computeflow.comparison.claims.claim import (
    Bench,
    Outcome,
    Verdict,
    check,
    is_near,
    percent,
    verdict_of_facts,
)
from computeflow.comparison.energy import host_watts
from computeflow.comparison.machines import machine_of
from computeflow.comparison.site_limits import FOOTPRINT_M2
from computeflow.economics import Supply, flops_per_joule, ledger_energy
from computeflow.simulation.site_scenarios import throttles

_GIGA = 1e9
_POUND_KG = 0.45359237
_MAX_KW = 8.4
"""The most that a DGX H100 drew in training (arXiv:2412.08602)."""


@check("gflops-watt")
def gflops_watt(bench: Bench) -> Outcome:
    """Model FLOPs for a joule at the meter, of a predicted step; hosts as the node was measured."""
    best = bench.best("llama-3.1-70b", "h100-sxm", 512, global_batch=1024, seq_len=8192)
    node = bench.catalog.nodes["dgx-h100"]
    device = bench.catalog.accelerators["h100-sxm"]
    host = host_watts(node, device)
    assert host is not None
    values = []
    for pue in (1.5, 1.3, 1.1):
        energy = ledger_energy(best.ledger, Supply(pue=pue), host_watts=host)
        rate = flops_per_joule(best.ledger, energy)
        assert rate is not None
        values.append(rate / _GIGA)
    peak = device.dense_flops["bf16"] / (device.tdp_watts or 1.0) / _GIGA
    low, middle, high = values
    verdict: Verdict = "holds" if low <= 1.82 <= high else "does not hold"
    against = "above" if peak < 1820 else "under"
    return Outcome(
        verdict="wrong unit" if low > 10 * 1.82 else verdict,
        ours=f"{middle:,.0f} GFLOP/s per W ({low:,.0f} to {high:,.0f})",
        why=f"A predicted step of Llama-3.1-70B on 512 H100 at the meter, PUE 1.5 to 1.1; the device's "
        f"peak is {peak:,.0f}. 1.82 is {middle / 1.82:,.0f} times lower than this one step; 1.82 "
        f"TFLOP/s per W would be {against} the peak.",
        numbers={"low": low, "middle": middle, "high": high, "peak": peak},
    )


@check("kw-per-hour")
def kw_per_hour(bench: Bench) -> Outcome:
    node = bench.catalog.nodes["dgx-h100"]
    measured, rated = node.measured_watts or 0.0, node.rated_watts or 0.0
    gpus = 8 * (bench.catalog.accelerators["h100-sxm"].tdp_watts or 0.0)
    return Outcome(
        verdict="wrong unit",
        ours=f"{measured / 1e3:.2f} kW in the mean, {rated / 1e3:.1f} rated",
        why=f"kW is power already; 6.8 kW are {6.8 * 24:.0f} kWh a day. As power it is plausible for "
        f"eight H100: their own limit is {gpus / 1e3:.1f} kW, the node's measured mean "
        f"{measured / 1e3:.2f} and most {_MAX_KW} (arXiv:2412.08602).",
        numbers={"measured": measured, "rated": rated},
    )


@check("energy-price")
def energy_price(bench: Bench) -> Outcome:
    spending = {name: values[1] for name, values in bench.decision("70B").spending.items()}
    share = spending["energy"] / sum(spending.values())
    rows = [bench.catalog.accelerators[name] for name in ("a100-80-sxm", "h100-sxm", "b200-sxm")]
    watts = [row.tdp_watts or 0.0 for row in rows]
    work = [row.dense_flops["bf16"] / (row.tdp_watts or 1.0) / _GIGA for row in rows]
    return Outcome(
        verdict="cannot be checked",
        ours=f"energy is {percent(share, 0)} of owning; A100, H100, B200: "
        f"{', '.join(f'{w:,.0f}' for w in watts)} W, "
        f"{', '.join(f'{w:,.0f}' for w in work)} GFLOP/s per W at the peak",
        why="The catalog has one price of electricity for each region and one of each server: no "
        "series over years. Power of a device grows by generation and its FLOPs grow faster, so that "
        "energy for the same work falls. A series of both prices at one site would settle it.",
        numbers={"share": share},
    )


@check("pue")
def pue(bench: Bench) -> Outcome:
    coolings = list(bench.catalog.coolings)
    under = [row.name for row in coolings if row.pue_high < 1.3]
    never = [row.name for row in coolings if row.pue_low >= 1.3]
    fleets = [row for row in bench.catalog.facilities if row.pue < 1.3]
    average = bench.catalog.facilities["average-site"].pue
    speed = throttles()["air"]
    return Outcome(
        verdict=verdict_of_facts(not never, bool(under)),
        ours=f"always with {', '.join(under)}; never with {', '.join(never)}; average site "
        f"{average:.2f}",
        why=f"Catalog ranges, and {len(fleets)} operators that report less than 1.3. A promise for a "
        "liquid-cooled hall, not for an ordinary one. PUE hides fans in the machines, and that air "
        f"lengthens steps by {percent(speed.value, 0)} ({percent(speed.low, 0)} to "
        f"{percent(speed.high, 0)}).",
        basis="cited",
        numbers={"average": average},
    )


@check("rack-kw")
def rack_kw(bench: Bench) -> Outcome:
    names = ("dgx-a100", "dgx-h100", "dgx-b200", "dgx-b300")
    rated = {name: (bench.catalog.nodes[name].rated_watts or 0.0) / 1e3 for name in names}
    mean = (bench.catalog.nodes["dgx-h100"].measured_watts or 0.0) / 1e3
    return Outcome(
        verdict=verdict_of_facts(8 <= _MAX_KW <= 10, *(8 <= kw <= 10 for kw in rated.values())),
        ours=", ".join(f"{name} {kw:.1f} kW" for name, kw in rated.items()),
        why=f"One machine of eight H100 takes {rated['dgx-h100']:.1f} kW rated, {mean:.2f} in the "
        f"mean, {_MAX_KW} at most (arXiv:2412.08602). Later ones take {rated['dgx-b200']:.1f} and "
        f"{rated['dgx-b300']:.1f} kW rated, and racks of an AI hall hold four: "
        f"{4 * rated['dgx-h100']:.0f} to {4 * rated['dgx-b300']:.0f} kW.",
        basis="cited",
        numbers=rated,
    )


@check("introl-rack")
def introl(bench: Bench) -> Outcome:
    rack = machine_of("gb200", bench.catalog)
    mass, watts = rack.mass_kg or 0.0, rack.rated_watts
    return Outcome(
        verdict="wrong unit" if is_near(mass / _POUND_KG, 3000) else "does not hold",
        ours=f"{mass:,.0f} kg, {watts / 1e3:.0f} kW",
        why=f"3,000 are pounds ({mass:,.0f} kg, {mass / FOOTPRINT_M2:,.0f} kg/m2 on its footprint), as "
        f"another article of the same site has it; 2.4 MW is {2.4e6 / watts:.0f} times the rack's "
        "power.",
        basis="cited",
        numbers={"mass_kg": mass, "watts": watts},
    )
