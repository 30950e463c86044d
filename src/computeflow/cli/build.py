"""Build or rent: what owning the GPUs costs beside renting them, and after how many months it pays.

Without MODEL: for a 7B, a 70B and a 400B job, with the usual rules and published costs held against it.
"""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.options import CATALOG, MODEL, SEED, TODAY
from computeflow.cli.types import COUNT, PAIR, TOKENS, Count

build = AnswerCommand(
    "build",
    "builds:build",
    [
        MODEL,
        option("--on", default="h100-sxm:1024", metavar="CLUSTER", help="accelerator:count."),
        option("--tokens", type=TOKENS, default="15T", metavar="N", help="Tokens of one run."),
        option("--global-batch", type=COUNT, default=2048, help="Sequences in a step."),
        option("--seq-len", type=COUNT, default=8192, help="Tokens in a sequence."),
        choice(
            "--hall", ("colocation", "own"), "colocation", "Whose building the machines stand in."
        ),
        option(
            "--next",
            default="gb200",
            metavar="NAME",
            help="The accelerator that stands for the next generation; none: do not ask.",
        ),
        option(
            "--set",
            type=PAIR,
            multiple=True,
            metavar="NAME=VALUE",
            help="An input of docs/build.md (busy=0.5, on_demand_usd=2.10); may be repeated.",
        ),
        option(
            "--draws",
            type=Count(8, 100_000),
            default=400,
            help="Draws of all inputs, over what they may be.",
        ),
        flag("--inputs", help="Every input with its source, too."),
        SEED,
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
)
