"""Live a plan through weeks of failures: when it ends, what it costs, where the time goes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computeflow import codec
from computeflow.catalog import Catalog, load_catalog
from computeflow.cli.jobs import (
    asked,
    cluster_of,
    from_option,
    job_options,
    layout_options,
    place_options,
    title_of,
)  # fmt: skip
from computeflow.cli.output import (
    calibration_option,
    catalog_option,
    emit,
    html_option,
    output_option,
    write_report,
)  # fmt: skip
from computeflow.cluster import Cluster
from computeflow.errors import InputError, UnknownNameError
from computeflow.ledger import ledger_to_data
from computeflow.prediction import Prediction, predict
from computeflow.units import parse
from computeflow.views.ledgers import ledger_table
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.cli.jobs import Asked
    from computeflow.scheduling import Policy
    from computeflow.simulation import Run, Simulation
    from computeflow.simulation.conditions import Input
    from computeflow.views.figures import Figure

Options = dict[str, Any]
_LAYOUT = ("tp", "pp", "vp", "cp", "ep", "etp", "micro_batch", "recompute", "sharding", "replicas",
           "schedule", "offload", "context")  # fmt: skip


@click.command(help=__doc__)
@click.argument("model", required=False)
@place_options
@job_options
@layout_options
@from_option
@click.option("--stack", "stack_name", metavar="NAME", help="The software.")
@click.option("--tokens", metavar="N", help="To train on (15T); or --days.")
@click.option("--days", type=float, help="How long the run goes on, whatever it does.")
@click.option(
    "--failures",
    default="llama-3",
    show_default=True,
    metavar="NAME",
    help="How often nodes fail: a published run or fleet (docs/simulate.md).",
)
@click.option("--tier", metavar="NAME", help="The site's Uptime tier, for its outages.")
@click.option("--cooling", metavar="NAME", help="The site's cooling, for how it slows steps down.")
@click.option("--spares", type=int, help="Nodes that stand by; left out: for 99 % of failures.")
@click.option("--interval", metavar="TIME", help="Of work between two saves; left out: Daly's.")
@click.option(
    "--saving",
    type=click.Choice(["async", "sync"]),
    default="async",
    show_default=True,
    help="Whether training goes on while a save is written.",
)
@click.option(
    "--evict",
    type=click.Choice(["worth", "always", "never"]),
    default="worth",
    show_default=True,
    help="Whether slow nodes are taken out.",
)
@click.option(
    "--lemons", type=int, metavar="N", help="Failures after which a node is not taken back."
)
@click.option(
    "--shrink",
    type=int,
    metavar="N",
    help="Without a spare, go on with no fewer data-parallel replicas than these.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A condition of docs/simulate.md (load_seconds=20min); may be repeated.",
)
@click.option(
    "--repeats", type=int, default=1000, show_default=True, help="How often the run is simulated."
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Of the random numbers: the same seed, the same answer.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where it is simulated; the answer is the same.",
)
@click.option(
    "--best", is_flag=True, help="The best checkpoint interval and number of spares, too."
)
@click.option("--sensitivity", is_flag=True, help="What each input does to the answer, too.")
@click.option("--timeline", is_flag=True, help="A fast, a median and a slow repeat over time, too.")
@click.option("--price", metavar="USD", help="Of a GPU-hour, spares included ($2.49).")
@calibration_option
@catalog_option
@html_option
@output_option
def simulate(
    model: str | None, source: Path | None, stack_name: str | None, calibration: Path | None,
    files: tuple[str, ...], html: Path | None, output: str, **options: Any,
) -> None:  # fmt: skip
    from computeflow.simulation import simulate as live
    from computeflow.simulation.sensitivity import inputs_of
    from computeflow.views.figures import ledger_figure
    from computeflow.views.simulations import simulation_table

    facts = load_catalog(files)
    cluster = cluster_of(options, facts)
    what = asked(model, source, stack_name, options, cluster, facts)
    price = parse(options["price"], "usd") if options["price"] else None
    found = _prediction(what, cluster, calibration, facts)
    rows = _site_rows(options, facts)
    run = _run(found, cluster, options, rows)
    known = inputs_of(run, rows, _settings(options["settings"]))
    result = live(run, replicas=options["repeats"], seed=options["seed"], engine=options["engine"])
    summary = simulation_table(result, price)
    data = simulation_data(result, known, price)
    tables, figures = _more(run, known, options, data)
    if html is not None:
        write_report(html, run.label, [summary, ledger_figure(result.ledger), *figures])
    emit(output, data, [summary, ledger_table(result.ledger), *tables])


def _prediction(
    what: Asked, cluster: Cluster, calibration: Path | None, facts: Catalog
) -> Prediction:
    """Of the stated layout, or of the planner's best where none is stated."""
    job = replace(what.job, checkpoint_steps=None)  # saving is simulated, not spread over steps
    context = click.get_current_context()
    said = click.core.ParameterSource.COMMANDLINE
    stated = any(context.get_parameter_source(name) is said for name in _LAYOUT)
    measured = None
    if calibration is not None:
        from computeflow.prediction.calibration.file import load_calibration

        measured = load_calibration(calibration, facts)
    if what.reading is None and not stated:
        from computeflow.planning import plan, why_no_plan

        answer = plan(job, cluster, what.stack, top=1)
        if not answer.plans:
            why = why_no_plan(answer, job, cluster)
            raise InputError(f"{job.model.name} has no plan on {cluster.gpus:,} GPUs: {why}")
        layout = answer.plans[0].layout
    else:
        assert what.layout is not None
        layout = what.layout
    found = predict(job, cluster, layout, what.stack, calibration=measured)
    if not found.fits:
        raise InputError("the layout does not fit the device's memory: see computeflow predict")
    return found


