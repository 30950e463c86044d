"""`place`: which rank runs on which node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, NewFolder, open_catalog
from computeflow.answers.requests import JobOnLayoutOptions, choose_cluster, read_request
from computeflow.cluster import Cluster, resize_cluster
from computeflow.cluster.placement import Placement
from computeflow.cluster.topology.hostlist import expand
from computeflow.cluster.wiring import TIERS, Wiring, wiring_of
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.writing import write_folder
from computeflow.planning.placement import (
    effect,
    hostname_order,
    launch,
    random_order,
    total,
    traffic,
)
from computeflow.planning.placement import (
    place as place_ranks,
)
from computeflow.prediction.stack import usual_stack
from computeflow.views.placements import placement_headline, placement_table
from computeflow.views.tables import Table

_FILES = {
    "hostfile": launch.hostfile,
    "rankfile": launch.rankfile,
    "slurm_hostfile": launch.slurm_hostfile,
    "torchrun_node_ranks": launch.torchrun_node_ranks,
    "pod_indices": launch.pod_indices,
    "ray_bundles.json": launch.ray_bundles,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlaceAnswer(Answer):
    orders: dict[str, tuple[dict[str, float], float]]
    """Bytes of a step by tier and the predicted step, for each order of the nodes."""
    nodes: tuple[str, ...]
    """Names in the order of ranks."""
    written: tuple[str, ...]

    @property
    def headline(self) -> str:
        return placement_headline(self.orders, self.written)

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.placement/1",
            "orders": {
                name: {"bytes_by_tier": by_tier, "step_seconds": seconds}
                for name, (by_tier, seconds) in self.orders.items()
            },
            "tiers": list(TIERS),
            "nodes": list(self.nodes),
            "written": list(self.written),
        }

    def tables(self) -> list[Table]:
        return [placement_table(self.orders, self.written)]


@checked
def place(
    model: str | None = None,
    *,
    on: str,
    storage: str | None = None,
    from_: File | None = None,
    format: str | None = None,
    nodes: str | None = None,
    to: NewFolder | None = None,
    force: bool = False,
    neighbours: Literal["idle", "busy"] = "idle",
    seed: int = 0,
    stack: str | None = None,
    catalog: CatalogFiles = (),
    **options: Unpack[JobOnLayoutOptions],
) -> PlaceAnswer:
    """Choose which rank runs on which node, so that the heaviest groups stay on the fastest links."""
    facts = open_catalog(catalog)
    whole = choose_cluster(on, storage, facts)
    wiring = _wiring(whole)
    allocation = _allocation(wiring, nodes)
    cluster = resize_cluster(whole, len(allocation) * wiring.devices)
    request = read_request(model, cluster, facts, options, from_=from_, format=format, stack=stack)
    job, layout = request.job, request.layout
    used = request.stack or usual_stack(cluster.accelerator.vendor)
    sent = traffic(job, cluster, layout, used)
    orders = {
        "random": random_order(layout.gpus, wiring, allocation, seed=seed),
        "by name": hostname_order(layout.gpus, wiring, allocation),
        "ours": place_ranks(sent, wiring, allocation, seed=seed),
    }
    effects = {
        name: effect(job, cluster, layout, order, wiring, stack=used, neighbours=neighbours)
        for name, order in orders.items()
    }
    return PlaceAnswer(
        orders={
            name: (total(change.crossings, wiring).by_tier, change.step_seconds)
            for name, change in effects.items()
        },
        nodes=tuple(wiring.names[i] for i in orders["ours"].node_order.tolist()),
        written=_write(Path(to), orders["ours"], wiring, force) if to is not None else (),
    )


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
    indices = {name: i for i, name in enumerate(wiring.names)}
    names = expand(text)
    if unknown := [name for name in names if name not in indices]:
        raise UnknownNameError("node", unknown[0], indices)
    return np.array([indices[name] for name in names], np.int64)


def _write(folder: Path, placement: Placement, wiring: Wiring, force: bool) -> tuple[str, ...]:
    files = {name: text(placement, wiring) for name, text in _FILES.items()}
    write_folder(folder, files, "--to", force=force)
    return tuple(str(folder / name) for name in _FILES)
