"""Books of simulated replicas: seconds by account that add up to the time of each replica."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.simulation.draws import Floats, Ints
from computeflow.simulation.lanes import CAUSES
from computeflow.simulation.state import CHECKPOINT, RESTART, STARTUP, State

ACCOUNTS = (
    "useful",
    "compute.clock",
    "straggler",
    "checkpoint",
    "startup",
    "restart",
    "lost",
    "idle",
)
"""Accounts of the job's own GPUs. `useful`: kept steps at full speed, all their accounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationTotals:
    """Totals with one row per replica."""

    seconds: Floats
    """Time of the run."""
    accounts: dict[str, Floats]
    """Seconds by account; they add up to `seconds`."""
    causes: Ints
    """Interruptions by cause: columns as in `CAUSES`."""
    planned: Ints
    """Stops that save first: maintenance, stragglers taken out, growing back."""
    waits: Ints
    """Failures without a spare at hand."""

    @property
    def interruptions(self) -> Ints:
        return np.asarray(self.causes.sum(axis=1))


def totals_of(state: State) -> SimulationTotals:
    """Books from kept work, which is known exactly; other time in which the job ran was lost."""
    conditions = state.lanes.conditions
    useful = state.position
    clock = useful * state.throttle
    straggler = state.slow_work * (1 + state.throttle) * conditions["straggler_slowdown"]
    saving = state.saves * state.stall + state.writing - state.spared
    repeated = state.ran - useful - clock - straggler - saving - state.shrunk
    accounts = {
        "useful": useful,
        "compute.clock": clock,
        "straggler": straggler,
        "checkpoint": saving + state.booked[CHECKPOINT],
        "startup": state.booked[STARTUP],
        "restart": state.booked[RESTART],
        "lost": np.maximum(repeated, 0.0) + state.in_vain,
        "idle": state.waited + state.shrunk,
    }
    assert len(CAUSES) == state.counts.shape[1]
    return SimulationTotals(
        seconds=state.now.copy(),
        accounts=accounts,
        causes=state.counts,
        planned=state.planned,
        waits=state.waits,
    )


def join_totals(parts: list[SimulationTotals]) -> SimulationTotals:
    first = parts[0]
    return SimulationTotals(
        seconds=np.concatenate([part.seconds for part in parts]),
        accounts={n: np.concatenate([part.accounts[n] for part in parts]) for n in first.accounts},
        causes=np.concatenate([part.causes for part in parts]),
        planned=np.concatenate([part.planned for part in parts]),
        waits=np.concatenate([part.waits for part in parts]),
    )


def cut_totals(books: SimulationTotals, lanes: slice) -> SimulationTotals:
    return SimulationTotals(
        seconds=books.seconds[lanes],
        accounts={name: values[lanes] for name, values in books.accounts.items()},
        causes=books.causes[lanes],
        planned=books.planned[lanes],
        waits=books.waits[lanes],
    )
