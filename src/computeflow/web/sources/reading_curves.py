"""`ReadingCurves`: what meters of a run's GPUs or ranks read over time, in slots of the same length.

A slot has the mean over all GPUs and the largest of one. Sums are of slots, never of single readings:
an hour of 1,024 GPUs is 800 slots here and three million readings where they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from computeflow.collection.online.live_values import POWER_READINGS, TEMPERATURE_READINGS
from computeflow.telemetry.run_folders.attempt_time import AttemptTime
from computeflow.units import DAY_SECONDS, HOUR_SECONDS
from computeflow.web.sources.step_table import COLUMNS

_SLOTS_SECONDS = (1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 1_200, 1_800)
_LATE = 1.25
"""A slot is so many times the time between two readings: none is empty where one is late."""
_MIB = 2.0**20
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    name: str
    title: str
    unit: str
    readings: Mapping[str, float]
    """Names of readings, and the factor of each to the unit; a GPU has one of them."""
    limits: Mapping[str, float] = field(default_factory=dict)
    limit_title: str = ""


METERS = (
    Meter(
        name="power",
        title="Power of a GPU",
        unit="W",
        readings=dict.fromkeys(POWER_READINGS, 1.0),
        limits={"DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 1.0},
        limit_title="enforced limit",
    ),
    Meter(
        name="memory",
        title="Memory used of a GPU",
        unit="B",
        readings=dict.fromkeys(("DCGM_FI_DEV_FB_USED", "gpu_used_vram"), _MIB),
        limits=dict.fromkeys(("DCGM_FI_DEV_FB_TOTAL", "gpu_total_vram"), _MIB),
        limit_title="capacity",
    ),
    Meter(
        name="temperature",
        title="Temperature of a GPU",
        unit="°C",
        readings=dict.fromkeys(TEMPERATURE_READINGS, 1.0),
    ),
    Meter(
        name="clock",
        title="SM clock of a GPU",
        unit="Hz",
        readings=dict.fromkeys(("DCGM_FI_DEV_SM_CLOCK", "gpu_clock"), 1e6),
        limits=dict.fromkeys(("DCGM_FI_DEV_MAX_SM_CLOCK", "gpu_max_clock"), 1e6),
        limit_title="maximum",
    ),
)
"""DCGM exporter's names and, of AMD, those of device-metrics-exporter; both give MiB and MHz."""
OF_READING = {name: number for number, meter in enumerate(METERS) for name in meter.readings}
"""The place among the meters of each reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterCurve:
    name: str
    title: str
    unit: str
    mean: tuple[float | None, ...]
    """By slot; None where nothing was read."""
    largest: tuple[float | None, ...]
    limit: float | None = None
    limit_title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyUsed:
    """What all GPUs used while they were read; the rest of the time is not known."""

    joules: float
    covered: float
    """Share of the GPU-seconds from the run's start to its last sign in which power was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingCurves:
    start: float
    """Unix time of the first slot."""
    slot_seconds: float
    of: str
    """What one meter is of: "GPU" or "rank"."""
    count: int
    """GPUs of the run's nodes, or ranks."""
    meters: tuple[MeterCurve, ...] = ()
    energy: EnergyUsed | None = None
    missing: str = ""
    """What is not here, and what would give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """A run's time in slots that begin at whole multiples of their length."""

    begin: float
    end: float
    seconds: float

    @property
    def first(self) -> int:
        return int(self.begin // self.seconds)

    @property
    def count(self) -> int:
        return int(self.end // self.seconds) - self.first + 1

    def lengths(self) -> Floats:
        """Seconds of the run in each slot."""
        edges = (self.first + np.arange(self.count + 1)) * self.seconds
        return np.diff(np.clip(edges, self.begin, self.end))


def make_slots(begin: float, end: float, interval: float) -> Slots:
    """Slots of a time in which something is read every `interval` seconds."""
    least = max((end - begin) / (COLUMNS - 1), _LATE * interval)
    whole = (*_SLOTS_SECONDS, *(hours * HOUR_SECONDS for hours in (1, 2, 4, 8)))
    seconds = next((each for each in whole if each >= least), None)
    if seconds is None:
        seconds = DAY_SECONDS * np.ceil(least / DAY_SECONDS)
    return Slots(begin=begin, end=max(begin, end), seconds=float(seconds))


@dataclass(slots=True)
class MeterSlots:
    """One meter: sums over GPUs in each slot, to which those of other files can be added."""

    total: Floats
    gpus: Floats
    """GPUs whose reading is in the total."""
    largest: Floats

    @classmethod
    def empty(cls, count: int) -> MeterSlots:
        return cls(np.zeros(count), np.zeros(count), np.full(count, -np.inf))

    def add(self, at: NDArray[np.int64], total: Floats, gpus: Floats, largest: Floats) -> None:
        np.add.at(self.total, at, total)
        np.add.at(self.gpus, at, gpus)
        np.maximum.at(self.largest, at, largest)

    @property
    def known(self) -> NDArray[np.bool_]:
        return self.gpus > 0

    def mean(self) -> Floats:
        return np.divide(self.total, self.gpus, out=np.zeros_like(self.total), where=self.known)

    def curve(self, meter: Meter, limit: float | None) -> MeterCurve:
        return MeterCurve(
            name=meter.name,
            title=meter.title,
            unit=meter.unit,
            mean=_values(self.mean(), self.known),
            largest=_values(self.largest, self.known),
            limit=limit,
            limit_title=meter.limit_title if limit is not None else "",
        )

    def energy(self, slots: Slots, gpus: int) -> EnergyUsed | None:
        """A slot that lies in two files has its GPUs twice: they count once."""
        read = np.minimum(self.gpus, gpus) * slots.lengths()
        asked = gpus * (slots.end - slots.begin)
        if not read.any() or asked <= 0:
            return None
        return EnergyUsed(
            joules=float((self.mean() * read).sum()), covered=float(read.sum() / asked)
        )


def _values(values: Floats, known: NDArray[np.bool_]) -> tuple[float | None, ...]:
    rounded = np.where(known, values, 0.0).tolist()
    return tuple(
        float(f"{value:.4g}") if there else None
        for value, there in zip(rounded, known.tolist(), strict=True)
    )


_RANK_METERS = (
    Meter(
        name="reserved",
        title="GPU memory reserved by the allocator",
        unit="B",
        readings={"reserved": 1.0},
    ),
    Meter(
        name="allocated",
        title="GPU memory of tensors",
        unit="B",
        readings={"allocated": 1.0},
    ),
    Meter(name="host", title="Host memory", unit="B", readings={"host": 1.0}),
)
_MEMORY_SECONDS = 5.0
"""How often a recorder notes memory (docs/sources/run-folder.md)."""
_NOT_RECORDED = (
    "No power, temperature or clock readings for this run: `computeflow agent` on its nodes sends "
    "them to a collector."
)


def recorded_memory(attempts: Sequence[AttemptTime]) -> ReadingCurves | None:
    """What the recorders of a run's ranks noted of memory; None where none did."""
    files = [rank.file for attempt in attempts for rank in attempt.ranks]
    noted = [file.memory_rows for file in files if len(file.memory_rows)]
    if not noted:
        return None
    begin = min(int(rows.at.min()) for rows in noted) / 1e6
    end = max(int(rows.at.max()) for rows in noted) / 1e6
    slots = make_slots(begin, end, _MEMORY_SECONDS)
    curves = []
    for meter in _RANK_METERS:
        filled = MeterSlots.empty(slots.count)
        for rows in noted:
            values = getattr(rows, meter.name)
            known = values >= 0
            at = (rows.at[known] / 1e6 // slots.seconds).astype(np.int64) - slots.first
            value = values[known].astype(float)
            filled.add(at, value, np.ones(len(at)), value)
        if filled.known.any():
            curves.append(filled.curve(meter, None))
    return ReadingCurves(
        start=slots.first * slots.seconds,
        slot_seconds=slots.seconds,
        of="rank",
        count=len({file.start.rank for file in files}),
        meters=tuple(curves),
        missing=_NOT_RECORDED,
    )
