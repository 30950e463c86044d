"""How an agent is started on every node: `manifest` for systemd, Slurm or Kubernetes."""

from __future__ import annotations

from importlib import resources
from typing import Literal, get_args

from computeflow import __version__
from computeflow.errors import UnknownNameError

ManifestKind = Literal["systemd", "slurm", "kubernetes"]
_FILES = {"systemd": "agent.service", "slurm": "agent.slurm.sh", "kubernetes": "agent.yaml"}
_COLLECTOR = "https://COLLECTOR:8471"
_SHARED_RUNS = "/shared/runs"


def manifest(kind: str, *, collector: str | None = None, runs: str | None = None) -> str:
    """A file to install; addresses and folders that are not given are to be filled in."""
    if kind not in _FILES:
        raise UnknownNameError("manifest", kind, get_args(ManifestKind))
    text = resources.files(__package__).joinpath("templates", _FILES[kind]).read_text("utf-8")
    for mark, value in {
        "@COLLECTOR@": collector or _COLLECTOR,
        "@RUNS@": runs or _SHARED_RUNS,
        "@VERSION@": __version__,
    }.items():
        text = text.replace(mark, value)
    return text
