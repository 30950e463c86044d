"""Show what owning GPUs costs beside renting them, and after how many months it pays.

Without MODEL: for a 7B, a 70B and a 400B job, beside the usual rules and published costs.
"""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.options import CATALOG, MODEL, SEED, TODAY
from computeflow.cli.types import COUNT, PAIR, TOKENS, CountType

build = AnswerCommand(
    "build",
    "builds:build",
    [
        MODEL,
        option(
            "--on",
            default="h100-sxm:1024",
            metavar="CLUSTER",
            help="Cluster to own: accelerator:count.",
        ),
        option(
            "--tokens", type=TOKENS, default="15T", metavar="N", help="Tokens of one training run."
        ),
        option("--global-batch", type=COUNT, default=2048, help="Sequences per step."),
        option("--seq-len", type=COUNT, default=8192, help="Tokens per sequence."),
        choice(
            "--hall",
            ("colocation", "own"),
            "colocation",
            "Building: rented space in a colocation, or your own.",
        ),
        option(
            "--next",
            default="gb200",
            metavar="NAME",
            help="Accelerator of the next generation; none leaves that question out.",
        ),
        option(
            "--set",
            type=PAIR,
            multiple=True,
            metavar="NAME=VALUE",
            help="Value of an input listed in docs/build.md (busy=0.5); may be repeated.",
        ),
        option(
            "--draws",
            type=CountType(8, 100_000),
            default=400,
            help="Random draws of all inputs from their ranges.",
        ),
        flag("--inputs", help="Also show every input with its source."),
        SEED,
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
)
