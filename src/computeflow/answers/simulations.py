"""`simulate`: a whole run with failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, Quantity, open_catalog, read_quantity
from computeflow.answers.requests import (
    JobOnLayoutOptions,
    JobRequest,
    choose_cluster,
    read_calibration,
    read_request,
)
from computeflow.engines import Engine
from computeflow.errors import InputError
from computeflow.ledger import ledger_to_data
from computeflow.prediction import Prediction, predict
from computeflow.prediction.calibration import Calibration
from computeflow.scheduling.policy import Rule
from computeflow.simulation import Simulation
from computeflow.simulation import simulate as simulate_run
from computeflow.simulation.budget import one_budget
from computeflow.simulation.conditions import Input, read_conditions
from computeflow.simulation.curves import IntervalCurve, SparesCurve, interval_curve, spares_curve
from computeflow.simulation.run_from_plan import Saving, make_policy, planned_conditions, run_of
from computeflow.simulation.run_inputs import RunInputs, add_spares
from computeflow.simulation.run_timeline import RunTimeline, timelines
from computeflow.simulation.sensitivity import InputEffect, inputs_of, sensitivities, variations
from computeflow.simulation.site_scenarios import site_inputs
from computeflow.units import DAY_SECONDS
from computeflow.views import simulations as views
from computeflow.views.ledgers import ledger_table
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.views.html_report import Part

_SPREADS = ("seconds", "ettr", "goodput", "interruptions", "planned_stops", "spare_waits")
_SWING_SIMULATIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimulateAnswer(Answer):
    """A simulated run, with curves, timelines and sensitivity where they were requested."""

    simulation: Simulation
    inputs: dict[str, Input]
    """Every condition with its source and its range."""
    usd_per_gpu_hour: float | None = None
    interval: IntervalCurve | None = None
    spares: SparesCurve | None = None
    timelines: list[RunTimeline] | None = None
    sensitivity: list[InputEffect] | None = None

    @property
    def headline(self) -> str:
        return views.simulation_headline(self.simulation, self.usd_per_gpu_hour)

    def _data(self) -> dict[str, Any]:
        more = ("interval", "spares", "timelines", "sensitivity")
        requested = {name: getattr(self, name) for name in more if getattr(self, name) is not None}
        return _simulation_data(self.simulation, self.inputs, self.usd_per_gpu_hour) | {
            name: codec.encode(value) for name, value in requested.items()
        }

    def tables(self) -> list[Table]:
        by_time = self._by_time
        tables = [self._summary(), ledger_table(self.simulation.ledger)]
        if self.interval is not None:
            tables.append(views.interval_table(self.interval, by_time=by_time))
        if self.spares is not None:
            tables.append(views.spares_table(self.spares, by_time=by_time))
        if self.timelines is not None:
            tables.append(views.timeline_table(self.timelines))
        return tables + self._swings()

    def parts(self) -> Sequence[Part]:
        from computeflow.views.figures import ledger_figure

        by_time = self._by_time
        parts: list[Part] = [self._summary(), ledger_figure(self.simulation.ledger)]
        if self.interval is not None:
            parts.append(views.interval_figure(self.interval, self.simulation, by_time=by_time))
        if self.spares is not None:
            parts.append(views.spares_figure(self.spares, by_time=by_time))
        if self.timelines is not None:
            parts.append(views.timeline_figure(self.timelines))
        return [*parts, *self._swings()]

    @property
    def title(self) -> str:
        return self.simulation.run.label

    @property
    def _by_time(self) -> bool:
        return self.simulation.run.work_seconds is None

    def _summary(self) -> Table:
        return views.simulation_table(self.simulation, self.usd_per_gpu_hour)

    def _swings(self) -> list[Table]:
        if self.sensitivity is None:
            return []
        return [views.sensitivity_table(self.sensitivity, by_time=self._by_time)]


@checked
@one_budget()
def simulate(
    model: str | None = None,
    *,
    on: str,
    storage: str | None = None,
    from_: File | None = None,
    format: str | None = None,
    stack: str | None = None,
    tokens: Quantity | None = None,
    days: float | None = None,
    failures: str = "llama-3",
    tier: str | None = None,
    cooling: str | None = None,
    spares: int | None = None,
    interval: Quantity | None = None,
    saving: Saving = "async",
    evict: Rule = "auto",
    retire_after: int | None = None,
    shrink_to: int | None = None,
    set: Mapping[str, Quantity] | Sequence[tuple[str, Quantity]] = (),
    simulations: int = 1000,
    seed: int = 0,
    engine: Engine = "local",
    best: bool = False,
    sensitivity: bool = False,
    timeline: bool = False,
    price: Quantity | None = None,
    calibration: File | None = None,
    catalog: CatalogFiles = (),
    **options: Unpack[JobOnLayoutOptions],
) -> SimulateAnswer:
    """Simulate a whole run with failures: when it ends, what it costs, where the time goes.

    `tokens` for a run that ends when they are trained, or `days` for one of fixed length; `set` has
    conditions by name. Without a layout the planner's best one is used.
    """
    if (tokens is None) == (days is None):
        raise InputError("give either --tokens (train them all) or --days (run that long)")
    facts = open_catalog(catalog)
    cluster = choose_cluster(on, storage, facts)
    request = read_request(model, cluster, facts, options, from_=from_, format=format, stack=stack)
    prediction = _predict(request, read_calibration(calibration, facts))
    rows = site_inputs(tier, cooling, facts)
    given = read_conditions(dict(set))
    run = run_of(
        prediction,
        cluster,
        planned_conditions(prediction, cluster, failures, rows),
        make_policy(
            prediction,
            cluster,
            interval_seconds=read_quantity(interval, "seconds"),
            checkpoint_steps=options.get("checkpoint_steps"),
            spares=spares,
            evict=evict,
            lemons=retire_after,
            shrink=shrink_to,
        ),
        label=request.title,
        tokens=read_quantity(tokens, "tokens"),
        given=given,
        saving=saving,
        wall_seconds=None if days is None else days * DAY_SECONDS,
    )
    if spares is None:
        run = add_spares(run)
    inputs = inputs_of(run, rows, given)
    return SimulateAnswer(
        simulation=simulate_run(run, replicas=simulations, seed=seed, engine=engine),
        inputs=inputs,
        usd_per_gpu_hour=read_quantity(price, "usd"),
        interval=interval_curve(run, seed=seed) if best else None,
        spares=spares_curve(run, seed=seed) if best else None,
        timelines=timelines(run, replicas=simulations, seed=seed) if timeline else None,
        sensitivity=_swings(run, inputs, simulations, seed) if sensitivity else None,
    )


def _swings(
    run: RunInputs, inputs: dict[str, Input], simulations: int, seed: int
) -> list[InputEffect]:
    """Each input at both of its ends; fewer simulations suffice for that."""
    replicas = min(simulations, _SWING_SIMULATIONS)
    return sensitivities(run, variations(run, inputs), replicas=replicas, seed=seed)


def _predict(request: JobRequest, calibration: Calibration | None) -> Prediction:
    """The step on the stated layout, or on the planner's best one where none is stated."""
    job = replace(request.job, checkpoint_steps=None)  # saving is simulated, not spread over steps
    cluster, layout = request.cluster, request.layout
    if not request.layout_given:
        from computeflow.planning import plan, why_no_plan

        search = plan(job, cluster, request.stack, top=1)
        if not search.plans:
            why = why_no_plan(search, job, cluster)
            raise InputError(f"{job.model.name} has no plan on {cluster.gpus:,} GPUs: {why}")
        layout = search.plans[0].layout
    prediction = predict(job, cluster, layout, request.stack, calibration=calibration)
    if not prediction.fits:
        raise InputError("the layout does not fit the device's memory: see computeflow predict")
    return prediction


