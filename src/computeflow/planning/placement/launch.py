"""A placement in the words of launchers; every function returns the text of a file.

All but `rankfile` and `slurm_hostfile` number nodes, not ranks: there a node's ranks must follow each
other. Everywhere a rank's device is its place among the ranks of its node (the local rank).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby

import numpy as np

from computeflow.cluster.placement import Placement
from computeflow.cluster.wiring import Wiring
from computeflow.errors import InputError


def hostfile(placement: Placement, wiring: Wiring) -> str:
    """For `mpirun --hostfile FILE --map-by slot` (Open MPI, orte_hosts(7)): `name slots=n`, and ranks
    fill the lines from the top.
    """
    return _lines(f"{name} slots={ranks}" for name, ranks in _node_runs(placement, wiring))


def rankfile(placement: Placement, wiring: Wiring, *, cores_per_rank: int = 1) -> str:
    """For `mpirun --map-by rankfile:file=FILE` (Open MPI 5; `--rankfile FILE` before):
    `rank N=name slot=cores`, one line for every rank.

    Slots are cores that the rank is bound to, and must not overlap; a rank gets `cores_per_rank` of
    them, in the order of devices.
    """
    if cores_per_rank < 1:
        raise InputError(f"{cores_per_rank} cores for a rank: one or more")
    lines = []
    for rank, (name, local) in enumerate(_ranks(placement, wiring)):
        first, last = local * cores_per_rank, (local + 1) * cores_per_rank - 1
        cores = f"{first}-{last}" if last > first else f"{first}"
        lines.append(f"rank {rank}={name} slot={cores}")
    return _lines(lines)


def slurm_hostfile(placement: Placement, wiring: Wiring) -> str:
    """For `SLURM_HOSTFILE=FILE srun --distribution=arbitrary --ntasks=N` inside an allocation
    (srun(1)): the node of every task, one per line, in the order of ranks.
    """
    return _lines(name for name, _ in _ranks(placement, wiring))


def torchrun_node_ranks(placement: Placement, wiring: Wiring) -> str:
    """`name rank` for every node: what to give as `torchrun --node-rank`.

    It holds with the static rendezvous (`--master-addr` of the first node); c10d numbers nodes itself.
    """
    runs = _node_runs(placement, wiring)
    return _lines(f"{name} {number}" for number, (name, _) in enumerate(runs))


def pod_indices(placement: Placement, wiring: Wiring) -> str:
    """A JSON object for Kubernetes: completion index of an Indexed Job (in a JobSet: of its one
    replicated job), as in the label batch.kubernetes.io/job-completion-index, to node name.

    Kubernetes has no field for it: an admission hook sets each pod's `nodeName` or node affinity.
    """
    names = [name for name, _ in _node_runs(placement, wiring)]
    return json.dumps({str(index): name for index, name in enumerate(names)}, indent=1) + "\n"


def ray_bundles(placement: Placement, wiring: Wiring) -> str:
    """A JSON list of node names: bundle `i` of a placement group belongs on the i-th.

    Pin it there with `bundle_label_selector=[{"ray.io/node-id": id}, ...]` (Ray 2.49 and later), ids
    looked up by name in `ray.nodes()`.
    """
    return json.dumps([name for name, _ in _node_runs(placement, wiring)], indent=1) + "\n"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _ranks(placement: Placement, wiring: Wiring) -> list[tuple[str, int]]:
    """Name of its node and local rank, of every rank; refused where devices follow another order."""
    placement.check(wiring)
    order = np.lexsort((np.arange(len(placement)), placement.node))
    start = np.searchsorted(placement.node[order], placement.node[order])
    local = np.empty(len(placement), np.int64)
    local[order] = np.arange(len(placement)) - start
    if (local != placement.device).any():
        rank = int(np.argmax(local != placement.device))
        raise InputError(
            f"rank {rank} is number {local[rank]} on its node and wants device "
            f"{placement.device[rank]}: launchers give devices in the order of ranks"
        )
    return [
        (wiring.names[n], k) for n, k in zip(placement.node.tolist(), local.tolist(), strict=True)
    ]


def _node_runs(placement: Placement, wiring: Wiring) -> list[tuple[str, int]]:
    """Nodes and their number of ranks; refused where a node's ranks do not follow each other."""
    names = [name for name, _ in _ranks(placement, wiring)]
    runs = [(name, len(list(run))) for name, run in groupby(names)]
    if len(runs) > len(set(names)):
        raise InputError(
            "the ranks of a node do not follow each other: write a rankfile or a Slurm hostfile"
        )
    return runs
