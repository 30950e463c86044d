"""Show where the time of a run went, from the files it left behind, and what to fix.

PATH is a file or a folder: PyTorch profiler traces, flight-recorder dumps, memory snapshots, Nsight
Systems exports, JAX profiles, op timelines, framework logs, metrics, accounting, kernel logs, in any
mix; or the address of a Prometheus server.
"""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.options import CATALOG
from computeflow.cli.types import COUNT, FILE, NUMBER, Number
from computeflow.engines import ENGINES

OPTIONS = [
    option(
        "--steps",
        metavar="A:B",
        help="Only these steps, as the profiler numbers them; by default all.",
    ),
    choice(
        "--window",
        ["steps", "whole", "hta"],
        "steps",
        "Part to account for: marked steps, the whole recording, or the window and figures of "
        "Holistic Trace Analysis.",
    ),
    option(
        "--period",
        metavar="P",
        help="Period of accounting, metrics and logs to read: 30d or 12h up to now, or "
        "2026-10-01:2026-11-01; by default all.",
    ),
    option(
        "--rank-from", metavar="REGEX", help="Pattern for file names whose first group is the rank."
    ),
    flag(
        "--no-replay",
        help="Do not replay the steps: faster, but the profiler's cost counts as the run's and gains "
        "are less exact.",
    ),
    option(
        "--step-seconds",
        type=NUMBER,
        metavar="SECONDS",
        help="Seconds that a step takes without the profiler, as you measured it, for the replay.",
    ),
    option(
        "--on",
        metavar="NAME",
        help="Accelerator (h200-sxm or h200-sxm:8), where the recording does not name it.",
    ),
    option(
        "--model",
        metavar="NAME",
        help="Model to count FLOPs from; by default the shapes in the trace.",
    ),
    option("--global-batch", type=COUNT, help="With --model: sequences per step over all ranks."),
    option("--seq-len", type=COUNT, help="With --model: tokens per sequence."),
    option(
        "--expect",
        type=FILE,
        metavar="FILE",
        help="Plan, prediction or ledger (JSON) to compare with, at equal model FLOPs.",
    ),
    option(
        "--work-ratio",
        type=NUMBER,
        metavar="R",
        help="With --expect: work in the recording over work in that file, where FLOPs are unknown.",
    ),
    option(
        "--against",
        metavar="PATH",
        help="Earlier recording to compare with, at equal tokens or steps: shows what grew.",
    ),
    option(
        "--baseline",
        metavar="NAME",
        help="Compare with the recording kept under this job name; where there is none, keep this one.",
    ),
    flag("--keep", help="With --baseline: keep this recording as the new baseline."),
    option(
        "--perfetto",
        type=FILE,
        metavar="FILE",
        help="Write the first rank's trace with a track per account, for the Perfetto viewer.",
    ),
    option(
        "--calibrate",
        type=FILE,
        metavar="FILE",
        help="Write the machine's measured figures, for predict --calibration.",
    ),
    option(
        "--price",
        metavar="USD",
        help="Price that turns findings into dollars: $ per GPU-hour, or an offer of the catalog.",
    ),
    option(
        "--fail-on",
        type=Number(0, 100),
        metavar="PERCENT",
        help="Exit with 3 where findings of most steps claim at least this percentage of the time, and "
        "where the job hangs.",
    ),
    option(
        "--grid",
        metavar="NAME",
        help="Electricity grid of the catalog, to price energy and count carbon.",
    ),
    flag("--details", help="Also show steps, kernels, operators and gaps of the first rank."),
    flag(
        "--redact",
        help="Replace names, paths, addresses, secrets and unknown words by stand-ins, for a "
        "ticket.",
    ),
    choice(
        "--engine",
        ENGINES,
        "local",
        "Where traces and recorded runs are read: on this machine or on a Ray cluster.",
    ),
    flag("--no-cache", help="Do not read or write the cache."),
]

audit = AnswerCommand(
    "audit",
    "audits:audit",
    [click.Argument(["paths"], nargs=-1, required=True, metavar="PATH..."), *OPTIONS, CATALOG],
    help=__doc__ or "",
)
