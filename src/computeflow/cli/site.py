"""What limits one site: power, racks, floor, cooling, network; and what lifting each buys.

A limit that is not given is no limit, and the answer says so. `sites` is another command: it runs the
same job at two sites.
"""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.options import CATALOG, SEED, TODAY
from computeflow.cli.types import COUNT, NUMBER, USD, WATTS

site = AnswerCommand(
    "site",
    "site_limits:site",
    [
        option(
            "--accelerator",
            default="h100-sxm",
            metavar="NAME",
            help="What is to be deployed, in the catalog's usual node.",
        ),
        option("--power", type=WATTS, help="Contracted power, at the meter (24MW)."),
        option("--cooling-power", type=WATTS, help="Heat that the plant takes away (18MW)."),
        option("--racks", type=COUNT, help="Rack positions."),
        option("--rack-power", type=WATTS, help="Power that one rack is fed (40kW)."),
        option(
            "--floor-load", type=NUMBER, metavar="KG/M2", help="Load that the floor carries (1200)."
        ),
        option("--cooling", metavar="NAME", help="A cooling of the catalog: its density and PUE."),
        option("--pue", type=NUMBER, help="Measured PUE, in place of the cooling's range."),
        option(
            "--cable",
            type=NUMBER,
            metavar="METRES",
            help="The network's longest cable: 3 copper, 50 multimode, 100 and more single-mode.",
        ),
        option("--switch-ports", type=COUNT, help="Ports of one switch (64)."),
        option("--switch-tiers", type=COUNT, default=3, help="Tiers of switches in the network."),
        option(
            "--price",
            type=USD,
            help="$ per GPU-hour; left out: the median of the catalog's on-demand prices.",
        ),
        click.Option(
            ["--tiers/--no-tiers"],
            default=True,
            show_default=True,
            help="What an Uptime tier is worth in training time, simulated.",
        ),
        SEED,
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
)
