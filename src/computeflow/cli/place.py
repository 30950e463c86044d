"""Choose which rank runs on which node: the heaviest groups get the fastest links."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, choice, option
from computeflow.cli.job_options import CLUSTER, FROM, JOB, LAYOUT
from computeflow.cli.options import CATALOG, MODEL, SEED, STACK
from computeflow.cli.types import FILE

OPTIONS = [
    option(
        "--nodes",
        metavar="HOSTLIST",
        help="Allocated nodes (gpu[001-064]); by default all nodes of the topology.",
    ),
    option(
        "--to",
        type=FILE,
        metavar="FOLDER",
        help="Folder for the mapping as mpirun, Slurm, torchrun, Kubernetes and Ray take it.",
    ),
    choice(
        "--neighbours",
        ["idle", "busy"],
        "idle",
        "Whether other jobs on a leaf switch use its uplinks.",
    ),
]

place = AnswerCommand(
    "place",
    "placements:place",
    [MODEL, *CLUSTER, *JOB, *LAYOUT, *FROM, *OPTIONS, SEED, STACK, CATALOG],
    help=__doc__ or "",
)
