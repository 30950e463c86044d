"""The best layouts of a job on a cluster: every one enumerated, few returned, each with reasons."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from computeflow.catalog import load_catalog
from computeflow.cli.jobs import cluster_of, job_of, job_options, place_options, title_of
from computeflow.cli.output import catalog_option, emit, html_option, output_option, write_report
from computeflow.cli.predict import prediction_data
from computeflow.cluster import Cluster, find_cluster
from computeflow.errors import InputError, UnknownNameError
from computeflow.planning import OBJECTIVES, Limits, Plan, Plans
from computeflow.planning import plan as plan_job
from computeflow.planning.batches import tokens_to_target
from computeflow.planning.explain import compare, sensitivities
from computeflow.planning.exports.model import Setup
from computeflow.planning.exports.writing import Exported, export
from computeflow.planning.plans import nearest_that_fits
from computeflow.planning.pools import Pools, plan_pools
from computeflow.planning.published import best_mfu
from computeflow.planning.space import Count
from computeflow.prediction.cases import PACKAGED, read_cases
from computeflow.prediction.stack import DEFAULT, Stack, find_stack
from computeflow.units import format_si
from computeflow.views.plans import (
    FrontRow,
    batches_table,
    explanation_tables,
    exports_table,
    front_table,
    layout_text,
    plan_tables,
    pools_table,
)  # fmt: skip
from computeflow.views.tables import Table
from computeflow.workload import Job
from computeflow.workload.layout import CHOICES, SIZES

_QUIET_SECONDS = 2.0


@click.command(help=__doc__)
@click.argument("model")
@place_options
@job_options
@click.option("--tokens", type=float, help="To train on: turns steps into days and dollars.")
@click.option("--objective", type=click.Choice(OBJECTIVES), default="time", show_default=True)
@click.option(
    "--top",
    type=click.IntRange(1, 20),
    default=5,
    show_default=True,
    help="Plans to return, unlike each other.",
)
@click.option(
    "--fix",
    "fixes",
    multiple=True,
    metavar="NAME=VALUE",
    help="A field of the layout that is given (tp=8, schedule=1f1b); may be repeated.",
)
@click.option(
    "--gpus",
    "counts",
    metavar="FROM:TO",
    help="Try so many GPUs, doubling, and show time against cost.",
)
@click.option(
    "--pool",
    metavar="CLUSTER",
    help="A second pool of devices: each planned alone, and both together.",
)
@click.option(
    "--batches",
    metavar="N,N,...",
    help="Try these global batches; needs --tokens and --critical-batch.",
)
@click.option(
    "--critical-batch",
    type=float,
    metavar="SEQUENCES",
    help="Where a larger batch needs twice the least number of tokens: yours, measured.",
)
@click.option("--price", type=float, help="Dollars per GPU-hour.")
@click.option("--deadline", type=float, metavar="DAYS", help="With --tokens: plans must keep it.")
@click.option("--budget", type=float, metavar="USD", help="With --tokens and --price.")
@click.option("--power-cap", type=float, metavar="WATTS", help="Mean of a GPU over the step.")
@click.option(
    "--headroom",
    type=float,
    default=Limits().headroom,
    show_default=True,
    help="Share of a device's memory that a plan may fill.",
)
@click.option(
    "--export",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write the first plan for every framework and launcher that can take it.",
)
@click.option(
    "--command", default="python train.py", show_default=True, help="What the launch files start."
)
@click.option("--explain", is_flag=True, help="Why it is the best, and what would help.")
@click.option("--stack", "stack_name", metavar="NAME", help="The software; else today's practice.")
@catalog_option
@html_option
@output_option
def plan(
    model: str, tokens: float | None, objective: Any, top: int, fixes: tuple[str, ...],
    counts: str | None, pool: str | None, batches: str | None, critical_batch: float | None,
    price: float | None, deadline: float | None, budget: float | None,
    power_cap: float | None, headroom: float, folder: Path | None, command: str, explain: bool,
    stack_name: str | None,
    files: tuple[str, ...], html: Path | None, output: str, **options: Any,
) -> None:  # fmt: skip
    facts = load_catalog(files)
    cluster, job = cluster_of(options, facts), job_of(model, options, facts)
    stack = find_stack(stack_name) if stack_name else None
    bounds = _Bounds(
        tokens=tokens, price=price, deadline=deadline, budget=budget, power_cap=power_cap,
        headroom=headroom,
    )  # fmt: skip
    fixed = _fixed(fixes)
    limits = bounds.limits(cluster.gpus, job, tokens)
    published = best_mfu(read_cases(PACKAGED.read_text(), facts)[0], cluster.accelerator.name, job)
    began = time.monotonic()

    def searched(place: Cluster, size: int, what: Job = job, need: float | None = tokens) -> Plans:
        with _Progress() as progress:
            return plan_job(
                what, place, stack, fixed=fixed, objective=objective, top=size,
                limits=bounds.limits(place.gpus, what, need),
                progress=progress, best_mfu=published,
            )  # fmt: skip

    if html is not None and (pool is not None or batches is not None):
        raise InputError("--html goes with plans and with --gpus, not with --pool or --batches")
    if pool is not None:
        if any((fixes, counts, batches, bounds.narrow, objective != "time")):
            raise InputError("--pool plans for time alone: leave out --fix, limits and ranges")
        found = plan_pools(job, [cluster, find_cluster(pool, facts)], stack)
        emit(output, _pools_data(found), [pools_table(found, [options["place"], pool])])
        return
    if batches is not None:
        if tokens is None or critical_batch is None:
            raise InputError("--batches needs --tokens and --critical-batch")
        sizes = _batches(batches)
        asked = [(n, tokens_to_target(tokens, n, job.global_batch, critical_batch)) for n in sizes]
        rows = [
            (n, need, searched(cluster, 1, replace(job, global_batch=n), need).plans)
            for n, need in asked
        ]
        _emit_batches(output, rows, price)
        return
    if counts is not None:
        front = [(n, searched(sized(cluster, n), 1)) for n in _gpu_counts(counts)]
        ends = dict.fromkeys(f"{n:,}" for n in (front[0][0], front[-1][0]))
        title = title_of(job, cluster, " to ".join(ends))
        _emit_front(output, html, title, front, tokens, price)
        return
    answer = searched(cluster, top)
    seconds = time.monotonic() - began
    if not answer.plans:
        raise InputError(_nothing_fits(job, cluster, stack, limits, answer, fixed))
    title = title_of(job, cluster)
    tables, reasons = plan_tables(answer, title), []
    data = {
        "schema": "computeflow.plan/1",
        "plans": [_plan_data(found, tokens, price) for found in answer.plans],
        "enumerated": answer.count.enumerated,
        "pruned": answer.count.pruned,
        "evaluated": answer.count.evaluated,
        "complete": answer.complete,
        "search_seconds": seconds,
    }
    if explain:
        best, *others = answer.plans
        lost = [compare(best.prediction, other.prediction) for other in others]
        helps = sensitivities(
            job, cluster, best, stack or find_stack(DEFAULT), fixed=fixed, limits=limits
        )
        reasons = explanation_tables(answer.plans, lost, helps)
        data["lost"] = [[asdict(part) for part in parts] for parts in lost]
        data["sensitivities"] = [asdict(item) for item in helps]
    if html is not None:
        _write_plans(html, title, answer, tables, reasons)
    if folder is not None:
        setup = Setup(job=job, cluster=cluster, layout=answer.plans[0].layout,
                      stack=stack or find_stack(DEFAULT), tokens=tokens)  # fmt: skip
        exported = _export(folder, setup, command)
        data["exports"] = [asdict(each) for each in exported]
        reasons = [*reasons, exports_table(exported, str(folder))]
    emit(output, data, [*tables, *reasons])


def _export(folder: Path, setup: Setup, command: str) -> list[Exported]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--command {command!r}: {error}") from None
    exported = export(setup, words)
    try:
        for each in exported:
            for name, text in (each.written.files if each.written else {}).items():
                path = folder / each.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    return exported


def _write_plans(
    html: Path, title: str, answer: Plans, tables: list[Table], reasons: list[Table]
) -> None:
    from computeflow.views.figures import comparison_figure, ledger_figure, memory_figure

    best = answer.plans[0].prediction
    chosen, counts = tables
    chosen = replace(chosen, title="The plans, best first")  # the page has the title
    drawn = [comparison_figure(answer.plans), ledger_figure(best.ledger), memory_figure(best)]
    # the first reason is the ledger of the best, which its figure has
    write_report(html, title, [chosen, *drawn, *reasons[1:], counts])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """What was asked of the whole training, turned into limits of a step."""

    tokens: float | None
    price: float | None
    deadline: float | None
    budget: float | None
    power_cap: float | None
    headroom: float

    def __post_init__(self) -> None:
        for name in ("tokens", "price", "deadline", "budget", "power_cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                option = name.replace("_", "-")
                raise InputError(f"--{option} {value:g}: above zero and finite")
        if (self.deadline or self.budget) and not self.tokens:
            raise InputError("--deadline and --budget need --tokens")
        if self.budget and not self.price:
            raise InputError("--budget needs --price")

    @property
    def narrow(self) -> bool:
        return any((self.deadline, self.budget, self.power_cap))

    def limits(self, gpus: int, job: Job, tokens: float | None) -> Limits:
        """What a deadline and a budget leave for a step of this job on so many GPUs."""
        days = [self.deadline] if self.deadline else []
        if self.budget and self.price:
            days.append(self.budget / self.price / gpus / 24)
        seconds = min(days) * 86400 / (tokens / job.step_tokens) if days and tokens else None
        return Limits(headroom=self.headroom, watts_per_gpu=self.power_cap, step_seconds=seconds)


class _Progress:
    """One line on stderr, once a search takes longer than two seconds and somebody watches."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = False

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, done: float, count: Count) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._began > _QUIET_SECONDS:
            self._shown = True
            sys.stderr.write(
                f"\r{100 * done:3.0f} %, {count.evaluated:,} predicted; Ctrl-C: best so far"
            )
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def _fixed(fixes: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in fixes:
        name, equals, value = text.partition("=")
        name = name.replace("-", "_")
        if not equals or name == "gpus" or name not in (*SIZES, *CHOICES):
            raise UnknownNameError("field of a layout", name, [*SIZES[1:], *CHOICES])
        if name in CHOICES:
            if value not in CHOICES[name]:
                raise UnknownNameError(name, value, CHOICES[name])
            found[name] = value
        elif not value.isdecimal() or not 1 <= int(value) <= 10**6:
            raise InputError(f"--fix {text}: {name} is a whole number")
        else:
            found[name] = int(value)
    return found


def sized(cluster: Cluster, gpus: int) -> Cluster:
    """The same cluster with another number of devices: tiers that it does not leave, and one that
    joins all.
    """
    if not cluster.tiers:
        return replace(cluster, gpus=gpus)
    inner = [tier for tier in cluster.tiers if tier.devices < gpus]
    reaching = next((tier for tier in cluster.tiers if tier.devices >= gpus), cluster.tiers[-1])
    if len(cluster.tiers) == 1 and gpus > reaching.devices:
        raise InputError(f"{gpus} GPUs need a network: name a cluster of that size with --on")
    inner = [tier for tier in inner if tier is not reaching]
    return replace(cluster, gpus=gpus, tiers=(*inner, replace(reaching, devices=max(gpus, 2))))


def _gpu_counts(text: str) -> list[int]:
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal():
        raise InputError(f"--gpus {text}: write FROM:TO (256:2048)")
    low, high = int(first), int(last)
    if not 1 <= low <= high <= 10**6:
        raise InputError(f"--gpus {text}: between 1 and a million, growing")
    counts = [low]
    while counts[-1] * 2 <= high:
        counts.append(counts[-1] * 2)
    return counts


def _batches(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 10**9 for part in parts):
        raise InputError(f"--batches {text}: whole numbers with commas (512,1024,2048)")
    return [int(part) for part in parts]


def _emit_batches(
    output: str, rows: list[tuple[int, float, tuple[Plan, ...]]], price: float | None
) -> None:
    """Every batch with what it needs to the same result: nothing is changed in silence."""
    fitting = [(n, need, plans[0]) for n, need, plans in rows if plans]
    if not fitting:
        raise InputError("no plan fits and keeps the limits with any of these batches")
    totals = [(n, need, best, *_totals(best, need, price)) for n, need, best in fitting]
    data = {
        "schema": "computeflow.batches/1",
        "batches": [
            {"global_batch": n, "tokens": need, **_plan_data(best, need, price)}
            for n, need, best in fitting
        ],
        "infeasible": [n for n, _, plans in rows if not plans],
    }
    emit(output, data, [batches_table(totals)])


def _pools_data(found: Pools) -> dict[str, Any]:
    mixed = found.mixed
    return {
        "schema": "computeflow.pools/1",
        "alone": [None if p is None else _plan_data(p, None, None) for p in found.alone],
        "mixed": None
        if mixed is None
        else {
            "shares": list(mixed.shares),
            "step_seconds": mixed.step_seconds,
            "sum_seconds": mixed.sum_seconds,
            "layouts": [asdict(each.layout) for each in mixed.predictions],
        },
        "mixed_wins": found.mixed_wins,
    }


def _nothing_fits(
    job: Job, cluster: Cluster, stack: Stack | None, limits: Limits, answer: Plans,
    fixed: dict[str, Any],
) -> str:  # fmt: skip
    """The nearest that would do."""
    if answer.count.evaluated:
        return "no layout keeps the limits: the fastest is slower, or draws more"
    if answer.smallest_bytes == float("inf"):
        reasons = sorted(answer.count.pruned.items(), key=lambda item: -item[1])
        return f"no layout is possible: {reasons[0][0]}"
    have = limits.headroom * (cluster.accelerator.reported_bytes or cluster.accelerator.hbm_bytes)
    text = (
        f"nothing fits: the leanest layout needs {format_si(answer.smallest_bytes, 'B')} on a device, "
        f"{format_si(have, 'B')} may be filled"
    )
    if fixed:
        return text
    found = nearest_that_fits(job, cluster, stack or find_stack(DEFAULT), limits=limits)
    if found is None:
        return text
    gpus, layout = found
    return f"{text}; {gpus:,} GPUs would do ({layout_text(layout)})"


def _plan_data(found: Plan, tokens: float | None, price: float | None) -> dict[str, Any]:
    days, dollars, energy = _totals(found, tokens, price)
    return {
        **prediction_data(found.prediction),
        "pessimistic_seconds": found.pessimistic_seconds,
        "complexity": found.complexity,
        "unmeasured": list(found.unmeasured),
        "warnings": list(found.warnings),
        "days": days,
        "usd": dollars,
        "megawatt_hours": energy,
    }


def _totals(
    found: Plan, tokens: float | None, price: float | None
) -> tuple[float | None, float | None, float | None]:
    """Days, dollars and megawatt-hours of the whole training, where tokens and price are known."""
    if tokens is None:
        return None, None, None
    steps = tokens / found.prediction.job.step_tokens
    days = steps * found.prediction.step_seconds / 86400
    dollars = None if price is None else days * 24 * found.layout.gpus * price
    joules = found.prediction.ledger.joules
    return days, dollars, None if joules is None else steps * joules / 3.6e9


def _emit_front(
    output: str, html: Path | None, title: str, front: list[tuple[int, Plans]],
    tokens: float | None, price: float | None,
) -> None:  # fmt: skip
    rows = [
        FrontRow(gpus, answer.plans[0], *_totals(answer.plans[0], tokens, price))
        for gpus, answer in front
        if answer.plans
    ]
    if not rows:
        raise InputError("no plan fits and keeps the limits on any of these numbers of GPUs")
    infeasible = [gpus for gpus, answer in front if not answer.plans]
    data = {
        "schema": "computeflow.front/1",
        "front": [{"gpus": row.gpus, **_plan_data(row.plan, tokens, price)} for row in rows],
        "infeasible": infeasible,
    }
    if html is not None:
        from computeflow.views.fronts import front_figure

        write_report(html, title, [front_figure(rows, infeasible)])
    emit(output, data, [front_table(rows, infeasible)])
