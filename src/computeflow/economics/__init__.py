"""Price, energy and carbon of a ledger, account by account: start with `ledger_cost`, `ledger_energy`.

What comes out adds up to the ledger: the dollars of all accounts are its GPU-hours times the price,
the joules are those of its entries, the grams those of its kilowatt-hours.
"""

from computeflow.economics.ages import STALE_DAYS, age_days, is_stale
from computeflow.economics.energy import (
    Energy,
    EnergyLine,
    Supply,
    fill_joules,
    flops_per_joule,
    ledger_energy,
    supply_of,
)
from computeflow.economics.money import Cost, Price, ledger_cost, price_of

__all__ = [
    "STALE_DAYS",
    "Cost",
    "Energy",
    "EnergyLine",
    "Price",
    "Supply",
    "age_days",
    "fill_joules",
    "flops_per_joule",
    "is_stale",
    "ledger_cost",
    "ledger_energy",
    "price_of",
    "supply_of",
]
