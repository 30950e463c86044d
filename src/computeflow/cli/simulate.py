"""Simulate a whole run with failures: when it ends, what it costs, where the time goes."""

from __future__ import annotations

from computeflow.answers.renames import VALUES
from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.job_options import CLUSTER, FROM, JOB, LAYOUT
from computeflow.cli.options import CALIBRATION, CATALOG, MODEL, SEED, STACK
from computeflow.cli.types import COUNT, DURATION, NUMBER, PAIR, TOKENS, USD, CountType
from computeflow.engines import ENGINES
from computeflow.scheduling.policy import RULES

RUN = [
    option(
        "--tokens", type=TOKENS, metavar="N", help="Tokens to train on (15T); give this or --days."
    ),
    option("--days", type=NUMBER, help="Fixed length of the run in days; give this or --tokens."),
    option(
        "--failures",
        default="llama-3",
        metavar="NAME",
        help="Published run or fleet whose failure rates are used (docs/simulate.md).",
    ),
    option(
        "--tier",
        metavar="NAME",
        help="Uptime tier of the site, for its outages; by default those of tier-3.",
    ),
    option(
        "--cooling",
        metavar="NAME",
        help="Cooling of the site, for how much it slows steps; by default not at all.",
    ),
    option(
        "--set",
        multiple=True,
        type=PAIR,
        metavar="NAME=VALUE",
        help="Value of a condition listed in docs/simulate.md (load_seconds=20min); may be repeated.",
    ),
]
POLICY = [
    option(
        "--spares", type=CountType(0), help="Spare nodes; by default enough for 99 % of failures."
    ),
    option(
        "--interval",
        type=DURATION,
        metavar="TIME",
        help="Time between checkpoints (20min); by default Daly's optimum.",
    ),
    choice(
        "--saving",
        ["async", "sync"],
        "async",
        "Whether training continues while a checkpoint is written.",
    ),
    choice(
        "--evict",
        RULES,
        "auto",
        "Whether slow nodes are taken out; auto: where keeping them costs more than a restart, knowing "
        "how long they stay slow; priced: as a controller would, which does not.",
        renamed=VALUES["simulate"]["evict"],
    ),
    option(
        "--retire-after",
        type=COUNT,
        metavar="N",
        help="Failures of a node after which it is not used again; by default it always is.",
    ),
    option(
        "--shrink-to",
        type=COUNT,
        metavar="N",
        help="Without a spare node, continue with at least this many data-parallel replicas; "
        "by default the run waits.",
    ),
]
ANSWER = [
    option("--simulations", type=COUNT, default=1000, help="Number of simulations of the run."),
    SEED,
    choice(
        "--engine", ENGINES, "local", "Where simulations run: on this machine or on a Ray cluster."
    ),
    flag("--best", help="Also find the best checkpoint interval and number of spares."),
    flag("--sensitivity", help="Also show how much the result changes with each input."),
    flag("--timeline", help="Also show a fast, a median and a slow simulation over time."),
    option(
        "--price", type=USD, metavar="USD", help="Price in $ per GPU-hour, paid for spares, too."
    ),
]

simulate = AnswerCommand(
    "simulate",
    "simulations:simulate",
    [MODEL, *CLUSTER, *JOB, *LAYOUT, *FROM, STACK, *RUN, *POLICY, *ANSWER, CALIBRATION, CATALOG],
    help=__doc__ or "",
)
