"""Dollars of a ledger: every GPU-second costs the same, whatever it was spent on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from computeflow.catalog import Offer
from computeflow.errors import InputError
from computeflow.ledger import Ledger

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    usd_per_gpu_hour: float
    source: str
    as_of: str

    def __post_init__(self) -> None:
        if not 0 <= self.usd_per_gpu_hour < math.inf:
            raise InputError(f"a price of {self.usd_per_gpu_hour} $ per GPU-hour: zero or more")


def price_of(offer: Offer) -> Price:
    return Price(usd_per_gpu_hour=offer.usd_per_device_hour, source=offer.source, as_of=offer.as_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """US dollars of a ledger's window."""

    price: Price
    by_account: dict[str, float]

    @property
    def usd(self) -> float:
        return math.fsum(self.by_account.values())


def ledger_cost(ledger: Ledger, price: Price) -> Cost:
    """GPU-hours by account times the price; spares are in it where the ledger counts their GPUs."""
    rate = price.usd_per_gpu_hour / HOUR_SECONDS
    return Cost(price=price, by_account={name: rate * s for name, s in ledger.accounts.items()})
