"""A cluster of one kind of accelerator, as far as a step's time depends on it.

What joins the devices is a list of tiers, from the inside out: the scale-up domain (NVLink, ICI,
NeuronLink), the network of a pod (a rail group, a leaf), the spine above it. A catalog node gives the
first two; a user's TOML may replace any of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from computeflow import codec
from computeflow.catalog import Accelerator, Catalog, Storage
from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.files.parsing import parse_toml
from computeflow.files.reading import read_text

if TYPE_CHECKING:  # most clusters have none: it is imported where a file brings one
    from computeflow.cluster.topology import Topology

T = TypeVar("T")
MAX_TIERS = 4
MAX_GPUS = 1 << 20
"""Devices in one cluster: several times the largest announced."""
_COUNT_DIGITS = 18
_HOST_EFFICIENCY = 0.88
"""Share of PCIe's rated speed that copies from pinned memory reach: 55.4 of 63 GB/s on our H200."""
_PCIE_4 = _HOST_EFFICIENCY * 31e9
"""Speed where the node's link to its host is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTier:
    """Links that join units of the next smaller tier."""

    devices: int
    """Devices that it joins: the size of one unit of this tier."""
    bytes_per_second: float
    """Speed of one device, one direction, to devices outside its unit of the next smaller tier."""

    def __post_init__(self) -> None:
        if self.devices < 1 or not self.bytes_per_second > 0:
            raise InputError(f"a tier of {self.devices} devices at {self.bytes_per_second} bytes/s")


_STORAGE_UNITS = ("drive", "node", "client", "system")
"""Units whose number follows from the size of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    accelerator: Accelerator
    gpus: int
    tiers: tuple[LinkTier, ...]
    """Tiers from the inside out; the last one joins all."""
    host_bytes_per_second: float = _PCIE_4
    """Speed of copies between one device and its host's memory, one direction."""
    node_devices: int | None = None
    """Devices in one node, as it is started and racked; a domain may span several (NVL72)."""
    host_memory_bytes: float | None = None
    """One device's share of the host's memory; None where it is unknown."""
    storage: Storage | None = None
    """Storage for data and checkpoints."""
    assumed: tuple[str, ...] = ()
    """Defaults taken for what was not given."""
    topology: Topology | None = field(default=None, repr=False)
    """Which node is plugged in where, if that is known: for placements."""

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MAX_GPUS:
            raise InputError(f"{self.gpus:,} devices: a cluster has 1 to {MAX_GPUS:,}")
        if not self.accelerator.training:
            raise InputError(f"{self.accelerator.name} is not a training target")
        if len(self.tiers) > MAX_TIERS:
            raise InputError(f"{len(self.tiers)} tiers of links; at most {MAX_TIERS}")
        sizes = [tier.devices for tier in self.tiers]
        if sizes != sorted(set(sizes)):
            raise InputError(f"tiers of {sizes} devices: they must grow from the inside out")
        if self.storage is not None and self.storage.per not in _STORAGE_UNITS:
            raise InputError(
                f"{self.storage.name}: its bandwidth is per {self.storage.per}, and how many of those "
                "you have is unknown: give a row of your own, per system, with --catalog"
            )
        if self.gpus > self.reach:
            raise InputError(
                f"{self.gpus} x {self.accelerator.name} needs a network, and the catalog knows none: "
                "state nic_bytes_per_second in a cluster file"
            )

    @property
    def reach(self) -> int:
        """Devices that are joined at all."""
        return self.tiers[-1].devices if self.tiers else 1

    @property
    def domain(self) -> int:
        """Devices that the innermost links join."""
        return self.tiers[0].devices if self.tiers else 1

    def storage_bytes_per_second(self, *, write: bool) -> float | None:
        """Storage bandwidth of all devices together; None where storage or its rate is unknown.

        A figure of a node, drive or client counts once for every domain; one of a system counts once.
        """
        if self.storage is None:
            return None
        rate = self.storage.write_bytes_per_second if write else self.storage.read_bytes_per_second
        if rate is None:
            return None
        return rate if self.storage.per == "system" else rate * max(self.gpus // self.domain, 1)


def resize_cluster(cluster: Cluster, gpus: int) -> Cluster:
    """The same cluster with another number of devices: tiers that it does not leave, and one that
    joins all.
    """
    if not cluster.tiers:
        return replace(cluster, gpus=gpus)
    *_, widest = cluster.tiers
    if len(cluster.tiers) == 1 and gpus > widest.devices:
        raise InputError(f"{gpus} GPUs need a network: name a cluster of that size with --on")
    reaching = next((tier for tier in cluster.tiers if tier.devices >= gpus), widest)
    inner = [t for t in cluster.tiers if t.devices < gpus and t is not reaching]
    return replace(cluster, gpus=gpus, tiers=(*inner, replace(reaching, devices=max(gpus, 2))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """The TOML form: `accelerator` and `gpus`, and what differs from the catalog's node.

    Beside it stand nodes and switches by name (`topology`), as `computeflow cluster import` writes
    them.
    """

    accelerator: str
    gpus: int
    node: str | None = None
    domain: int | None = None
    """Devices that the scale-up link joins."""
    link_bytes_per_second: float | None = None
    """Speed of one device inside the domain, one direction."""
    nic_bytes_per_second: float | None = None
    """Speed of one device between domains, one direction."""
    pod: int | None = None
    """Devices under one leaf or rail group, beyond which the network is narrower."""
    oversubscription: float | None = None
    """Ratio in the network between pods: 2 where it carries half of what the devices can send."""
    tiers: list[LinkTier] | None = None
    """All tiers, inside out, instead of the figures above."""
    host_bytes_per_second: float | None = None
    """Speed of one device to its host's memory, one direction."""
    storage: str | None = None


def find_cluster(text: str, catalog: Catalog) -> Cluster:
    """`accelerator:count` with its usual node, or the name of a TOML file."""
    if text.endswith(".toml"):
        return _from_file(Path(text), catalog)
    name, colon, count = text.rpartition(":")
    if count.isdecimal() and len(count) > _COUNT_DIGITS:
        raise InputError(f"'{shown(text)}': a cluster has between 1 and {MAX_GPUS:,} devices")
    if not colon or not count.isdecimal():
        raise InputError(
            f"'{shown(text)}': write accelerator:count (h100-sxm:512) or name a TOML file"
        )
    return usual_cluster(name, int(count), catalog)


def usual_cluster(
    accelerator: str,
    gpus: int,
    catalog: Catalog,
    *,
    node_devices: int | None = None,
    nic_bytes_per_second: float | None = None,
) -> Cluster:
    """A cluster of the catalog's usual node type for its devices, or of nodes of another size."""
    parts = ClusterFile(
        accelerator=accelerator, gpus=gpus, nic_bytes_per_second=nic_bytes_per_second
    )
    if node_devices is not None and _node_of(parts, catalog)[0] <= 16:
        # A node is the domain; racks and slices keep theirs.
        parts = replace(parts, domain=min(node_devices, gpus))
    return _from_parts(parts, catalog)


def _from_file(path: Path, catalog: Catalog) -> Cluster:
    data = parse_toml(read_text(path), str(path))
    cabled = data.pop("topology", None)
    cluster = _from_parts(codec.decode(ClusterFile, data, str(path)), catalog)
    if cabled is None:
        return cluster
    from computeflow.cluster.topology import Topology

    return replace(cluster, topology=codec.decode(Topology, cabled, f"{path}, topology"))


def _from_parts(parts: ClusterFile, catalog: Catalog) -> Cluster:
    device = catalog.accelerators[parts.accelerator]
    name = parts.node or device.node
    stated = parts.node is not None or parts.tiers is not None
    assumed = (f"nodes of type {name}",) if name is not None and not stated else ()
    return Cluster(
        accelerator=device,
        gpus=parts.gpus,
        tiers=_tiers(parts, catalog),
        host_bytes_per_second=parts.host_bytes_per_second or _host_speed(parts, catalog),
        node_devices=catalog.nodes[name].count if name is not None else None,
        host_memory_bytes=_host_memory(parts, catalog),
        storage=catalog.storage[parts.storage] if parts.storage else None,
        assumed=assumed,
    )


def _host_speed(parts: ClusterFile, catalog: Catalog) -> float:
    name = parts.node or catalog.accelerators[parts.accelerator].node
    link = catalog.nodes[name].pcie if name is not None else None
    return _HOST_EFFICIENCY * catalog.fabrics[link].bytes_per_second if link else _PCIE_4


def _host_memory(parts: ClusterFile, catalog: Catalog) -> float | None:
    name = parts.node or catalog.accelerators[parts.accelerator].node
    if name is None:
        return None
    node = catalog.nodes[name]
    return node.host_bytes / node.count if node.host_bytes else None


def _node_of(parts: ClusterFile, catalog: Catalog) -> tuple[int, float | None, float | None]:
    """Devices of a domain, link and NIC speed of one of them, as the catalog knows them."""
    device = catalog.accelerators[parts.accelerator]
    link, nic, domain = device.link_bytes_per_second, device.nic_bytes_per_second, device.domain
    name = parts.node or device.node
    if name is not None:
        node = catalog.nodes[name]
        link = node.link_bytes_per_second or link
        domain = node.domain or node.count
        if node.nics and node.nic_bytes_per_second:
            nic = node.nics * node.nic_bytes_per_second / node.count
    return domain, link, nic


def _tiers(parts: ClusterFile, catalog: Catalog) -> tuple[LinkTier, ...]:
    if parts.tiers is not None:
        return tuple(parts.tiers)
    domain, link, nic = _node_of(parts, catalog)
    domain = _given(parts.domain, domain)
    link = _given(parts.link_bytes_per_second, link)
    nic = _given(parts.nic_bytes_per_second, nic)
    inner = link or nic  # without a scale-up link, devices of a node meet at the NIC
    if domain < 1:
        raise InputError(f"domains of {domain} devices: no cluster")
    tiers = [LinkTier(devices=domain, bytes_per_second=inner)] if inner is not None else []
    if nic is None or parts.gpus <= domain:
        return tuple(tiers)
    return (*tiers, *_network(parts, domain, nic))


def _given(stated: T | None, usual: T) -> T:
    return usual if stated is None else stated


def _network(parts: ClusterFile, domain: int, nic: float) -> list[LinkTier]:
    """The tiers above a domain: the pod, where there is one, and all."""
    narrower = 1.0 if parts.oversubscription is None else parts.oversubscription
    if narrower < 1:
        raise InputError(f"oversubscription {narrower:g}: 1 (none) or more")
    whole = LinkTier(devices=parts.gpus, bytes_per_second=nic / narrower)
    if parts.pod is None:
        return [whole]
    if parts.pod < domain or parts.pod % domain:
        raise InputError(f"pod of {parts.pod} devices: whole domains of {domain}")
    if parts.gpus <= parts.pod:  # nothing leaves the pod
        return [LinkTier(devices=parts.gpus, bytes_per_second=nic)]
    pod = LinkTier(devices=parts.pod, bytes_per_second=nic)
    return [pod, whole] if domain < parts.pod else [whole]
