"""A predicted plan as a run: its work, its checkpoint, and how long saving and loading take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from computeflow.catalog.parameters import count_parameters
from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.prediction import Prediction
from computeflow.prediction.power import WAITING
from computeflow.scheduling import Checkpoints, Eviction, Policy, Shrinking, Spares
from computeflow.scheduling.policy import Rule
from computeflow.simulation.conditions import Conditions, Input, change_conditions, usual_conditions
from computeflow.simulation.failures import find_failures
from computeflow.simulation.run_inputs import RunInputs

Saving = Literal["async", "sync"]


def _checkpoint_bytes(prediction: Prediction) -> float:
    """Weights and the optimizer's state, once for the whole job, as the stack keeps them."""
    stack = prediction.stack
    total = count_parameters(prediction.job.model).total
    return float(total * (stack.param_bytes + stack.state_bytes))


def _storage_seconds(prediction: Prediction, cluster: Cluster, saving: Saving) -> dict[str, float]:
    """Conditions that follow from the checkpoint's size and the storage's rates, where those are
    known.

    async: training stops while each device copies its share to the host; the write goes on behind
    it.
    """
    size = _checkpoint_bytes(prediction)
    write = cluster.storage_bytes_per_second(write=True)
    read = cluster.storage_bytes_per_second(write=False)
    seconds: dict[str, float] = {}
    if read is not None:
        seconds["load_seconds"] = size / read
    if saving == "sync":
        if write is None:
            raise InputError("--saving sync needs the storage's write rate: name it with --storage")
        return seconds | {"stall_seconds": size / write, "persist_seconds": 0.0}
    seconds["stall_seconds"] = size / cluster.gpus / cluster.host_bytes_per_second
    if write is not None:
        seconds["persist_seconds"] = size / write
    return seconds


def node_gpus(cluster: Cluster, gpus: int) -> int:
    """GPUs of one node of such a job: what a failure takes out."""
    return min(cluster.node_devices or cluster.domain, gpus)


def _shrinking_of(prediction: Prediction, cluster: Cluster, least: int) -> Shrinking:
    """Shrinking down to `least` replicas; a lost node takes all replicas that it holds."""
    layout = prediction.layout
    size = layout.tp * layout.pp * layout.cp
    return Shrinking(
        groups=layout.gpus // size,
        least_groups=least,
        lost_groups=max(1, node_gpus(cluster, layout.gpus) // size),
    )


def make_policy(
    prediction: Prediction,
    cluster: Cluster,
    *,
    interval_seconds: float | None,
    checkpoint_steps: int | None,
    spares: int | None,
    evict: Rule,
    lemons: int | None,
    shrink: int | None,
) -> Policy:
    """The policy for failures, from the command's options."""
    if interval_seconds and checkpoint_steps:
        raise InputError("--interval and --checkpoint-steps say the same: give one")
    if checkpoint_steps:
        interval_seconds = checkpoint_steps * prediction.step_seconds
    return Policy(
        checkpoints=Checkpoints(interval_seconds=interval_seconds),
        spares=Spares(nodes=spares or 0),
        eviction=Eviction(stragglers=evict, lemon_failures=lemons),
        shrinking=None if shrink is None else _shrinking_of(prediction, cluster, shrink),
    )


def planned_conditions(
    prediction: Prediction, cluster: Cluster, failures: str, rows: Mapping[str, Input]
) -> Conditions:
    """The usual conditions of a job of this size on such nodes; `rows` are the site's own."""
    gpus = prediction.layout.gpus
    return usual_conditions(
        find_failures(failures).at(gpus),
        node_gpus=node_gpus(cluster, gpus),
        **{name: row.value for name, row in rows.items()},
    )


def waiting_watts(cluster: Cluster) -> float | None:
    limit = cluster.accelerator.tdp_watts
    return None if limit is None else WAITING * limit


def run_of(
    prediction: Prediction,
    cluster: Cluster,
    conditions: Conditions,
    policy: Policy,
    *,
    label: str,
    tokens: float | None = None,
    wall_seconds: float | None = None,
    given: dict[str, float] | None = None,
    saving: Saving = "async",
) -> RunInputs:
    """`given` are conditions that the user states; they go before what follows from the storage."""
    from_storage = _storage_seconds(prediction, cluster, saving)
    conditions = change_conditions(conditions, from_storage | (given or {}))
    work, ends = None, None
    if tokens is not None:
        steps = tokens / prediction.job.step_tokens
        work = steps * prediction.step_seconds
        low, high = prediction.step_seconds_range
        ends = (steps * low, steps * high)
    size = prediction.layout.gpus
    return RunInputs(
        label=label,
        gpus=size,
        node_gpus=node_gpus(cluster, size),
        work_seconds=work,
        work_seconds_range=ends,
        wall_seconds=wall_seconds,
        conditions=conditions,
        policy=policy,
        step=prediction.ledger,
        waiting_watts=waiting_watts(cluster),
        assumed=prediction.assumed,
    )
