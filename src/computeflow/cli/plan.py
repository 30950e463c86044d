"""Find the best layouts of a job on a cluster: all are enumerated, a few returned with reasons."""

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
    CountType,
)
from computeflow.planning import OBJECTIVES
from computeflow.prediction.memory import HEADROOM

OPTIONS = [
    option(
        "--tokens",
        type=TOKENS,
        metavar="N",
        help="Tokens to train on (2T), to show days and dollars.",
    ),
    choice("--objective", OBJECTIVES, "time", "Quantity to minimise."),
    option("--top", type=CountType(1, 20), default=5, help="Number of different plans to return."),
    option(
        "--fix",
        type=PAIR,
        multiple=True,
        metavar="NAME=VALUE",
        help="Value of a layout field that is kept (tp=8, schedule=1f1b); may be repeated.",
    ),
    option(
        "--gpus",
        type=SPAN,
        metavar="FROM:TO",
        help="Range of GPU counts to try, doubling, to show time against cost.",
    ),
    option(
        "--pool",
        metavar="CLUSTER",
        help="Second pool of devices: each is planned alone, and both together.",
    ),
    option(
        "--batches",
        type=COUNTS,
        metavar="N,N,...",
        help="Global batches to try; needs --tokens and --critical-batch.",
    ),
    option(
        "--critical-batch",
        type=NUMBER,
        metavar="SEQUENCES",
        help="With --batches: your measured critical batch, which needs twice the fewest tokens.",
    ),
    option("--price", type=USD, metavar="USD", help="Price in $ per GPU-hour."),
    option(
        "--deadline",
        type=DURATION,
        metavar="TIME",
        help="With --tokens: longest time a plan may take (30d).",
    ),
    option(
        "--budget",
        type=USD,
        metavar="USD",
        help="With --tokens and --price: highest cost of a plan in $.",
    ),
    option(
        "--power-cap",
        type=WATTS,
        metavar="WATTS",
        help="Highest mean power per GPU over a step, in W.",
    ),
    option(
        "--headroom",
        type=NUMBER,
        default=HEADROOM,
        help="Share of a device's memory that a plan may use.",
    ),
    option(
        "--export",
        type=FILE,
        metavar="FOLDER",
        help="Folder for the first plan, as files for every framework and launcher that can take it.",
    ),
    option("--command", default="python train.py", help="Command that the launch files start."),
    flag("--explain", help="Also explain why the first plan is best, and what would help."),
    flag("--quick", help="Search only layouts that rest on what published runs tested."),
]

plan = AnswerCommand(
    "plan",
    "plans:plan",
    [MODEL, *CLUSTER, *JOB, *FROM, *OPTIONS, STACK, CATALOG],
    help=__doc__ or "",
)
