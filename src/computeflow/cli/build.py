"""Build or rent: what owning the GPUs costs beside renting them, and after how many months it pays.

Without MODEL: for a 7B, a 70B and a 400B job, with the usual rules and published costs held against it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computeflow import codec
from computeflow.catalog import Catalog, load_catalog
from computeflow.cli.output import catalog_option, emit, html_option, output_option, write_report
from computeflow.cli.size import today_option
from computeflow.errors import InputError
from computeflow.units import parse
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.comparison.building import Case, Decision
    from computeflow.views.figures import Figure


_JOB = {
    "place": "--on", "tokens": "--tokens", "global_batch": "--global-batch", "seq_len": "--seq-len",
}  # fmt: skip
MOST_TOKENS = 1e18
"""Far beyond any text there is; above it, times are no numbers any more."""


@click.command(help=__doc__)
@click.argument("model", required=False)
@click.option(
    "--on",
    "place",
    default="h100-sxm:1024",
    show_default=True,
    metavar="CLUSTER",
    help="accelerator:count.",
)
@click.option("--tokens", default="15T", show_default=True, metavar="N", help="Of one run.")
@click.option(
    "--global-batch", type=int, default=2048, show_default=True, help="Sequences in a step."
)
@click.option("--seq-len", type=int, default=8192, show_default=True, help="Tokens in a sequence.")
@click.option(
    "--hall",
    type=click.Choice(["colocation", "own"]),
    default="colocation",
    show_default=True,
    help="Whose building the machines stand in.",
)
@click.option(
    "--next",
    "upgrade",
    default="gb200",
    show_default=True,
    metavar="NAME",
    help="The accelerator that stands for the next generation; none: do not ask.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input of docs/build.md (busy=0.5, on_demand_usd=2.10); may be repeated.",
)
@click.option(
    "--draws",
    type=click.IntRange(8, 100_000),
    default=400,
    show_default=True,
    help="Of all inputs, over what they may be.",
)
@click.option("--inputs", "with_inputs", is_flag=True, help="Every input with its source, too.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers.")
@today_option
@catalog_option
@html_option
@output_option
def build(
    model: str | None, files: tuple[str, ...], html: Path | None, output: str, **options: Any
) -> None:
    facts = load_catalog(files)
    given = _settings(options["settings"])
    if model is None:
        _refuse_job_options()
        _three_jobs(facts, given, html, output, options)
    else:
        _one_job(model, facts, given, html, output, options)


def _refuse_job_options() -> None:
    """They are of MODEL's job; the three packaged jobs have their own."""
    context = click.get_current_context()
    said = click.core.ParameterSource.COMMANDLINE
    for name, option in _JOB.items():
        if context.get_parameter_source(name) is said:
            raise InputError(f"{option} is of MODEL's job: name a model")


def _one_job(
    model: str, facts: Catalog, given: dict[str, float], html: Path | None, output: str,
    options: dict[str, Any],
) -> None:  # fmt: skip
    from computeflow.views import building_views as views

    found = _decided(_case(model, options), facts, given, options)
    tables = [views.decision_table(found, options["day"]), views.swings_table(found),
              views.spending_table(found), views.waste_table(found),
              views.ways_table(found)]  # fmt: skip
    if options["with_inputs"]:
        tables.append(views.inputs_table(found))
    if html is not None:
        parts: list[Table | Figure] = [tables[0], views.break_even_figure(found), *tables[1:]]
        if not options["with_inputs"]:
            parts.append(views.inputs_table(found))
        write_report(html, tables[0].title, parts)
    emit(output, {"schema": "computeflow.build/1", **decision_data(found)}, tables)


def _three_jobs(
    facts: Catalog, given: dict[str, float], html: Path | None, output: str, options: dict[str, Any]
) -> None:
    from computeflow.comparison.building import load_cases
    from computeflow.comparison.building.published import check_published
    from computeflow.comparison.building.rules import rules
    from computeflow.views import building_views as views

    found = {name: _decided(case, facts, given, options) for name, case in load_cases().items()}
    held = rules(found)
    checked = check_published(facts, draws=options["draws"], seed=options["seed"])
    summary = views.decisions_table(found, options["day"])
    swings = [views.swings_table(one, most=3) for one in found.values()]
    rest = [views.rules_table(held), views.published_table(checked)]
    if html is not None:
        figures = [views.break_even_figure(one) for one in found.values()]
        last = next(reversed(found.values()))
        write_report(html, "Build or rent: 7B, 70B and 400B",
                     [summary, *figures, *swings, *rest, views.inputs_table(last)])  # fmt: skip
    titled = [
        Table(title=f"{name}: {table.title}", columns=table.columns, rows=table.rows,
              notes=table.notes)
        for name, table in zip(found, swings, strict=True)
    ]  # fmt: skip
    data = {
        "schema": "computeflow.builds/1",
        "jobs": {name: decision_data(one) for name, one in found.items()},
        "rules": codec.encode(held),
        "published": [
            codec.encode(one) | {"agrees": one.agrees, "off": one.off} for one in checked
        ],
    }
    emit(output, data, [summary, *titled, *rest])


def _decided(
    case: Case, facts: Catalog, given: dict[str, float], options: dict[str, Any]
) -> Decision:
    from computeflow.comparison.building import decide, need_of

    upgrade = None if options["upgrade"] == "none" else options["upgrade"]
    return decide(
        need_of(case, facts, seed=options["seed"]), facts, hall=options["hall"], given=given,
        upgrade=upgrade, draws=options["draws"], seed=options["seed"],
    )  # fmt: skip


def _case(model: str, options: dict[str, Any]) -> Case:
    from computeflow.comparison.building import Case

    name, colon, count = options["place"].rpartition(":")
    if not colon or not count.isdecimal() or int(count) < 1:
        raise InputError(f"--on {options['place']}: write accelerator:count (h100-sxm:1024)")
    tokens = parse(options["tokens"], "tokens")
    if not 0 < tokens <= MOST_TOKENS:
        raise InputError(f"--tokens {options['tokens']}: more than zero, at most {MOST_TOKENS:.0e}")
    return Case(
        name=model, model=model, on=name, gpus=int(count), tokens=tokens,
        global_batch=options["global_batch"], seq_len=options["seq_len"], source="stated",
        as_of="2026",
    )  # fmt: skip


def _settings(texts: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text!r}: write NAME=VALUE")
        try:
            found[name] = float(value)
        except ValueError:
            raise InputError(f"--set {text!r}: {value!r} is not a number") from None
    return found


def decision_data(found: Decision) -> dict[str, Any]:
    """Field for field, but for the run's ledger, which is given by its dollars."""
    names = (
        "break_even",
        "never",
        "build_by",
        "busy_even",
        "one_run",
        "life",
        "gap",
        "gap_months",
        "gap_draws",
        "spending",
        "waste",
        "ways",
    )
    need = found.need
    return {
        "case": codec.encode(need.case),
        "days": need.days,
        "days_range": need.days_range,
        "goodput": need.goodput,
        "gpu_hours": need.gpu_hours,
        "fleet": codec.encode(found.fleet),
        **{name: codec.encode(getattr(found, name)) for name in names},
        "swings": [
            {"input": swing.input.name, "gap_low": swing.gap_low, "gap_high": swing.gap_high,
             "months_low": swing.months_low, "months_high": swing.months_high}
            for swing in found.swings
        ],
        "curve": codec.encode(found.curve),
        "inputs": {name: codec.encode(row) for name, row in found.inputs.items()},
        "draws": found.draws,
        "assumed": list(need.assumed),
    }  # fmt: skip
