"""The probe on a Ray cluster: one rank on every GPU, or one on every node without any.

The only module that imports Ray.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from computeflow.catalog import Accelerator
from computeflow.errors import UnavailableError
from computeflow.lab.probe.result import ProbedRanks
from computeflow.lab.probe.run_probe import ProbeOptions, probe

PORT = 29514


def probe_on_ray(
    options: ProbeOptions, accelerator: Accelerator | None, say: Callable[[str], None], address: str
) -> ProbedRanks:
    """Run the probe on all nodes of the cluster at `address` ("auto": the one this node is in)."""
    ray = _ray()
    if not ray.is_initialized():
        _check_address(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UnavailableError(f"no Ray cluster at {address!r}: {error}") from None
    places = _places(ray.nodes())
    say(f"{len(places)} ranks on {len({node for node, _, _ in places})} nodes")
    tasks = []
    for rank, (node, local, gpus) in enumerate(places):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(local),
            "MASTER_ADDR": _address_of(ray.nodes(), places[0][0]),
            "MASTER_PORT": str(PORT),
        }
        tasks.append(_submit(ray, node, gpus, variables, options, accelerator))
    fleets: list[ProbedRanks] = ray.get(tasks)
    return fleets[0]


def _check_address(address: str) -> None:
    """Check that the address answers: Ray itself retries a dead address for many minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "//" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise UnavailableError(
            f"no Ray cluster at {address!r}: {error.strerror or error}"
        ) from None


def _places(nodes: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Node, local rank and GPUs of every rank."""
    places = []
    for node in nodes:
        if node["Alive"]:
            gpus = int(node["Resources"].get("GPU", 0))
            places += [(node["NodeID"], local, min(gpus, 1)) for local in range(max(gpus, 1))]
    return places


def _address_of(nodes: list[dict[str, Any]], node_id: str) -> str:
    return str(next(node["NodeManagerAddress"] for node in nodes if node["NodeID"] == node_id))


def _submit(
    ray: Any,
    node: str,
    gpus: int,
    variables: dict[str, str],
    options: ProbeOptions,
    accelerator: Accelerator | None,
) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(_probe_here).options(
        num_cpus=1,
        num_gpus=gpus,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
    )
    return task.remote(variables, options, accelerator)


def _probe_here(
    variables: dict[str, str], options: ProbeOptions, accelerator: Accelerator | None
) -> ProbedRanks:
    os.environ.update(variables)
    return probe(options, accelerator, lambda text: None)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UnavailableError("--ray needs Ray: pip install 'computeflow[ray]'") from None
    return ray
