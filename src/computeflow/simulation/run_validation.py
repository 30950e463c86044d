"""Published runs, simulated from their published figures: `validate_runs`.

Each is simulated twice: from its published inputs alone, with all others costing nothing, and with
the others in the middle of what they may be. The difference is what rests on assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar, Literal

from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import CatalogRow
from computeflow.errors import InputError
from computeflow.scheduling import Checkpoints, Policy, Spares
from computeflow.simulation.conditions import (
    NUMBERS,
    Basis,
    Input,
    change_conditions,
    inputs,
    usual_conditions,
)
from computeflow.simulation.failures import DATA, find_failures
from computeflow.simulation.run_inputs import RunInputs
from computeflow.simulation.sensitivity import InputEffect, sensitivities, variations
from computeflow.simulation.simulate import Simulation, simulate_many
from computeflow.simulation.uncertainty import draw_conditions, percentiles
from computeflow.units import DAY_SECONDS, HOUR_SECONDS

FIGURES = ("ettr", "goodput", "mtbi_hours")
_FREE = ("silent_seconds", "init_seconds", "load_seconds", "warm_seconds", "startup_seconds",
        "swap_seconds", "stall_seconds", "persist_seconds", "timeout_seconds", "repair_seconds",
        "notice_seconds", "outage_seconds", "maintenance_seconds", "stragglers_per_node_day",
        "outages_per_year")  # fmt: skip
"""Inputs that cost nothing at zero."""
_DRAWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedRange:
    """One condition of a published run."""

    value: float
    low: float
    high: float
    basis: Basis
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun(CatalogRow):
    kind: ClassVar[str] = "run"
    figure: Literal["ettr", "goodput", "mtbi_hours"]
    relation: Literal["about", "more than"]
    published: float
    gpus: int
    failures: str
    days: float | None = None
    work_days: float | None = None
    per_node_day: float | None = None
    """In place of the model's own."""
    causes: dict[str, float] = field(default_factory=dict)
    interval_seconds: float | None = None
    spares: int = 0
    conditions: dict[str, SourcedRange] = field(default_factory=dict)

    def rows(self) -> dict[str, Input]:
        """All inputs of the run, its own over the packaged ones."""
        by_name = dict(inputs())
        for name, known in self.conditions.items():
            if name not in NUMBERS:
                raise InputError(f"{self.name}: unknown condition {name!r}")
            by_name[name] = replace(
                by_name[name],
                value=known.value,
                low=known.low,
                high=known.high,
                basis=known.basis,
                source=known.source,
                as_of=self.as_of,
            )
        for name in ("lemon_share", "lemon_failures", "infant_factor"):  # in the published rate
            by_name[name] = replace(by_name[name], high=by_name[name].value)
        return by_name

    def run(self) -> RunInputs:
        model = find_failures(self.failures)
        model = replace(model, causes=self.causes or model.causes, by_gpus=())
        if self.per_node_day is not None:
            model = replace(model, per_node_day=self.per_node_day)
        conditions = usual_conditions(
            model, **{name: row.value for name, row in self.rows().items()}
        )
        days, work = self.days, self.work_days
        return RunInputs(
            label=self.name,
            gpus=self.gpus,
            node_gpus=8,
            work_seconds=None if work is None else work * DAY_SECONDS,
            wall_seconds=None if days is None else days * DAY_SECONDS,
            conditions=conditions,
            policy=Policy(
                checkpoints=Checkpoints(interval_seconds=self.interval_seconds),
                spares=Spares(nodes=self.spares),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    name: str
    figure: str
    relation: str
    published: float
    from_published: float
    """With all inputs that are not published costing nothing: the best that is left."""
    simulated: float
    """With those inputs in the middle of their ranges."""
    low: float
    """P10 over everything that all inputs may be; of times between interruptions: over repeats."""
    high: float
    """P90 likewise, with the inputs that are not published costing nothing."""
    agrees: bool
    """The published figure lies between; "more than": the range reaches above it."""
    assumed_share: float | None
    """Share of the simulated loss that rests on unpublished inputs; None for times between
    interruptions, which rest on the rate alone."""
    source: str
    as_of: str
    note: str
    inputs: tuple[InputEffect, ...]
    """Every assumed input, and published ones that move the figure by a tenth of a point or more; the
    largest swing of the figure first."""


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    return tuple(packaged_rows(DATA / "runs.toml", "run", PublishedRun))


def validate_runs(*, replicas: int = 200, seed: int = 0) -> list[RunCheck]:
    return [_validated(case, replicas, seed) for case in published_runs()]


def _validated(case: PublishedRun, replicas: int, seed: int) -> RunCheck:
    run, rows = case.run(), case.rows()
    base, free = simulate_many([run, _free(run, rows)], replicas=replicas, seed=seed)
    value, best = _figure_of(base, case.figure), _figure_of(free, case.figure)
    assumed, swings = None, []
    if case.figure == "mtbi_hours":
        hours = base.seconds.mean / HOUR_SECONDS
        low, high = hours / base.interruptions.p90, hours / base.interruptions.p10
    else:
        low, high = _range(case, run, rows, seed)
        assumed = max(0.0, 1 - (1 - best) / (1 - value))
        moved = variations(run, rows, only=[n for n, row in rows.items() if row.low < row.high])
        swings = sensitivities(run, moved, replicas=50, seed=seed)
    over = case.relation == "more than"
    return RunCheck(
        name=case.name,
        figure=case.figure,
        relation=case.relation,
        published=case.published,
        from_published=best,
        simulated=value,
        low=low,
        high=high,
        agrees=high > case.published if over else low <= case.published <= high,
        assumed_share=assumed,
        source=case.source,
        as_of=case.as_of,
        note=case.note,
        inputs=_listed(swings, case.figure),
    )


def _listed(swings: list[InputEffect], figure: str) -> tuple[InputEffect, ...]:
    """ETTR has slow steps as work, so inputs that only slow them down do not move it."""

    def moves(row: InputEffect) -> float:
        return row.ettr_swing if figure == "ettr" else row.swing

    ordered = sorted(swings, key=lambda row: -moves(row))
    return tuple(row for row in ordered if row.basis == "assumed" or moves(row) >= 0.001)


def _range(
    case: PublishedRun, run: RunInputs, rows: dict[str, Input], seed: int
) -> tuple[float, float]:
    worst = draw_conditions(run, rows, count=_DRAWS, seed=seed)
    published = {name: row for name, row in rows.items() if row.basis == "published"}
    best = draw_conditions(_free(run, rows), published, count=_DRAWS, seed=seed)
    figures = [
        _figure_of(result, case.figure)
        for result in simulate_many([*worst, *best], replicas=20, seed=seed)
    ]
    return percentiles(figures[:_DRAWS])[0], percentiles(figures[_DRAWS:])[2]


def _free(run: RunInputs, rows: dict[str, Input]) -> RunInputs:
    """With every input that is not published costing nothing, and the same checkpoint interval."""
    zero = {name: 0.0 for name in _FREE if rows[name].basis == "assumed"}
    policy = replace(run.policy, checkpoints=Checkpoints(interval_seconds=run.interval_seconds))
    return replace(run, conditions=change_conditions(run.conditions, zero), policy=policy)


def _figure_of(simulation: Simulation, figure: str) -> float:
    if figure == "mtbi_hours":
        return (simulation.mtbi_seconds or float("inf")) / HOUR_SECONDS
    if figure == "goodput" and simulation.run.work_seconds is not None:
        return simulation.run.work_seconds / simulation.seconds.mean
    return simulation.ettr.mean
