"""`run.json`: what a run was started with, without what may be a secret."""

from __future__ import annotations

import getpass
import itertools
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.ledger import ledger_from_data
from computeflow.telemetry.run_folders.run_facts import PlannedStep

_SECRET = re.compile(
    r"(?i)key|token|secret|passw|passphrase|credential|creds|auth|cookie|private|dsn|jwt|webhook"
    r"|conn(ection)?_?str|signature|_sas|_pat\b|url|uri|account"
)
"""Names of variables that are not kept."""
_SECRET_OPTION = (
    r"(?i:(?<![a-z])(?:(?:api[-_]?|access[-_]?|private[-_]?)?keys?|(?:hf|hub|wandb)?token|secrets?|passw(?:or)?ds?|pass"
    r"|pwd|passphrase|credentials?|creds?|auth|authorization|bearer|cookies?|dsn|jwt|webhook|signature"
    r")(?![a-z]))"
)
_ASSIGNED = re.compile(
    rf"({_SECRET_OPTION}[\w.-]*\s*(?:=|:|\s)\s*(?:(?i:bearer|basic)\s+)?)"
    r"(\"[^\"]*\"|'[^']*'|[^\s;&|\"']+)"
)
_NAMED_SECRET = re.compile(_SECRET_OPTION)
_SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|[psr]k_|xox[abeprs]-|AKIA|ASIA|AIza|ya29\."
    r"|nvapi-|dapi|npm_|pypi-|shpat_|SG\.)[-_.A-Za-z0-9]{12,}"
    r"|eyJ[-_A-Za-z0-9]{8,}\.[-_.A-Za-z0-9]+"
    r"|-----BEGIN[^-]*PRIVATE KEY-----(?:.|\s)*"
    r"|[A-Za-z][A-Za-z0-9+.-]{1,20}://[^/\s@]*:[^/\s@]*@"
    r"|(?:AccountKey|SharedAccessKey|sig|X-Amz-Signature)=[^;&\s]+"
)
_LONG_WORD = re.compile(r"[A-Za-z0-9+]{24,}")
_LEAST_CHANGES = 6
"""Changes between letters and digits that make a long word a key rather than a name."""
_KEPT = re.compile(
    r"(CUDA|NCCL|TORCH|PYTORCH|OMP|MKL|GLOO|UCX|FI|NVTE|XLA|JAX|HF|ACCELERATE|DEEPSPEED|FSDP|TRITON"
    r"|SLURM|LOCAL|MASTER|NODE|RAY|KUBERNETES|POD|NVIDIA|HIP|ROCR|OMPI|PMI)_|RANK$|WORLD_SIZE$"
)
_HIDDEN = "(hidden)"
_MAX_WORD = 4000
"""Characters of a word of the command line that are kept."""
_JOB_IDS = {
    "slurm_job": "SLURM_JOB_ID",
    "slurm_restarts": "SLURM_RESTART_COUNT",
    "pod": "POD_NAME",
    "pod_host": "HOSTNAME",
    "ray_job": "RAY_JOB_ID",
}
_GIT_SECONDS = 5.0


def start_facts(
    command: Sequence[str],
    name: str,
    started: float,
    environment: Mapping[str, str],
    expected: PlannedStep | None = None,
) -> dict[str, Any]:
    facts = {
        "schema": "computeflow.run/1",
        "name": name,
        "command": without_secrets(command),
        "folder": os.getcwd(),  # noqa: PTH109
        "started": started,
        "host": socket.gethostname(),
        "user": _user(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "environment": kept_environment(environment),
        "ids": {key: environment[of] for key, of in _JOB_IDS.items() if environment.get(of)},
        "git": _git(),
    }
    return facts if expected is None else facts | {"expected": codec.encode(expected)}


def read_plan(path: Path) -> PlannedStep:
    """The step in a file of `plan -o json` (its first), of `predict -o json`, or of a ledger."""
    data = parse_json(read_text(path), str(path))
    if isinstance(data, dict) and isinstance(data.get("plans"), list) and data["plans"]:
        data = data["plans"][0]
    about = data if isinstance(data, dict) and isinstance(data.get("ledger"), dict) else {}
    ledger = ledger_from_data(about.get("ledger", data), str(path))
    step, span = about.get("step_seconds"), about.get("step_seconds_range")
    seconds = step if isinstance(step, float) and step > 0 else ledger.wall_seconds
    high = span[-1] if isinstance(span, list) and span and isinstance(span[-1], float) else seconds
    scale = seconds / ledger.wall_seconds if ledger.wall_seconds > 0 else 1.0
    return PlannedStep(
        source=path.name,
        gpus=ledger.gpus,
        step_seconds=seconds,
        high_seconds=max(high, seconds),
        accounts={name: scale * each for name, each in ledger.accounts.items()},
    )


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that say how training is set up; what may be a secret is not among them."""
    return {
        name: value[:500]
        for name, value in sorted(environment.items())
        if _KEPT.match(name) and not _SECRET.search(name) and _hidden(value) == value
    }


def without_secrets(command: Sequence[str]) -> list[str]:
    """The command line; values of options that sound like secrets, or look like them, are hidden."""
    words: list[str] = []
    hide = False
    for word in command:
        words.append(_HIDDEN if hide and not word.startswith("--") else _hidden(word))
        hide = word.startswith("-") and "=" not in word and bool(_NAMED_SECRET.search(word))
    return words


def _hidden(text: str) -> str:
    """A text without what looks like a secret."""
    text = text[:_MAX_WORD]
    text = _SECRET_VALUE.sub(_HIDDEN, _ASSIGNED.sub(rf"\1{_HIDDEN}", text))
    return _LONG_WORD.sub(lambda found: _HIDDEN if _is_key(found[0]) else found[0], text)


def _is_key(word: str) -> bool:
    changes = sum(a.isdigit() != b.isdigit() for a, b in itertools.pairwise(word))
    return changes >= _LEAST_CHANGES


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _git() -> dict[str, Any]:
    """Commit of the folder that the run was started in, and whether files differ from it."""

    def ask(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
        return done.stdout.strip()

    try:
        commit = ask("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(ask("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return {}
