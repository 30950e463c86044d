"""Estimate in a second what a training takes: FLOPs, GPUs x days, memory, power and dollars."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, option
from computeflow.cli.options import CATALOG, NEEDED_MODEL, TODAY, USUAL_STEP
from computeflow.cli.types import COUNTS, NAMES, TOKENS
from computeflow.workload.job import PRECISIONS

size = AnswerCommand(
    "size",
    "sizes:size",
    [
        NEEDED_MODEL,
        option(
            "--tokens", type=TOKENS, required=True, metavar="N", help="Tokens to train on (2T)."
        ),
        option(
            "--devices",
            type=NAMES,
            help="Accelerators, comma-separated; by default the usual ones.",
        ),
        option(
            "--counts",
            type=COUNTS,
            metavar="NUMBERS",
            help="Numbers of GPUs, comma-separated; by default 64,512,4096.",
        ),
        *USUAL_STEP,
        choice("--precision", PRECISIONS, "bf16", "Number format of the matrix products."),
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
)
