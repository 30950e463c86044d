"""`plan`: the best layouts of a job on a cluster; by number of GPUs, by batch, or over two pools."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from computeflow.answers.answer import INTERRUPTED, Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import (
    CatalogFiles,
    File,
    NewFolder,
    Quantity,
    open_catalog,
    read_quantity,
)
from computeflow.answers.predictions import prediction_data
from computeflow.answers.requests import (
    JobOptions,
    JobRequest,
    choose_cluster,
    job_title,
    read_request,
    reading_data,
)
from computeflow.cluster import Cluster, find_cluster
from computeflow.errors import InputError
from computeflow.files.writing import write_folder
from computeflow.planning import Plan, Plans
from computeflow.planning.batches import try_batches
from computeflow.planning.explain import (
    AccountLoss,
    ChangeEffect,
    account_losses,
    changed_fields,
    sensitivities,
)
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.config_writer import Exported, export
from computeflow.planning.exports.framework_space import allowed_shardings, switchable
from computeflow.planning.goals import (
    Goals,
    Search,
    TriedSize,
    doubled_counts,
    fixed_fields,
    try_gpu_counts,
)
from computeflow.planning.pools import Pools, plan_pools
from computeflow.planning.search import Objective, Progress
from computeflow.planning.space import LayoutCounts
from computeflow.prediction import Prediction, predict
from computeflow.prediction.memory import HEADROOM
from computeflow.prediction.published_runs import best_mfu, device_cases
from computeflow.prediction.stack import Stack
from computeflow.views.plans import (
    BatchRow,
    FrontRow,
    batches_headline,
    batches_table,
    change_table,
    explanation_tables,
    exports_table,
    front_table,
    layout_text,
    plan_headline,
    plan_tables,
    pools_headline,
    pools_table,
)
from computeflow.views.reviews import with_reading
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.views.html_report import Part


MAX_PLANS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why the first plan is the best, and what would help."""

    lost: tuple[tuple[AccountLoss, ...], ...]
    """Seconds that each other plan takes longer, by account."""
    sensitivities: tuple[ChangeEffect, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanAnswer(Answer):
    """The best plans; compared with the layout of a file, explained and exported where requested."""

    request: JobRequest
    goals: Goals
    plans: Plans
    search_seconds: float
    now: Prediction | None = None
    """The layout and the stack that a file states."""
    reasons: Reasons | None = None
    folder: Path | None = None
    exports: tuple[Exported, ...] = ()

    @property
    def exit_code(self) -> int:
        return 0 if self.plans.complete else INTERRUPTED

    @property
    def best(self) -> Plan:
        return self.plans.plans[0]

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Fields of layout and stack that differ from the file's."""
        best = self.best.prediction
        stack = {} if self.now is None else changed_fields(self.now.stack, best.stack)
        return changed_fields(self.request.layout, best.layout) | stack

    @property
    def title(self) -> str:
        return self.request.title

    @property
    def headline(self) -> str:
        days, usd, _ = _totals(self.best, self.goals)
        best = plan_headline(self.plans, days, usd)
        return " ".join([best, *(f"{table.title}." for table in self._change())])

    def _data(self) -> dict[str, Any]:
        count = self.plans.count
        data = {
            "schema": "computeflow.plan/1",
            "plans": [_plan_data(plan, self.goals) for plan in self.plans.plans],
            "enumerated": count.enumerated,
            "pruned": count.pruned,
            "evaluated": count.evaluated,
            "complete": self.plans.complete,
            "search_seconds": self.search_seconds,
        }
        reading = self.request.reading
        if self.now is not None and reading is not None:
            data["now"] = {**prediction_data(self.now), **reading_data(reading)}
            data["changes"] = self.changes
        if self.reasons is not None:
            data["lost"] = [[asdict(part) for part in parts] for parts in self.reasons.lost]
            data["sensitivities"] = [asdict(item) for item in self.reasons.sensitivities]
        if self.folder is not None:
            data["exports"] = [asdict(each) for each in self.exports]
        return data

    def tables(self) -> list[Table]:
        written = [exports_table(self.exports, str(self.folder))] if self.folder else []
        plans, counts = plan_tables(self.plans, self.title)
        return [plans, *self._change(), *self._reasons(), *written, counts]

    def parts(self) -> Sequence[Part]:
        from computeflow.views.figures import comparison_figure, ledger_figure, memory_figure

        best = self.best.prediction
        plans, counts = plan_tables(self.plans, "The plans, best first")
        drawn = [
            comparison_figure(self.plans.plans),
            ledger_figure(best.ledger),
            memory_figure(best),
        ]
        # the first reason is the ledger of the best plan, which is drawn
        return [plans, *drawn, *self._change(), *self._reasons()[1:], counts]

    def _change(self) -> list[Table]:
        if self.now is None or self.request.reading is None:
            return []
        table = change_table(self.now, self.best.prediction, self.changes, self.goals.price)
        return [with_reading(table, self.request.reading)]

    def _reasons(self) -> list[Table]:
        if self.reasons is None:
            return []
        return explanation_tables(self.plans.plans, self.reasons.lost, self.reasons.sensitivities)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FrontAnswer(Answer):
    """Numbers of GPUs, each with its best plan."""

    request: JobRequest
    options: tuple[TriedSize, ...]

    @property
    def infeasible(self) -> list[int]:
        return [option.size for option in self.options if option.plan is None]

    @property
    def title(self) -> str:
        ends = dict.fromkeys(f"{self.options[index].size:,}" for index in (0, -1))
        return job_title(self.request.job, self.request.cluster, " to ".join(ends))

    @property
    def headline(self) -> str:
        from computeflow.views.gpu_fronts import front_headline

        return front_headline(self.rows)

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.front/1",
            "front": [
                {"gpus": option.size, **_plan_data(option.plan, option.goals)}
                for option in self.options
                if option.plan is not None
            ],
            "infeasible": self.infeasible,
        }

    @property
    def rows(self) -> list[FrontRow]:
        return [
            FrontRow(option.size, option.plan, *_totals(option.plan, option.goals))
            for option in self.options
            if option.plan is not None
        ]

    def tables(self) -> list[Table]:
        return [front_table(self.rows, self.infeasible)]

    def parts(self) -> Sequence[Part]:
        from computeflow.views.gpu_fronts import front_figure

        return [front_figure(self.rows, self.infeasible)]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchesAnswer(Answer):
    """Global batches, each with its best plan and the tokens that it needs for the same result."""

    options: tuple[TriedSize, ...]

    @property
    def headline(self) -> str:
        return batches_headline(self._rows())

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.batches/1",
            "batches": [
                {
                    "global_batch": option.size,
                    "tokens": option.goals.tokens,
                    **_plan_data(option.plan, option.goals),
                }
                for option in self.options
                if option.plan is not None
            ],
            "infeasible": [option.size for option in self.options if option.plan is None],
        }

    def tables(self) -> list[Table]:
        return [batches_table(self._rows())]

    def _rows(self) -> list[BatchRow]:
        return [
            BatchRow(
                option.size,
                option.goals.tokens or 0.0,
                option.plan,
                *_totals(option.plan, option.goals),
            )
            for option in self.options
            if option.plan is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PoolsAnswer(Answer):
    """Two pools of devices, each alone and both together."""

    names: tuple[str, ...]
    goals: Goals
    pools: Pools

    @property
    def headline(self) -> str:
        return pools_headline(self.pools, self.names)

    def _data(self) -> dict[str, Any]:
        mixed = self.pools.mixed
        return {
            "schema": "computeflow.pools/1",
            "alone": [None if p is None else _plan_data(p, self.goals) for p in self.pools.alone],
            "mixed": None
            if mixed is None
            else {
                "shares": list(mixed.shares),
                "step_seconds": mixed.step_seconds,
                "sum_seconds": mixed.sum_seconds,
                "layouts": [asdict(each.layout) for each in mixed.predictions],
            },
            "mixed_wins": self.pools.mixed_wins,
        }

    def tables(self) -> list[Table]:
        return [pools_table(self.pools, self.names)]


@checked
def plan(
    model: str | None = None,
    *,
    on: str,
    storage: str | None = None,
    from_: File | None = None,
    format: str | None = None,
    tokens: Quantity | None = None,
    objective: Objective = "time",
    top: int = 5,
    fix: Mapping[str, str | int] | Sequence[tuple[str, str | int]] = (),
    gpus: tuple[int, int] | None = None,
    pool: str | None = None,
    batches: Sequence[int] | None = None,
    critical_batch: float | None = None,
    price: Quantity | None = None,
    deadline: Quantity | None = None,
    budget: Quantity | None = None,
    power_cap: Quantity | None = None,
    headroom: float = HEADROOM,
    export: NewFolder | None = None,
    force: bool = False,
    command: str = "python train.py",
    explain: bool = False,
    quick: bool = False,
    stack: str | None = None,
    catalog: CatalogFiles = (),
    progress: Callable[[str], None] | None = None,
    **options: Unpack[JobOptions],
) -> PlanAnswer | FrontAnswer | BatchesAnswer | PoolsAnswer:
    """Find the best layouts of a job on a cluster: all are enumerated, the best few returned.

    With `gpus`, `batches` or `pool` the answer has one plan for each of them.
    """
    modes = {"--pool": pool, "--batches": batches, "--gpus": gpus}
    chosen = [name for name, value in modes.items() if value is not None]
    _check_modes(chosen, {"--export": export, "--explain": explain or None})
    if critical_batch is not None and batches is None:
        raise InputError("--critical-batch needs --batches")
    if not 1 <= top <= MAX_PLANS:
        raise InputError(f"--top {top}: must be between 1 and {MAX_PLANS}")
    facts = open_catalog(catalog)
    cluster = choose_cluster(on, storage, facts)
    request = read_request(model, cluster, facts, options, from_=from_, format=format, stack=stack)
    goals = Goals(
        tokens=read_quantity(tokens, "tokens"),
        price=read_quantity(price, "usd"),
        deadline_seconds=read_quantity(deadline, "seconds"),
        budget=read_quantity(budget, "usd"),
        power_cap=read_quantity(power_cap, "watts"),
        headroom=headroom,
    )
    reading = request.reading
    device = cluster.accelerator.name
    search = Search(
        job=request.job,
        cluster=cluster,
        stack=_searched_stack(request, stack),
        fixed=fixed_fields(dict(fix)),
        allowed={} if reading is None else allowed_shardings(reading.format),
        objective=objective,
        goals=goals,
        best_mfu=best_mfu(device_cases(device, facts), device, request.job),
        quick=quick,
    )
    if pool is not None:
        return _plan_pools(search, find_cluster(pool, facts), (on, pool))
    if batches is not None:
        return BatchesAnswer(
            options=_some(try_batches(search, batches, critical_batch), quick, "with a batch of {}")
        )
    if gpus is not None:
        tried = try_gpu_counts(search, doubled_counts(*gpus))
        return FrontAnswer(request=request, options=_some(tried, quick, "on {} GPUs"))
    best = _best_plans(request, search, top, explain, _spoken(progress))
    if export is None or not best.plans.complete:
        return best
    exported = _export(search, best.best, Path(export), command, force=force)
    return replace(best, folder=Path(export), exports=tuple(exported))


def _searched_stack(request: JobRequest, given: str | None) -> Stack | None:
    """The caller's stack; else the file's, with all that its framework can switch on."""
    if given is not None or request.reading is None or request.stack is None:
        return request.stack
    return replace(request.stack, **switchable(request.reading))


def _check_modes(chosen: list[str], single_plan: Mapping[str, object]) -> None:
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)} cannot be combined")
    for option, value in single_plan.items():
        if chosen and value is not None:
            raise InputError(f"{option} cannot be combined with {chosen[0]}")