def _site_rows(options: Options, facts: Catalog) -> dict[str, Input]:
    """Inputs that the site's tier and cooling say, in place of the packaged ones."""
    from computeflow.simulation.sites import cooling_inputs, tier_inputs

    tier, cooling = options["tier"], options["cooling"]
    rows = tier_inputs(facts.tiers[tier]) if tier else {}
    return rows | (cooling_inputs(facts.coolings[cooling]) if cooling else {})


def _run(
    found: Prediction, cluster: Cluster, options: Options, rows: dict[str, Input]
) -> Run:  # fmt: skip
    from computeflow.scheduling import Spares
    from computeflow.simulation import find_failures, usual_conditions
    from computeflow.simulation.planned import node_gpus, run_of
    from computeflow.simulation.pools import pool_nodes

    tokens = parse(options["tokens"], "tokens") if options["tokens"] else None
    if (tokens is None) == (options["days"] is None):
        raise click.UsageError("give --tokens (a run that ends when they are trained) or --days")
    given = _settings(options["settings"])
    failures = find_failures(options["failures"]).at(found.layout.gpus)
    site = {name: row.value for name, row in rows.items()}
    met = usual_conditions(failures, node_gpus=node_gpus(cluster, found.layout.gpus), **site)
    days = options["days"]
    run = run_of(
        found, cluster, met, _policy(found, cluster, options),
        label=title_of(found.job, cluster), tokens=tokens, given=given, saving=options["saving"],
        wall_seconds=None if days is None else days * 86400,
    )  # fmt: skip
    if options["spares"] is None:
        spares = Spares(nodes=pool_nodes(run))
        run = replace(run, policy=replace(run.policy, spares=spares),
                      assumed=(*run.assumed, "spares for 99 % of failures"))  # fmt: skip
    return run


def _policy(found: Prediction, cluster: Cluster, options: Options) -> Policy:
    from computeflow.scheduling import Checkpoints, Eviction, Policy, Spares
    from computeflow.simulation.planned import shrinking_of

    interval, steps = options["interval"], options["checkpoint_steps"]
    if interval and steps:
        raise InputError("--interval and --checkpoint-steps say the same: give one")
    seconds = parse(interval, "seconds") if interval else None
    if steps:
        seconds = steps * found.step_seconds
    least = options["shrink"]
    return Policy(
        checkpoints=Checkpoints(interval_seconds=seconds),
        spares=Spares(nodes=options["spares"] or 0),
        eviction=Eviction(stragglers=options["evict"], lemon_failures=options["lemons"]),
        shrinking=None if least is None else shrinking_of(found, cluster, least),
    )


def _settings(texts: tuple[str, ...]) -> dict[str, float]:
    from computeflow.simulation import inputs

    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text!r}: write NAME=VALUE")
        known = inputs().get(name)
        if known is None:
            raise UnknownNameError("condition", name, inputs())
        found[name] = parse(value, "seconds") if known.quantity == "seconds" else _number(text)
    return found


def _number(text: str) -> float:
    """Of NAME=VALUE, where the value has no unit."""
    try:
        value = float(text.partition("=")[2])
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"--set {text}: a plain number from zero up")
    return value


