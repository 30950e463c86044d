"""A topology as the TOML file that `find_cluster` reads. Start with `to_cluster_file`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from statistics import median_low
from typing import Any

from computeflow.catalog import Catalog
from computeflow.catalog import NodeType as NodeRow
from computeflow.cluster.topology.topology import Topology
from computeflow.errors import InputError
from computeflow.files.languages import comment, to_toml

_MAX_PODS = 2
"""Tiers of a network beyond the domain and below the whole: four tiers in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """Figures of a topology that a step's time depends on: the fields of a cluster file."""

    gpus: int
    domain: int | None = None
    nic_bytes_per_second: float | None = None
    pods: tuple[tuple[int, float], ...] = ()
    """Devices under one leaf, one spine, ..., each with the oversubscription on the way there."""
    oversubscription: float | None = None
    """Ratio in the network that joins all pods."""
    assumed: tuple[str, ...] = ()


def find_shape(
    topology: Topology,
    accelerator: str,
    catalog: Catalog,
    *,
    node: str | None = None,
    devices: int | None = None,
) -> ClusterShape:
    """`devices`: of a node, where no source says it and the catalog's node type is another."""
    row = _node_row(accelerator, node, catalog)
    counts = _devices_by_node(topology, row, devices)
    assumed = _assumed_devices(topology, counts, stated=bool(devices))
    widest = (row.domain or row.count) if row else catalog.accelerators[accelerator].domain
    domain = _domain(topology, counts, widest)
    pods, top = _pods(topology, counts, domain or widest)
    if topology.board is not None and topology.board.domain == 1 < widest:
        assumed.append("scale-up links as in the catalog, though nvidia-smi shows none")
    if topology.depth and len(set(topology.groups[-1])) > 1:
        assumed.append("a network above the topmost switches, which no source describes")
    return ClusterShape(
        gpus=sum(counts),
        domain=domain,
        nic_bytes_per_second=_nic_speed(topology, counts),
        pods=pods,
        oversubscription=top,
        assumed=tuple(assumed),
    )


def to_cluster_file(
    topology: Topology,
    accelerator: str,
    catalog: Catalog,
    *,
    node: str | None = None,
    devices: int | None = None,
) -> str:
    shape = find_shape(topology, accelerator, catalog, node=node, devices=devices)
    head = {"accelerator": catalog.accelerators[accelerator].name, "gpus": shape.gpus}
    head["node"] = None if node is None else catalog.nodes[node].name
    head |= _network(shape, _tiers(shape, accelerator, node, catalog))
    stated = {name: value for name, value in head.items() if value is not None}
    cabled: dict[str, Any] = {
        "sources": topology.sources,
        "switches": [_plain(switch) for switch in topology.switches],
        "nodes": [_plain(node) for node in topology.nodes],
    }
    if topology.board is not None:
        cabled["board"] = _plain(topology.board)
    opening = comment([f"from {', '.join(topology.sources)}", *shape.assumed])
    return opening + to_toml(stated | {"topology": cabled})


def _node_row(accelerator: str, node: str | None, catalog: Catalog) -> NodeRow | None:
    name = node or catalog.accelerators[accelerator].node
    return catalog.nodes[name] if name is not None else None


def _network(shape: ClusterShape, tiers: list[dict[str, Any]]) -> dict[str, Any]:
    if tiers:
        return {"tiers": tiers}
    return {
        "domain": shape.domain,
        "nic_bytes_per_second": shape.nic_bytes_per_second,
        "pod": shape.pods[0][0] if shape.pods else None,
        "oversubscription": shape.oversubscription,
    }


def _devices_by_node(topology: Topology, row: NodeRow | None, devices: int | None) -> list[int]:
    board = topology.board.devices if topology.board else 0
    usual = devices or board or (row.count if row else 0)
    counts = [devices or node.devices or usual for node in topology.nodes] or [board]
    if 0 in counts:
        raise InputError("no source says how many devices a node has: state it with --devices")
    return counts


