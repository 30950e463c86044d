"""Claims about what hours, devices and clusters cost, from the catalog's prices and predicted steps."""

from __future__ import annotations

import itertools

import numpy as np

from computeflow.comparison.build_or_rent.break_even import Decision
from computeflow.comparison.claims.claim import (
    Bench,
    Outcome,
    Verdict,
    check,
    percent,
    verdict_of_facts,
    verdict_of_ranges,
)
from computeflow.comparison.rents import find_rents
from computeflow.units import HOUR_SECONDS

_TOKENS = 1e12
_GENERATIONS = ("a100-80-sxm", "h100-sxm", "b200-sxm")
_LAUNCHES = ("a100-80-sxm", "h100-sxm", "h200-sxm", "b300-sxm", "rubin-sxm")
"""One training device of each year in which NVIDIA launched or announced one."""
_BOUGHT = ("servers", "spares", "network", "storage")


@check("h100-price")
def h100_price(bench: Bench) -> Outcome:
    return _price(bench, "h100-sxm", (3.0, 4.0))


@check("h200-price")
def h200_price(bench: Bench) -> Outcome:
    return _price(bench, "h200-sxm", (4.0, 5.0))


def _price(bench: Bench, device: str, claimed: tuple[float, float]) -> Outcome:
    """The cheapest region of each provider, so that one with many regions counts once."""
    prices = sorted(_by_provider(bench, device).values())
    low, middle, high = (float(v) for v in np.percentile(prices, (25, 50, 75)))
    inside = float(np.mean([claimed[0] <= price <= claimed[1] for price in prices]))
    return Outcome(
        verdict=verdict_of_ranges((low, high), claimed),
        ours=f"${middle:.2f} in the median of {len(prices)} providers, ${low:.2f} to {high:.2f} for "
        "half",
        why=f"On demand, the cheapest region of each provider in the catalog: ${prices[0]:.2f} to "
        f"{prices[-1]:.2f}; {percent(inside, 0)} of them lie between ${claimed[0]:.0f} and "
        f"{claimed[1]:.0f}. The range is of providers, not of one.",
        numbers={"low": low, "middle": middle, "high": high, "n": float(len(prices))},
    )


def _by_provider(bench: Bench, device: str) -> dict[str, float]:
    cheapest: dict[str, float] = {}
    for offer in bench.catalog.offers:
        if offer.accelerator == device and offer.term == "on-demand":
            price = offer.usd_per_device_hour
            cheapest[offer.provider] = min(price, cheapest.get(offer.provider, price))
    return cheapest


@check("lambda-price")
def lambda_price(bench: Bench) -> Outcome:
    devices = ("a100-40-sxm", "a100-80-sxm", "h100-sxm", "b200-sxm")
    found = {name: _by_provider(bench, name).get("lambda") for name in devices}
    prices = {name: price for name, price in found.items() if price is not None}
    return Outcome(
        verdict=verdict_of_facts(*(1.75 <= price <= 2.25 for price in prices.values())),
        ours=", ".join(f"{name} ${price:.2f}" for name, price in prices.items()),
        why="Lambda's cheapest on-demand price of each device in the catalog. About $2 names no "
        "device: it is the price of an A100 of 40 GB.",
        numbers=prices,
    )


@check("vast-discount")
def vast(bench: Bench) -> Outcome:
    """Against the median of the other providers, device by device."""
    savings = {}
    for device in ("a100-80-sxm", "h100-sxm", "h200-sxm"):
        prices = _by_provider(bench, device)
        others = [price for seller, price in prices.items() if seller != "vast"]
        if "vast" in prices and others:
            savings[device] = 1 - prices["vast"] / float(np.median(others))
    low, high = min(savings.values()), max(savings.values())
    listed = ", ".join(f"{name} {percent(value, 0)}" for name, value in savings.items())
    return Outcome(
        verdict=verdict_of_ranges((low, high), (0.5, 0.7)),
        ours=f"{percent(low, 0)} to {percent(high, 0)} under the median of other providers",
        why=f"The cheapest offer on demand against the median of others: {listed}. A marketplace's "
        "machines are single, of unknown hosts and without a network between them: for one node, "
        "not for a cluster.",
        numbers=savings,
    )


def _usd_per_trillion(bench: Bench, device: str) -> float | None:
    """Dollars of 1T tokens of Llama-3.1-70B on 512 devices, at the median price on demand."""
    rent = find_rents(bench.catalog, device).on_demand
    if rent is None:
        return None
    best = bench.best("llama-3.1-70b", device, 512, global_batch=1024, seq_len=8192)
    hours = _TOKENS / best.tokens_per_second_per_gpu / HOUR_SECONDS
    return rent.middle * hours


