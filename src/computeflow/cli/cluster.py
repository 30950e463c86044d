"""`computeflow cluster`: a cluster file from topology files."""

from __future__ import annotations

import click

from computeflow.cli.command import FORCE, AnswerCommand, flag, option
from computeflow.cli.completing import accelerator_names
from computeflow.cli.options import CATALOG
from computeflow.cli.types import COUNT, FILE
from computeflow.cluster.topology import KINDS

OPTIONS = [
    option(
        "--accelerator",
        metavar="NAME",
        shell_complete=accelerator_names,
        help="Accelerator of the nodes, by its name in the catalog; a cluster file needs it.",
    ),
    option(
        "--node",
        metavar="NAME",
        help="Node type of the catalog, where it is not the accelerator's usual one.",
    ),
    option(
        "--devices",
        type=COUNT,
        metavar="N",
        help="Devices per node; by default as a file says, else as the node type has.",
    ),
    option(
        "--kind",
        type=click.Choice(list(KINDS)),
        help="Format of the files; by default detected from their content.",
    ),
    option(
        "--to",
        type=FILE,
        metavar="FILE",
        help="Cluster file to write (.toml), for --on of other commands.",
    ),
    FORCE,
    flag("--check", help="List contradictions; exit with 3 if there are any."),
]


@click.group(help="Make a cluster file from topology files.")
def cluster() -> None:
    pass


cluster.add_command(
    AnswerCommand(
        "import",
        "topologies:import_topology",
        [
            click.Argument(["sources"], nargs=-1, required=True, metavar="FILE...", type=FILE),
            *OPTIONS,
            CATALOG,
        ],
        help="""Read topology files into one cluster file.

        Any mix of: Slurm's topology.conf or topology.yaml (also from Topograph), the output of
        ibnetdiscover or of `nvidia-smi topo -m`, `kubectl get nodes -o json`, the JSON of
        Topograph's graph engine, a CSV of NICs and their leaf switches.
        """,
        short_help="Read topology files into one cluster file.",
        html=False,
    )
)