def _assumed_devices(topology: Topology, counts: list[int], stated: bool) -> list[str]:
    assumed = []
    if not any(n.devices for n in topology.nodes) and topology.board is None:
        by = "as stated" if stated else "as in the catalog's node"
        assumed.append(f"{median_low(counts)} devices in a node, {by}")
    if len(set(counts)) > 1:
        assumed.append(f"nodes of {min(counts)} to {max(counts)} devices taken as one cluster")
    return assumed


def _domain(topology: Topology, counts: list[int], widest: int) -> int | None:
    """Devices that a scale-up link joins, where a source says it: a board's NVLink, or blocks.

    A scheduler's block is wider than any scale-up link where the hardware's ends at the node.
    """
    largest = max(counts)
    blocks = [size for size in _sizes(topology, counts, 0) if size > largest]
    if blocks and widest > largest:
        return min(median_low(blocks), widest)
    board = topology.board
    return board.domain if board is not None and 1 < board.domain != widest else None


def _sizes(topology: Topology, counts: list[int], level: int) -> list[int]:
    """Devices in the group of every node."""
    groups = topology.groups[level] if topology.nodes else ()
    sizes: Counter[int] = Counter()
    for group, count in zip(groups, counts, strict=False):
        sizes[group] += count
    return [sizes[group] for group in groups]


def _pods(
    topology: Topology, counts: list[int], domain: int
) -> tuple[tuple[tuple[int, float], ...], float | None]:
    """Typical groups from the leaf up that differ in what reaches them, and the whole's factor."""
    pods: dict[float, int] = {}
    narrower = 1.0
    gpus, known = sum(counts), bool(topology.oversubscription)
    for level in range(len(topology.groups)):
        size = median_low(_sizes(topology, counts, level) or [gpus])
        if domain < size < gpus and (known or not pods):
            pods[narrower] = size  # in place of a smaller one that is reached as well
        narrower *= max(topology.oversubscription.get(level, 1.0), 1.0)
    typical = sorted((size, factor) for factor, size in pods.items())
    return tuple(typical[-_MAX_PODS:]), narrower if known else None


def _nic_speed(topology: Topology, counts: list[int]) -> float | None:
    """NIC speed of one device: the speeds of a typical node's rails, shared by its devices."""
    speeds = []
    for node, count in zip(topology.nodes, counts, strict=False):
        rails = [rail.bytes_per_second for rail in node.paths]
        if rails and None not in rails:
            speeds.append(sum(speed or 0.0 for speed in rails) / count)
    return median_low(speeds) if speeds else None


def _tiers(
    shape: ClusterShape, accelerator: str, node: str | None, catalog: Catalog
) -> list[dict[str, Any]]:
    """All tiers, where a pod and one oversubscription do not suffice."""
    device, row = catalog.accelerators[accelerator], _node_row(accelerator, node, catalog)
    link = (row.link_bytes_per_second if row else None) or device.link_bytes_per_second
    nic = shape.nic_bytes_per_second
    if len(shape.pods) < 2 or link is None or nic is None:
        return []
    domain = shape.domain or (row.domain or row.count if row else device.domain)
    whole = (shape.gpus, shape.oversubscription or 1.0)
    return [{"devices": domain, "bytes_per_second": link}] + [
        {"devices": size, "bytes_per_second": nic / factor} for size, factor in (*shape.pods, whole)
    ]


def _plain(value: Any) -> dict[str, Any]:
    """Fields that say something; which source knew a node is of no use later."""
    fields_ = {}
    for field in fields(value):
        part = getattr(value, field.name)
        if part not in (None, ()) and field.name != "sources":
            nested = isinstance(part, tuple) and hasattr(part[0], "__dataclass_fields__")
            fields_[field.name] = [_plain(item) for item in part] if nested else part
    return fields_
