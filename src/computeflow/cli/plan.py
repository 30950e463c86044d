"""The best layouts of a job on a cluster: every one enumerated, few returned, each with reasons."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from computeflow.answers.predictions import prediction_data
from computeflow.answers.requests import reading_data
from computeflow.catalog import load_catalog
from computeflow.cli.jobs import (
    Asked,
    asked,
    cluster_of,
    from_option,
    job_options,
    place_options,
    title_of,
)  # fmt: skip
from computeflow.cli.output import catalog_option, emit, html_option, output_option, write_report
from computeflow.cli.searches import Bounds, Search, batch_sizes, fixed_fields, gpu_counts
from computeflow.cluster import Cluster, find_cluster, resized
from computeflow.errors import InputError
from computeflow.planning import OBJECTIVES, Limits, Plan, Plans, why_no_plan
from computeflow.planning.batches import tokens_to_target
from computeflow.planning.explain import changed_fields, compare, sensitivities
from computeflow.planning.exports.model import Reading, Setup
from computeflow.planning.exports.writing import Exported, export
from computeflow.planning.plans import nearest_that_fits
from computeflow.planning.pools import Pools, plan_pools
from computeflow.planning.published import best_mfu
from computeflow.prediction import predict
from computeflow.prediction.cases import PACKAGED, read_cases
from computeflow.views.plans import (
    FrontRow,
    batches_table,
    change_table,
    explanation_tables,
    exports_table,
    front_table,
    layout_text,
    plan_tables,
    pools_table,
)  # fmt: skip
from computeflow.views.reviews import with_reading
from computeflow.views.tables import Table
from computeflow.workload import Layout


@click.command(help=__doc__)
@click.argument("model", required=False)
@place_options
@job_options
@from_option
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
    model: str | None, source: Path | None, tokens: float | None, objective: Any, top: int,
    fixes: tuple[str, ...], counts: str | None, pool: str | None, batches: str | None,
    critical_batch: float | None, price: float | None, deadline: float | None,
    budget: float | None, power_cap: float | None, headroom: float, folder: Path | None,
    command: str, explain: bool, stack_name: str | None, files: tuple[str, ...],
    html: Path | None, output: str, **options: Any,
) -> None:  # fmt: skip
    facts = load_catalog(files)
    cluster = cluster_of(options, facts)
    what = asked(model, source, stack_name, options, cluster, facts)
    published = read_cases(PACKAGED.read_text(), facts)[0]
    bounds = Bounds(
        tokens=tokens, price=price, deadline=deadline, budget=budget, power_cap=power_cap,
        headroom=headroom,
    )  # fmt: skip
    search = Search(
        job=what.job, cluster=cluster, stack=what.stack, fixed=fixed_fields(fixes),
        objective=objective, bounds=bounds,
        best_mfu=best_mfu(published, cluster.accelerator.name, what.job),
    )  # fmt: skip
    modes = {"--pool": pool, "--batches": batches, "--gpus": counts}
    if len(chosen := [name for name, value in modes.items() if value is not None]) > 1:
        raise InputError(f"{' and '.join(chosen)}: one at a time")
    if html is not None and chosen not in ([], ["--gpus"]):
        raise InputError(f"--html goes with plans and with --gpus, not with {chosen[0]}")
    if folder is not None and chosen:
        raise InputError(f"--export writes one plan: leave out {chosen[0]}")
    if pool is not None:
        _pools(search, find_cluster(pool, facts), [options["place"], pool], output)
    elif batches is not None:
        _batches(search, batch_sizes(batches), critical_batch, output)
    elif counts is not None:
        _front(search, gpu_counts(counts), html, output)
    else:
        _plans(search, what, _Wish(top, explain, folder, command), html, output)


class _Wish(NamedTuple):
    """What is wanted of plans beside the plans."""

    top: int
    explain: bool
    folder: Path | None
    command: str


def _plans(search: Search, what: Asked, wish: _Wish, html: Path | None, output: str) -> None:
    """The best ones; why, in a framework's words, and against a given one where that is asked for."""
    began = time.monotonic()
    answer = search.run(wish.top)
    seconds = time.monotonic() - began
    if not answer.plans:
        raise InputError(_nothing_fits(search, answer))
    bounds = search.bounds
    title = title_of(search.job, search.cluster)
    tables = plan_tables(answer, title)
    data = {
        "schema": "computeflow.plan/1",
        "plans": [_plan_data(found, bounds) for found in answer.plans],
        "enumerated": answer.count.enumerated,
        "pruned": answer.count.pruned,
        "evaluated": answer.count.evaluated,
        "complete": answer.complete,
        "search_seconds": seconds,
    }
    change: list[Table] = []
    reasons: list[Table] = []
    if what.reading is not None and what.layout is not None:
        table, said = _change(search, what.layout, what.reading, answer.plans[0])
        change = [table]
        data |= said
    if wish.explain:
        reasons, said = _reasons(search, answer)
        data |= said
    if html is not None:
        # the first reason is the ledger of the best, which its figure has
        _write_plans(html, title, answer, tables, [*change, *reasons[1:]])
    more = [*change, *reasons]
    if wish.folder is not None:
        setup = Setup(job=search.job, cluster=search.cluster, layout=answer.plans[0].layout,
                      stack=search.used_stack, tokens=bounds.tokens)  # fmt: skip
        exported = _export(wish.folder, setup, wish.command)
        data["exports"] = [asdict(each) for each in exported]
        more.append(exports_table(exported, str(wish.folder)))
    emit(output, data, [*tables, *more])


