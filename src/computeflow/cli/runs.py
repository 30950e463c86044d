"""List recorded runs: step time, MFU, goodput, restarts and dollars, the latest first.

DIR is a run folder, or a folder of them; by default the one in which `record` keeps them.
"""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.options import CATALOG
from computeflow.cli.types import FILE

runs = AnswerCommand(
    "runs",
    "run_histories:runs",
    [
        click.Argument(["folder"], required=False, type=FILE, metavar="[DIR]"),
        option(
            "--against",
            metavar="RUN",
            help="Compare step times with this run: its name or its folder.",
        ),
        option(
            "--price",
            metavar="USD",
            help="Dollars for a GPU-hour, or the name of an offer or a provider.",
        ),
        option("--on", metavar="NAME", help="Accelerator, where a run does not name it."),
        CATALOG,
    ],
    help=__doc__ or "",
)
