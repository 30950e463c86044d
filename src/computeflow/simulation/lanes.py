"""Runs side by side as arrays: a lane is one replica of one run.

Lanes of a run lie next to each other, and the r-th lane of every run has the same random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.simulation.conditions import NUMBERS
from computeflow.simulation.draws import Floats, Ints
from computeflow.simulation.failures import causes
from computeflow.simulation.run_inputs import RunInputs
from computeflow.units import DAY_SECONDS, YEAR_SECONDS

CAUSES = (*causes(), "facility")
"""By number. The last one is drawn apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The numbers of every lane, SI, one array each; tables have a row for every run."""

    runs: tuple[RunInputs, ...]
    replicas: int
    of_run: Ints
    """The number of a lane's run."""
    conditions: dict[str, Floats]
    interval: Floats
    work: Floats
    """Infinite for a run of fixed length."""
    horizon: Floats
    failures_per_second: Floats
    stragglers_per_second: Floats
    outage_share: Floats
    """Share of the drawn outages that this site has."""
    lemons: Ints
    spares: Ints
    cause_bounds: Floats
    """Cumulative shares of the causes, by run."""

    def __len__(self) -> int:
        return len(self.of_run)


INSPECTED: Floats = np.array([cause.inspected_seconds for cause in causes().values()])
HARDWARE: NDArray[np.bool_] = np.array([cause.hardware for cause in causes().values()])
SILENT: NDArray[np.bool_] = np.array([cause.silent for cause in causes().values()])
PREEMPTION = CAUSES.index("preemption")
FACILITY = CAUSES.index("facility")


def lanes_of(runs: Sequence[RunInputs], replicas: int, most_outages_per_year: float) -> Lanes:
    def each(values: Sequence[float]) -> Floats:
        return np.repeat(np.asarray(values, dtype=np.float64), replicas)

    weights = np.array([_weights(run) for run in runs])
    totals = weights.sum(axis=1)
    shares = weights / np.where(totals > 0, totals, 1.0)[:, None]
    inf = float("inf")
    conditions = [run.conditions for run in runs]
    return Lanes(
        runs=tuple(runs),
        replicas=replicas,
        of_run=np.repeat(np.arange(len(runs)), replicas),
        conditions={name: each([getattr(c, name) for c in conditions]) for name in NUMBERS},
        interval=each([run.interval_seconds for run in runs]),
        work=each([inf if run.work_seconds is None else run.work_seconds for run in runs]),
        horizon=each([run.limit_seconds for run in runs]),
        failures_per_second=each(list(totals / DAY_SECONDS)),
        stragglers_per_second=each(
            [run.nodes * run.conditions.stragglers_per_node_day / DAY_SECONDS for run in runs]
        ),
        outage_share=each([c.outages_per_year / most_outages_per_year for c in conditions]),
        lemons=each([round(run.conditions.lemon_share * run.nodes) for run in runs]).astype(
            np.int64
        ),
        spares=each([run.policy.spares.nodes for run in runs]).astype(np.int64),
        cause_bounds=np.cumsum(shares, axis=1),
    )


def _weights(run: RunInputs) -> list[float]:
    """Interruptions a day by cause, once early failures are over."""
    failures = run.conditions.failures
    on_nodes = run.nodes * failures.per_node_day
    a_day = {name: share * on_nodes for name, share in failures.shares.items()}
    a_day["software"] += failures.per_job_day  # what size does not explain is not the nodes'
    a_day["preemption"] = run.nodes * run.conditions.preemptions_per_node_day
    return [a_day[name] for name in causes()]


def outage_gap_seconds(most_outages_per_year: float) -> float:
    return YEAR_SECONDS / most_outages_per_year
