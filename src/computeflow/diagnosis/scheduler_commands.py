"""Commands of schedulers for remedies: drain a node, resume it, end a job.

Names come from recordings, so they are quoted for the shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def drain_command(node: str, reason: str, scheduler: str) -> str:
    """`scheduler`: slurm, kubernetes, or "" where it is unknown: then both."""
    slurm = f"scontrol update nodename={shlex.quote(node)} state=drain reason={shlex.quote(reason)}"
    return _either(slurm, f"kubectl cordon {shlex.quote(node)}", scheduler)


def resume_command(node: str, scheduler: str) -> str:
    slurm = f"scontrol update nodename={shlex.quote(node)} state=resume"
    return _either(slurm, f"kubectl uncordon {shlex.quote(node)}", scheduler)


def scheduler_of(holders: Iterable[str]) -> str:
    """The scheduler whose names these are: pods have a namespace, Slurm's jobs a number."""
    names = list(holders)
    if any("/" in name for name in names):
        return "kubernetes"
    return "slurm" if names and all(_is_job(name) for name in names) else ""


def _is_job(name: str) -> bool:
    return name.replace("_", "").isdecimal()


def end_command(holder: str) -> str:
    """For a Slurm job ID, or a pod as `namespace/pod`; "" for any other name."""
    space, slash, pod = holder.partition("/")
    if slash:
        return f"kubectl delete pod -n {shlex.quote(space)} {shlex.quote(pod)}"
    return f"scancel {holder}" if _is_job(holder) else ""


def _either(slurm: str, kubernetes: str, scheduler: str) -> str:
    if scheduler == "slurm":
        return slurm
    if scheduler == "kubernetes":
        return kubernetes
    return f"{slurm} (Slurm), {kubernetes} (Kubernetes)"
