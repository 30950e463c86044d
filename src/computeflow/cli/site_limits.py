"""Find how many GPUs a site takes, what limits it, and what lifting each limit brings.

Limits are power, racks, floor, cooling and network. One that is not given is no limit, and the answer
says so.
"""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.options import CATALOG, SEED, TODAY
from computeflow.cli.types import COUNT, NUMBER, USD, WATTS

site_limits = AnswerCommand(
    "site-limits",
    "site_capacity:site_limits",
    [
        option(
            "--accelerator",
            default="h100-sxm",
            metavar="NAME",
            help="Accelerator to deploy, in its usual node of the catalog.",
        ),
        option("--power", type=WATTS, help="Contracted power at the meter (24MW)."),
        option("--cooling-power", type=WATTS, help="Heat that the cooling plant removes (18MW)."),
        option("--racks", type=COUNT, help="Number of rack positions."),
        option("--rack-power", type=WATTS, help="Power feed of one rack (40kW)."),
        option(
            "--floor-load", type=NUMBER, metavar="KG/M2", help="Floor load limit in kg/m2 (1200)."
        ),
        option(
            "--cooling", metavar="NAME", help="Cooling of the catalog, for its density and PUE."
        ),
        option("--pue", type=NUMBER, help="Measured PUE; by default the cooling's range."),
        option(
            "--cable",
            type=NUMBER,
            metavar="METRES",
            help="Longest network cable in m: 3 copper, 50 multimode, 100 and more single-mode.",
        ),
        option("--switch-ports", type=COUNT, help="Ports per switch (64)."),
        option("--switch-tiers", type=COUNT, default=3, help="Switch tiers of the network."),
        option(
            "--price",
            type=USD,
            help="Price in $ per GPU-hour; by default the catalog's median on-demand price.",
        ),
        click.Option(
            ["--tiers/--no-tiers"],
            default=True,
            show_default=True,
            help="Also simulate how much training time each Uptime tier is worth.",
        ),
        SEED,
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
)
