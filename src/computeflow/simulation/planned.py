"""A predicted plan as a run: its work, its checkpoint, and how long saving and loading take."""

from __future__ import annotations

from typing import Literal

from computeflow.catalog.parameters import count_parameters
from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.prediction import Prediction
from computeflow.scheduling import Policy, Shrinking
from computeflow.simulation.conditions import Conditions, changed
from computeflow.simulation.run import Run

Saving = Literal["async", "sync"]


def checkpoint_bytes(prediction: Prediction) -> float:
    """Weights and the optimizer's state, once for the whole job, as the stack keeps them."""
    stack = prediction.stack
    total = count_parameters(prediction.job.model).total
    return float(total * (stack.param_bytes + stack.state_bytes))


def storage_seconds(prediction: Prediction, cluster: Cluster, saving: Saving) -> dict[str, float]:
    """Conditions that follow from the checkpoint's size and the storage's rates, where those are
    known.

    async: training stops while each device copies its share to the host; the write goes on behind
    it.
    """
    size = checkpoint_bytes(prediction)
    write = cluster.storage_bytes_per_second(write=True)
    read = cluster.storage_bytes_per_second(write=False)
    found: dict[str, float] = {}
    if read is not None:
        found["load_seconds"] = size / read
    if saving == "sync":
        if write is None:
            raise InputError("--saving sync needs the storage's write rate: name it with --storage")
        return found | {"stall_seconds": size / write, "persist_seconds": 0.0}
    found["stall_seconds"] = size / cluster.gpus / cluster.host_bytes_per_second
    if write is not None:
        found["persist_seconds"] = size / write
    return found


def node_gpus(cluster: Cluster, gpus: int) -> int:
    """Of one node of a job of so many: what a failure takes out."""
    return min(cluster.node_devices or cluster.domain, gpus)


def shrinking_of(prediction: Prediction, cluster: Cluster, least: int) -> Shrinking:
    """Down to `least` replicas; a lost node takes along all that it holds."""
    layout = prediction.layout
    size = layout.tp * layout.pp * layout.cp
    return Shrinking(
        groups=layout.gpus // size,
        least_groups=least,
        lost_groups=max(1, node_gpus(cluster, layout.gpus) // size),
    )


def run_of(
    prediction: Prediction, cluster: Cluster, conditions: Conditions, policy: Policy, *,
    label: str, tokens: float | None = None, wall_seconds: float | None = None,
    given: dict[str, float] | None = None, saving: Saving = "async",
) -> Run:  # fmt: skip
    """`given` are conditions that the user states; they go before what follows from the storage."""
    from_storage = storage_seconds(prediction, cluster, saving)
    met = changed(conditions, from_storage | (given or {}))
    work, ends = None, None
    if tokens is not None:
        steps = tokens / prediction.job.step_tokens
        work = steps * prediction.step_seconds
        low, high = prediction.step_seconds_range
        ends = (steps * low, steps * high)
    size = prediction.layout.gpus
    return Run(
        label=label,
        gpus=size,
        node_gpus=node_gpus(cluster, size),
        work_seconds=work,
        work_seconds_range=ends,
        wall_seconds=wall_seconds,
        conditions=met,
        policy=policy,
        step=prediction.ledger,
        assumed=prediction.assumed,
    )
