"""Read a framework's configuration, predict it, and list mistakes and losses."""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.job_options import CLUSTER, FORMAT
from computeflow.cli.options import CATALOG
from computeflow.cli.types import COUNT, FILE, USD

OPTIONS = [
    option("--model", metavar="NAME", help="Model, where the file does not name it."),
    option("--global-batch", type=COUNT, help="Sequences per step, where the file does not say."),
    option("--seq-len", type=COUNT, help="Tokens per sequence, where the file does not say."),
    option("--stack", metavar="NAME", help="Software stack; by default the framework's own."),
    option("--price", type=USD, help="Price that turns losses into dollars, in $ per GPU-hour."),
]

check = AnswerCommand(
    "check",
    "checks:check",
    [click.Argument(["file"], type=FILE), *CLUSTER, FORMAT, *OPTIONS, CATALOG],
    help=__doc__ or "",
)