def _spoken(progress: Callable[[str], None] | None) -> Progress | None:
    if progress is None:
        return None

    def say(done: float, count: LayoutCounts) -> None:
        progress(
            f"{100 * done:3.0f} %, {count.evaluated:,} layouts predicted; Ctrl-C shows the best so far"
        )

    return say


def _some(options: Sequence[TriedSize], quick: bool, where: str) -> tuple[TriedSize, ...]:
    if all(option.plan is None for option in options):
        what = "no layout that published runs tested" if quick else "no layout"
        *sizes, last = [f"{option.size:,}" for option in options]
        listed = f"{', '.join(sizes)} or {last}" if sizes else last
        raise InputError(f"{what} fits and meets the limits {where.format(listed)}")
    return tuple(options)


def _plan_pools(search: Search, other: Cluster, names: tuple[str, str]) -> PoolsAnswer:
    if search.fixed or search.goals.narrow or search.objective != "time":
        raise InputError("--pool plans for time only: leave out --fix, --objective and limits")
    pools = plan_pools(search.job, [search.cluster, other], search.stack)
    return PoolsAnswer(names=names, goals=search.goals, pools=pools)


def _best_plans(
    request: JobRequest, search: Search, top: int, explain: bool, progress: Progress | None
) -> PlanAnswer:
    began = time.monotonic()
    plans = search.run(top, progress, interruptible=True)
    seconds = time.monotonic() - began
    if not plans.plans:
        raise InputError(_why_nothing(search, plans))
    stated = request.reading is not None
    return PlanAnswer(
        request=request,
        goals=search.goals,
        plans=plans,
        search_seconds=seconds,
        now=predict(request.job, request.cluster, request.layout, request.stack)
        if stated
        else None,
        reasons=_explain(search, plans) if explain and plans.complete else None,
    )


