"""Show a ledger file as a table, or two of them line by line."""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.types import FILE, NUMBER

ledger = AnswerCommand(
    "ledger",
    "ledgers:show_ledger",
    [
        click.Argument(["file"], type=FILE),
        option(
            "--expect",
            type=FILE,
            metavar="FILE",
            help="Ledger file to compare with, at equal model FLOPs.",
        ),
        option(
            "--work-ratio",
            type=NUMBER,
            metavar="R",
            help="With --expect: work in FILE over work in that file, where model FLOPs are unknown.",
        ),
    ],
    help=__doc__ or "",
)
