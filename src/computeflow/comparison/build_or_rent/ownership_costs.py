"""Formulas of owning and renting, over months of use, for many draws at once.

    own(t)  = capital - resale(t) + interest + (hall + energy + people + support) (t + b)
    resale  = servers x (1 - haircut) x r36^((t + b) / 36)
    interest = rate x (capital + resale) / 2 x (t + b)
    rent(t) = min(on-demand x busy x t, contract x max(t, a year)) x hours x trend x (1 + extras)

t: months of use, b: months of bring-up before it, r36: what servers are worth after 36 months. A renter
takes on-demand or a contract, whichever is cheaper for the hours that are needed. A contract is paid
for its year, also by a run of weeks; after it, it goes on by the month. An owner buys whole machines
and spare ones, with network and hall; a renter's provider has the spares. Taxes are neglected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from computeflow.comparison.build_or_rent.cost_inputs import Floats, InputDraws, network_share
from computeflow.comparison.machines import Machine
from computeflow.comparison.site_limits import BESIDE
from computeflow.errors import InputError
from computeflow.units import HOUR_SECONDS, YEAR_SECONDS

Hall = Literal["colocation", "own"]
MONTH_HOURS = YEAR_SECONDS / HOUR_SECONDS / 12
_TERM_MONTHS = 12
"""Months of a contract, paid in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFleet:
    """What is bought or rented."""

    gpus: int
    node_gpus: int
    rated_watts: float
    """One GPU with its share of the machine, network, storage and management."""
    drawn_watts: float
    spare_gpus: int = 0
    """GPUs on standby."""
    all_in: bool = False
    """Whether the machine's price includes network and storage."""
    hall: Hall = "colocation"

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.node_gpus < 1:
            raise InputError(f"a fleet of {self.gpus} GPUs: one or more")

    @property
    def used_machines(self) -> int:
        return math.ceil(self.gpus / self.node_gpus)

    @property
    def machines(self) -> int:
        """Whole ones, spares included: all are bought, housed and kept running."""
        return self.used_machines + math.ceil(self.spare_gpus / self.node_gpus)

    @property
    def owned_gpus(self) -> int:
        return self.machines * self.node_gpus


def fleet_of(
    machine: Machine, gpus: int, *, all_in: bool, hall: Hall, spare_gpus: int = 0
) -> BuiltFleet:
    beside = 1 + BESIDE[1]
    return BuiltFleet(
        gpus=gpus,
        spare_gpus=spare_gpus,
        node_gpus=machine.gpus,
        rated_watts=beside * machine.rated_watts / machine.gpus,
        drawn_watts=beside * machine.drawn_watts / machine.gpus,
        all_in=all_in,
        hall=hall,
    )


def capital_costs(fleet: BuiltFleet, terms: InputDraws) -> dict[str, Floats]:
    """USD paid at the start."""
    machine = fleet.node_gpus * terms["server_usd_per_gpu"]
    usd = {"servers": fleet.used_machines * machine}
    if fleet.spare_gpus:
        usd["spares"] = (fleet.machines - fleet.used_machines) * machine
    if not fleet.all_in:
        share = network_share(fleet.owned_gpus)
        network = fleet.machines * machine * share / (1 - share)
        usd["network"] = network * terms["network_factor"]
        usd["storage"] = fleet.gpus * terms["storage_usd_per_gpu"]
    if fleet.hall == "own":
        usd["hall"] = fleet.owned_gpus * fleet.rated_watts * terms["hall_usd_per_watt"]
    return usd


def monthly_costs(fleet: BuiltFleet, terms: InputDraws) -> dict[str, Floats]:
    """USD of a month, beside the capital. Machines draw their mean at all hours: an upper end."""
    kilowatts = fleet.owned_gpus * fleet.rated_watts / 1e3
    drawn = fleet.owned_gpus * fleet.drawn_watts / 1e3
    bought = capital_costs(fleet, terms)
    machines = _sum({name: usd for name, usd in bought.items() if name != "hall"})
    people = np.maximum(fleet.machines / terms["nodes_per_engineer"], terms["least_engineers"])
    by_part = {
        "energy": drawn * MONTH_HOURS * terms["pue"] * terms["usd_per_kwh"],
        "people": people * terms["usd_per_engineer"] / 12,
        "support": machines * terms["support_share"] / 12,
    }
    if fleet.hall == "own":
        by_part["hall upkeep"] = bought["hall"] * terms["hall_upkeep_share"] / 12
    else:
        by_part["hall"] = kilowatts * terms["colocation_usd_per_kw_month"]
    return by_part


def owned_costs(fleet: BuiltFleet, terms: InputDraws, months: Floats | float) -> dict[str, Floats]:
    """USD by part of so many months of use, sold at their end; `resale` is negative."""
    whole = np.asarray(months) + terms["bringup_months"]
    bought = capital_costs(fleet, terms)
    worth = terms["resale_36_months"] ** (whole / 36)
    machines = bought["servers"] + bought.get("spares", np.zeros_like(bought["servers"]))
    back = machines * (1 - terms["resale_haircut"]) * worth
    usd_by_part = {name: usd + np.zeros_like(back) for name, usd in bought.items()}
    if fleet.hall == "own":
        kept = bought["hall"] * np.clip(1 - whole / 12 / terms["hall_years"], 0, 1)
        usd_by_part["hall"] = bought["hall"] - kept
        back_all = back + kept
    else:
        back_all = back
    usd_by_part["resale"] = -back
    invested = (_sum(bought) + back_all) / 2
    usd_by_part["interest"] = terms["capital_rate"] * invested * whole / 12
    for name, usd in monthly_costs(fleet, terms).items():
        usd_by_part[name] = usd_by_part.get(name, 0.0) + usd * whole
    return usd_by_part


def owned_usd(fleet: BuiltFleet, terms: InputDraws, months: Floats | float) -> Floats:
    return _sum(owned_costs(fleet, terms, months))


def rented_usd(fleet: BuiltFleet, terms: InputDraws, months: Floats | float) -> Floats:
    """On demand for the hours with work, or all hours of a contract, whichever is cheaper."""
    span = np.asarray(months, dtype=np.float64)
    on_demand = terms["on_demand_usd"] * terms["busy"] * _lasting(terms, span)
    contract = terms["contract_usd"] * _lasting(terms, np.maximum(span, _TERM_MONTHS))
    usd = np.minimum(on_demand, contract) * (1 + terms["rent_extras"])
    return np.asarray(fleet.gpus * MONTH_HOURS * usd)


def _lasting(terms: InputDraws, months: Floats) -> Floats:
    """Months at today's rent: a trend of g a year makes them the integral of (1 + g)^(t / 12)."""
    growth = np.log1p(terms["rent_trend"]) / 12
    steady = np.abs(growth) < 1e-9
    safe = np.where(steady, 1.0, growth)
    return np.asarray(np.where(steady, months, np.expm1(safe * months) / safe))


def busy_hours(fleet: BuiltFleet, terms: InputDraws, months: Floats | float) -> Floats:
    """GPU-hours for which there is work."""
    return np.asarray(fleet.gpus * MONTH_HOURS * np.asarray(months) * terms["busy"])


def _sum(parts: dict[str, Floats]) -> Floats:
    return np.asarray(sum(parts.values()))
