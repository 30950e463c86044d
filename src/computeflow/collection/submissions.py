"""What a batch job was submitted with, for its next submission: `keep_submission`, `read_submission`.

Slurm tells nobody the environment of a job, and joins its arguments with spaces. `record` knows both
from inside the job, and keeps them in its run folder in a file that only its user may read: it may hold
secrets. Variables of Slurm itself are left out, as the next job has its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from computeflow import codec
from computeflow.errors import InputError

FILE = "submission.json"
_SCHEMA = "computeflow.submission/1"
_OF_SLURM = ("SLURM", "PMI", "PMIX")
_OF_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_BATCH_SCRIPT = "slurm_script"
"""What slurmd calls the script of a job, on its node."""
_MAX_ANCESTORS = 20
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    schema: str
    job: str
    arguments: tuple[str, ...] | None
    """Those of the batch script; None where they could not be seen."""
    environment: dict[str, str]


def keep_submission(folder: Path, environment: Mapping[str, str]) -> None:
    """Write down how this batch job was submitted; nothing where it is none, or not its first task."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job or environment.get("SLURM_PROCID", "0") != "0":
        return
    kept = Submission(
        schema=_SCHEMA,
        job=job,
        arguments=_script_arguments(),
        environment={
            name: value
            for name, value in environment.items()
            if not name.startswith(_OF_SLURM) and name not in _OF_DEVICES
        },
    )
    part = folder / f".{FILE}.{os.getpid()}"
    with contextlib.suppress(OSError, ValueError):  # a full disk ends no run
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(part, flags, 0o600), "w") as file:
            json.dump(codec.encode(kept), file)
        part.replace(folder / FILE)


def _script_arguments() -> tuple[str, ...] | None:
    """Arguments of the batch script that this process descends from; None where it was replaced."""
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        names = [os.fsdecode(word).rpartition("/")[2] for word in words]
        if _BATCH_SCRIPT in names:
            return tuple(map(os.fsdecode, words[names.index(_BATCH_SCRIPT) + 1 :]))
        pid = parent
    return None


def read_submission(folder: Path, user_id: int) -> Submission | None:
    """What the job of a run was submitted with; None where that is not known.

    Only a plain file that belongs to the job's user is read: another one may be a trap.
    """
    try:
        descriptor = os.open(folder / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != user_id:
            return None
        text = file.read(_MAX_BYTES).decode(errors="surrogateescape")
    try:
        return codec.decode(Submission, codec.from_json(text, FILE), FILE)
    except InputError:
        return None