def _change(
    search: Search, layout: Layout, reading: Reading, best: Plan
) -> tuple[Table, dict[str, Any]]:
    """From a file's layout to the best one: as a table and as data."""
    now = predict(search.job, search.cluster, layout, search.stack)
    changes = changed_fields(layout, best.layout)
    table = change_table(now, best.prediction, changes, search.bounds.price)
    said = {"now": {**prediction_data(now), **reading_data(reading)}, "changes": changes}
    return with_reading(table, reading), said


def _reasons(search: Search, answer: Plans) -> tuple[list[Table], dict[str, Any]]:
    """Why the first is the best, and what would help: as tables and as data."""
    best, *others = answer.plans
    lost = [compare(best.prediction, other.prediction) for other in others]
    helps = sensitivities(
        search.job, search.cluster, best, search.used_stack, fixed=search.fixed,
        limits=search.limits,
    )  # fmt: skip
    said = {
        "lost": [[asdict(part) for part in parts] for parts in lost],
        "sensitivities": [asdict(item) for item in helps],
    }
    return explanation_tables(answer.plans, lost, helps), said


def _pools(search: Search, other: Cluster, names: list[str], output: str) -> None:
    if search.fixed or search.bounds.narrow or search.objective != "time":
        raise InputError("--pool plans for time alone: leave out --fix, limits and ranges")
    found = plan_pools(search.job, [search.cluster, other], search.stack)
    emit(output, _pools_data(found, search.bounds), [pools_table(found, names)])


def _batches(search: Search, sizes: list[int], critical: float | None, output: str) -> None:
    """Every batch with what it needs to the same result: nothing is changed in silence."""
    tokens = search.bounds.tokens
    if tokens is None or critical is None:
        raise InputError("--batches needs --tokens and --critical-batch")
    fitting, infeasible = [], []
    for size in sizes:
        need = tokens_to_target(tokens, size, search.job.global_batch, critical)
        bounds = replace(search.bounds, tokens=need)
        plans = (
            replace(search, job=replace(search.job, global_batch=size), bounds=bounds).run().plans
        )
        if plans:
            fitting.append((size, bounds, plans[0]))
        else:
            infeasible.append(size)
    if not fitting:
        raise InputError("no plan fits and keeps the limits with any of these batches")
    data = {
        "schema": "computeflow.batches/1",
        "batches": [
            {"global_batch": size, "tokens": bounds.tokens, **_plan_data(best, bounds)}
            for size, bounds, best in fitting
        ],
        "infeasible": infeasible,
    }
    rows = [(n, b.tokens or tokens, best, *_totals(best, b)) for n, b, best in fitting]
    emit(output, data, [batches_table(rows)])


def _front(search: Search, counts: list[int], html: Path | None, output: str) -> None:
    front = [(n, replace(search, cluster=resized(search.cluster, n)).run()) for n in counts]
    rows = [
        FrontRow(gpus, answer.plans[0], *_totals(answer.plans[0], search.bounds))
        for gpus, answer in front
        if answer.plans
    ]
    if not rows:
        raise InputError("no plan fits and keeps the limits on any of these numbers of GPUs")
    infeasible = [gpus for gpus, answer in front if not answer.plans]
    data = {
        "schema": "computeflow.front/1",
        "front": [{"gpus": row.gpus, **_plan_data(row.plan, search.bounds)} for row in rows],
        "infeasible": infeasible,
    }
    if html is not None:
        from computeflow.views.fronts import front_figure

        ends = dict.fromkeys(f"{n:,}" for n in (counts[0], counts[-1]))
        title = title_of(search.job, search.cluster, " to ".join(ends))
        write_report(html, title, [front_figure(rows, infeasible)])
    emit(output, data, [front_table(rows, infeasible)])


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
    html: Path, title: str, answer: Plans, tables: list[Table], more: list[Table]
) -> None:
    from computeflow.views.figures import comparison_figure, ledger_figure, memory_figure

    best = answer.plans[0].prediction
    chosen, counts = tables
    chosen = replace(chosen, title="The plans, best first")  # the page has the title
    drawn = [comparison_figure(answer.plans), ledger_figure(best.ledger), memory_figure(best)]
    write_report(html, title, [chosen, *drawn, *more, counts])


def _pools_data(found: Pools, bounds: Bounds) -> dict[str, Any]:
    mixed = found.mixed
    return {
        "schema": "computeflow.pools/1",
        "alone": [None if p is None else _plan_data(p, bounds) for p in found.alone],
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


def _nothing_fits(search: Search, answer: Plans) -> str:
    """The nearest that would do."""
    if answer.count.evaluated:
        return "no layout keeps the limits: the fastest is slower, or draws more"
    if answer.smallest_bytes == float("inf"):
        reasons = sorted(answer.count.pruned.items(), key=lambda item: -item[1])
        return f"no layout is possible: {reasons[0][0]}"
    limits = search.limits
    text = f"nothing fits: {why_no_plan(answer, search.job, search.cluster, limits)}"
    if search.fixed:
        return text
    stack = search.used_stack
    found = nearest_that_fits(search.job, search.cluster, stack, limits=limits)
    if found is None:
        return text
    gpus, layout = found
    return f"{text}; {gpus:,} GPUs would do ({layout_text(layout)})"


def _plan_data(found: Plan, bounds: Bounds) -> dict[str, Any]:
    days, dollars, energy = _totals(found, bounds)
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


def _totals(found: Plan, bounds: Bounds) -> tuple[float | None, float | None, float | None]:
    """Days, dollars and megawatt-hours of the whole training, where tokens and price are known."""
    if bounds.tokens is None:
        return None, None, None
    price = bounds.price
    steps = bounds.tokens / found.prediction.job.step_tokens
    days = steps * found.prediction.step_seconds / 86400
    dollars = None if price is None else days * 24 * found.layout.gpus * price
    joules = found.prediction.ledger.joules
    return days, dollars, None if joules is None else steps * joules / 3.6e9
