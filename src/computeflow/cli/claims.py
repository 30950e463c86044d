"""What popular documents claim about training and its hardware, checked with our own models."""

from __future__ import annotations

import click

from computeflow.cli.command import FORCE, AnswerCommand, option
from computeflow.cli.options import CATALOG, SEED
from computeflow.cli.types import FILE

claims = AnswerCommand(
    "claims",
    "claim_checks:claims",
    [
        click.Argument(["names"], nargs=-1),
        option(
            "--page",
            type=FILE,
            metavar="FILE",
            help="Write all of them as a page of Markdown, too.",
        ),
        FORCE,
        SEED,
        CATALOG,
    ],
    help=__doc__ or "",
    html=False,
)
