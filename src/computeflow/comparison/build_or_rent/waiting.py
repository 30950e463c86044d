"""Waiting for the next generation: rent until it is there, then own fewer of its faster GPUs.

The gain of the next generation is unknown. The step from the present accelerator to a
named newer one stands for it: predicted speed on the same job, and the newer one's price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from computeflow.catalog import Catalog
from computeflow.comparison.build_or_rent.build_cases import RunNeed, best_plan
from computeflow.comparison.build_or_rent.cost_inputs import (
    CostInput,
    Floats,
    InputDraws,
    cost_inputs,
    liquid_pue,
    servers,
)
from computeflow.comparison.build_or_rent.ownership_costs import (
    BuiltFleet,
    fleet_of,
    owned_usd,
    rented_usd,
)
from computeflow.comparison.machines import machine_of
from computeflow.errors import InputError, UnknownNameError

_SPREAD = (0.8, 1.15)
"""Range around the predicted ratio of two accelerators' speeds. Assumed: the errors of both
predictions move together, and how far apart is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStrategy:
    """One way through the fleet's life, for the same work."""

    name: str
    doc: str
    usd: tuple[float, float, float]
    cheapest: float
    """Share of draws in which it costs least."""


def next_inputs(need: RunNeed, catalog: Catalog, upgrade: str) -> dict[str, CostInput]:
    name = catalog.accelerators[upgrade].name
    server = servers().get(name)
    if server is None:
        raise UnknownNameError("accelerator with a server price", name, servers())
    ratio = best_plan(need.case, catalog, name).tokens_per_second_per_gpu
    ratio /= need.tokens_per_second_per_gpu
    speed = CostInput(
        name="next_speed",
        unit="x",
        value=ratio,
        low=_SPREAD[0] * ratio,
        high=_SPREAD[1] * ratio,
        basis="assumed",
        doc=f"tokens a second of {name} over {need.case.on}, predicted",
        source="computeflow plan on both; the ends are assumed",
        as_of="2026",
    )
    usd = CostInput(
        name="next_usd_per_gpu",
        unit="USD",
        value=server.value / server.gpus,
        low=server.low / server.gpus,
        high=server.high / server.gpus,
        basis="published",
        doc=f"a machine of {name} over its GPUs",
        source=server.source,
        as_of=server.as_of,
    )
    liquid = machine_of(name, catalog).liquid
    pue = replace(cost_inputs()["pue"], name="next_pue")
    pue = liquid_pue(pue) if liquid else pue
    return {row.name: row for row in (speed, usd, pue)}


def ways(
    fleet: BuiltFleet, terms: InputDraws, need: RunNeed, catalog: Catalog, upgrade: str | None
) -> tuple[FleetStrategy, ...]:
    life = 12 * terms["life_years"]
    costs: dict[str, tuple[str, Floats]] = {
        "rent": ("all the time", rented_usd(fleet, terms, life)),
        "build now": (f"{fleet.gpus:,} GPUs", owned_usd(fleet, terms, life)),
    }
    if upgrade is not None:
        usd, later = _waited(fleet, terms, catalog, upgrade, life)
        wait = float(np.median(terms["wait_months"]))
        doc = f"rent for {wait:.3g} months, then {later.gpus:,} {upgrade}"
        costs["wait, then build"] = (doc, usd)
    table = np.array([usd for _, usd in costs.values()])
    least = np.argmin(table, axis=0)
    return tuple(
        FleetStrategy(name=name, doc=doc, usd=_three(usd), cheapest=float(np.mean(least == index)))
        for index, (name, (doc, usd)) in enumerate(costs.items())
    )


def _waited(
    fleet: BuiltFleet, terms: InputDraws, catalog: Catalog, upgrade: str, life: Floats
) -> tuple[Floats, BuiltFleet]:
    """Whole machines of at least the same tokens a second; their cost follows the drawn speed."""
    rest = life - terms["wait_months"]
    if np.any(rest <= 0):
        raise InputError("the fleet's life ends before the next generation comes")
    machine = machine_of(upgrade, catalog)
    all_in = servers()[catalog.accelerators[upgrade].name].all_in
    speed = float(np.median(terms["next_speed"]))
    size = machine.gpus * math.ceil(fleet.gpus / speed / machine.gpus)
    spares = math.ceil(size * fleet.spare_gpus / fleet.gpus)
    later = fleet_of(machine, size, all_in=all_in, hall=fleet.hall, spare_gpus=spares)
    bought = {**terms, "server_usd_per_gpu": terms["next_usd_per_gpu"], "pue": terms["next_pue"]}
    one = owned_usd(later, bought, rest)
    scale = speed / terms["next_speed"]
    return rented_usd(fleet, terms, terms["wait_months"]) + one * scale, later


def _three(usd: Floats) -> tuple[float, float, float]:
    low, mid, high = (float(v) for v in np.percentile(usd, (10, 50, 90)))
    return low, mid, high
