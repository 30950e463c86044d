"""Join a process that runs already: `attach` takes what needs no injection.

py-spy samples the stacks without stopping the process, /proc has its processor time and memory,
`nvidia-smi` its GPU. Steps are not to be had this way: that needs `record` from the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.collection.run_facts import without_secrets
from computeflow.errors import InputError

SAMPLES_PER_SECOND = 20
"""py-spy reads another process's memory: so many samples take 1 % of one core (0.1 s in 10 s)."""
_GRACE_SECONDS = 30.0
"""How much longer than asked for py-spy may take: it reads the symbols of large libraries first."""
_LINE = re.compile(r"(.*) (\d+)")
_FRAME = re.compile(r"(.*) \((.*?)(?::(\d+))?\)")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<frozen |^<string>")
_TORCH = re.compile(r"/(?:torch|jax|jaxlib)/")
_MAX_PLACES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the main thread is, and how often."""

    code: str
    """The innermost frame of the user's own code."""
    framework: str
    """The innermost frame of torch or JAX below it; "" where there is none."""
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A process that was looked at for a while."""

    folder: str
    pid: int
    command: tuple[str, ...]
    seconds: float
    samples: int
    places: tuple[Place, ...]
    """Most frequent first."""
    cores: float | None
    """Processor seconds in each second."""
    resident_bytes: int | None
    threads: int | None
    gpus: tuple[str, ...]
    notes: tuple[str, ...]


def attach(pid: int, seconds: float, folder: Path) -> Attached:
    """Look at a process for a while; says why where it cannot be."""
    program = _py_spy()
    if not Path(f"/proc/{pid}").exists() and sys.platform == "linux":
        raise InputError(f"--attach {pid}: no such process")
    before, began = _processor_seconds(pid), time.monotonic()
    stacks = _sample(program, pid, seconds)
    lasted = time.monotonic() - began
    after = _processor_seconds(pid)
    status = _status(pid)
    gpus, notes = _gpus(pid)
    samples = sum(stacks.values())
    if not samples:
        notes.append("no sample of its main thread: it ended, or runs no Python")
    attached = Attached(
        folder=str(folder),
        pid=pid,
        command=tuple(without_secrets(_command(pid))),
        seconds=lasted,
        samples=samples,
        places=_places(stacks),
        cores=None if before is None or after is None else (after - before) / lasted,
        resident_bytes=_number(status.get("VmRSS"), 1024),
        threads=_number(status.get("Threads"), 1),
        gpus=tuple(gpus),
        notes=tuple(notes),
    )
    text = json.dumps({"schema": "computeflow.attached/1", **codec.encode(attached)}, indent=1)
    try:
        (folder / f"attached-{pid}.json").write_text(text + "\n")
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None
    return attached


def _py_spy() -> str:
    program = shutil.which("py-spy") or shutil.which("py-spy", path=Path(sys.executable).parent)
    if program is None:
        raise InputError("--attach needs py-spy: pip install 'computeflow[attach]'")
    return program


def _sample(program: str, pid: int, seconds: float) -> Counter[str]:
    """Stacks of the main thread, outermost frame first, and how often each was seen."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stacks"
        words = [
            *(program, "record", "--pid", str(pid), "--format", "raw", "--output", str(path)),
            *("--duration", str(max(1, round(seconds))), "--rate", str(SAMPLES_PER_SECOND)),
            *("--threads", "--idle", "--nonblocking", "--full-filenames"),
        ]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=seconds + _GRACE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"--attach {pid}: py-spy: {error}") from None
        if done.returncode or not path.exists():
            raise InputError(f"--attach {pid}: {_why(done.stderr)}")
        return _main_thread(path.read_text(errors="replace"), pid)


def _main_thread(text: str, pid: int) -> Counter[str]:
    stacks: Counter[str] = Counter()
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found:
            thread, _, stack = found[1].partition(";")
            if "MainThread" in thread or f"({pid})" in thread:
                stacks[stack] += int(found[2])
    return stacks


def _why(said: str) -> str:
    """What py-spy says, as a reason that helps."""
    if "ermission denied" in said or "not permitted" in said:
        return f"no right to read its memory: be its owner, or have CAP_SYS_PTRACE{_ptrace_scope()}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("Error")), lines[-1] if lines else "")
    return f"py-spy cannot read it (is it Python?): {reason.removeprefix('Error: ')[:200]}"


def _ptrace_scope() -> str:
    with contextlib.suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
        return f" (kernel.yama.ptrace_scope is {scope})"
    return ""


def _places(stacks: Counter[str]) -> tuple[Place, ...]:
    found: Counter[tuple[str, str]] = Counter()
    for stack, count in stacks.items():
        found[_place(stack.split(";"))] += count
    total = sum(found.values())
    return tuple(
        Place(code=code, framework=framework, share=count / total)
        for (code, framework), count in found.most_common(_MAX_PLACES)
    )


def _place(frames: list[str]) -> tuple[str, str]:
    """The innermost frame of the user's own, and the innermost of a framework inside of it."""
    code, framework = "", ""
    for frame in frames:
        found = _FRAME.fullmatch(frame)
        name, path, line = found.groups() if found else (frame, "", None)
        if not _LIBRARY.search(path):
            code, framework = f"{name} ({Path(path).name}:{line or '?'})", ""
        elif _TORCH.search(path):
            framework = name
    return code or "(no code of the user's)", framework


def _processor_seconds(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _number(text: str | None, unit: int) -> int | None:
    word = (text or "").partition(" ")[0]
    return int(word) * unit if word.isdigit() else None


def _command(pid: int) -> list[str]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words if word]


def _gpus(pid: int) -> tuple[list[str], list[str]]:
    """GPUs of the process with their memory and load, or a note why they are not known."""
    try:
        mine = {
            row[1]: row[2]
            for row in _smi("--query-compute-apps=pid,gpu_uuid,used_memory")
            if row[0] == str(pid)
        }
        loads = _smi("--query-gpu=uuid,name,utilization.gpu") if mine else []
    except (OSError, subprocess.SubprocessError, IndexError):
        return [], ["no nvidia-smi here: its GPU was not read"]
    shown = [f"{row[1]}: {row[2]} busy, {mine[row[0]]} used" for row in loads if row[0] in mine]
    return shown, [] if shown else ["nvidia-smi shows no GPU in use by it"]


def _smi(query: str) -> list[list[Any]]:
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line]
