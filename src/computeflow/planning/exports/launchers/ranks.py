"""How ranks are started, and the environment that the plan counts on; the same for every launcher."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from computeflow.files.languages import comment
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.launchers.launch_settings import DUMP_SECONDS, LaunchSettings

RECORDS = "flight-records"
"""Folder for what the flight recorder writes after a hang; `computeflow audit` reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    name: str
    value: str
    why: str


def variables(
    setup: Setup, terms: LaunchSettings, *, folder: str = RECORDS
) -> tuple[Variable, ...]:
    """Variables that differ from the libraries' defaults, or that must fail rather than fall back.

    Interfaces and adapters (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) are the site's, in /etc/nccl.conf.
    """
    always = [
        Variable(name="NCCL_DEBUG", value="WARN", why="An error of NCCL says what failed."),
        Variable(
            name="TORCH_NCCL_DUMP_ON_TIMEOUT",
            value="1",
            why="A collective that times out leaves the last calls of every rank.",
        ),
        Variable(
            name="TORCH_FR_DUMP_TEMP_FILE",
            value=f"{folder}/rank",
            why="There, one file for every rank.",
        ),
        Variable(
            name="TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
            value=str(DUMP_SECONDS * 1000),
            why="Time to write them before the rank ends.",
        ),
        Variable(
            name="TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
            value=str(terms.collective_seconds),
            why="A watchdog that hangs itself ends its rank as early as a hung collective.",
        ),
        Variable(
            name="TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
            value=str(max(terms.grace_seconds - 30, 1)),
            why="After SIGTERM ranks may save a checkpoint this long (30 s by default), "
            "less than the job has left.",
        ),
        Variable(
            name="PYTHONUNBUFFERED", value="1", why="The last line before a failure is not lost."
        ),
    ]
    return (*always, *_of_the_plan(setup))


def _of_the_plan(setup: Setup) -> list[Variable]:
    layout, stack = setup.layout, setup.stack
    planned = []
    if setup.cluster.domain > setup.node_devices and setup.nodes > 1 and _is_nvidia(setup):
        why = f"The plan counts on NVLink between nodes, {setup.cluster.domain} GPUs wide."
        planned.append(Variable(name="NCCL_MNNVL_ENABLE", value="1", why=why))
    megatron = stack.name.startswith(("megatron", "nemo"))
    split = layout.tp > 1 or layout.cp > 1
    if megatron and split and layout.sharding in ("ddp", "zero1"):  # its FSDP refuses it
        why = "Collectives start in the order of the code, ahead of the matmuls that hide them."
        planned.append(Variable(name="CUDA_DEVICE_MAX_CONNECTIONS", value="1", why=why))
    return planned


def _is_nvidia(setup: Setup) -> bool:
    return setup.cluster.accelerator.vendor == "NVIDIA"


def exports(setup: Setup, terms: LaunchSettings) -> str:
    """Lines of a shell script."""
    lines = [
        f"{comment([v.why])}export {v.name}={shlex.quote(v.value)}\n"
        for v in variables(setup, terms)
    ]
    return "".join(lines) + f"mkdir -p {RECORDS}\n"


def torchrun(setup: Setup, *, rank: str, address: str, port: str) -> str:
    """The start of a shell line; the command follows it.

    Static rendezvous, because it keeps the order of nodes (c10d sorts them by address). It cannot
    start a node's ranks again alone: restarts are the scheduler's. With --no-python the command is
    run as it stands, interpreter included.
    """
    sizes = f"torchrun --nnodes={setup.nodes} --nproc-per-node={setup.node_devices}"
    rendezvous = f"--node-rank={rank} --master-addr={address} --master-port={port}"
    return f"{sizes} {rendezvous} --max-restarts=0 --no-python"
