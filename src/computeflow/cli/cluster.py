"""`computeflow cluster`: a cluster file from what people have."""

from __future__ import annotations

import click

from computeflow.cli.command import FORCE, AnswerCommand, flag, option
from computeflow.cli.completing import accelerator_names
from computeflow.cli.options import CATALOG
from computeflow.cli.types import COUNT, FILE
from computeflow.cluster.topology import KINDS

OPTIONS = [
    option("--accelerator", metavar="NAME", shell_complete=accelerator_names,
           help="What the nodes hold: a row of the catalog. A cluster file needs it."),
    option("--node", metavar="NAME", help="The nodes' type, where it is not the usual one."),
    option("--devices", type=COUNT, metavar="N",
           help="Devices in a node. [default: what a file says, else the node type]"),
    option("--kind", type=click.Choice(list(KINDS)),
           help="What the files are. [default: told by their content]"),
    option("--to", type=FILE, metavar="FILE",
           help="The cluster file to write, for --on: a name that ends in .toml."),
    FORCE,
    flag("--check", help="List contradictions; exit 3 if any."),
]  # fmt: skip


@click.group(help="Which node is plugged in where.")
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

        Any mixture of: Slurm's topology.conf or topology.yaml (also from Topograph), the output of
        ibnetdiscover or of `nvidia-smi topo -m`, `kubectl get nodes -o json`, the JSON of
        Topograph's graph engine, a CSV of NICs and their leaf switches.
        """,
        short_help="Read topology files into one cluster file.",
        html=False,
    )
)
