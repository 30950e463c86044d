"""A fault trace: who failed when and for how long. Fit on its first half, its second is predicted.

The trace is StepFun's, of 400 nodes over 349 days (InfiniteHBD, Apache-2.0). The fit is three
numbers: the rate, how unevenly faults come (variance over mean of weekly counts), and the repair
times themselves.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from computeflow.scheduling import spares_for
from computeflow.simulation.failures import DATA

NODES = 400
DAYS = 348.98
SOURCE = "github.com/stepfun-ai/InfiniteHBD-Trace (Apache-2.0): faults of 400 nodes"
AS_OF = "2025"
_JOB_NODES = 128
_Z = 1.2816
"""90th percentile of a standard normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutage:
    node: int
    start_days: float
    end_days: float
    cause: str

    @property
    def days(self) -> float:
        return self.end_days - self.start_days


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondHalfCheck:
    """One figure of the second half: from the first, and as it was."""

    figure: str
    predicted: float
    low: float | None
    high: float | None
    measured: float

    @property
    def agrees(self) -> bool | None:
        """None where no range is given."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


@cache
def stepfun_faults() -> tuple[NodeOutage, ...]:
    text = (DATA / "stepfun_faults.csv").read_text(encoding="utf-8")
    return tuple(
        NodeOutage(
            node=int(row["node"]),
            start_days=float(row["start_days"]),
            end_days=float(row["end_days"]),
            cause=row["cause"],
        )
        for row in csv.DictReader(io.StringIO(text))
    )


def predict_second_half(faults: Sequence[NodeOutage] | None = None) -> list[SecondHalfCheck]:
    known = stepfun_faults() if faults is None else faults
    half = DAYS / 2
    first = [fault for fault in known if fault.start_days < half]
    second = [fault for fault in known if fault.start_days >= half]
    uneven = _dispersion([fault.start_days for fault in first], half)
    count = float(len(first))
    off = _Z * math.sqrt(2 * uneven * count)  # of the fit itself, and of what is predicted
    job = half * 24 * NODES / _JOB_NODES
    repair = float(np.mean([fault.days for fault in first]))
    days = np.arange(half, DAYS, 0.25)
    begins = np.array([fault.start_days for fault in known])
    ends = np.array([fault.end_days for fault in known])
    down = ((begins <= days[:, None]) & (days[:, None] < ends)).sum(axis=1)
    a_day = count / half
    return [
        SecondHalfCheck(
            figure="faults",
            predicted=count,
            low=count - off,
            high=count + off,
            measured=len(second),
        ),
        SecondHalfCheck(
            figure=f"hours between faults, {_JOB_NODES} nodes",
            predicted=job / count,
            low=job / (count + off),
            high=job / max(count - off, 1.0),
            measured=job / len(second),
        ),
        SecondHalfCheck(
            figure="median repair, hours",
            predicted=24 * _median(first),
            low=None,
            high=None,
            measured=24 * _median(second),
        ),
        SecondHalfCheck(
            figure="mean nodes in repair",
            predicted=a_day * repair,
            low=(count - off) / half * repair,
            high=(count + off) / half * repair,
            measured=float(np.mean(down)),
        ),
        SecondHalfCheck(
            figure="spares for 99 % of faults",
            predicted=spares_for(repairs_per_day=a_day, repair_days=repair),
            low=None,
            high=None,
            measured=float(np.percentile(down, 99)),
        ),
    ]


def _dispersion(starts: Sequence[float], days: float) -> float:
    """Variance over mean of weekly counts: 1 for faults that come independently."""
    counts, _ = np.histogram(starts, bins=np.arange(0, days + 0.001, 7))
    return float(max(np.var(counts, ddof=1) / max(np.mean(counts), 1e-9), 1.0))


def _median(faults: Sequence[NodeOutage]) -> float:
    return float(np.median([fault.days for fault in faults]))
