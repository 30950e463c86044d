"""`Conditions`: failure rates and recovery times of a run, as one flat value of SI numbers.

Every field but the failure rates is a row of `data/inputs.toml`, with its source and the ends of
what it may be; `usual_conditions` takes the middle of each. A flat value lets a study change one
number by name and run again with the same random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import CatalogRow
from computeflow.errors import InputError, UnknownNameError
from computeflow.simulation.failures import Failures
from computeflow.units import DAY_SECONDS, YEAR_SECONDS, parse

DATA = Path(__file__).with_name("data")
MAX_OUTAGES_PER_YEAR = 52.0
"""Outages are thinned from a stream of this rate, so that fewer of them are some of the same ones."""
_SEEN_NODE_GPUS = 8
"""GPUs of the nodes on which failures and slow nodes were counted, in every packaged row."""

Basis = Literal["published", "assumed", "stated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input(CatalogRow):
    """One number of `Conditions` with its source and its range."""

    kind: ClassVar[str] = "input"

    quantity: Literal["seconds", "share", "ratio", "rate"]
    value: float
    low: float
    high: float
    basis: Basis
    doc: str

    def __post_init__(self) -> None:
        super(Input, self).__post_init__()
        if not 0 <= self.low <= self.value <= self.high < math.inf:
            raise InputError(f"{self.name}: {self.low:g} <= {self.value:g} <= {self.high:g} fails")


_MAX_PER_NODE_DAY = 24.0
"""Most preemptions or stragglers: beyond one an hour on every node nothing is trained, and simulating
that takes minutes."""


_MAX_SECONDS, _MAX_RATIO = 10 * YEAR_SECONDS, 1000.0
"""Longest wait and largest factor: beyond them nothing is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    failures: Failures
    preemptions_per_node_day: float
    lemon_share: float
    lemon_failures: float
    infant_factor: float
    infant_seconds: float
    inspected: float
    timeout_seconds: float
    silent_seconds: float
    repaired: float
    repair_seconds: float
    repair_spread: float
    swap_seconds: float
    init_seconds: float
    load_seconds: float
    warm_seconds: float
    startup_seconds: float
    stall_seconds: float
    persist_seconds: float
    stragglers_per_node_day: float
    straggler_slowdown: float
    straggler_seconds: float
    straggler_spread: float
    notice_seconds: float
    outages_per_year: float
    outage_seconds: float
    maintenance_every_seconds: float
    maintenance_seconds: float
    throttle: float

    def __post_init__(self) -> None:
        for name in NUMBERS:
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} = {getattr(self, name)}: zero or more, and finite")
        for name in _SHARES:
            if getattr(self, name) > 1:
                raise InputError(f"{name} = {getattr(self, name):g}: a share lies between 0 and 1")
        for name in NUMBERS:
            most = _MAX_SECONDS if name.endswith("_seconds") else _MAX_RATIO
            if getattr(self, name) > most:
                raise InputError(f"{name} = {getattr(self, name):g}: at most {most:g}")
        for name in ("preemptions_per_node_day", "stragglers_per_node_day"):
            if getattr(self, name) > _MAX_PER_NODE_DAY:
                raise InputError(f"{name} = {getattr(self, name):g}: at most one an hour")
        if self.outages_per_year > MAX_OUTAGES_PER_YEAR:
            raise InputError(f"{self.outages_per_year:g} outages a year: at most one a week")
        if self.lemon_failures and not self.lemon_share:
            raise InputError("lemon_failures needs a lemon_share: the nodes that they are of")
        if 0 < self.maintenance_every_seconds <= self.planned_stop_seconds:
            raise InputError(
                f"maintenance_every_seconds = {self.maintenance_every_seconds:g}: a stop takes "
                f"{self.planned_stop_seconds:g} s with its save and restart, so nothing would be "
                "trained: 0 for none, or longer"
            )

    @property
    def restart_seconds(self) -> float:
        """Time from nodes in place to steady steps."""
        return self.init_seconds + self.load_seconds + self.warm_seconds

    @property
    def planned_stop_seconds(self) -> float:
        """Time of maintenance, with the save before it and the restart after it."""
        saving = self.stall_seconds + self.persist_seconds
        return saving + self.maintenance_seconds + self.restart_seconds

    @property
    def detect_seconds(self) -> float:
        """Mean time to notice a failure that is not silent."""
        quick = self.failures.mean_inspected_seconds
        return self.inspected * quick + (1 - self.inspected) * self.timeout_seconds

    def interruptions_per_second(self, nodes: int) -> float:
        """Rate of interruptions of a job on so many nodes, after early failures."""
        a_day = nodes * (self.failures.per_node_day + self.preemptions_per_node_day)
        outages = self.outages_per_year / YEAR_SECONDS
        return (a_day + self.failures.per_job_day) / DAY_SECONDS + outages


NUMBERS = tuple(field.name for field in fields(Conditions) if field.name != "failures")
_SHARES = ("lemon_share", "lemon_failures", "inspected", "repaired")


@cache
def inputs() -> dict[str, Input]:
    """The packaged rows by name."""
    return {row.name: row for row in packaged_rows(DATA / "inputs.toml", "input", Input)}


def read_conditions(texts: Mapping[str, float | str]) -> dict[str, float]:
    """Conditions by name, as SI numbers or as people write them ("20min")."""
    known, values = inputs(), {}
    for name, text in texts.items():
        if name not in known:
            raise UnknownNameError("condition", name, known)
        if known[name].quantity == "seconds" and isinstance(text, str):
            values[name] = parse(text, "seconds")
        else:
            values[name] = _plain_number(name, text)
    return values


def _plain_number(name: str, text: float | str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"--set {name}={text}: a plain number from zero up")
    return value


def usual_conditions(
    failures: Failures, *, node_gpus: float = _SEEN_NODE_GPUS, **changes: float
) -> Conditions:
    """The middle of every input, but for what is given; nodes of another size than those that were
    seen fail and slow down in proportion to it.
    """
    share = node_gpus / _SEEN_NODE_GPUS
    values = {name: row.value for name, row in inputs().items()}
    values["stragglers_per_node_day"] *= share
    scaled = replace(failures, per_node_day=failures.per_node_day * share)
    return change_conditions(Conditions(failures=scaled, **values), changes)


def change_conditions(conditions: Conditions, changes: dict[str, float]) -> Conditions:
    for name in changes:
        if name not in NUMBERS:
            raise UnknownNameError("condition", name, NUMBERS)
    values: dict[str, Any] = dict(changes)
    return replace(conditions, **values)
