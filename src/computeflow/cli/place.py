"""Which rank runs on which node, so that the heaviest groups stay on the fastest links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from computeflow.catalog import load_catalog
from computeflow.cli.jobs import (
    asked,
    cluster_of,
    from_option,
    job_options,
    layout_options,
    place_options,
)  # fmt: skip
from computeflow.cli.output import catalog_option, emit, output_option
from computeflow.cluster import Cluster, resized
from computeflow.cluster.placement import TIERS, Placement, Wiring
from computeflow.cluster.topology.hostlist import expand
from computeflow.cluster.wiring import wiring_of
from computeflow.errors import InputError, UnknownNameError
from computeflow.planning.placement import (
    effect,
    hostname_order,
    launch,
    random_order,
    total,
    traffic,
)  # fmt: skip
from computeflow.planning.placement import (
    place as place_ranks,
)
from computeflow.prediction.stack import usual_stack
from computeflow.views.placements import placement_table

FILES = {
    "hostfile": launch.hostfile,
    "rankfile": launch.rankfile,
    "slurm_hostfile": launch.slurm_hostfile,
    "torchrun_node_ranks": launch.torchrun_node_ranks,
    "pod_indices": launch.pod_indices,
    "ray_bundles.json": launch.ray_bundles,
}


@click.command(help=__doc__)
@click.argument("model", required=False)
@place_options
@job_options
@layout_options
@from_option
@click.option(
    "--nodes",
    metavar="HOSTLIST",
    help="The allocation (gpu[001-064]); left out: all nodes of the topology.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write the mapping for mpirun, Slurm, torchrun, Kubernetes and Ray.",
)
@click.option(
    "--neighbours",
    type=click.Choice(["idle", "busy"]),
    default="idle",
    show_default=True,
    help="What the other nodes of a leaf do with its uplinks.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--stack", "stack_name", metavar="NAME", help="The software; else today's practice.")
@catalog_option
@output_option
def place(
    model: str | None, source: Path | None, nodes: str | None, folder: Path | None,
    neighbours: Any, seed: int, stack_name: str | None, files: tuple[str, ...], output: str,
    **options: Any,
) -> None:  # fmt: skip
    facts = load_catalog(files)
    whole = cluster_of(options, facts)
    wiring = _wiring(whole)
    allocation = _allocation(wiring, nodes)
    cluster = resized(whole, len(allocation) * wiring.devices)
    what = asked(model, source, stack_name, options, cluster, facts)
    job, layout = what.job, what.layout
    stack = what.stack or usual_stack(cluster.accelerator.vendor)
    assert layout is not None
    sent = traffic(job, cluster, layout, stack)
    orders = {
        "random": random_order(layout.gpus, wiring, allocation, seed=seed),
        "by name": hostname_order(layout.gpus, wiring, allocation),
        "ours": place_ranks(sent, wiring, allocation, seed=seed),
    }
    found = {
        name: effect(job, cluster, layout, order, wiring, stack=stack, neighbours=neighbours)
        for name, order in orders.items()
    }
    rows = {
        name: (total(one.crossings, wiring).by_tier, one.step_seconds)
        for name, one in found.items()
    }
    written = _write(folder, orders["ours"], wiring) if folder is not None else []
    data = {
        "schema": "computeflow.placement/1",
        "orders": {
            name: {"bytes_by_tier": by_tier, "step_seconds": seconds}
            for name, (by_tier, seconds) in rows.items()
        },
        "tiers": list(TIERS),
        "nodes": [wiring.names[i] for i in orders["ours"].node_order.tolist()],
        "written": written,
    }
    emit(output, data, [placement_table(rows, written)])


def _wiring(cluster: Cluster) -> Wiring:
    if cluster.topology is None:
        raise InputError(
            "--on names a cluster without a topology: make a file with "
            "`computeflow cluster import FILE... --to mine.toml`"
        )
    return wiring_of(cluster.topology, max(cluster.gpus // len(cluster.topology.nodes), 1))


def _allocation(wiring: Wiring, text: str | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    if text is None:
        return np.arange(wiring.nodes)
    places = {name: i for i, name in enumerate(wiring.names)}
    names = expand(text)
    if unknown := [name for name in names if name not in places]:
        raise UnknownNameError("node", unknown[0], places)
    return np.array([places[name] for name in names], np.int64)


def _write(folder: Path, placement: Placement, wiring: Wiring) -> list[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text(placement, wiring))
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    return [str(folder / name) for name in FILES]
