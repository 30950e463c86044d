"""Check popular claims about training and its hardware with our own models."""

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
            help="Also write all claims to this Markdown file.",
        ),
        FORCE,
        SEED,
        CATALOG,
    ],
    help=__doc__ or "",
    html=False,
)
