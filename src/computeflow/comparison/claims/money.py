"""Claims about prices and spending."""

from __future__ import annotations

import numpy as np

from computeflow.catalog import Offer
from computeflow.comparison.build_or_rent.cost_inputs import network_share
from computeflow.comparison.claims.claim import (
    Bench,
    Outcome,
    check,
    percent,
    verdict_of_facts,
    verdict_of_ranges,
)
from computeflow.comparison.rents import YEAR_DISCOUNT

_NICS = (0.04, 0.05)
"""Share of a cluster's cost in NICs, which stand in the servers' price (H100 Freakonomics sheet)."""
_THREE_YEARS = (0.46, 0.65)
"""Off on-demand for three years (yobitel; CoreWeave: up to 60 %)."""


def _discounts(bench: Bench, term: str) -> list[float]:
    """Discounts of each instance and region that has both prices."""

    def key(offer: Offer) -> tuple[str, str, str]:
        return offer.provider, offer.instance, offer.region

    offers = list(bench.catalog.offers)
    listed = {key(o): o.usd_per_hour for o in offers if o.term == "on-demand"}
    return [
        1 - o.usd_per_hour / listed[key(o)] for o in offers if o.term == term and key(o) in listed
    ]


@check("spot")
def spot(bench: Bench) -> Outcome:
    discounts = _discounts(bench, "spot")
    low, middle, high = (float(v) for v in np.percentile(discounts, (25, 50, 75)))
    inside = float(np.mean([0.6 <= one <= 0.7 for one in discounts]))
    return Outcome(
        verdict=verdict_of_ranges((low, high), (0.6, 0.7)),
        ours=f"{percent(middle, 0)} in the median, {percent(low, 0)} to {percent(high, 0)} for half",
        why=f"{len(discounts)} instances and regions of the catalog with both prices; "
        f"{percent(inside, 0)} of them lie between 60 and 70 %. The saving of a run is less: "
        "preemptions cost time (computeflow compare).",
        numbers={"low": low, "middle": middle, "high": high, "n": float(len(discounts))},
    )


@check("reserved")
def reserved(bench: Bench) -> Outcome:
    discounts = _discounts(bench, "reserved")
    ends = f"{percent(min(discounts), 0)} to {percent(max(discounts), 0)}" if discounts else "none"
    least, _, most = YEAR_DISCOUNT
    claimed = (0.3, 0.5)
    one, three = verdict_of_ranges((least, most), claimed), verdict_of_ranges(_THREE_YEARS, claimed)
    return Outcome(
        verdict=one if one == three else "holds in part",
        ours=f"{percent(least, 0)} to {percent(most, 0)} for one year, "
        f"{percent(_THREE_YEARS[0], 0)} to {percent(_THREE_YEARS[1], 0)} for three",
        why=f"yobitel (savings plans), digiterialabs, CoreWeave. For one year it {one}, for three "
        f"it {three}. The catalog has both prices of only {len(discounts)} instances: {ends}.",
        basis="cited",
        numbers={"n": float(len(discounts))},
    )


@check("hardware-share")
def hardware(bench: Bench) -> Outcome:
    shares = []
    for case in ("70B", "400B"):
        spending = {name: values[1] for name, values in bench.decision(case).spending.items()}
        bought = sum(
            spending.get(name, 0.0) for name in ("servers", "spares", "network", "storage")
        )
        shares.append((bought + spending["resale"]) / sum(spending.values()))
        shares.append(
            (bought + spending["interest"]) / (sum(spending.values()) - spending["resale"])
        )
    low, high = min(shares), max(shares)
    return Outcome(
        verdict=verdict_of_ranges((low, high), (0.25, 0.35)),
        ours=f"{percent(low, 0)} to {percent(high, 0)} of owning",
        why="Machines, spares, network and storage over the life of a 70B and a 400B fleet, with "
        "resale taken off or interest put on (computeflow build). Epoch AI has 60 % for servers "
        "alone. 30 % can hold for a whole AI programme with its people and data, which is not what it "
        "says.",
        numbers={"low": low, "high": high},
    )


@check("network-share")
def network(bench: Bench) -> Outcome:
    sizes = (512, 1024, 16384, 65536)
    shares = [network_share(size) for size in sizes]
    low, high = shares[0] + _NICS[0], shares[-1] + _NICS[1]
    listed = ", ".join(f"{percent(s)} at {n:,}" for n, s in zip(sizes, shares, strict=True))
    return Outcome(
        verdict=verdict_of_ranges((low, high), (0.3, 0.4)),
        ours=f"{percent(low, 0)} to {percent(high, 0)} with NICs",
        why=f"Switches, optics and cables of an H100 cluster: {listed} GPUs; NICs add 4 to 5 % (H100 "
        "Freakonomics sheet, August 2024). Larger ones are not in the sheet.",
        basis="cited",
        numbers={"low": low, "high": high},
    )


@check("placeholder-prices")
def placeholders(bench: Bench) -> Outcome:
    """Placeholder prices that are left in the catalog, which comes from the same source."""
    prices = [offer.usd_per_device_hour for offer in bench.catalog.offers]
    tpus = [o.usd_per_device_hour for o in bench.catalog.offers if o.accelerator == "tpu-v6e"]
    most = f", TPU v6e {min(tpus):.2f} to {max(tpus):.2f}" if tpus else ""
    dear = bool(tpus) and max(tpus) >= 700
    return Outcome(
        verdict=verdict_of_facts(dear, min(prices) <= 0.01),
        ours=f"{min(prices):.2f} to {max(prices):.2f} $ per device-hour in the catalog{most}",
        why="Placeholders and floors of a price list, not prices; the catalog leaves them out.",
        numbers={"low": min(prices), "high": max(prices)},
    )
