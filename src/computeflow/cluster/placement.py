"""Which cable every device hangs on, and which rank runs on which device: `Wiring` and `Placement`.

A node has one leaf switch per rail; device `d` of `D` sends over rail `d * rails // D`. Leaves have a
parent each (a spine group, a pod), and all parents meet in the core. Nodes of one NVLink block reach
each other without any of that, and nodes of a torus are joined by its links alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.names import check_host

Ints = NDArray[np.int64]

TIERS = ("node", "block", "leaf", "pod", "core", "torus")
"""How far a message goes: inside its node, inside its NVLink block, through one leaf, through leaves
of one parent, through the core; or along the links of a torus."""
NODE, BLOCK, LEAF, POD, CORE, TORUS = range(len(TIERS))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wiring:
    """Nodes of one kind and what they hang on; node `n` is row `n` of every array."""

    names: tuple[str, ...]
    devices: int
    """Of a node."""
    leaf: Ints
    """Number of the leaf switch: nodes x rails. One column where a node hangs on one leaf."""
    parent: Ints
    """Of every leaf: its spine group or pod."""
    block: Ints | None = None
    """NVLink domain of every node, where one joins several (NVL72)."""
    coordinates: Ints | None = None
    """Of every node in the torus: nodes x axes. Then the leaves are not looked at."""
    torus: tuple[int, ...] = ()
    """Nodes along each axis."""
    leaf_oversubscription: float = 1.0
    """What the nodes of a leaf can send over what its uplinks carry."""
    pod_oversubscription: float = 1.0
    """The same for the uplinks of a parent."""

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
        """Of every node: the number of what NVLink joins, its block or itself."""
        return np.arange(self.nodes) if self.block is None else self.block

    def tier(self, one: Ints, other: Ints, rail: Ints) -> Ints:
        """How far a message from node to node goes over a rail, as an index into `TIERS`."""
        if self.coordinates is not None:
            far = np.full(np.broadcast(one, other, rail).shape, TORUS)
        else:
            here, there = self.leaf[one, rail], self.leaf[other, rail]
            same_parent = self.parent[here] == self.parent[there]
            far = np.where(here == there, LEAF, np.where(same_parent, POD, CORE))
        if self.block is not None:
            far = np.where(self.block[one] == self.block[other], BLOCK, far)
        return np.where(one == other, NODE, far)

    def hops(self, one: Ints, other: Ints) -> Ints:
        """Links of the torus on the shortest way between two nodes; 1 without a torus."""
        if self.coordinates is None:
            return np.ones(np.broadcast(one, other).shape, np.int64)
        apart = np.abs(self.coordinates[one] - self.coordinates[other])
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
    """All NICs of a node on one leaf; one pod where `leaves_per_pod` is not given."""
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
    """Every NIC of a node on a leaf of its own; `nodes_per_group` nodes share the same leaves."""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Rank `r` runs on device `device[r]` of node `node[r]`; no two ranks on one device."""

    node: Ints
    device: Ints

    def __post_init__(self) -> None:
        if self.node.ndim != 1 or self.node.shape != self.device.shape or not len(self.node):
            raise InputError("a placement needs a node and a device for every rank")
        if self.node.min() < 0 or self.device.min() < 0:
            raise InputError("nodes and devices are numbered from 0")
        if len(np.unique(np.stack([self.node, self.device]), axis=1).T) < len(self.node):
            raise InputError("two ranks on one device")

    @classmethod
    def of_nodes(cls, nodes: Ints, *, devices: int, ranks: int) -> Placement:
        """Rank after rank through the nodes in this order."""
        if ranks > len(nodes) * devices:
            raise InputError(
                f"{ranks} ranks need {-(-ranks // devices)} nodes of {devices} devices; "
                f"{len(nodes)} given"
            )
        rank = np.arange(ranks)
        return cls(node=np.asarray(nodes, np.int64)[rank // devices], device=rank % devices)

    def __len__(self) -> int:
        return len(self.node)

    def check(self, wiring: Wiring) -> None:
        """Refuse a wiring that does not have these nodes and devices."""
        if self.node.max() >= wiring.nodes or self.device.max() >= wiring.devices:
            raise InputError(
                f"a rank on node {self.node.max()} or device {self.device.max()}; "
                f"the wiring has {wiring.nodes} nodes of {wiring.devices} devices"
            )

    @property
    def node_order(self) -> Ints:
        """Nodes in the order of their lowest rank."""
        _, first = np.unique(self.node, return_index=True)
        return self.node[np.sort(first)]