@check("tpu-cheaper")
def tpu(bench: Bench) -> Outcome:
    return _cheaper(bench, ("tpu-v5p", "tpu-v6e"))


@check("trainium-cheaper")
def trainium(bench: Bench) -> Outcome:
    return _cheaper(bench, ("trainium1", "trainium2"))


def _cheaper(bench: Bench, devices: tuple[str, ...]) -> Outcome:
    base = _usd_per_trillion(bench, "h100-sxm")
    assert base is not None
    costs = {name: _usd_per_trillion(bench, name) for name in devices}
    known = {name: usd for name, usd in costs.items() if usd is not None}
    unknown = [name for name in devices if name not in known]
    listed = ", ".join(f"{name} ${usd / 1e6:.1f}M" for name, usd in known.items())
    runs = {name: _measured(bench, name) for name in known}
    rests = ", ".join(f"{name} {count}" for name, count in runs.items())
    missing = f" No on-demand price in the catalog: {', '.join(unknown)}." if unknown else ""
    verdict: Verdict = "cannot be checked"
    if not unknown:
        verdict = verdict_of_facts(*(usd < base for usd in known.values()))
    return Outcome(
        verdict=verdict,
        ours=f"{listed or 'no price'} against h100-sxm ${base / 1e6:.1f}M for 1T tokens of 70B",
        why="Predicted with the best plan on 512 devices, at the median on-demand price of each; a "
        f"TPU or Trainium has one seller, H100s have many, and cost from ${_least(bench):.2f}."
        f"{missing} Measured runs of the device behind it: {rests or 'none'}. What would settle it is "
        "a run of one model on both, with its bill.",
        numbers={"h100": base} | known,
    )


def _least(bench: Bench) -> float:
    return min(_by_provider(bench, "h100-sxm").values())


def _measured(bench: Bench, device: str) -> int:
    best = bench.best("llama-3.1-70b", device, 512, global_batch=1024, seq_len=8192)
    return best.evidence.same_device


@check("generations")
def generations(bench: Bench) -> Outcome:
    rows = [bench.catalog.accelerators[name] for name in _LAUNCHES]
    months = 12 * (rows[-1].launch_year - rows[0].launch_year) / (len(rows) - 1)
    costs = {name: _usd_per_trillion(bench, name) or 0.0 for name in _GENERATIONS}
    bills = list(costs.values())
    ratios = [new / old for old, new in itertools.pairwise(bills)]
    years = ", ".join(f"{row.name} {row.launch_year}" for row in rows)
    listed = ", ".join(f"{name} ${usd / 1e6:.1f}M" for name, usd in costs.items())
    return Outcome(
        verdict=verdict_of_facts(11 <= months <= 14, all(ratio <= 0.55 for ratio in ratios)),
        ours=f"one every {months:.0f} months; bill x {ratios[0]:.2f}, then x {ratios[1]:.2f}",
        why=f"Launches in the catalog: {years}. 1T tokens of Llama-3.1-70B on 512 devices, predicted, "
        f"at today's median on-demand price: {listed}. Old devices are rented for less than when they "
        "were new, so that a generation does not halve the bill of those who rent.",
        numbers={"months": months, "first": ratios[0], "second": ratios[1]},
    )


@check("onprem-budget")
def onprem(bench: Bench) -> Outcome:
    """GPUs that a budget buys, with machines, spares, network and storage as `build` has them."""
    each = {case: _bought(bench.decision(case), bench, case) for case in ("70B", "400B")}
    low, high = min(each.values()), max(each.values())
    buys = [
        f"${usd:.0f}M {usd * 1e6 / high:,.0f} to {usd * 1e6 / low:,.0f}" for usd in (10, 100, 500)
    ]
    return Outcome(
        verdict="cannot be checked",
        ours=f"GPUs bought: {', '.join(buys)}",
        why=f"An H100 with its share of machine, spares, network and storage costs ${low:,.0f} to "
        f"{high:,.0f} to buy, without hall, energy and people (computeflow build). The claim names "
        "no number of GPUs; that number, or the power of the hall, would settle it. Its shares are "
        "checked in hardware-share and network-share.",
        numbers={"low": low, "high": high},
    )


def _bought(decision: Decision, bench: Bench, case: str) -> float:
    spending = sum(decision.spending[name][1] for name in _BOUGHT if name in decision.spending)
    return spending / bench.need(case).case.gpus
