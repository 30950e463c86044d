"""Which rank runs on which device of which node: `Placement`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.cluster.wiring import Ints, Wiring
from computeflow.errors import InputError


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
