"""Read a framework's configuration, predict it, and list what would break or what it costs."""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.job_options import CLUSTER, FORMAT
from computeflow.cli.options import CATALOG
from computeflow.cli.types import COUNT, FILE, USD

OPTIONS = [
    option("--model", metavar="NAME", help="The model, where the file does not name it."),
    option("--global-batch", type=COUNT, help="Sequences in a step, where the file does not say."),
    option("--seq-len", type=COUNT, help="Tokens in a sequence, where the file does not say."),
    option("--stack", metavar="NAME", help="The software; else the framework's own."),
    option("--price", type=USD, help="Dollars per GPU-hour: prices what is lost."),
]

check = AnswerCommand(
    "check",
    "checks:check",
    [click.Argument(["file"], type=FILE), *CLUSTER, FORMAT, *OPTIONS, CATALOG],
    help=__doc__ or "",
)
