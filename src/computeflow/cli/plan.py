"""The best layouts of a job on a cluster: every one enumerated, few returned, each with reasons."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.job_options import CLUSTER, FROM, JOB
from computeflow.cli.options import CATALOG, MODEL, STACK
from computeflow.cli.types import (
    COUNTS,
    DURATION,
    FILE,
    NUMBER,
    PAIR,
    SPAN,
    TOKENS,
    USD,
    WATTS,
    Count,
)
from computeflow.planning import OBJECTIVES
from computeflow.prediction.memory import HEADROOM

OPTIONS = [
    option("--tokens", type=TOKENS, metavar="N",
           help="Tokens to train on (2T): turns steps into days and dollars."),
    choice("--objective", OBJECTIVES, "time", "What is made small."),
    option("--top", type=Count(1, 20), default=5, help="Plans to return, unlike each other."),
    option("--fix", type=PAIR, multiple=True, metavar="NAME=VALUE",
           help="A field of the layout that is given (tp=8, schedule=1f1b); may be repeated."),
    option("--gpus", type=SPAN, metavar="FROM:TO",
           help="Try so many GPUs, doubling, and show time against cost."),
    option("--pool", metavar="CLUSTER",
           help="A second pool of devices: each planned alone, and both together."),
    option("--batches", type=COUNTS, metavar="N,N,...",
           help="Try these global batches; needs --tokens and --critical-batch."),
    option("--critical-batch", type=NUMBER, metavar="SEQUENCES",
           help="Where a larger batch needs twice the least number of tokens: yours, measured."),
    option("--price", type=USD, metavar="USD", help="Dollars per GPU-hour."),
    option("--deadline", type=DURATION, metavar="TIME",
           help="With --tokens: plans must keep it (30d)."),
    option("--budget", type=USD, metavar="USD", help="With --tokens and --price."),
    option("--power-cap", type=WATTS, metavar="WATTS",
           help="Watts of a GPU, in the mean over the step."),
    option("--headroom", type=NUMBER, default=HEADROOM,
           help="Share of a device's memory that a plan may fill."),
    option("--export", type=FILE, metavar="FOLDER",
           help="Write the first plan for every framework and launcher that can take it."),
    option("--command", default="python train.py", help="What the launch files start."),
    flag("--explain", help="Why it is the best, and what would help."),
]  # fmt: skip

plan = AnswerCommand(
    "plan",
    "plans:plan",
    [MODEL, *CLUSTER, *JOB, *FROM, *OPTIONS, STACK, CATALOG],
    help=__doc__ or "",
)
