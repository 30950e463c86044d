"""Energy of a ledger, from the devices to the meter: joules, what they cost, what they emit.

    at the meter = (joules of the devices + hosts' watts x GPU-seconds) x PUE

The hosts' share is a constant draw per device (CPUs, memory, NICs, fans): it runs whatever the device
does. Switches and storage are in it only where the given figure has them. PUE is a year's mean; grid
figures are yearly means too, location-based.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from computeflow.catalog import Grid
from computeflow.errors import InputError
from computeflow.ledger import Entry, Ledger
from computeflow.units import KWH_JOULES

_WORKS = ("lost", "evaluation")
"""Accounts whose seconds are steps: they draw what steps draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Factors from a joule at the device to the meter. None: unknown."""

    pue: float
    usd_per_kwh: float | None = None
    grams_per_kwh: float | None = None
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.pue < math.inf:
            raise InputError(f"a PUE of {self.pue}: 1 or more")
        for value in (self.usd_per_kwh, self.grams_per_kwh):
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{value} per kWh: zero or more")


def supply_of(grid: Grid | None, pue: float) -> Supply:
    """Supply of a grid of the catalog; None where the region's grid is unknown."""
    if grid is None:
        return Supply(pue=pue)
    return Supply(
        pue=pue,
        usd_per_kwh=grid.usd_per_kwh,
        grams_per_kwh=grid.grams_co2e_per_kwh,
        source=grid.source,
        as_of=grid.as_of,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyLine:
    """Energy of one account. None: the power of these seconds, or the grid's figure, is unknown."""

    device_joules: float | None
    joules: float | None
    """At the meter."""
    usd: float | None
    grams: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    supply: Supply
    by_account: dict[str, EnergyLine]

    def _sum(self, name: str) -> float | None:
        values = [getattr(line, name) for line in self.by_account.values()]
        return None if any(value is None for value in values) else math.fsum(values)

    @property
    def device_joules(self) -> float | None:
        return self._sum("device_joules")

    @property
    def joules(self) -> float | None:
        """At the meter; None when any account lacks it."""
        return self._sum("joules")

    @property
    def usd(self) -> float | None:
        return self._sum("usd")

    @property
    def grams(self) -> float | None:
        return self._sum("grams")


def ledger_energy(ledger: Ledger, supply: Supply, *, host_watts: float = 0.0) -> Energy:
    """`host_watts`: everything but the device, per device."""
    if not 0 <= host_watts < math.inf:
        raise InputError(f"{host_watts} W of the host per device: zero or more")
    entries: dict[str, list[Entry]] = {}
    for entry in ledger.entries:
        entries.setdefault(entry.account, []).append(entry)
    return Energy(
        supply=supply,
        by_account={name: _line(entries[name], supply, host_watts) for name in ledger.accounts},
    )


def _line(entries: list[Entry], supply: Supply, host_watts: float) -> EnergyLine:
    known = [entry.joules for entry in entries if entry.joules is not None]
    if len(known) < len(entries):
        return EnergyLine(device_joules=None, joules=None, usd=None, grams=None)
    device = math.fsum(known)
    seconds = math.fsum(entry.gpu_seconds for entry in entries)
    joules = (device + host_watts * seconds) * supply.pue
    kwh = joules / KWH_JOULES
    return EnergyLine(
        device_joules=device,
        joules=joules,
        usd=_times(kwh, supply.usd_per_kwh),
        grams=_times(kwh, supply.grams_per_kwh),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEnergy:
    """Energy in a region, what it costs there and what it emits. None: unknown."""

    kilowatt_hours: float | None
    usd: float | None
    kg_co2e: float | None
    grid: str


def energy_of(joules: float | None, grid: Grid) -> GridEnergy:
    """Joules as they were read, without hosts and cooling, at the price and carbon of a grid."""
    kwh = None if joules is None else joules / KWH_JOULES
    grams = _times(kwh, grid.grams_co2e_per_kwh)
    return GridEnergy(
        kilowatt_hours=kwh,
        usd=_times(kwh, grid.usd_per_kwh),
        kg_co2e=None if grams is None else grams / 1e3,
        grid=grid.name,
    )


def _times(amount: float | None, rate: float | None) -> float | None:
    return None if amount is None or rate is None else amount * rate


def fill_joules(ledger: Ledger, waiting_watts: float) -> Ledger:
    """The ledger with an estimate where an entry has no joules.

    Steps done again draw what the known entries draw in the mean; everything else waits. Without
    any known entry nothing is filled.
    """
    known = [entry for entry in ledger.entries if entry.joules is not None]
    seconds = math.fsum(entry.gpu_seconds for entry in known)
    if not seconds:
        return ledger
    working = math.fsum(entry.joules or 0.0 for entry in known) / seconds

    def filled(entry: Entry) -> Entry:
        watts = working if entry.account in _WORKS else waiting_watts
        return replace(entry, joules=watts * entry.gpu_seconds)

    entries = tuple(e if e.joules is not None else filled(e) for e in ledger.entries)
    left = {name: why for name, why in ledger.unavailable.items() if name != "joules"}
    return replace(ledger, entries=entries, unavailable=left)


def flops_per_joule(ledger: Ledger, energy: Energy) -> float | None:
    """Model FLOPs for a joule at the meter: FLOP/s per watt. None where either is unknown."""
    joules = energy.joules
    if ledger.peak is None or not joules or ledger.mfu is None:
        return None
    return ledger.peak.flops * ledger.booked("compute.model") / joules
