"""What a training takes: FLOPs, GPUs x days, memory, network, power and dollars, in a second."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, option
from computeflow.cli.options import CATALOG, NEEDED_MODEL, TODAY, USUAL_STEP
from computeflow.cli.types import COUNTS, NAMES, TOKENS
from computeflow.workload.layout import PRECISIONS

size = AnswerCommand(
    "size",
    "sizes:size",
    [
        NEEDED_MODEL,
        option(
            "--tokens", type=TOKENS, required=True, metavar="N", help="Tokens to train on (2T)."
        ),
        option("--devices", type=NAMES, help="Accelerators, comma-separated; else usual ones."),
        option(
            "--counts",
            type=COUNTS,
            metavar="NUMBERS",
            help="Numbers of GPUs, comma-separated; else 64,512,4096.",
        ),
        *USUAL_STEP,
        choice("--precision", PRECISIONS, "bf16", "Number format of the matrix products."),
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
)
