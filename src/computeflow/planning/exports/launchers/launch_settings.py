"""Settings of a launch beside the plan (`LaunchSettings`), and the interface of every launcher.

A launcher starts one rank for every GPU, a node's ranks next to each other and nodes in the order of
the plan. Text that came from a user is checked here and quoted where it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from computeflow.errors import InputError, UnavailableError
from computeflow.files.languages import comment
from computeflow.files.names import check_host, check_name, shown
from computeflow.planning.exports.config_formats import Setup, WrittenConfig
from computeflow.units import DAY_SECONDS

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,-]*")
_LABEL = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*")
_VENDORS = ("NVIDIA", "AMD")
"""Vendors whose devices schedulers call GPUs, and that use NCCL (RCCL reads the same variables)."""
TORCH = "PyTorch 2.13, NCCL 2.30"
DUMP_SECONDS = 60
"""Time for the flight recorder to write what hung, after a collective timed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """Settings that a site and a user add to a plan. Timeouts nest: a hang ends as a collective that
    timed out, with its record written, before the scheduler asks the job to stop, and then kills it.
    """

    name: str | None = None
    """Name of the job; model and GPUs where it is not given."""
    limit_seconds: int = int(DAY_SECONDS)
    """Time after which the scheduler ends the job."""
    grace_seconds: int = 300
    """Time before the limit at which ranks get SIGTERM, for a last checkpoint."""
    collective_seconds: int = 600
    """Timeout that the training code gives to init_process_group; 600 is its default with NCCL."""
    port: int = 29500
    hosts: tuple[str, ...] = ()
    """Nodes in the order of the plan, where a placement chose them."""
    partition: str | None = None
    account: str | None = None
    image: str = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"
    queue: str | None = None
    """Kueue's local queue."""
    topology: str | None = None
    """Node label of the part of the network that all pods should share (a block, a spine)."""
    topology_required: bool = False
    """Wait until they can, rather than spread."""
    domain_topology: str | None = None
    """Node label of the scale-up domain, where that is larger than a node (an NVLink rack)."""

    def __post_init__(self) -> None:
        if min(self.grace_seconds, self.collective_seconds) < 1:
            raise InputError("grace_seconds and collective_seconds are one or more")
        least = self.collective_seconds + DUMP_SECONDS + self.grace_seconds
        if self.limit_seconds <= least:
            raise InputError(
                f"limit_seconds = {self.limit_seconds}: a hang is known after {least} s "
                "(collective timeout, its record, grace), so the limit must be longer"
            )
        if not 1024 <= self.port <= 65535:
            raise InputError(f"port = {self.port}: between 1024 and 65535")
        if self.name is not None:
            check_name(self.name, "job")
        for host in self.hosts:
            check_host(host, "host")
        if len(set(self.hosts)) < len(self.hosts):
            raise InputError("hosts: a node is named twice")
        for field, pattern in _PATTERNS.items():
            if (text := getattr(self, field)) is not None:
                _matches(pattern, field, text)


_PATTERNS = {
    "partition": _WORD,
    "account": _WORD,
    "image": _IMAGE,
    "queue": _WORD,
    "topology": _LABEL,
    "domain_topology": _LABEL,
}


class Launcher(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Version of the project whose options or fields are written."""
        ...

    def write(self, setup: Setup, command: list[str]) -> WrittenConfig: ...


def check_launch(setup: Setup, terms: LaunchSettings, command: list[str]) -> None:
    """Refuse what no launcher can start."""
    device = setup.cluster.accelerator
    if device.vendor not in _VENDORS:
        raise UnavailableError(
            f"{device.name}: launch files are written for GPUs of {' and '.join(_VENDORS)}"
        )
    if setup.nodes * setup.node_devices != setup.layout.gpus:
        raise InputError(
            f"{setup.layout.gpus} GPUs do not fill nodes of {setup.node_devices}: launchers start "
            "equally many ranks on every node"
        )
    if terms.hosts and len(terms.hosts) != setup.nodes:
        raise InputError(f"{len(terms.hosts)} hosts for {setup.nodes} nodes: name each once")
    if command[:1] in ([], [""]) or command[0].startswith("-"):
        raise InputError(f"command {command[:1]}: it starts with a program (python train.py ...)")
    for word in command:
        if not _passes(word):
            raise InputError(f"command: '{shown(word)}' cannot be passed to a program")


def job_name(setup: Setup, terms: LaunchSettings, *, most: int = 40) -> str:
    """Letters, digits and hyphens, as Kubernetes wants them; a letter first."""
    text = terms.name or f"{setup.job.model.name}-{setup.layout.gpus}"
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (slug if slug[:1].isalpha() else f"job-{slug}")[:most].strip("-")


def header(setup: Setup, version: str, left_out: tuple[str, ...]) -> str:
    """Comment lines: what was planned, what the file was checked against, what it does not say."""
    layout = setup.layout
    sizes = " ".join(f"{n}={getattr(layout, n)}" for n in ("tp", "pp", "cp", "ep"))
    return comment(
        [
            f"{setup.job.model.name} on {layout.gpus} x {setup.cluster.accelerator.name}: "
            f"{setup.nodes} nodes of {setup.node_devices}, {sizes} dp={setup.dp}",
            f"Written by ComputeFlow; checked against {version}.",
            *(f"Left out: {text}" for text in left_out),
        ]
    )


def _matches(pattern: re.Pattern[str], field: str, text: str) -> None:
    if not pattern.fullmatch(text) or len(text) > 253:
        raise InputError(f"{field} = '{shown(text)}': not a name that schedulers take")


def _passes(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in word
