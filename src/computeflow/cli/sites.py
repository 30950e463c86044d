"""The same job at two sites: days and dollars to its end, and where they differ."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.options import CATALOG, SEED
from computeflow.cli.types import FILE, Count

sites = AnswerCommand(
    "sites",
    "site_comparisons:sites",
    [
        option(
            "--sites",
            type=FILE,
            metavar="FILE",
            help="Sites, job and price of your own, in the form of the packaged ones.",
        ),
        option(
            "--draws",
            type=Count(8, 10_000),
            default=100,
            help="Draws of all inputs, over what they may be.",
        ),
        SEED,
        option("--page", type=FILE, metavar="FILE", help="Write it as a page of Markdown, too."),
        CATALOG,
    ],
    help=__doc__ or "",
)
