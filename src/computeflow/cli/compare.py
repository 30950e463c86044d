"""Every offer of the catalog for a job: best plan, simulated days, dollars by term, energy, carbon."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.options import CATALOG, NEEDED_MODEL, SEED, TODAY, USUAL_STEP
from computeflow.cli.types import (
    AMOUNTS,
    BYTES,
    COUNT,
    DURATION,
    FILE,
    NAMES,
    NUMBER,
    RATE,
    TOKENS,
    USD,
    Count,
)
from computeflow.workload.layout import PRECISIONS

_WORKLOADS = ("frontier", "production", "exploration", "serving", "agentic")
_REQUEST = [
    option("--tokens", type=TOKENS, metavar="N", help="Tokens to train on (2T)."),
    option("--deadline", type=DURATION, help="Deadline for the P90 of the run (30d)."),
    flag("--sure", help="Keep the deadline over the range of the predicted step, too."),
    option("--budget", type=USD, help="Budget of the run; without an offer under it: exit 3."),
    choice("--workload", _WORKLOADS, "production", "What the answer is for."),
    *USUAL_STEP,
    choice("--precision", PRECISIONS, None,
           "Number format; else bf16, for serving and agentic fp8."),
]  # fmt: skip
_OFFERS = [
    option("--providers", type=NAMES,
           help="Comma-separated, as all lists here; none: the sites of --sites only."),
    option("--sites", type=FILE, metavar="FILE",
           help="Sites of your own, beside the offers: machines, price, limits (docs/compare.md)."),
    option("--regions", type=NAMES, help="Parts of regions' names."),
    option("--countries", type=NAMES, help="Sovereignty: france,eu. Not known is out."),
    option("--devices", type=NAMES, help="Accelerators."),
    option("--least-gpus", type=COUNT, default=1, help="Contiguous GPUs that an offer must have."),
    option("--most-gpus", type=COUNT, default=16384, help="GPUs of the largest cluster considered."),
    flag("--known-networks", help="Leave out machines whose network is not known."),
    option("--terms", type=FILE, metavar="FILE",
           help="What you know of providers: tier, cooling, storage, limits, egress "
           "(docs/compare.md)."),
    option("--preemptions", type=NUMBER,
           help="Preemptions of a spot machine in a day; else 0.05."),
    option("--replace", type=DURATION, help="Until another machine is there; else 30min."),
]  # fmt: skip
_BESIDE = [
    option("--data", type=BYTES, help="Data to bring to the run (50TB), with --data-at."),
    option("--data-at", metavar="PROVIDER", help="Where the data lies."),
    option("--line", type=RATE, help="Rate of your line between clouds (40Gb/s)."),
    option("--runs", type=COUNT, help="So many runs, split over providers."),
    option("--demand", type=AMOUNTS, metavar="GPUS",
           help="GPUs by month, comma-separated: what to own of them."),
    option("--owned-price", type=USD, help="$ per GPU-hour of an owned GPU, for --demand."),
    option("--hourly", type=FILE, metavar="FILE",
           help="CSV of hours with prices and carbon: when to start."),
]  # fmt: skip
_SERVING = [
    option("--users", metavar="REGION", help="Where users are, for serving and agentic."),
    option("--calls", type=COUNT, default=1, help="Calls of a chain."),
    option("--hops", type=COUNT, default=1, help="Hops of one call."),
    option("--onramp", type=DURATION, help="Time of users to the backbone, per hop (10ms)."),
    option("--prompt", type=Count(0), default=1024, help="Tokens of a prompt."),
    option("--answer", type=COUNT, default=256, help="Tokens of an answer."),
]  # fmt: skip
compare = AnswerCommand(
    "compare",
    "comparisons:compare",
    [
        NEEDED_MODEL,
        *_REQUEST,
        *_OFFERS,
        *_BESIDE,
        *_SERVING,
        option("--top", type=COUNT, default=10, help="Machine types to show."),
        option("--simulations", type=COUNT, default=50, help="How often a run is simulated."),
        SEED,
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
    renamed={"--repeats": "--simulations"},
)
