"""Switch the recorder on in this process: hooks wait for the framework to be imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from computeflow.recorder.imports import when_imported

FOLDER = "COMPUTEFLOW_RECORD"
"""The run folder; without it, nothing is recorded."""
SWITCH = "COMPUTEFLOW_RECORDER"
"""`off` switches the recorder off, whatever else is set."""
_OFF = ("off", "0", "false", "no")
INJECT = Path(__file__).parent / "inject"
"""The folder on `PYTHONPATH` that brings the recorder into a Python process."""


def start(folder: Path | str | None = None) -> bool:
    """Record into `folder`, or where the environment says; False where neither does."""
    named = folder or os.environ.get(FOLDER)
    if not named or os.environ.get(SWITCH, "").lower() in _OFF:
        return False
    where = Path(named)
    when_imported("torch", lambda torch: _with_torch(torch, where))
    when_imported("jax", lambda jax: _with_jax(jax, where))
    return True


def recording_environment(folder: Path | str, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that bring the recorder into a Python process; users' own settings stay."""
    paths = [str(INJECT), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(paths)}


def ray_runtime_env(
    folder: Path | str, runtime_env: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A `runtime_env` of Ray whose workers record into `folder`, which all nodes must see.

    `runtime_env` is the job's own, if it has one; computeflow lies at the same path on every node.
    """
    own = dict(runtime_env or {})
    variables = dict(own.get("env_vars") or {})
    variables.setdefault("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    where = Path(folder).resolve()
    return {**own, "env_vars": recording_environment(where, variables)}


def _with_torch(torch: ModuleType, folder: Path) -> None:
    from computeflow.recorder import process_recorder, torch_hooks

    process_recorder.make(folder).guarded("torch", torch_hooks.install, torch)


def _with_jax(jax: ModuleType, folder: Path) -> None:
    from computeflow.recorder import jax_hooks, process_recorder

    process_recorder.make(folder).guarded("jax", jax_hooks.install, jax)
