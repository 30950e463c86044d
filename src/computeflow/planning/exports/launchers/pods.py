"""Common parts of Kubernetes manifests: resources, Kueue's labels, text that is YAML and JSON."""

from __future__ import annotations

from typing import Any

from computeflow.files.languages import comment, to_yaml_and_json
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.launchers import ranks
from computeflow.planning.exports.launchers.launch_settings import LaunchSettings

_KUEUE = "kueue.x-k8s.io"
RECORDS = "/tmp"
_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""Name of a GPU in the vendors' device plugins."""
SHARED_MEMORY = {"name": "shm", "emptyDir": {"medium": "Memory"}}
"""A container's own /dev/shm is 64 MiB: too small for NCCL and for data loaders."""
SHARED_MEMORY_MOUNT = {"name": "shm", "mountPath": "/dev/shm"}
RDMA = {"capabilities": {"add": ["IPC_LOCK"]}}
"""Adapters pin the memory they send from."""


def document(opening: str, manifest: dict[str, Any]) -> str:
    """JSON under comment lines, which is YAML as well."""
    return opening + to_yaml_and_json(manifest)


def literal(words: list[str]) -> list[str]:
    """Words as container arguments: Kubernetes expands $(NAME) in them, and reads $$ as $."""
    return [word.replace("$", "$$") for word in words]


def resources(setup: Setup) -> dict[str, Any]:
    name = _RESOURCES[setup.cluster.accelerator.vendor]
    return {"limits": {name: str(setup.node_devices)}}


def environment(setup: Setup, terms: LaunchSettings) -> list[dict[str, str]]:
    return [{"name": v.name, "value": v.value} for v in _variables(setup, terms)]


def labels(terms: LaunchSettings) -> dict[str, str]:
    return {f"{_KUEUE}/queue-name": terms.queue} if terms.queue else {}


def topology(setup: Setup, terms: LaunchSettings) -> dict[str, str]:
    """Annotations for Kueue's topology-aware scheduling, on the pod template."""
    annotations = {}
    if terms.topology is not None:
        word = "required" if terms.topology_required else "preferred"
        annotations[f"{_KUEUE}/podset-{word}-topology"] = terms.topology
    if terms.domain_topology is not None and (nodes := _domain_nodes(setup)) > 1:
        annotations[f"{_KUEUE}/podset-slice-required-topology"] = terms.domain_topology
        annotations[f"{_KUEUE}/podset-slice-size"] = str(nodes)
    return annotations


def _domain_nodes(setup: Setup) -> int:
    """Nodes of a scale-up domain that the job fills evenly; 1 where a domain is a node."""
    nodes = min(setup.cluster.domain // setup.node_devices, setup.nodes)
    return nodes if nodes and setup.nodes % nodes == 0 else 1


def left_out(setup: Setup, terms: LaunchSettings) -> tuple[str, ...]:
    lines = ["network adapters: the site's RDMA resource or pod networks"]
    if setup.nodes > 1 and terms.topology is None:
        lines.append("which part of the network: name its node label (topology)")
    if setup.nodes > 1 and setup.cluster.domain > setup.node_devices:
        if terms.domain_topology is None:
            lines.append("the NVLink domain: name its node label (domain_topology)")
        elif _domain_nodes(setup) == 1:
            lines.append(f"the NVLink domain: its nodes do not divide {setup.nodes}")
    if terms.hosts:
        lines.append("hosts: Kueue chooses nodes by topology, the order of indices is not fixed")
    lines.append(f"a volume: records of a hang stay in {RECORDS} of the pod")
    return tuple(lines)


def why(setup: Setup, terms: LaunchSettings) -> str:
    """Comment lines, since JSON has none."""
    return comment(f"{v.name}: {v.why}" for v in _variables(setup, terms))


def _variables(setup: Setup, terms: LaunchSettings) -> tuple[ranks.Variable, ...]:
    return ranks.variables(setup, terms, folder=RECORDS)
