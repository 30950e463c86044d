"""Simulate a whole run with failures: when it ends, what it costs, where the time goes."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.job_options import CLUSTER, FROM, JOB, LAYOUT
from computeflow.cli.options import CALIBRATION, CATALOG, MODEL, SEED, STACK
from computeflow.cli.types import COUNT, DURATION, NUMBER, PAIR, TOKENS, USD, Count
from computeflow.engines import ENGINES
from computeflow.scheduling.eviction import RULES

RUN = [
    option("--tokens", type=TOKENS, metavar="N", help="Tokens to train on (15T); or --days."),
    option("--days", type=NUMBER, help="How long the run goes on, whatever it does."),
    option("--failures", default="llama-3", metavar="NAME",
           help="How often nodes fail: a published run or fleet (docs/simulate.md)."),
    option("--tier", metavar="NAME", help="The site's Uptime tier, for its outages."),
    option("--cooling", metavar="NAME",
           help="The site's cooling, for how it slows steps down."),
    option("--set", multiple=True, type=PAIR, metavar="NAME=VALUE",
           help="A condition of docs/simulate.md (load_seconds=20min); may be repeated."),
]  # fmt: skip
POLICY = [
    option("--spares", type=Count(0), help="Nodes that stand by; left out: for 99 % of failures."),
    option("--interval", type=DURATION, metavar="TIME",
           help="Work between two saves (20min); left out: Daly's."),
    choice("--saving", ["async", "sync"], "async",
           "Whether training goes on while a save is written."),
    choice("--evict", RULES, "worth", "Whether slow nodes are taken out."),
    option("--lemons", type=COUNT, metavar="N",
           help="Failures after which a node is not taken back."),
    option("--shrink", type=COUNT, metavar="N",
           help="Without a spare, go on with no fewer data-parallel replicas than these."),
]  # fmt: skip
ANSWER = [
    option("--simulations", type=COUNT, default=1000, help="How often the run is simulated."),
    SEED,
    choice("--engine", ENGINES, "local", "Where it is simulated; the answer is the same."),
    flag("--best", help="The best checkpoint interval and number of spares, too."),
    flag("--sensitivity", help="What each input does to the answer, too."),
    flag("--timeline", help="A fast, a median and a slow simulation over time, too."),
    option("--price", type=USD, metavar="USD", help="Price of a GPU-hour, spares included ($2.49)."),
]  # fmt: skip

simulate = AnswerCommand(
    "simulate",
    "simulations:simulate",
    [MODEL, *CLUSTER, *JOB, *LAYOUT, *FROM, STACK, *RUN, *POLICY, *ANSWER, CALIBRATION, CATALOG],
    help=__doc__ or "",
    renamed={"--repeats": "--simulations"},
)
