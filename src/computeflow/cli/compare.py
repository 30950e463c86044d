"""Compare every offer for a job: best plan, simulated days, dollars by term, energy, carbon."""

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
    CountType,
)
from computeflow.workload.job import PRECISIONS

_WORKLOADS = ("frontier", "production", "exploration", "serving", "agentic")
_REQUEST = [
    option(
        "--tokens", type=TOKENS, metavar="N", help="Tokens to train on (2T); needed for training."
    ),
    option(
        "--deadline",
        type=DURATION,
        help="Deadline that the P90 of the run must meet (30d); by default 60d.",
    ),
    flag("--conservative", help="Meet the deadline at the slow end of the predicted range, too."),
    option(
        "--budget", type=USD, help="Budget of the run in $; exit with 3 if no offer is within it."
    ),
    choice("--workload", _WORKLOADS, "production", "Kind of work that the advice is for."),
    *USUAL_STEP,
    choice(
        "--precision",
        PRECISIONS,
        None,
        "Number format of the matrix products; by default bf16, and fp8 for serving and agentic.",
    ),
]
_OFFERS = [
    option(
        "--providers",
        type=NAMES,
        help="Providers, comma-separated; none leaves only the sites of --sites.",
    ),
    option(
        "--sites",
        type=FILE,
        metavar="FILE",
        help="TOML file of your own sites: machines, price, limits (docs/compare.md).",
    ),
    option(
        "--regions", type=NAMES, help="Regions whose name contains one of these, comma-separated."
    ),
    option(
        "--countries",
        type=NAMES,
        help="Countries or eu, comma-separated (france,eu); offers in unknown ones are left out.",
    ),
    option("--devices", type=NAMES, help="Accelerators, comma-separated; by default all."),
    option(
        "--min-gpus",
        type=COUNT,
        default=1,
        help="Smallest cluster to consider, in contiguous GPUs.",
    ),
    option("--max-gpus", type=COUNT, default=16384, help="Largest cluster to consider, in GPUs."),
    flag("--unproven", help="Also recommend devices of which no run was measured."),
    flag("--known-networks", help="Leave out machines whose network is unknown."),
    option(
        "--terms",
        type=FILE,
        metavar="FILE",
        help="TOML file of terms you have from providers: tier, cooling, storage, limits, egress "
        "(docs/compare.md).",
    ),
    option(
        "--preemptions", type=NUMBER, help="Preemptions of a spot machine per day; by default 0.05."
    ),
    option(
        "--replacement-time",
        type=DURATION,
        help="Time until a lost rented machine is replaced; by default 30min.",
    ),
]
_BESIDE = [
    option(
        "--data",
        type=BYTES,
        help="With --data-at: size of the data to move to the provider (50TB).",
    ),
    option("--data-at", metavar="PROVIDER", help="With --data: provider that stores the data."),
    option(
        "--transfer-rate",
        type=RATE,
        help="With --data: rate of your link between clouds (40Gb/s); by default 10 and 100 Gb/s.",
    ),
    option("--runs", type=COUNT, help="Number of runs to split over providers."),
    option(
        "--demand",
        type=AMOUNTS,
        metavar="GPUS",
        help="GPUs needed in each month, comma-separated: shows how many to own.",
    ),
    option(
        "--owned-price", type=USD, help="With --demand: cost of an owned GPU in $ per GPU-hour."
    ),
    option(
        "--hourly",
        type=FILE,
        metavar="FILE",
        help="CSV of hours with prices and carbon: shows when to start.",
    ),
]
_SERVING = [
    option("--users", metavar="REGION", help="Region of the users, for serving and agentic."),
    option(
        "--calls", type=COUNT, default=1, help="Model calls in a chain, for serving and agentic."
    ),
    option("--hops", type=COUNT, default=1, help="Network hops per call, for serving and agentic."),
    option(
        "--access-latency",
        type=DURATION,
        help="Latency from the users to the backbone, per hop (10ms); by default 0.",
    ),
    option(
        "--prompt",
        type=CountType(0),
        default=1024,
        help="Tokens per prompt, for serving and agentic.",
    ),
    option("--answer", type=COUNT, default=256, help="Tokens per answer, for serving and agentic."),
]
compare = AnswerCommand(
    "compare",
    "comparisons:compare",
    [
        NEEDED_MODEL,
        *_REQUEST,
        *_OFFERS,
        *_BESIDE,
        *_SERVING,
        option("--top", type=COUNT, default=10, help="Number of machine types to show."),
        option("--simulations", type=COUNT, default=50, help="Simulations of each run."),
        SEED,
        TODAY,
        CATALOG,
    ],
    help=__doc__ or "",
)
