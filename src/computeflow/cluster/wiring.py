"""Which switch every node is cabled to: `Wiring`, from a topology (`wiring_of`) or by rule.

A node has one leaf switch per rail; device `d` of `D` sends over rail `d * rails // D`. Leaves have a
parent each (a spine group, a pod), and all parents meet in the core. Nodes of one NVLink block reach
each other without any of that, and nodes of a torus are joined by its links alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.names import check_host

if TYPE_CHECKING:
    from computeflow.cluster.topology import Topology

Ints = NDArray[np.int64]

TIERS = ("node", "block", "leaf", "spine", "core", "torus")
"""How far a message goes: inside its node, inside its NVLink block, through one leaf, through the spine
between leaves of one parent, through the core between parents; or along the links of a torus."""
NODE, BLOCK, LEAF, SPINE, CORE, TORUS = range(len(TIERS))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wiring:
    """Nodes of one kind and their switches; node `n` is row `n` of every array."""

    names: tuple[str, ...]
    devices: int
    """Devices in a node."""
    leaf: Ints
    """Number of the leaf switch: nodes x rails. One column where a node is on one leaf."""
    parent: Ints
    """Spine group or pod of every leaf."""
    block: Ints | None = None
    """NVLink domain of every node, where one joins several (NVL72)."""
    coordinates: Ints | None = None
    """Position of every node in the torus: nodes x axes. Then the leaves are not looked at."""
    torus: tuple[int, ...] = ()
    """Nodes along each axis."""
    leaf_oversubscription: float = 1.0
    """Speed of a leaf's nodes over that of its uplinks."""
    pod_oversubscription: float = 1.0
    """Speed of a parent's leaves over that of its uplinks."""

    def __post_init__(self) -> None:
        nodes = len(self.names)
        if nodes < 1 or self.devices < 1:
            raise InputError(f"a wiring of {nodes} nodes with {self.devices} devices each")
        for name in self.names:
            check_host(name, "node")
        if len(set(self.names)) < nodes:
            raise InputError("two nodes of one name: node names must differ")
        if self.block is not None and self.block.shape != (nodes,):
            raise InputError(f"{self.block.shape} NVLink blocks for {nodes} nodes: one each")
        if min(self.leaf_oversubscription, self.pod_oversubscription) < 1:
            raise InputError("oversubscription: 1 (none) or more")
        self._check_leaves()
        self._check_torus()

    def _check_leaves(self) -> None:
        nodes = len(self.names)
        if self.leaf.ndim != 2 or self.leaf.shape[0] != nodes or not self.leaf.shape[1]:
            raise InputError(
                f"leaf switches of shape {self.leaf.shape}: {nodes} rows, one or more rails"
            )
        if self.leaf.shape[1] > self.devices:
            raise InputError(
                f"{self.leaf.shape[1]} rails for {self.devices} devices: at most one each"
            )
        if self.leaf.min() < 0 or self.leaf.max() >= len(self.parent):
            raise InputError(f"leaf switches are numbered from 0 to {len(self.parent) - 1}")
        if self.parent.min() < 0:
            raise InputError("parents of leaf switches are numbered from 0")

    def _check_torus(self) -> None:
        if (self.coordinates is None) != (not self.torus):
            raise InputError("a torus needs its shape and the coordinates of its nodes")
        if self.coordinates is None:
            return
        if self.coordinates.shape != (len(self.names), len(self.torus)):
            raise InputError(
                f"coordinates of shape {self.coordinates.shape} in a torus of {self.torus}"
            )
        if (self.coordinates < 0).any() or (self.coordinates >= np.array(self.torus)).any():
            raise InputError(f"coordinates outside of the torus {self.torus}")
        if len(np.unique(self.coordinates, axis=0)) < len(self.names):
            raise InputError("two nodes in one place of the torus")

    @property
    def nodes(self) -> int:
        return len(self.names)

    @property
    def rails(self) -> int:
        return int(self.leaf.shape[1])

    def rail(self, device: Ints) -> Ints:
        return device * self.rails // self.devices

    @property
    def domain(self) -> Ints:
        """NVLink domain of every node: the number of its block, or its own."""
        return np.arange(self.nodes) if self.block is None else self.block

    def tier(self, source: Ints, target: Ints, rail: Ints) -> Ints:
        """How far a message from node to node goes over a rail, as an index into `TIERS`."""
        if self.coordinates is not None:
            far = np.full(np.broadcast(source, target, rail).shape, TORUS)
        else:
            here, there = self.leaf[source, rail], self.leaf[target, rail]
            same_parent = self.parent[here] == self.parent[there]
            far = np.where(here == there, LEAF, np.where(same_parent, SPINE, CORE))
        if self.block is not None:
            far = np.where(self.block[source] == self.block[target], BLOCK, far)
        return np.where(source == target, NODE, far)

    def hops(self, source: Ints, target: Ints) -> Ints:
        """Links of the torus on the shortest way between two nodes; 1 without a torus."""
        if self.coordinates is None:
            return np.ones(np.broadcast(source, target).shape, np.int64)
        apart = np.abs(self.coordinates[source] - self.coordinates[target])
        return np.asarray(np.minimum(apart, np.array(self.torus) - apart).sum(axis=-1))

    def name_order(self, allocation: Ints) -> Ints:
        """The allocation as schedulers list it: by name, numbers in it as numbers."""
        return np.array(sorted(allocation.tolist(), key=lambda node: _natural(self.names[node])))


