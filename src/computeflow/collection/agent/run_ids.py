"""A run's name for a collector, the same on all nodes of the run: `run_id`; and `facts_to_send`.

Where one `run.json` is on a disk that all nodes share, its name, start and host are enough. Where each
node has its own, the scheduler or the launcher says what belongs together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from computeflow.collection.run_facts import without_secrets
from computeflow.errors import InputError
from computeflow.files.names import printable
from computeflow.telemetry.opening import open_plain

_KEPT = (
    "schema", "name", "command", "folder", "started", "host", "user", "python", "system", "ids",
    "git", "ended", "exit_code", "first_started", "first_host", "run_folder", "total_steps",
    "checkpoints", "expected",
)  # fmt: skip
MAX_FACTS_BYTES = 1 << 20
_MAX_TEXT = 4000
_MAX_WORDS = 2000
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_POD = re.compile(r"(-(master|worker|launcher|node|replica)(-\d+)*|-\d+(-\d+)*)(-[a-z0-9]{5})?$")
_RENDEZVOUS = ("--rdzv-id", "--rdzv_id")
_ADDRESS = ("--rdzv-endpoint", "--rdzv_endpoint", "--master-addr", "--master_addr")
_NO_ID = ("", "none")
"""torchrun's id where none was given: no name of a run."""


def run_id(facts: Mapping[str, Any], folder: Path) -> str:
    """The id of the run in a folder; `facts` are those of its `run.json`, {} where it has none."""
    kind, parts = _identity(facts, folder)
    label = _ODD.sub("-", parts[0])[:60].strip("-.") or "run"
    checksum = hashlib.sha256("\0".join((kind, *parts)).encode("utf-8", "replace")).hexdigest()
    return f"{kind}-{label}-{checksum[:10]}"


def _identity(facts: Mapping[str, Any], folder: Path) -> tuple[str, tuple[str, ...]]:
    if not facts:
        return "folder", (folder.name, str(folder))
    environment, ids = _texts(facts.get("environment")), _texts(facts.get("ids"))
    name = str(facts.get("name") or folder.name)
    job = ids.get("slurm_job") or environment.get("SLURM_JOB_ID", "")
    step = environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID", "")
    if job and step:  # `srun record ...`: each task has a run.json of its own
        return "slurm", (f"{job}.{step}", environment.get("SLURM_CLUSTER_NAME", ""), name)
    command = [str(word) for word in _words(facts.get("command"))]
    address = _option(command, _ADDRESS) or environment.get("MASTER_ADDR", "")
    rendezvous = environment.get("TORCHELASTIC_RUN_ID") or _option(command, _RENDEZVOUS)
    if rendezvous not in _NO_ID and address:
        return "torch", (rendezvous, address, name)
    if ids.get("ray_job") and address:
        return "ray", (ids["ray_job"], address, name)
    if ids.get("pod") and address:
        return "pods", (_POD.sub("", ids["pod"]), address, name)
    started = facts.get("first_started") or facts.get("started", "")
    return "run", (name, str(started), str(facts.get("first_host") or facts.get("host", "")))


def _texts(table: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in table.items()} if isinstance(table, dict) else {}


def _words(command: Any) -> Sequence[Any]:
    return command[:_MAX_WORDS] if isinstance(command, list) else [str(command or "")]


def _option(command: Sequence[str], names: Sequence[str]) -> str:
    for place, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option in names:
            return value if equals else "".join(command[place + 1 : place + 2])
    return ""


def read_facts(path: Path) -> dict[str, Any]:
    """What `run.json` says; {} where it is not there, or is not one."""
    try:
        with open_plain(path) as file:
            content = file.read(MAX_FACTS_BYTES + 1) or b""
        facts = json.loads(content) if len(content) <= MAX_FACTS_BYTES else {}
    except (OSError, InputError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def facts_to_send(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without the environment, and without what looks like a secret."""
    kept = {name: _bounded(facts[name]) for name in _KEPT if name in facts}
    if "command" in kept:
        kept["command"] = without_secrets([str(word) for word in _words(kept["command"])])
    return kept


def _bounded(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return printable(value[:_MAX_TEXT])
    if isinstance(value, bool | float) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    if depth > 3:
        return None
    if isinstance(value, dict):
        pairs = list(value.items())[:64]
        return {printable(str(k)[:200]): _bounded(v, depth + 1) for k, v in pairs}
    if isinstance(value, list):
        return [_bounded(item, depth + 1) for item in value[:_MAX_WORDS]]
    return None
