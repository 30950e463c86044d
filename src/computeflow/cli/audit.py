"""Where the time of a run went: a closed ledger from whatever the run left behind.

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
    option("--steps", metavar="A:B", help="Only these steps, as the profiler numbers them."),
    choice("--window", ["steps", "whole", "hta"], "steps",
           "Marked steps; the whole recording; or what Holistic Trace Analysis takes, with its "
           "figures."),
    option("--period", metavar="P",
           help="The time that accounting, metrics and logs are read for: 30d, 12h (up to now), or "
           "2026-10-01:2026-11-01."),
    option("--rank-from", metavar="REGEX", help="Its first group is the rank, in file names."),
    option("--on", metavar="NAME",
           help="The accelerator, where the recording does not name it (h200-sxm, h200-sxm:8)."),
    option("--model", metavar="NAME", help="Count FLOPs by the model, not by the trace's shapes."),
    option("--global-batch", type=COUNT, help="With --model: sequences in a step of all ranks."),
    option("--seq-len", type=COUNT, help="With --model: tokens in a sequence."),
    option("--expect", type=FILE, metavar="FILE",
           help="A plan, a prediction or a ledger (JSON) to measure against, at equal model FLOPs."),
    option("--work-ratio", type=NUMBER, metavar="R",
           help="With --expect: work in the recording over work in FILE, where FLOPs are unknown."),
    option("--against", metavar="PATH", help="An earlier recording: tells what grew."),
    option("--baseline", metavar="NAME",
           help="The job's name: compare with what is kept under it, or keep this recording as the "
           "first."),
    flag("--keep", help="With --baseline: this recording is the new one."),
    option("--perfetto", type=FILE, metavar="FILE",
           help="Write the first rank's trace with a track for every account."),
    option("--calibrate", type=FILE, metavar="FILE",
           help="Write what the recording shows of the machine, for predict --calibration."),
    option("--price", metavar="USD",
           help="Dollars per GPU-hour, or an offer of the catalog: prices findings."),
    option("--fail-on", type=Number(0, 100), metavar="PERCENT",
           help="Exit with 3 where findings of most steps claim this much of the window or more."),
    option("--grid", metavar="NAME", help="Electricity of a region: prices energy and carbon."),
    flag("--details", help="Show steps, kernels, operators, gaps of the first rank."),
    flag("--redact", help="Show public words and figures only; names, paths, addresses, secrets and "
         "unknown words get stand-ins: for a ticket."),
    choice("--engine", ENGINES, "local", "Read traces on this machine, or on a Ray cluster."),
    flag("--no-cache", help="Read everything again, and keep nothing."),
]  # fmt: skip

audit = AnswerCommand(
    "audit",
    "audits:audit",
    [click.Argument(["paths"], nargs=-1, required=True, metavar="PATH..."), *OPTIONS, CATALOG],
    help=__doc__ or "",
)
