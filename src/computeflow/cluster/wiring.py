"""A topology, as it was read, to the arrays that placements need."""

from __future__ import annotations

from collections import Counter

import numpy as np

from computeflow.cluster.placement import Ints, Wiring
from computeflow.cluster.topology import Topology
from computeflow.errors import InputError


def wiring_of(topology: Topology, devices: int) -> Wiring:
    """Nodes with `devices` each on their leaves.

    A node that lacks a rail gets a leaf of its own there: nobody shares it, so nothing is gained by
    placing for it. Leaves without a known parent share one.
    """
    if not topology.nodes:
        raise InputError("the topology has no nodes: nothing can be placed")
    widths = Counter(len(node.paths) for node in topology.nodes)
    rails = min(max(widths.most_common(1)[0][0], 1), devices)
    parents = _parents(topology)
    leaves = np.full((len(topology.nodes), rails), -1, np.int64)
    for place, row in enumerate(topology.rail_leaves):
        leaves[place, : len(row)] = row[:rails]
    missing = np.argwhere(leaves < 0)
    for own, (node, rail) in enumerate(missing, start=len(parents)):
        leaves[node, rail] = own
    parents += [0] * len(missing)
    return Wiring(
        names=tuple(node.name for node in topology.nodes),
        devices=devices,
        leaf=leaves,
        parent=np.array(parents, np.int64),
        block=_blocks(topology),
        leaf_oversubscription=max(topology.oversubscription.get(1, 1.0), 1.0),
        pod_oversubscription=max(topology.oversubscription.get(2, 1.0), 1.0),
    )


def _blocks(topology: Topology) -> Ints | None:
    """By node: the number of its NVLink block; None where some node's is not known."""
    names = [node.block for node in topology.nodes]
    if None in names:
        return None
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def _parents(topology: Topology) -> list[int]:
    """Of every switch, in order: the number of the switch above it; 0 where none is known."""
    numbers: dict[str, int] = {}
    found = []
    for switch in topology.switches:
        above = sorted(up.switch for up in switch.uplinks)
        found.append(numbers.setdefault(above[0], len(numbers)) if above else 0)
    return found
