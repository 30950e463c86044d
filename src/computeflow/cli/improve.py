"""An ordered path of changes for a job, each with its gain, memory, risk and exact difference.

PATH is a framework's configuration, a launch script or a saved prediction (give --on), or a trace, a
log or a folder of recordings.
"""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.job_options import FORMAT
from computeflow.cli.options import CATALOG
from computeflow.cli.types import COUNT, FILE, NUMBER

OPTIONS = [
    option(
        "--on", metavar="CLUSTER", help="Hardware of a configuration, as h100-sxm:64, or a file."
    ),
    option("--storage", metavar="NAME", help="Storage of the cluster, as the catalog names it."),
    FORMAT,
    option("--model", metavar="NAME", help="Model, where the file does not name it."),
    option("--global-batch", type=COUNT, help="Sequences per step, where the file does not say."),
    option("--seq-len", type=COUNT, help="Tokens per sequence, where the file does not say."),
    option("--measured-mfu", type=NUMBER, metavar="SHARE", help="MFU of the job today, as 0.24."),
    option("--step-seconds", type=NUMBER, metavar="SECONDS", help="Step of the job today."),
]

improve = AnswerCommand(
    "improve",
    "improvements:improve",
    [click.Argument(["path"], type=FILE), *OPTIONS, CATALOG],
    help=__doc__ or "",
)
