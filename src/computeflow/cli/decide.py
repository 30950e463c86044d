"""Decide where to train: rent or build, which product, how many GPUs, days and dollars, with risks."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.options import CATALOG, NEEDED_MODEL, SEED, TODAY, USUAL_STEP
from computeflow.cli.types import COUNT, DURATION, FILE, NAMES, TOKENS, USD
from computeflow.workload.job import PRECISIONS

decide = AnswerCommand(
    "decide",
    "decisions:decide",
    [
        NEEDED_MODEL,
        option(
            "--tokens", type=TOKENS, required=True, metavar="N", help="Tokens to train on (2T)."
        ),
        option(
            "--deadline",
            type=DURATION,
            help="Deadline that the P90 of the run must meet (30d); by default 60d.",
        ),
        option("--budget", type=USD, help="Most that the run may cost, in $."),
        option(
            "--countries",
            type=NAMES,
            help="Countries or eu, comma-separated (france,eu); offers in unknown ones are left out.",
        ),
        option("--providers", type=NAMES, help="Providers, comma-separated; by default all."),
        option("--devices", type=NAMES, help="Accelerators, comma-separated; by default all."),
        flag("--unproven", help="Also allow devices of which no run was measured."),
        flag(
            "--conservative", help="Meet the deadline at the slow end of the predicted range, too."
        ),
        *USUAL_STEP,
        choice("--precision", PRECISIONS, "bf16", "Number format of the matrix products."),
        option(
            "--max-gpus", type=COUNT, default=16384, help="Largest cluster to consider, in GPUs."
        ),
        option(
            "--terms",
            type=FILE,
            metavar="FILE",
            help="TOML file of terms you have from providers (docs/compare.md).",
        ),
        option("--simulations", type=COUNT, default=50, help="Simulations of each run."),
        SEED,
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
)