def _simulation_data(
    simulation: Simulation, inputs: Mapping[str, Input], usd_per_gpu_hour: float | None
) -> dict[str, Any]:
    run, price = simulation.run, usd_per_gpu_hour
    conditions = codec.encode(run.conditions)
    failures = conditions.pop("failures")
    return {
        "schema": "computeflow.simulation/1",
        "label": run.label,
        "gpus": run.gpus,
        "allocated_gpus": run.allocated_gpus,
        "nodes": run.nodes,
        "work_seconds": run.work_seconds,
        "replicas": simulation.replicas,
        "seed": simulation.seed,
        **{name: codec.encode(getattr(simulation, name)) for name in _SPREADS},
        "usd_per_gpu_hour": price,
        "usd": None if price is None else codec.encode(simulation.usd(price)),
        "finished": simulation.finished,
        "mtbi_seconds": simulation.mtbi_seconds,
        "by_cause": simulation.by_cause,
        "interval_seconds": simulation.interval_seconds,
        "closed": codec.encode(simulation.closed),
        "ledger": ledger_to_data(simulation.ledger),
        "policy": codec.encode(run.policy),
        "failures": failures,
        "conditions": conditions,
        "inputs": [codec.encode(row) for row in inputs.values()],
        "assumed": list(run.assumed),
    }