def fat_tree(
    nodes: int,
    *,
    nodes_per_leaf: int,
    leaves_per_pod: int | None = None,
    devices: int = 8,
    oversubscription: float = 1.0,
    pod_oversubscription: float = 1.0,
    nodes_per_block: int | None = None,
) -> Wiring:
    """A fat tree: all NICs of a node on one leaf; one pod where `leaves_per_pod` is not given."""
    return rails(
        nodes,
        rails=1,
        nodes_per_group=nodes_per_leaf,
        groups_per_pod=leaves_per_pod,
        devices=devices,
        oversubscription=oversubscription,
        pod_oversubscription=pod_oversubscription,
        nodes_per_block=nodes_per_block,
    )


def rails(
    nodes: int,
    *,
    rails: int,
    nodes_per_group: int,
    groups_per_pod: int | None = None,
    devices: int = 8,
    oversubscription: float = 1.0,
    pod_oversubscription: float = 1.0,
    nodes_per_block: int | None = None,
) -> Wiring:
    """Rails: every NIC of a node on its own leaf; `nodes_per_group` nodes share the same leaves."""
    sizes = [nodes, rails, nodes_per_group, groups_per_pod or 1, nodes_per_block or 1]
    if min(sizes) < 1:
        raise InputError(f"a wiring of sizes {sizes}: all are one or more")
    number = np.arange(nodes)
    group = number // nodes_per_group
    groups = int(group[-1]) + 1
    pods = (
        np.zeros(groups, np.int64)
        if groups_per_pod is None
        else np.arange(groups) // groups_per_pod
    )
    return Wiring(
        names=_names(nodes),
        devices=devices,
        leaf=group[:, None] * rails + np.arange(rails),
        parent=np.repeat(pods, rails),
        block=None if nodes_per_block is None else number // nodes_per_block,
        leaf_oversubscription=oversubscription,
        pod_oversubscription=pod_oversubscription,
    )


def torus(shape: Sequence[int], *, devices: int = 4) -> Wiring:
    """Nodes in a torus of that many along each axis; the last axis runs fastest."""
    if not shape or min(shape) < 1:
        raise InputError(f"a torus of shape {tuple(shape)}: one node or more along each axis")
    nodes = prod(shape)
    return Wiring(
        names=_names(nodes),
        devices=devices,
        leaf=np.zeros((nodes, 1), np.int64),
        parent=np.zeros(1, np.int64),
        coordinates=np.stack(np.unravel_index(np.arange(nodes), tuple(shape)), axis=1),
        torus=tuple(shape),
    )


def _names(nodes: int) -> tuple[str, ...]:
    width = len(str(nodes - 1))
    return tuple(f"node{number:0{width}}" for number in range(nodes))


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def wiring_of(topology: Topology, devices: int) -> Wiring:
    """Nodes with `devices` each on their leaves.

    A node that lacks a rail gets a leaf of its own there: no node shares it, so nothing is gained by
    placing for it. Leaves without a known parent share one.
    """
    if not topology.nodes:
        raise InputError("the topology has no nodes: nothing can be placed")
    widths = Counter(len(node.paths) for node in topology.nodes)
    rails = min(max(widths.most_common(1)[0][0], 1), devices)
    parents = _parents(topology)
    leaves = np.full((len(topology.nodes), rails), -1, np.int64)
    for index, row in enumerate(topology.rail_leaves):
        leaves[index, : len(row)] = row[:rails]
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
    """Number of every node's NVLink block; None where some node's is unknown."""
    names = [node.block for node in topology.nodes]
    if None in names:
        return None
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def _parents(topology: Topology) -> list[int]:
    """Parent of every switch, in order: the number of the switch above it; 0 where none is known."""
    numbers: dict[str, int] = {}
    parents = []
    for switch in topology.switches:
        above = sorted(up.switch for up in switch.uplinks)
        parents.append(numbers.setdefault(above[0], len(numbers)) if above else 0)
    return parents
