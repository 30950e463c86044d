"""Price, energy and carbon of a ledger and of its findings.

Start with `find_price`, then `ledger_cost`, `finding_usd_per_hour` and `ledger_energy`.

What comes out adds up to the ledger: the dollars of all accounts are its GPU-hours times the price,
the joules are those of its entries, the grams those of its kilowatt-hours. Nothing else turns
GPU-seconds into dollars, or joules into dollars and grams.
"""

from computeflow.economics.ages import STALE_DAYS, age_days, is_stale
from computeflow.economics.energy import (
    Energy,
    EnergyLine,
    GridEnergy,
    Supply,
    energy_of,
    fill_joules,
    flops_per_joule,
    ledger_energy,
    supply_of,
)
from computeflow.economics.money import (
    Cost,
    Price,
    TrainingTotals,
    finding_usd_per_hour,
    gpu_seconds_of,
    ledger_cost,
    price_of,
    training_totals,
    usd_of,
    usd_per_hour,
)
from computeflow.economics.prices import GpuPrice, find_price

__all__ = [
    "STALE_DAYS",
    "Cost",
    "Energy",
    "EnergyLine",
    "GpuPrice",
    "GridEnergy",
    "Price",
    "Supply",
    "TrainingTotals",
    "age_days",
    "energy_of",
    "fill_joules",
    "find_price",
    "finding_usd_per_hour",
    "flops_per_joule",
    "gpu_seconds_of",
    "is_stale",
    "ledger_cost",
    "ledger_energy",
    "price_of",
    "supply_of",
    "training_totals",
    "usd_of",
    "usd_per_hour",
]
