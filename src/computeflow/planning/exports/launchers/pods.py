"""What manifests of Kubernetes share: resources, Kueue's words, text that is YAML and JSON."""

from __future__ import annotations

from typing import Any

from computeflow.files.languages import comment, to_yaml_and_json
from computeflow.planning.exports.launchers import ranks
from computeflow.planning.exports.launchers.model import Terms
from computeflow.planning.exports.model import Setup

_KUEUE = "kueue.x-k8s.io"
RECORDS = "/tmp"
_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""What the vendors' device plugins call a GPU."""
SHARED_MEMORY = {"name": "shm", "emptyDir": {"medium": "Memory"}}
"""A container's own /dev/shm is 64 MiB: too small for NCCL and for data loaders."""
SHARED_MEMORY_MOUNT = {"name": "shm", "mountPath": "/dev/shm"}
RDMA = {"capabilities": {"add": ["IPC_LOCK"]}}
"""Adapters pin the memory they send from."""


def document(opening: str, manifest: dict[str, Any]) -> str:
    """JSON under comment lines, which is YAML as well."""
    return opening + to_yaml_and_json(manifest)


def literal(words: list[str]) -> list[str]:
    """As container arguments: Kubernetes reads $(NAME) in them, and $$ as $."""
    return [word.replace("$", "$$") for word in words]


def resources(setup: Setup) -> dict[str, Any]:
    name = _RESOURCES[setup.cluster.accelerator.vendor]
    return {"limits": {name: str(setup.node_devices)}}


def environment(setup: Setup, terms: Terms) -> list[dict[str, str]]:
    return [{"name": v.name, "value": v.value} for v in _variables(setup, terms)]


def labels(terms: Terms) -> dict[str, str]:
    return {f"{_KUEUE}/queue-name": terms.queue} if terms.queue else {}


def topology(setup: Setup, terms: Terms) -> dict[str, str]:
    """For Kueue's topology-aware scheduling, on the pod template."""
    found = {}
    if terms.topology is not None:
        word = "required" if terms.topology_required else "preferred"
        found[f"{_KUEUE}/podset-{word}-topology"] = terms.topology
    if terms.domain_topology is not None and (nodes := _domain_nodes(setup)) > 1:
        found[f"{_KUEUE}/podset-slice-required-topology"] = terms.domain_topology
        found[f"{_KUEUE}/podset-slice-size"] = str(nodes)
    return found


def _domain_nodes(setup: Setup) -> int:
    """Nodes of a scale-up domain that the job fills evenly; 1 where a domain is a node."""
    nodes = min(setup.cluster.domain // setup.node_devices, setup.nodes)
    return nodes if nodes and setup.nodes % nodes == 0 else 1


def left_out(setup: Setup, terms: Terms) -> tuple[str, ...]:
    found = ["network adapters: the site's RDMA resource or pod networks"]
    if setup.nodes > 1 and terms.topology is None:
        found.append("which part of the network: name its node label (topology)")
    if setup.nodes > 1 and setup.cluster.domain > setup.node_devices:
        if terms.domain_topology is None:
            found.append("the NVLink domain: name its node label (domain_topology)")
        elif _domain_nodes(setup) == 1:
            found.append(f"the NVLink domain: its nodes do not divide {setup.nodes}")
    if terms.hosts:
        found.append("hosts: Kueue chooses nodes by topology, the order of indices is not fixed")
    found.append(f"a volume: records of a hang stay in {RECORDS} of the pod")
    return tuple(found)


def why(setup: Setup, terms: Terms) -> str:
    """Comment lines, since JSON has none."""
    return comment(f"{v.name}: {v.why}" for v in _variables(setup, terms))


def _variables(setup: Setup, terms: Terms) -> tuple[ranks.Variable, ...]:
    return ranks.variables(setup, terms, folder=RECORDS)
