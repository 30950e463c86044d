"""`predict`: a job, a cluster, a layout and a stack to a step's time, ledger, memory and power."""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.cluster import Cluster
from computeflow.ledger import Entry, Ledger, Peak, Window
from computeflow.prediction.batch import of_job
from computeflow.prediction.memory import memory
from computeflow.prediction.parameters import Parameters, load_parameters
from computeflow.prediction.stack import DEFAULT, Stack, find_stack
from computeflow.prediction.step import account_step
from computeflow.workload import Job, Layout, Layouts, check

RANGE = (0.90, 1.22)
"""Of predicted time, between which 80 % of the published dense runs lie; docs/accuracy.md."""
WIDE = (0.75, 1.45)
"""The same where the stack was not stated; wider by judgement, not by measurement."""
BUSY_WATTS, IDLE_WATTS = 0.985, 0.125
"""Of the power limit, with kernels running and without: 690 W and 85 W of 700 W on our H200."""
_WITHOUT_KERNELS = ("host", "input", "bubble", "imbalance", "straggler", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    job: Job
    layout: Layout
    stack: Stack
    ledger: Ledger
    """Of one step."""
    step_seconds: float
    step_seconds_range: tuple[float, float]
    """80 % of runs like this one lie between."""
    tokens_per_second_per_gpu: float
    memory_bytes: float
    memory_by_owner: dict[str, float]
    fits: bool
    watts_per_gpu: float | None
    assumed: tuple[str, ...]
    """What was not given and what was taken for it."""


def predict(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    stack: Stack | None = None,
    parameters: Parameters | None = None,
) -> Prediction:
    """One layout. An impossible one is refused with the reason; one that does not fit says so."""
    check(job, layout)
    used = stack or find_stack(DEFAULT)
    batch = of_job(job, cluster, Layouts.of([layout]), used)
    step = account_step(batch, parameters or load_parameters())
    seconds = float(step.seconds[0])
    device = cluster.accelerator
    entries = [
        Entry(
            account=name,
            gpu_seconds=layout.gpus * float(values[0]),
            joules=_joules(name, layout.gpus * float(values[0]), device.tdp_watts),
        )
        for name, values in step.accounts.items()
        if values[0] > 0
    ]
    palm = float(batch.palm_flops_per_token[0] / batch.flops_per_token[0])
    ledger = Ledger.closed(
        entries,
        gpus=layout.gpus,
        wall_seconds=seconds,
        basis="predicted",
        window=Window(label="one step"),
        peak=Peak(
            flops=float(batch.peak_flops[0]),
            precision="fp8" if batch.low_precision[0] else "bf16",
            palm_ratio=palm,
        ),
        unavailable=_unavailable(entries),
    )
    low, high = RANGE if stack is not None else WIDE
    held = memory(batch)
    total = float(held.bytes[0])
    return Prediction(
        job=job,
        layout=layout,
        stack=used,
        ledger=ledger,
        step_seconds=seconds,
        step_seconds_range=(low * seconds, high * seconds),
        tokens_per_second_per_gpu=job.step_tokens / seconds / layout.gpus,
        memory_bytes=total,
        memory_by_owner={name: float(values[0]) for name, values in held.by_owner.items()},
        fits=total <= (device.reported_bytes or device.hbm_bytes),
        watts_per_gpu=None if ledger.joules is None else ledger.joules / ledger.gpu_seconds,
        assumed=(
            *cluster.assumed,
            *(() if stack is not None else (f"stack {used.name} ({used.year:g})",)),
            f"AdamW with {used.state_bytes:g} bytes of state per parameter",
            "input and checkpoints cost nothing",
        ),
    )


def _joules(account: str, gpu_seconds: float, watts: float | None) -> float | None:
    """Power of communication has not been measured by us yet: unknown, not guessed."""
    if watts is None or account.startswith("comm"):
        return None
    share = IDLE_WATTS if account in _WITHOUT_KERNELS else BUSY_WATTS
    return gpu_seconds * watts * share


def _unavailable(entries: list[Entry]) -> dict[str, str]:
    if any(entry.joules is None for entry in entries):
        return {"joules": "the power of exposed communication, not measured yet"}
    return {}
