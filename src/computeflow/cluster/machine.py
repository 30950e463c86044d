"""A cluster of one kind of accelerator, as far as a step's time depends on it.

Two tiers: the scale-up domain (NVLink, ICI, NeuronLink), and the network between domains, whose
bandwidth is stated per device. A catalog node gives both; a user's TOML may replace any of it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.catalog import Accelerator, Catalog
from computeflow.catalog.files import read_text
from computeflow.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    accelerator: Accelerator
    gpus: int
    domain: int
    """Devices that the scale-up link joins."""
    link_bytes_per_second: float | None
    """Of one device inside the domain, one direction; None where there is no such link."""
    nic_bytes_per_second: float | None
    """Of one device between domains, one direction; None where it is not known."""
    assumed: tuple[str, ...] = ()
    """What was not given and what was taken for it."""

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.domain < 1:
            raise InputError(f"{self.gpus} devices in domains of {self.domain}: no cluster")
        if not self.accelerator.training:
            raise InputError(f"{self.accelerator.name} is not a training target")
        if self.gpus > self.domain and self.nic_bytes_per_second is None:
            raise InputError(
                f"{self.gpus} x {self.accelerator.name} needs a network, and the catalog knows none: "
                "state nic_bytes_per_second in a cluster file"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """The TOML form: `accelerator` and `gpus`, and what differs from the catalog's node."""

    accelerator: str
    gpus: int
    node: str | None = None
    domain: int | None = None
    link_bytes_per_second: float | None = None
    nic_bytes_per_second: float | None = None


def find_cluster(text: str, catalog: Catalog) -> Cluster:
    """`accelerator:count` with its usual node, or the name of a TOML file."""
    if text.endswith(".toml"):
        return _from_file(Path(text), catalog)
    name, colon, count = text.rpartition(":")
    if not colon or not count.isdecimal():
        raise InputError(f"{text!r}: write accelerator:count (h100-sxm:512) or name a TOML file")
    return usual_cluster(name, int(count), catalog)


def usual_cluster(accelerator: str, gpus: int, catalog: Catalog) -> Cluster:
    """So many devices in the node type that the catalog names for them."""
    return _from_parts(ClusterFile(accelerator=accelerator, gpus=gpus), catalog)


def _from_file(path: Path, catalog: Catalog) -> Cluster:
    text = read_text(path)
    try:
        data: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None
    return _from_parts(codec.decode(ClusterFile, data, str(path)), catalog)


def _from_parts(parts: ClusterFile, catalog: Catalog) -> Cluster:
    device = catalog.accelerators[parts.accelerator]
    assumed = []
    name = parts.node or device.node
    if name is not None and parts.node is None:
        assumed.append(f"nodes of type {name}")
    node = catalog.nodes[name] if name else None
    link, nic, domain = device.link_bytes_per_second, device.nic_bytes_per_second, device.domain
    if node is not None:
        link = node.link_bytes_per_second or link
        domain = node.domain or node.count
        if node.nics and node.nic_bytes_per_second:
            nic = node.nics * node.nic_bytes_per_second / node.count
    cluster = Cluster(
        accelerator=device,
        gpus=parts.gpus,
        domain=parts.domain or domain,
        link_bytes_per_second=parts.link_bytes_per_second or link,
        nic_bytes_per_second=parts.nic_bytes_per_second or nic,
    )
    return replace(cluster, assumed=tuple(assumed))
