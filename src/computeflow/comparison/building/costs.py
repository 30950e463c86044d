"""Formulas of owning and renting, over months of use, for many draws at once.

    own(t)  = capital - resale(t) + interest + (hall + energy + people + support) (t + b)
    resale  = servers x (1 - haircut) x r36^((t + b) / 36)
    interest = rate x (capital + resale) / 2 x (t + b)
    rent(t) = min(on-demand x busy, contract) x hours x trend x (1 + extras)

t: months of use, b: months of bring-up before it, r36: what servers are worth after 36 months. A renter
takes on-demand or a contract, whichever is cheaper at the share of hours that are needed. An owner buys
spare machines; a renter's provider has them. Taxes are neglected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from computeflow.comparison.building.inputs import Floats, Terms, network_share
from computeflow.comparison.machines import Machine
from computeflow.comparison.site_limits import BESIDE
from computeflow.errors import InputError

Hall = Literal["colocation", "own"]
HALLS: tuple[Hall, ...] = ("colocation", "own")
MONTH_HOURS = 8760 / 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is bought or rented."""

    gpus: int
    node_gpus: int
    rated_watts: float
    """Of one GPU with its share of the machine, of network, storage and management."""
    drawn_watts: float
    spare_gpus: int = 0
    """Of whole machines that stand by."""
    all_in: bool = False
    """The machine's price has network and storage inside."""
    hall: Hall = "colocation"

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.node_gpus < 1:
            raise InputError(f"a fleet of {self.gpus} GPUs: one or more")

    @property
    def nodes(self) -> int:
        return math.ceil(self.gpus / self.node_gpus)


def fleet_of(
    machine: Machine, gpus: int, *, all_in: bool, hall: Hall, spare_gpus: int = 0
) -> Fleet:
    beside = 1 + BESIDE[1]
    return Fleet(
        gpus=gpus,
        spare_gpus=spare_gpus,
        node_gpus=machine.gpus,
        rated_watts=beside * machine.rated_watts / machine.gpus,
        drawn_watts=beside * machine.drawn_watts / machine.gpus,
        all_in=all_in,
        hall=hall,
    )


def capital(fleet: Fleet, terms: Terms) -> dict[str, Floats]:
    """USD paid at the start."""
    servers = fleet.gpus * terms["server_usd_per_gpu"]
    found = {"servers": servers}
    if fleet.spare_gpus:
        found["spares"] = fleet.spare_gpus * terms["server_usd_per_gpu"]
    if not fleet.all_in:
        share = network_share(fleet.gpus)
        found["network"] = servers * share / (1 - share) * terms["network_factor"]
        found["storage"] = fleet.gpus * terms["storage_usd_per_gpu"]
    if fleet.hall == "own":
        found["hall"] = fleet.gpus * fleet.rated_watts * terms["hall_usd_per_watt"]
    return found


def monthly(fleet: Fleet, terms: Terms) -> dict[str, Floats]:
    """USD of a month, beside the capital. Machines draw their mean at all hours: an upper end."""
    kilowatts = fleet.gpus * fleet.rated_watts / 1e3
    drawn = fleet.gpus * fleet.drawn_watts / 1e3
    bought = capital(fleet, terms)
    machines = _sum({name: usd for name, usd in bought.items() if name != "hall"})
    people = np.maximum(fleet.nodes / terms["nodes_per_engineer"], terms["least_engineers"])
    found = {
        "energy": drawn * MONTH_HOURS * terms["pue"] * terms["usd_per_kwh"],
        "people": people * terms["usd_per_engineer"] / 12,
        "support": machines * terms["support_share"] / 12,
    }
    if fleet.hall == "own":
        found["hall upkeep"] = bought["hall"] * terms["hall_upkeep_share"] / 12
    else:
        found["hall"] = kilowatts * terms["colocation_usd_per_kw_month"]
    return found


def owned(fleet: Fleet, terms: Terms, months: Floats | float) -> dict[str, Floats]:
    """USD by part of so many months of use, sold at their end; `resale` is negative."""
    whole = np.asarray(months) + terms["bringup_months"]
    bought = capital(fleet, terms)
    worth = terms["resale_36_months"] ** (whole / 36)
    machines = bought["servers"] + bought.get("spares", np.zeros_like(bought["servers"]))
    back = machines * (1 - terms["resale_haircut"]) * worth
    found = {name: usd + np.zeros_like(back) for name, usd in bought.items()}
    if fleet.hall == "own":
        kept = bought["hall"] * np.clip(1 - whole / 12 / terms["hall_years"], 0, 1)
        found["hall"] = bought["hall"] - kept
        back_all = back + kept
    else:
        back_all = back
    found["resale"] = -back
    invested = (_sum(bought) + back_all) / 2
    found["interest"] = terms["capital_rate"] * invested * whole / 12
    for name, usd in monthly(fleet, terms).items():
        found[name] = found.get(name, 0.0) + usd * whole
    return found


def owned_usd(fleet: Fleet, terms: Terms, months: Floats | float) -> Floats:
    return _sum(owned(fleet, terms, months))


def rented_usd(fleet: Fleet, terms: Terms, months: Floats | float) -> Floats:
    """A trend of g a year makes t months cost the integral of (1 + g)^(t / 12)."""
    on_demand = terms["on_demand_usd"] * terms["busy"]
    hourly = np.minimum(on_demand, terms["contract_usd"]) * (1 + terms["rent_extras"])
    growth = np.log1p(terms["rent_trend"]) / 12
    span = np.asarray(months, dtype=np.float64)
    steady = np.abs(growth) < 1e-9
    safe = np.where(steady, 1.0, growth)
    lasting = np.where(steady, span, np.expm1(safe * span) / safe)
    return np.asarray(fleet.gpus * MONTH_HOURS * hourly * lasting)


def busy_hours(fleet: Fleet, terms: Terms, months: Floats | float) -> Floats:
    """GPU-hours for which there is work."""
    return np.asarray(fleet.gpus * MONTH_HOURS * np.asarray(months) * terms["busy"])


def _sum(parts: dict[str, Floats]) -> Floats:
    return np.asarray(sum(parts.values()))
