"""What limits one site: power, racks, floor, cooling, network; and what lifting each buys.

A limit that is not given is no limit, and the answer says so. `sites` is another command: it runs the
same job at two sites.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from computeflow import codec
from computeflow.catalog import Catalog, load_catalog
from computeflow.cli.output import catalog_option, emit, html_option, output_option, write_report
from computeflow.cli.size import today_option
from computeflow.units import parse


@click.command(help=__doc__)
@click.option(
    "--accelerator",
    default="h100-sxm",
    show_default=True,
    metavar="NAME",
    help="What is to be deployed, in the catalog's usual node.",
)
@click.option("--power", metavar="WATTS", help="Contracted, at the meter (24MW).")
@click.option("--cooling-power", metavar="WATTS", help="Heat that the plant takes away (18MW).")
@click.option("--racks", type=int, help="Positions.")
@click.option("--rack-power", metavar="WATTS", help="That one rack is fed (40kW).")
@click.option("--floor-load", type=float, metavar="KG/M2", help="That the floor carries (1200).")
@click.option("--cooling", metavar="NAME", help="A cooling of the catalog: its density and PUE.")
@click.option("--pue", type=float, help="Measured, in place of the cooling's range.")
@click.option(
    "--cable",
    type=float,
    metavar="METRES",
    help="The longest of the network: 3 copper, 50 multimode, 100 and more single-mode.",
)
@click.option("--switch-ports", type=int, help="Of one switch (64).")
@click.option(
    "--switch-tiers", type=int, default=3, show_default=True, help="Of switches in the network."
)
@click.option(
    "--price",
    metavar="USD",
    help="Of a GPU-hour; left out: the median of the catalog's on-demand prices.",
)
@click.option(
    "--tiers/--no-tiers",
    default=True,
    show_default=True,
    help="What an Uptime tier is worth in training time, simulated.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers.")
@today_option
@catalog_option
@html_option
@output_option
def site(
    files: tuple[str, ...], html: Path | None, output: str, tiers: bool, seed: int, **options: Any
) -> None:  # fmt: skip
    from computeflow.comparison.machines import machine_of
    from computeflow.comparison.site_limits import deploy
    from computeflow.comparison.tiers import tier_worths
    from computeflow.views import site_views as views

    facts = load_catalog(files)
    place = _place(options, facts)
    machine = machine_of(options["accelerator"], facts)
    found = deploy(place, machine)
    price, priced = _price(options, facts)
    others = [deploy(place, one) for one in _machines(facts)]
    lifts = [views.lifts_table(found)] if found.lifts else []
    tables = [views.limits_table(found, price, priced), views.terms_table(found), *lifts,
              views.machines_table(others)]  # fmt: skip
    worths = []
    if tiers and found.gpus:
        node_gpus = facts.nodes[machine.node].count
        worths = tier_worths(
            facts, gpus=found.gpus, node_gpus=node_gpus, usd_per_gpu_hour=price, seed=seed
        )
        tables.append(views.tiers_table(worths, found.gpus, priced))
    if html is not None:
        figure = views.limits_figure(found, price, priced)
        write_report(html, tables[0].title, [figure, *tables[1:]])
    data = {
        "schema": "computeflow.site/1",
        **codec.encode(found),
        "binding": found.binding,
        "next": found.next,
        "usd_per_gpu_hour": price,
        "priced": priced,
        "others": [{"node": one.machine.node, "gpus": one.gpus, "low": one.low, "high": one.high,
                    "binding": one.binding} for one in others],
        "tiers": codec.encode(worths),
    }  # fmt: skip
    emit(output, data, tables)


def _place(options: dict[str, Any], facts: Catalog) -> Any:
    from computeflow.comparison.site_limits import Site

    def watts(name: str) -> float | None:
        return parse(options[name], "watts") if options[name] else None

    cooling = options["cooling"]
    return Site(
        contracted_watts=watts("power"),
        cooling_watts=watts("cooling_power"),
        racks=options["racks"],
        rack_watts=watts("rack_power"),
        floor_kg_per_m2=options["floor_load"],
        cooling=facts.coolings[cooling] if cooling else None,
        pue=options["pue"],
        cable_metres=options["cable"],
        switch_ports=options["switch_ports"],
        switch_tiers=options["switch_tiers"],
    )


def _machines(facts: Catalog) -> list[Any]:
    from computeflow.comparison.machines import machine_of, racked

    return [machine_of(facts.nodes[name].accelerator, facts) for name in racked()]


def _price(options: dict[str, Any], facts: Catalog) -> tuple[float | None, str]:
    """Of a GPU-hour, and where it is from."""
    from computeflow.comparison.rents import aged, find_rents

    if options["price"]:
        return parse(options["price"], "usd"), "as stated"
    rent = find_rents(facts, options["accelerator"]).on_demand
    if rent is None:
        return None, ""
    return rent.middle, (
        f"the median on-demand price of {rent.providers} providers; {aged(rent.dates, options['day'])}"
    )
