"""Sensitivity of the answer: every input at either end of its range, the others in the middle.

All ends have the same random numbers as the run itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from computeflow.simulation.conditions import Basis, Input, change_conditions, inputs
from computeflow.simulation.run_inputs import RunInputs
from computeflow.simulation.simulate import Simulation, simulate_many

LOW_RATE, HIGH_RATE = 2.3e-3, 6.5e-3
"""Failures per node-day of the most and the least reliable large fleet published (FT-HSDP at 32K
GPUs, arXiv:2602.00277; RSC-1, arXiv:2410.21680).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One input at another value."""

    name: str
    doc: str
    basis: Basis
    source: str
    value: float
    low: float
    high: float
    low_run: RunInputs
    high_run: RunInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEffect:
    name: str
    doc: str
    basis: Basis
    source: str
    value: float
    low: float
    high: float
    seconds: float
    """Mean time of the run as it is."""
    seconds_low: float
    """With the input at its low end."""
    seconds_high: float
    ettr: float
    ettr_low: float
    ettr_high: float
    goodput: float
    goodput_low: float
    goodput_high: float

    @property
    def swing(self) -> float:
        """Between both ends: of the time, or of goodput where all take the same time.

        Not of ETTR, in which throttled and slow steps count as work.
        """
        times = (self.seconds_low, self.seconds, self.seconds_high)
        shares = (self.goodput_low, self.goodput, self.goodput_high)
        return max((max(times) - min(times)) / self.seconds, max(shares) - min(shares))

    @property
    def ettr_swing(self) -> float:
        shares = (self.ettr_low, self.ettr, self.ettr_high)
        return max(shares) - min(shares)


def inputs_of(
    run: RunInputs, rows: Mapping[str, Input] | None = None, stated: Collection[str] = ()
) -> dict[str, Input]:
    """Every input with the figure that the run has, and the ends of what it may be around it.

    `rows` go before the packaged ones; `stated` are those that the user gave.
    """
    by_name = {}
    for name, row in (inputs() | dict(rows or {})).items():
        value = getattr(run.conditions, name)
        source = row.source
        if name in stated:
            source = f"as stated; its ends: {row.source}"
        elif value != row.value:
            source = f"follows from the plan; its ends: {row.source}"
        by_name[name] = replace(
            row,
            value=value,
            low=min(row.low, value),
            high=max(row.high, value),
            source=source,
            basis="stated" if name in stated else row.basis,
        )
    return by_name


def variations(
    run: RunInputs, rows: Mapping[str, Input] | None = None, only: Sequence[str] | None = None
) -> list[Variation]:
    """Variations of the failure rate and of every input with a range; `rows` override packaged ones."""
    varied = [] if only is not None and "failures_per_node_day" not in only else [_rate(run)]
    if run.work_seconds_range is not None and only is None:
        varied.append(_work(run, run.work_seconds_range))
    for name, row in inputs_of(run, rows).items():
        if row.low == row.high or (only is not None and name not in only):
            continue
        varied.append(
            Variation(
                name=name,
                doc=row.doc,
                basis=row.basis,
                source=row.source,
                value=row.value,
                low=row.low,
                high=row.high,
                low_run=_moved(run, name, row.low),
                high_run=_moved(run, name, row.high),
            )
        )
    return varied


def _moved(run: RunInputs, name: str, value: float) -> RunInputs:
    changes = {name: value}
    if name == "lemon_share":
        changes["lemon_failures"] = inputs()["lemon_failures"].high if value else 0.0
    if name == "lemon_failures":
        changes["lemon_share"] = run.conditions.lemon_share or inputs()["lemon_share"].high
    return replace(run, conditions=change_conditions(run.conditions, changes))


def _rate(run: RunInputs) -> Variation:
    failures = run.conditions.failures
    value = failures.per_node_day
    low, high = min(LOW_RATE, value), max(HIGH_RATE, value)

    def at(rate: float) -> RunInputs:
        model = replace(failures, per_node_day=rate)
        return replace(run, conditions=replace(run.conditions, failures=model))

    return Variation(
        name="failures_per_node_day",
        doc="interruptions by nodes",
        basis="published",
        source=failures.source,
        value=value,
        low=low,
        high=high,
        low_run=at(low),
        high_run=at(high),
    )


def _work(run: RunInputs, ends: tuple[float, float]) -> Variation:
    assert run.work_seconds is not None
    low_run, high_run = (replace(run, work_seconds=work) for work in ends)
    return Variation(
        name="work_seconds",
        doc="the steps' time at full speed",
        basis="published",
        source="80 % of runs like this one, by the predictor's own range",
        value=run.work_seconds,
        low=ends[0],
        high=ends[1],
        low_run=low_run,
        high_run=high_run,
    )


def sensitivities(
    run: RunInputs, moved: Sequence[Variation], *, replicas: int = 200, seed: int = 0
) -> list[InputEffect]:
    """The largest swing first."""
    runs = [run, *(end for variation in moved for end in (variation.low_run, variation.high_run))]
    base, *ends = simulate_many(runs, replicas=replicas, seed=seed)
    pairs = zip(moved, ends[::2], ends[1::2], strict=True)
    measured = [_measured(variation, base, low, high) for variation, low, high in pairs]
    return sorted(measured, key=lambda row: -row.swing)


def _measured(
    variation: Variation, base: Simulation, low: Simulation, high: Simulation
) -> InputEffect:
    return InputEffect(
        name=variation.name,
        doc=variation.doc,
        basis=variation.basis,
        source=variation.source,
        value=variation.value,
        low=variation.low,
        high=variation.high,
        seconds=base.seconds.mean,
        seconds_low=low.seconds.mean,
        seconds_high=high.seconds.mean,
        ettr=base.ettr.mean,
        ettr_low=low.ettr.mean,
        ettr_high=high.ettr.mean,
        goodput=base.goodput.mean,
        goodput_low=low.goodput.mean,
        goodput_high=high.goodput.mean,
    )