def _more(
    run: Run, known: dict[str, Input], options: Options, data: dict[str, Any]
) -> tuple[list[Table], list[Table | Figure]]:
    """What was asked for beside the run: as tables, as figures, and into `data`."""
    from computeflow.views import simulations as views

    tables: list[Table] = []
    figures: list[Table | Figure] = []
    by_time = run.work_seconds is None
    if options["best"]:
        from computeflow.simulation.curves import interval_curve, spares_curve

        interval = interval_curve(run, seed=options["seed"])
        spares = spares_curve(run, seed=options["seed"])
        data |= {"interval": codec.encode(interval), "spares": codec.encode(spares)}
        tables += [views.interval_table(interval, by_time=by_time),
                   views.spares_table(spares, by_time=by_time)]  # fmt: skip
        figures += [views.interval_figure(interval, by_time=by_time),
                    views.spares_figure(spares, by_time=by_time)]  # fmt: skip
    if options["timeline"]:
        from computeflow.simulation.timeline import timelines

        found = timelines(run, replicas=options["repeats"], seed=options["seed"])
        data["timelines"] = [codec.encode(one) for one in found]
        end = max(one.stretches[-1].end for one in found)
        tables.append(views.timeline_table(found, end))
        figures.append(views.timeline_figure(found))
    if options["sensitivity"]:
        from computeflow.simulation.sensitivity import sensitivities, variations

        swings = sensitivities(run, variations(run, known), seed=options["seed"])
        data["sensitivity"] = [codec.encode(one) for one in swings]
        table = views.sensitivity_table(swings, by_time=by_time)
        tables.append(table)
        figures.append(table)
    return tables, figures


def simulation_data(
    found: Simulation, known: dict[str, Input], usd_per_gpu_hour: float | None = None
) -> dict[str, Any]:
    run = found.run
    spread = ("seconds", "ettr", "goodput", "interruptions", "planned_stops", "spare_waits")
    usd = None if usd_per_gpu_hour is None else codec.encode(found.usd(usd_per_gpu_hour))
    conditions = codec.encode(run.conditions)
    failures = conditions.pop("failures")
    return {
        "schema": "computeflow.simulation/1",
        "label": run.label,
        "gpus": run.gpus,
        "allocated_gpus": run.allocated_gpus,
        "nodes": run.nodes,
        "work_seconds": run.work_seconds,
        "replicas": found.replicas,
        "seed": found.seed,
        **{name: codec.encode(getattr(found, name)) for name in spread},
        "usd_per_gpu_hour": usd_per_gpu_hour,
        "usd": usd,
        "finished": found.finished,
        "mtbi_seconds": found.mtbi_seconds,
        "by_cause": found.by_cause,
        "interval_seconds": found.interval_seconds,
        "closed": codec.encode(found.closed),
        "ledger": ledger_to_data(found.ledger),
        "policy": codec.encode(run.policy),
        "failures": failures,
        "conditions": conditions,
        "inputs": [codec.encode(row) for row in known.values()],
        "assumed": list(run.assumed),
    }


@click.command()
@click.option(
    "--sites",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sites, job and price of your own, in the form of the packaged ones.",
)
@click.option(
    "--draws",
    type=click.IntRange(8, 10_000),
    default=100,
    show_default=True,
    help="Of all inputs, over what they may be.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers.")
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it as a page of Markdown, too.",
)
@catalog_option
@html_option
@output_option
def sites(
    file: Path | None, draws: int, seed: int, page: Path | None, files: tuple[str, ...],
    html: Path | None, output: str,
) -> None:  # fmt: skip
    """The same job at two sites: days and dollars to its end, and where they differ."""
    from computeflow.catalog.files import read_text
    from computeflow.simulation.sites import load_sites
    from computeflow.simulation.two_sites import compare_sites
    from computeflow.views import run_pages as views

    known = load_sites(None if file is None else read_text(file))
    found = compare_sites(known, load_catalog(files), draws=draws, seed=seed)
    tables = [views.sites_table(found), views.lines_table(found)]
    if page is not None:
        write_page(page, views.sites_page(found))
    if html is not None:
        write_report(html, tables[0].title, [tables[0], views.difference_figure(found),
                                             views.site_inputs_table(found)])  # fmt: skip
    names = ("results", "lines", "total", "premium", "assumed_share", "draws", "inputs")
    data = {name: codec.encode(getattr(found, name)) for name in names}
    emit(output, {"schema": "computeflow.sites/1", **data}, tables)


def write_page(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--page {path}: {error.strerror or error}") from None
