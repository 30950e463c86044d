"""Nodes that carry labels: `kubectl get nodes -o json`, and the JSON of Topograph's graph engine.

Labels are those of NVIDIA/topograph (docs/reference/node-labels.md: fabric.topograph.run/tier-N from
1.0 on, network.topology.nvidia.com/leaf and others before), GKE (gce-topology-subblock inside
gce-topology-block), EKS (network-node-layer-N, the highest N nearest to the node) and GPU Feature
Discovery (gpu.count).
"""

from __future__ import annotations

import re
from typing import Any

from computeflow.catalog.config import short
from computeflow.cluster.topology.switch_paths import Hop, SwitchPath, from_switch_paths
from computeflow.cluster.topology.topology import Node, Topology
from computeflow.errors import InputError
from computeflow.files.limits import NODES
from computeflow.files.parsing import parse_json

_NVIDIA = "network.topology.nvidia.com/"
_GKE = "cloud.google.com/gce-topology-"
_NAMED_TIERS = (
    [f"{_NVIDIA}leaf", f"{_NVIDIA}spine", f"{_NVIDIA}core"],
    [f"{_NVIDIA}block", f"{_NVIDIA}spine", f"{_NVIDIA}datacenter"],  # early Topograph
    [f"{_GKE}subblock", f"{_GKE}block"],
)
_TOPOGRAPH_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d{1,2})")
_AWS_LAYER = re.compile(r"topology\.k8s\.aws/network-node-layer-(\d{1,2})")
_ZONE = "topology.kubernetes.io/zone"
_BLOCKS = (
    "accelerator.topograph.run/domain",
    f"{_NVIDIA}accelerator",
    "nvidia.com/gpu.clique",
)
_COUNTS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "aws.amazon.com/neuron")


def read_labels(text: str, where: str) -> Topology:
    data = parse_json(text, where)
    data = data if isinstance(data, dict) else {}
    if isinstance(data.get("instances"), list):
        return from_switch_paths([_instance(entry, where) for entry in data["instances"]], where)
    items = data.get("items", [data] if data.get("kind") == "Node" else None)
    if not isinstance(items, list):
        raise InputError(
            f"{where}: JSON, but neither a list of Kubernetes nodes (`items`) nor what Topograph's "
            "graph engine writes (`instances`)"
        )
    if len(items) > NODES:
        raise InputError(f"{where}: {len(items):,} nodes; at most {NODES:,} are read")
    return from_switch_paths(_useful([_kubernetes(item, where) for item in items], where), where)


def _useful(paths: list[SwitchPath], where: str) -> list[SwitchPath]:
    # Without accelerators and outside the fabric: a control plane's node, no part of the cluster.
    useful = [path for path in paths if path.node.devices or path.hops or path.node.block]
    if not useful:
        raise InputError(f"{where}: no node has an accelerator or a label of network topology")
    twice = len(useful) - len({path.node.name for path in useful})
    if twice:
        raise InputError(f"{where}: {twice} nodes are listed twice")
    return useful


def _instance(entry: Any, where: str) -> SwitchPath:
    layers = _part(entry, "network_layers", list, where)
    hops = tuple((f"tier-{i}", str(layer)) for i, layer in enumerate(layers) if layer)
    labels = _part(entry, "labels", dict, where)
    name = _part(entry, "id", str, where)
    return SwitchPath(node=Node(name=name, block=_block(labels), sources=(where,)), hops=hops)


def _kubernetes(item: Any, where: str) -> SwitchPath:
    metadata = _part(item, "metadata", dict, where)
    labels = _part(metadata, "labels", dict, where)
    capacity = _part(_part(item, "status", dict, where), "capacity", dict, where)
    product = labels.get("nvidia.com/gpu.product")
    node = Node(
        name=_part(metadata, "name", str, where),
        devices=_devices(labels, capacity),
        product=product if isinstance(product, str) else None,
        block=_block(labels),
        sources=(where,),
    )
    return SwitchPath(node=node, hops=_hops(labels))


def _part(data: Any, key: str, kind: type, where: str) -> Any:
    """`data[key]`, an empty one where it is absent; of another kind, the file is another's."""
    part = data.get(key) if isinstance(data, dict) else data
    if part is None and isinstance(data, dict):
        return kind()
    if not isinstance(part, kind):
        raise InputError(f"{where}: {key}: '{short(part)}' is not what a list of nodes has there")
    return part


def _devices(labels: dict[str, Any], capacity: dict[str, Any]) -> int | None:
    texts = [labels.get("nvidia.com/gpu.count"), *(capacity.get(name) for name in _COUNTS)]
    for text in texts:
        if isinstance(text, str) and re.fullmatch(r"[0-9]{1,5}", text) and int(text):
            return int(text)
    return None


def _block(labels: dict[str, Any]) -> str | None:
    return next((str(labels[name]) for name in _BLOCKS if labels.get(name)), None)


def _hops(labels: dict[str, Any]) -> tuple[Hop, ...]:
    """Switches from the leaf outwards, of the family of labels that knows the most of them."""
    families = [
        [name for name, _ in _ordered(labels, _TOPOGRAPH_TIER)],
        *_NAMED_TIERS,
        [name for name, _ in reversed(_ordered(labels, _AWS_LAYER))],
    ]
    known = [[(name, labels[name]) for name in family if labels.get(name)] for family in families]
    hops = [(name.rpartition("/")[2], str(value)) for name, value in max(known, key=len)]
    zone = labels.get(_ZONE)
    return (*hops, ("zone", str(zone))) if hops and zone else tuple(hops)


def _ordered(labels: dict[str, Any], pattern: re.Pattern[str]) -> list[tuple[str, int]]:
    levels = [(name, int(m[1])) for name in labels if (m := pattern.fullmatch(name))]
    return sorted(levels, key=lambda pair: pair[1])
