"""Dollars of GPU-seconds: each costs the same, whatever it was spent on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from computeflow.catalog import Offer
from computeflow.errors import InputError
from computeflow.ledger import Finding, Ledger
from computeflow.units import DAY_SECONDS, HOUR_SECONDS, MWH_JOULES


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
    usd = price.usd_per_gpu_hour
    return Cost(
        price=price, by_account={name: usd_of(s, usd) for name, s in ledger.accounts.items()}
    )


def usd_of(gpu_seconds: float, usd_per_gpu_hour: float) -> float:
    return gpu_seconds * (usd_per_gpu_hour / HOUR_SECONDS)


def gpu_seconds_of(usd: float, usd_per_gpu_hour: float) -> float:
    """GPU-seconds that so many dollars buy."""
    return usd / usd_per_gpu_hour * HOUR_SECONDS


def usd_per_hour(gpu_seconds: float, wall_seconds: float, usd_per_gpu_hour: float) -> float:
    """Cost per hour of GPU-seconds of a window, if the run goes on like this."""
    return gpu_seconds / wall_seconds * usd_per_gpu_hour


def finding_usd_per_hour(
    finding: Finding, ledger: Ledger | None, usd_per_gpu_hour: float | None
) -> float | None:
    """What happens in some steps only has no price by the hour, beside what its rule may state."""
    if ledger is None or usd_per_gpu_hour is None or not finding.steady:
        return finding.usd_per_hour
    return usd_per_hour(finding.gpu_seconds, ledger.wall_seconds, usd_per_gpu_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTotals:
    """Totals of a whole training. None: tokens, price or power are unknown."""

    days: float | None = None
    usd: float | None = None
    megawatt_hours: float | None = None


def training_totals(
    *,
    step_seconds: float,
    joules_per_step: float | None,
    tokens: float | None,
    step_tokens: float,
    gpus: int,
    usd_per_gpu_hour: float | None,
) -> TrainingTotals:
    if tokens is None:
        return TrainingTotals()
    steps = tokens / step_tokens
    seconds, price, joules = steps * step_seconds, usd_per_gpu_hour, joules_per_step
    return TrainingTotals(
        days=seconds / DAY_SECONDS,
        usd=None if price is None else usd_of(seconds * gpus, price),
        megawatt_hours=None if joules is None else steps * joules / MWH_JOULES,
    )
