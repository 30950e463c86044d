"""Spot against a flat discount: what preemptions, waiting and checkpoints do to the bill.

A flat discount multiplies the on-demand bill by the ratio of prices. On spot, machines are taken back,
the job rolls back and waits for others, and all that waiting is paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from computeflow.catalog import Catalog
from computeflow.comparison.living import Market, Setting, live_on_demand, live_on_spot, run_on
from computeflow.economics import Price, ledger_cost
from computeflow.planning import Plan

RATES = (0.01, 0.05, 0.15)
"""Preemptions per machine and day: Google's 5 to 15 % in seven days, between, its older 15 % in a day
(see `living.Market`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCase:
    preemptions_per_node_day: float
    usd: float | None
    """Simulated; None: interrupted more often than it gets anywhere."""
    p50_seconds: float | None
    p90_seconds: float | None
    interruptions: float | None
    goodput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotStudy:
    gpus: int
    on_demand_usd: float
    on_demand_seconds: float
    flat_usd: float
    """The on-demand run at the spot price."""
    cases: tuple[SpotCase, ...]


def spot_study(
    setting: Setting, plan: Plan, tokens: float, catalog: Catalog, *, on_demand: Price, spot: Price,
    market: Market | None = None, rates: Sequence[float] = RATES, replicas: int = 100, seed: int = 0,
) -> SpotStudy:  # fmt: skip
    market = market or Market()
    usual = run_on(setting, plan, tokens, catalog, market, spot=False)
    lived = live_on_demand([usual], [None], replicas=replicas, seed=seed)[0]
    markets = [replace(market, preemptions_per_node_day=rate) for rate in rates]
    runs = [run_on(setting, plan, tokens, catalog, one, spot=True) for one in markets]
    cases = []
    for rate, found in zip(rates, live_on_spot(runs, replicas=replicas, seed=seed), strict=True):
        cases.append(
            SpotCase(
                preemptions_per_node_day=rate,
                usd=None if found is None else ledger_cost(found.ledger, spot).usd,
                p50_seconds=None if found is None else found.seconds.p50,
                p90_seconds=None if found is None else found.seconds.p90,
                interruptions=None if found is None else found.interruptions.mean,
                goodput=None if found is None else found.goodput.mean,
            )
        )
    return SpotStudy(
        gpus=setting.gpus,
        on_demand_usd=ledger_cost(lived.ledger, on_demand).usd,
        on_demand_seconds=lived.seconds.p50,
        flat_usd=ledger_cost(lived.ledger, spot).usd,
        cases=tuple(cases),
    )
