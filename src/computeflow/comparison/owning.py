"""Building a cluster for one job: the cheapest size in time, bought for its run and sold after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.catalog import Catalog
from computeflow.comparison.build_or_rent.break_even import (
    Decision,
    Three,
    own_and_rent,
    percentiles,
)
from computeflow.comparison.build_or_rent.break_even import decide as build_or_rent
from computeflow.comparison.build_or_rent.build_cases import BuildCase, RunNeed, planned_need
from computeflow.comparison.build_or_rent.cost_inputs import (
    InputDraws,
    draw_inputs,
    inputs_for,
    servers,
)
from computeflow.comparison.build_or_rent.ownership_costs import (
    BuiltFleet,
    capital_costs,
    fleet_of,
    owned_usd,
)
from computeflow.comparison.clusters import latest_seconds, least_seconds, sizes_of
from computeflow.comparison.machines import machine_of
from computeflow.comparison.planner import MachineShape, Planner
from computeflow.comparison.rents import find_rents
from computeflow.comparison.request import ComparisonRequest
from computeflow.planning import Plan
from computeflow.units import DAY_SECONDS, YEAR_SECONDS

_MONTH_SECONDS = YEAR_SECONDS / 12
_DRAWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOption:
    """A cluster that is bought, runs the job once, and is sold."""

    need: RunNeed
    usd: Three
    """P10, P50 and P90 over draws of all inputs."""
    cash_usd: float
    """Paid before the first step, in the median."""
    ready_seconds: float
    """From having the machines to the first step, in the median."""

    @property
    def gpus(self) -> int:
        return self.need.case.gpus

    @property
    def p90_seconds(self) -> float:
        """From having the machines to the end of the run."""
        return self.ready_seconds + DAY_SECONDS * self.need.days[2]


def is_sold(accelerator: str, catalog: Catalog) -> bool:
    """Whether a price of machines with the device is published."""
    return catalog.accelerators[accelerator].name in servers()


def own_option(request: ComparisonRequest, accelerator: str, planner: Planner) -> OwnOption | None:
    """The cheapest size that meets deadline and budget; None: no size does.

    A fleet that costs more without a step than a smaller one does in all is passed over, so nothing
    that is cheaper is.
    """
    catalog = planner.catalog
    device = catalog.accelerators[accelerator].name
    rows = inputs_for(device, find_rents(catalog, device), {})
    terms = draw_inputs(rows, _DRAWS, request.seed)
    ready = rows["bringup_months"].value * _MONTH_SECONDS
    left = request.deadline_seconds - ready
    best: OwnOption | None = None
    for gpus in sizes_of(request, machine_of(device, catalog).gpus, None):
        if least_seconds(request, device, gpus, catalog) > left:
            continue
        idle = percentiles(owned_usd(_fleet(device, gpus, 0, catalog), terms, 0.0))[1]
        if best is not None and idle >= best.usd[1]:
            break
        plan = planner.plan(_shape(device, catalog), gpus)
        if plan is None or latest_seconds(request, plan) > left:
            continue
        option = _own(request, device, plan, terms, ready, catalog)
        if _meets(request, option) and (best is None or option.usd[1] < best.usd[1]):
            best = option
    return best


def long_use(request: ComparisonRequest, device: str, plan: Plan, catalog: Catalog) -> Decision:
    """Owning against renting the plan's GPUs, for as long as the fleet lasts."""
    need = _need(request, device, plan, catalog)
    return build_or_rent(need, catalog, upgrade=None, draws=_DRAWS, seed=request.seed)


def _shape(device: str, catalog: Catalog) -> MachineShape:
    node = catalog.nodes[catalog.accelerators[device].node or ""]
    assert node.nics and node.nic_bytes_per_second, "machines with a price have a network"
    rate = node.nics * node.nic_bytes_per_second / node.count
    return MachineShape(accelerator=device, devices=node.count, nic_bytes_per_second=rate)


def _fleet(device: str, gpus: int, spare_gpus: int, catalog: Catalog) -> BuiltFleet:
    machine = machine_of(device, catalog)
    return fleet_of(
        machine, gpus, all_in=servers()[device].all_in, hall="colocation", spare_gpus=spare_gpus
    )


def _need(request: ComparisonRequest, device: str, plan: Plan, catalog: Catalog) -> RunNeed:
    job, prediction = request.job, plan.prediction
    case = BuildCase(
        name=job.model.name,
        model=job.model.name,
        on=device,
        gpus=prediction.layout.gpus,
        tokens=request.tokens,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        source="stated",
        as_of=request.today.isoformat(),
    )
    return planned_need(case, prediction, catalog, replicas=request.replicas, seed=request.seed)


def _own(
    request: ComparisonRequest,
    device: str,
    plan: Plan,
    terms: InputDraws,
    ready_seconds: float,
    catalog: Catalog,
) -> OwnOption:
    need = _need(request, device, plan, catalog)
    fleet = _fleet(device, need.case.gpus, need.spare_gpus, catalog)
    months = np.full(_DRAWS, need.days[1] * DAY_SECONDS / _MONTH_SECONDS)
    cash = sum(np.median(usd) for usd in capital_costs(fleet, terms).values())
    return OwnOption(
        need=need,
        usd=own_and_rent(fleet, terms, months, whole=True).own_usd,
        cash_usd=float(cash),
        ready_seconds=ready_seconds,
    )


def _meets(request: ComparisonRequest, option: OwnOption) -> bool:
    budget = request.budget_usd
    affordable = budget is None or max(option.usd[1], option.cash_usd) <= budget
    return affordable and option.p90_seconds <= request.deadline_seconds
