"""A cluster as it is cabled: nodes, NICs and switches, read from what people have.

Start with `read_topology(text, where)`; `merge` several, `check` the result; `to_cluster_file` makes
of it a file that `find_cluster` reads. `Topology.groups`, `.rail_leaves` and `.distance` say who is
near to whom.
"""

from computeflow.cluster.topology.checking import check
from computeflow.cluster.topology.cluster_file import ClusterShape, find_shape, to_cluster_file
from computeflow.cluster.topology.merging import merge
from computeflow.cluster.topology.topology import (
    Board,
    Node,
    Problem,
    Rail,
    Switch,
    Topology,
    Uplink,
)
from computeflow.cluster.topology.topology_reader import KINDS, find_kind, read_topology

__all__ = [
    "KINDS",
    "Board",
    "ClusterShape",
    "Node",
    "Problem",
    "Rail",
    "Switch",
    "Topology",
    "Uplink",
    "check",
    "find_kind",
    "find_shape",
    "merge",
    "read_topology",
    "to_cluster_file",
]  # fmt: skip