def _why_nothing(search: Search, plans: Plans) -> str:
    text = search.why_nothing(plans)
    larger = search.larger() if text.startswith("nothing fits") else None
    if larger is None:
        return text
    gpus, layout = larger
    return f"{text}; {gpus:,} GPUs would do ({layout_text(layout)})"


def _explain(search: Search, plans: Plans) -> Reasons:
    best, *others = plans.plans
    return Reasons(
        lost=tuple(tuple(account_losses(best.prediction, other.prediction)) for other in others),
        sensitivities=tuple(
            sensitivities(
                search.job,
                search.cluster,
                best,
                search.used_stack,
                fixed=search.fixed,
                limits=search.limits,
            )
        ),
    )


def _export(
    search: Search, best: Plan, folder: Path, command: str, *, force: bool
) -> list[Exported]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--command {command!r}: {error}") from None
    setup = Setup(
        job=search.job,
        cluster=search.cluster,
        layout=best.layout,
        stack=search.used_stack,
        tokens=search.goals.tokens,
    )
    exported = export(setup, words)
    files = {
        f"{each.name}/{name}": text
        for each in exported
        if each.written
        for name, text in each.written.files.items()
    }
    write_folder(folder, files, "--export", force=force)
    return exported


def _totals(best: Plan, goals: Goals) -> tuple[float | None, float | None, float | None]:
    """Days, dollars and MWh of the whole training."""
    totals = goals.totals(best)
    return totals.days, totals.usd, totals.megawatt_hours


def _plan_data(best: Plan, goals: Goals) -> dict[str, Any]:
    days, usd, megawatt_hours = _totals(best, goals)
    return {
        **prediction_data(best.prediction),
        "pessimistic_seconds": best.pessimistic_seconds,
        "complexity": best.complexity,
        "unmeasured": list(best.unmeasured),
        "warnings": list(best.warnings),
        "days": days,
        "usd": usd,
        "megawatt_hours": megawatt_hours,
    }
