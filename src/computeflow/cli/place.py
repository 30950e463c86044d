"""Which rank runs on which node, so that the heaviest groups stay on the fastest links."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, option
from computeflow.cli.job_options import CLUSTER, FROM, JOB, LAYOUT
from computeflow.cli.options import CATALOG, MODEL, SEED, STACK
from computeflow.cli.types import FILE

OPTIONS = [
    option(
        "--nodes",
        metavar="HOSTLIST",
        help="The allocation (gpu[001-064]); left out: all nodes of the topology.",
    ),
    option(
        "--to",
        type=FILE,
        metavar="FOLDER",
        help="Write the mapping for mpirun, Slurm, torchrun, Kubernetes and Ray.",
    ),
    choice(
        "--neighbours",
        ["idle", "busy"],
        "idle",
        "What the other nodes of a leaf do with its uplinks.",
    ),
]

place = AnswerCommand(
    "place",
    "placements:place",
    [MODEL, *CLUSTER, *JOB, *LAYOUT, *FROM, *OPTIONS, SEED, STACK, CATALOG],
    help=__doc__ or "",
)
