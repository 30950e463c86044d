"""Compare the same job at two sites: days and dollars to its end, and where they differ."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.options import CATALOG, SEED
from computeflow.cli.types import FILE, CountType

compare_sites = AnswerCommand(
    "compare-sites",
    "site_comparisons:compare_sites",
    [
        option(
            "--sites",
            type=FILE,
            metavar="FILE",
            help="TOML file of your own two sites, job and price; by default the packaged ones.",
        ),
        option(
            "--draws",
            type=CountType(8, 10_000),
            default=100,
            help="Random draws of all inputs from their ranges.",
        ),
        SEED,
        option(
            "--page", type=FILE, metavar="FILE", help="Also write the result to this Markdown file."
        ),
        CATALOG,
    ],
    help=__doc__ or "",
)
