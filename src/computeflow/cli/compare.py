"""Every offer of the catalog for a job: best plan, simulated days, dollars by term, energy, carbon."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from computeflow.catalog import Catalog, find_model, load_catalog
from computeflow.catalog.files import read_text
from computeflow.cli.output import catalog_option, emit, html_option, output_option, write_report
from computeflow.cli.size import names, numbers, today_option
from computeflow.errors import InputError
from computeflow.units import parse
from computeflow.workload.layout import PRECISIONS

if TYPE_CHECKING:
    from computeflow.comparison.compare import Ask
    from computeflow.comparison.moving import Move
    from computeflow.comparison.offers import Offering
    from computeflow.comparison.results import Comparison, Result
    from computeflow.comparison.terms import Book
    from computeflow.views.tables import Table

Options = dict[str, Any]
_TRAINING = ("frontier", "production", "exploration")
_SERVING = ("serving", "agentic")
_NO_PROVIDER = ("none",)
_OF_TRAINING = (
    "tokens", "deadline", "sure", "budget", "sites", "countries", "global_batch", "seq_len",
    "least_gpus", "most_gpus", "preemptions", "replace", "known_networks", "terms", "data",
    "data_at", "line", "runs", "demand", "owned_price", "hourly", "top", "repeats", "seed",
)  # fmt: skip
_OF_SERVING = ("users", "calls", "hops", "onramp", "prompt", "answer")


@click.command(help=__doc__)
@click.argument("model")
@click.option("--tokens", metavar="N", help="To train on (2T).")
@click.option("--deadline", metavar="TIME", help="For the P90 of the run (30d).")
@click.option(
    "--sure", is_flag=True, help="Keep the deadline over the range of the predicted step, too."
)
@click.option("--budget", metavar="USD", help="For the run; without an offer under it: exit 3.")
@click.option(
    "--providers",
    metavar="NAMES",
    help="Comma-separated, as all lists here; none: the sites of --sites only.",
)
@click.option(
    "--sites",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sites of your own, beside the offers: machines, price, limits (docs/compare.md).",
)
@click.option("--regions", metavar="NAMES", help="Parts of regions' names.")
@click.option("--countries", metavar="NAMES", help="Sovereignty: france,eu. Not known is out.")
@click.option("--devices", metavar="NAMES", help="Accelerators.")
@click.option(
    "--workload",
    type=click.Choice([*_TRAINING, *_SERVING]),
    default="production",
    show_default=True,
    help="What the answer is for.",
)
@click.option(
    "--global-batch", type=click.IntRange(1), help="Sequences in a step; else 8 M tokens."
)
@click.option("--seq-len", type=click.IntRange(1), help="Tokens in a sequence; else 8192.")
@click.option(
    "--precision", type=click.Choice(PRECISIONS), help="Else bf16; of serving and agentic fp8."
)
@click.option(
    "--least-gpus", type=click.IntRange(1), default=1, show_default=True, help="Contiguous."
)
@click.option(
    "--most-gpus", type=click.IntRange(1), default=16384, show_default=True, help="Considered."
)
@click.option("--preemptions", type=float, help="Of a spot machine in a day; else 0.05.")
@click.option("--replace", metavar="TIME", help="Until another machine is there; else 30min.")
@click.option(
    "--known-networks", is_flag=True, help="Leave out machines whose network is not known."
)
@click.option(
    "--terms",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What you know of providers: tier, cooling, storage, limits, egress (docs/compare.md).",
)
@click.option("--data", metavar="BYTES", help="To bring to the run (50TB), with --data-at.")
@click.option("--data-at", metavar="PROVIDER", help="Where the data lies.")
@click.option("--line", metavar="RATE", help="Of your line between clouds (40Gb/s).")
@click.option("--runs", type=click.IntRange(1), help="So many runs, split over providers.")
@click.option("--demand", metavar="GPUS", help="By month, comma-separated: what to own of it.")
@click.option("--owned-price", type=float, help="$ per GPU-hour of an owned GPU, for --demand.")
@click.option(
    "--hourly",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="CSV of hours with prices and carbon: when to start.",
)
@click.option("--users", metavar="REGION", help="Of --workload serving and agentic.")
@click.option("--calls", type=click.IntRange(1), default=1, show_default=True, help="Of a chain.")
@click.option("--hops", type=click.IntRange(1), default=1, show_default=True, help="Of one call.")
@click.option("--onramp", metavar="TIME", help="Of your users to the backbone, per hop (10ms).")
@click.option("--prompt", type=click.IntRange(0), default=1024, show_default=True, help="Tokens.")
@click.option("--answer", type=click.IntRange(1), default=256, show_default=True, help="Tokens.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="To show.")
@click.option(
    "--repeats", type=click.IntRange(1), default=50, show_default=True, help="Of a simulated run."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@today_option
@catalog_option
@html_option
@output_option
def compare(
    model: str, files: tuple[str, ...], html: Path | None, output: str, **options: Any
) -> int:
    _check(options)
    facts = load_catalog(files)
    if options["workload"] in _SERVING:
        _serve(model, facts, options, html, output)
        return 0
    from computeflow.comparison.compare import compare as compared
    from computeflow.comparison.serialise import advice_data, comparison_data
    from computeflow.comparison.workloads import advise
    from computeflow.views import comparisons as views

    offers, moves = _offers(facts, options)
    found = compared(_ask(model, facts, options, moves), offers, facts)
    advice = advise(found, options["workload"])
    data = comparison_data(found) | {"advice": advice_data(advice)}
    tables = [*views.comparison_tables(found, options["top"]), views.advice_table(advice)]
    tables += _beside(found, advice.result, facts, options, data)
    if found.refused:
        tables.append(views.refused_table(found, 6))
    if html is not None:
        summary, *rest = tables
        figures = [views.front_figure(found)] if found.results else []
        write_report(html, f"Offers for {model}", [summary, *figures, *rest])
    emit(output, data, tables)
    placed = not data.get("split", {}).get("left")
    return 0 if found.meeting and placed else 3


def _check(options: Options) -> None:
    """What can be told before the work is told before it."""
    serving = options["workload"] in _SERVING
    source = click.get_current_context().get_parameter_source
    for name in _OF_TRAINING if serving else _OF_SERVING:
        if source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is not for --workload {options['workload']}"
            )
    if serving:
        if options["workload"] == "agentic" and not options["users"]:
            raise click.UsageError("--workload agentic needs --users REGION")
        return
    missing = [f"--{name}" for name in ("tokens", "deadline") if not options[name]]
    if missing:
        raise click.UsageError(f"missing {' and '.join(missing)}")
    for one, other in (("data", "data_at"), ("demand", "owned_price")):
        if (options[one] is None) != (options[other] is None):
            raise click.UsageError(f"--{one} and --{other.replace('_', '-')} go together")
    if options["line"] and not options["data"]:
        raise click.UsageError("--line goes with --data")
    numbers("--demand", options["demand"])


def _offers(facts: Catalog, options: Options) -> tuple[list[Offering], dict[str, Move]]:
    """The catalog's and the user's own, with what it takes to bring the data to each."""
    from computeflow.comparison.offers import ASSUMED_NIC, offerings, within
    from computeflow.comparison.own_sites import own_offerings
    from computeflow.comparison.terms import load_terms

    book = load_terms(
        read_text(options["terms"]) if options["terms"] else None, str(options["terms"]),
        providers={*(row.name for row in facts.providers), *(row.provider for row in facts.offers)},
    )  # fmt: skip
    providers, sites = names(options["providers"]), options["sites"]
    own = own_offerings(read_text(sites), str(sites), facts) if sites else []
    rented: list[Offering] = []
    mine = {offer.provider for offer in own}
    others = tuple(name for name in providers if name not in mine)
    if not own or (others != _NO_PROVIDER and (others or not providers)):
        rented = offerings(
            facts, book, providers=others, regions=names(options["regions"]),
            accelerators=names(options["devices"]),
            assumed_nic=None if options["known_networks"] else ASSUMED_NIC,
        )  # fmt: skip
    offers = within([*own, *rented], facts, names(options["countries"]))
    return offers, _moves(dict.fromkeys(offer.provider for offer in offers), book, facts, options)


def _ask(model: str, facts: Catalog, options: Options, moves: dict[str, Move]) -> Ask:
    from computeflow.comparison.compare import Ask
    from computeflow.comparison.living import Market
    from computeflow.comparison.quick import usual_job

    market = {}
    if options["preemptions"] is not None:
        market["preemptions_per_node_day"] = options["preemptions"]
    if options["replace"] is not None:
        market["replace_seconds"] = parse(options["replace"], "seconds")
    return Ask(
        job=usual_job(
            find_model(facts, model), global_batch=options["global_batch"],
            seq_len=options["seq_len"], precision=options["precision"] or "bf16",
        ),
        tokens=parse(options["tokens"], "tokens"),
        deadline_seconds=parse(options["deadline"], "seconds"),
        budget_usd=parse(options["budget"], "usd") if options["budget"] else None,
        today=options["day"],
        most_gpus=options["most_gpus"],
        least_gpus=options["least_gpus"],
        sure=options["sure"],
        market=Market(**market),
        moves=moves,
        replicas=options["repeats"],
        seed=options["seed"],
    )  # fmt: skip


def _beside(
    found: Comparison, answer: Result | None, facts: Catalog, options: Options,
    data: dict[str, Any],
) -> list[Table]:  # fmt: skip
    """What was asked for beside the comparison, and the answer in full."""
    from computeflow import codec
    from computeflow.comparison.splitting import split
    from computeflow.views import comparisons, elsewhere

    best = answer or (found.meeting[0] if found.meeting else found.nearest)
    tables = [comparisons.detail_table(best)] if best is not None else []
    if found.ask.moves:
        targets = dict.fromkeys(result.offering.provider for result in found.results)
        moves = [found.ask.moves[target] for target in targets or found.ask.moves]
        data["moves"] = [codec.encode(one) for one in moves]
        tables.append(elsewhere.moves_table(moves[: options["top"]]))
    if options["runs"]:
        shares = split(found, options["runs"], options["workload"])
        data["split"] = {
            "runs": shares.runs, "left": shares.left, "usd": shares.usd,
            "shares": [{"offer": s.result.offering.name, "term": s.cost.term, "runs": s.runs,
                        "at_once": s.at_once, "usd": s.usd, "limit_known": s.limit_known}
                       for s in shares.shares],
        }  # fmt: skip
        tables.append(elsewhere.split_table(shares))
    if options["demand"]:
        tables.append(_hybrid(found, options, data))
    if best is not None and best.metered.energy.joules is not None:
        from computeflow.comparison.offers import meant_countries
        from computeflow.comparison.terms import country_of
        from computeflow.comparison.windows import regions_by_energy

        within = meant_countries(facts, names(options["countries"]))
        allowed = [row.name for row in facts.grids if not within or country_of(row) in within]
        grids = regions_by_energy(best.metered.energy.joules, facts, allowed)
        here = best.offering.grid.name if best.offering.grid else "a region that is not known"
        data["grids"] = [codec.encode(one) for one in grids]
        tables.append(elsewhere.grids_table(grids, here, 5))
    if best is not None:
        tables.append(_starts(best.seconds[0], options, data))
    return tables


def _moves(targets: Iterable[str], book: Book, facts: Catalog, options: Options) -> dict[str, Move]:
    """Of the data to each provider; empty where none are to be moved."""
    from computeflow.comparison.moving import data_home, move

    if options["data"] is None:
        return {}
    providers = [*(row.name for row in facts.providers), *targets]
    home = data_home(options["data_at"], providers, book)
    size = parse(options["data"], "bytes")
    line = parse(options["line"], "bytes_per_second") if options["line"] else None
    return {target: move(size, home, target, book, line=line) for target in targets}


def _hybrid(found: Comparison, options: Options, data: dict[str, Any]) -> Table:
    from computeflow import codec
    from computeflow.comparison.splitting import MONTH_HOURS, hybrid
    from computeflow.views.elsewhere import hybrid_table

    rents = [(one, cost) for one in found.results if (cost := one.cost("on-demand")) is not None]
    if not rents:
        raise InputError("--demand: no offer that runs the job has an on-demand price to rent at")
    place, best = min(rents, key=lambda pair: pair[1].usd)
    mixed = hybrid(
        numbers("--demand", options["demand"]), period_hours=MONTH_HOURS,
        owned_usd=options["owned_price"], rented_usd=best.usd_per_device_hour,
    )  # fmt: skip
    data["hybrid"] = codec.encode(mixed)
    rented = f"{place.offering.name} at {best.usd_per_device_hour:.2f} $/h"
    return hybrid_table(mixed, rented)


def _starts(seconds: float, options: Options, data: dict[str, Any]) -> Table:
    from computeflow import codec
    from computeflow.comparison.windows import MISSING, best_starts, read_hours
    from computeflow.views.elsewhere import note_table, starts_table

    if options["hourly"] is None:
        data["starts"] = {"missing": MISSING}
        return note_table("When to start", MISSING)
    hours = read_hours(read_text(options["hourly"]), str(options["hourly"]))
    starts = []
    for field, what in (("usd_per_kwh", "price"), ("grams_per_kwh", "carbon")):
        if hours and all(getattr(hour, field) is not None for hour in hours):
            starts.append((what, best_starts(hours, seconds, field)))
    if not starts:
        raise InputError(f"{options['hourly']}: no column has a figure for every hour")
    data["starts"] = {what: codec.encode(start) for what, start in starts}
    return starts_table(starts)


def _serve(model: str, facts: Catalog, options: Options, html: Path | None, output: str) -> None:
    from computeflow import codec
    from computeflow.comparison.offers import chosen_offers
    from computeflow.comparison.serving import SOURCE, USUAL, chains, served
    from computeflow.comparison.size import DEVICES
    from computeflow.views.elsewhere import chains_table, served_table

    row = find_model(facts, model)
    prompt, answer = options["prompt"], options["answer"]
    offers = chosen_offers(facts, names(options["providers"]), names(options["regions"]), ())
    found = served(row, facts, names(options["devices"]) or DEVICES, prompt=prompt, output=answer,
                   precision=options["precision"] or USUAL, offers=offers)  # fmt: skip
    tables = [served_table(found, row.name, prompt, answer)]
    data: dict[str, Any] = {
        "schema": "computeflow.serving/1", "model": row.name, "coarse": True,
        "served": [codec.encode(one) for one in found],
    }  # fmt: skip
    if options["users"]:
        onramp = parse(options["onramp"], "seconds") if options["onramp"] else 0.0
        trips = chains(options["users"], calls=options["calls"], hops=options["hops"],
                       onramp_seconds=onramp)  # fmt: skip
        data["chains"] = [codec.encode(one) for one in trips]
        tables.append(chains_table(trips, options["calls"], options["hops"], SOURCE))
    if html is not None:
        write_report(html, tables[0].title, tables)
    emit(output, data, tables)
