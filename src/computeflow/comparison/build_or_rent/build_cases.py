"""The job to build or rent for: its run, planned and simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from computeflow.catalog import Catalog, find_model
from computeflow.catalog.rows import CatalogRow
from computeflow.cluster.machine import usual_cluster
from computeflow.comparison.build_or_rent.cost_inputs import load_rows
from computeflow.errors import InputError
from computeflow.ledger import Ledger
from computeflow.planning import plan, why_no_plan
from computeflow.prediction import Prediction
from computeflow.scheduling import Policy, Spares
from computeflow.simulation import find_failures, simulate, usual_conditions
from computeflow.simulation.run_from_plan import node_gpus, run_of
from computeflow.simulation.run_inputs import pool_nodes
from computeflow.units import DAY_SECONDS, HOUR_SECONDS
from computeflow.workload import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCase(CatalogRow):
    kind: ClassVar[str] = "case"
    model: str
    on: str
    gpus: int
    tokens: float
    global_batch: int
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNeed:
    """One run of the job, from its best plan, with failures."""

    case: BuildCase
    days: tuple[float, float, float]
    """P10, P50, P90 over simulations, at the predicted step."""
    days_range: tuple[float, float]
    """With the step at the ends of its predicted range."""
    goodput: float
    mfu: float | None
    tokens_per_second_per_gpu: float
    ledger: Ledger
    """The whole run, spares included."""
    assumed: tuple[str, ...]

    @property
    def gpu_hours(self) -> float:
        return self.ledger.gpu_seconds / HOUR_SECONDS

    @property
    def spare_gpus(self) -> int:
        return self.ledger.gpus - self.case.gpus


@cache
def load_cases() -> dict[str, BuildCase]:
    return {row.name: row for row in load_rows(BuildCase, "cases.toml")}


def best_plan(case: BuildCase, catalog: Catalog, accelerator: str | None = None) -> Prediction:
    """The best plan on the case's accelerator, or on as many of another one."""
    cluster = usual_cluster(accelerator or case.on, case.gpus, catalog)
    job = Job(
        model=find_model(catalog, case.model), global_batch=case.global_batch, seq_len=case.seq_len
    )
    answer = plan(job, cluster, top=1)
    if not answer.plans:
        raise InputError(
            f"{case.model} has no plan on {case.gpus:,} {accelerator or case.on}: "
            f"{why_no_plan(answer, job, cluster)}"
        )
    return answer.plans[0].prediction


def need_of(case: BuildCase, catalog: Catalog, *, replicas: int = 200, seed: int = 0) -> RunNeed:
    prediction = best_plan(case, catalog)
    return planned_need(case, prediction, catalog, replicas=replicas, seed=seed)


def planned_need(
    case: BuildCase, prediction: Prediction, catalog: Catalog, *, replicas: int, seed: int
) -> RunNeed:
    """The run of a predicted plan on nodes of one's own, with spares."""
    cluster = usual_cluster(case.on, case.gpus, catalog)
    conditions = usual_conditions(
        find_failures("llama-3").at(case.gpus), node_gpus=node_gpus(cluster, case.gpus)
    )
    label = f"one {case.name} run"
    run = run_of(prediction, cluster, conditions, Policy(), label=label, tokens=case.tokens)
    run = replace(run, policy=Policy(spares=Spares(nodes=pool_nodes(run))))
    simulation = simulate(run, replicas=replicas, seed=seed)
    seconds = simulation.seconds
    days = [end / DAY_SECONDS for end in (seconds.p10, seconds.p50, seconds.p90)]
    low, high = (end / prediction.step_seconds for end in prediction.step_seconds_range)
    return RunNeed(
        case=case,
        days=(days[0], days[1], days[2]),
        days_range=(low * days[1], high * days[1]),
        goodput=simulation.goodput.mean,
        mfu=prediction.ledger.mfu,
        tokens_per_second_per_gpu=prediction.tokens_per_second_per_gpu,
        ledger=simulation.ledger,
        assumed=(*prediction.assumed, "Llama 3's failure rates", "spares for 99 % of failures"),
    )
