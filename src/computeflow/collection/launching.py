"""Start a command with the recorder in every Python process of it: `launch`.

The command keeps its stdin, stdout and stderr; signals reach it, its exit code is passed on.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from computeflow.collection.agent.run_ids import read_facts
from computeflow.collection.run_facts import start_facts
from computeflow.collection.submissions import keep_submission
from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.recorder.frames import DamagedError, FrameReader
from computeflow.recorder.starting import recording_environment
from computeflow.telemetry.run_folders.run_facts import PlannedStep

_LEAD_SECONDS = 3.0
"""How far ahead a window is announced, so that all ranks have read it before its step."""
_TICK_SECONDS = 0.5
_TAIL_BYTES = 4 << 20
"""How much of a rank's file is read when the command has ended: weeks of steps are gigabytes."""
MAX_SEALED_BYTES = 64 << 20
"""Largest recording that is sealed at once: some 17 s of one core, while the job holds its nodes."""
_FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A command that has ended, and what was recorded of it."""

    folder: str
    exit_code: int
    wall_seconds: float
    ranks: int
    steps: int
    """Steps of the rank that has most."""
    bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """What a run is to reach and where it saves: `control` prices its actions by it."""

    total_steps: int | None = None
    checkpoints: str = ""


def _continued(folder: Path, target: RunTarget | None) -> dict[str, Any]:
    """The run's folder, its target, and when and where its first attempt began."""
    before = read_facts(folder / "run.json")
    kept = {name: before[name] for name in ("total_steps", "checkpoints") if before.get(name)}
    first = {
        f"first_{name}": before.get(f"first_{name}") or before[name]
        for name in ("started", "host")
        if before.get(name)
    }
    if target is not None and target.total_steps is not None:
        kept["total_steps"] = target.total_steps
    if target is not None and target.checkpoints:
        kept["checkpoints"] = str(Path(target.checkpoints).resolve())
    return {"run_folder": str(folder), **first, **kept}


def new_folder(out: Path | None, name: str) -> Path:
    """A new run folder: the named one, or one in the user's state."""
    if out is None:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        stamp = time.strftime("%Y%m%d-%H%M%S")
        label = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:60].strip(".")
        unique = f"{stamp}-{label or 'run'}-{secrets.token_hex(2)}"
        out = Path(state) / "computeflow" / "runs" / unique
    try:
        (out / "control").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise InputError(f"--out {shown(str(out))}: {_reason(error)}") from None
    return out.resolve()


def launch(
    command: Sequence[str],
    folder: Path,
    name: str,
    *,
    window_seconds: float | None = None,
    seal: bool = True,
    target: RunTarget | None = None,
    expected: PlannedStep | None = None,
) -> Launched:
    """Run a command to its end; `seal` writes the tables of its run folder then, if it is not huge.

    A folder that has a `run.json` holds earlier attempts of the run: it stays the same run.
    """
    environment = dict(os.environ)
    started = time.time()
    facts = start_facts(command, name, started, environment, expected) | _continued(folder, target)
    _write_facts(folder, facts)
    if target is not None and target.checkpoints:  # it can be submitted again, and go on
        keep_submission(folder, environment)
    windows = None if window_seconds is None else WindowCommands(folder, window_seconds)
    began = time.monotonic()
    with _forwarding() as forward_to:
        try:
            child = subprocess.Popen(list(command), env=recording_environment(folder, environment))
        except (OSError, ValueError) as error:
            raise InputError(f"{shown(command[0])}: {_reason(error)}") from None
        forward_to(child.pid)
        code = _wait(child, windows)
    seconds = time.monotonic() - began
    if read_facts(folder / "run.json").get("started", started) == started:
        _write_facts(folder, facts | {"ended": time.time(), "exit_code": code})
    ranks, steps, size, notes = _recorded(folder)
    if seal and ranks:
        notes.append(_seal(folder, size))
    return Launched(
        folder=str(folder),
        exit_code=code if code >= 0 else 128 - code,
        wall_seconds=seconds,
        ranks=ranks,
        steps=steps,
        bytes=size,
        notes=tuple(notes),
    )


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _wait(child: subprocess.Popen[bytes], windows: WindowCommands | None) -> int:
    while True:
        try:
            return child.wait(None if windows is None else _TICK_SECONDS)
        except subprocess.TimeoutExpired:
            if windows is not None:
                with contextlib.suppress(Exception):  # the run goes on, with or without windows
                    windows.tick(time.monotonic())


@contextlib.contextmanager
def _forwarding() -> Iterator[Callable[[int], None]]:
    """Signals to this process reach the command, whose id is told once it runs.

    What this process ignores (`nohup`), the command ignores too: that stays. A terminal sends its
    interrupt to both itself.
    """
    command: list[int] = []
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if not command:
            early.append(number)
        elif number not in _FROM_TERMINAL or not _in_foreground():
            with contextlib.suppress(ProcessLookupError):
                os.kill(command[0], number)

    def forward_to(pid: int) -> None:
        command.append(pid)
        for number in early:
            forward(number, None)

    before: dict[int, Any] = {}
    for number in map(int, _FORWARDED):
        if signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(ValueError, OSError):  # not on this thread
                before[number] = signal.signal(number, forward)
    try:
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether a terminal's keys reach this process and the command alike."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    part = folder / f".run.json.{os.getpid()}"
    with contextlib.suppress(OSError, ValueError):  # a full disk ends no run
        part.write_text(json.dumps(facts, indent=1) + "\n")
        part.replace(folder / "run.json")


def write_command(folder: Path, command: Mapping[str, Any], name: str = "") -> Path:
    """Put a command into a run's `control` folder, whole or not at all."""
    control = folder / "control"
    control.mkdir(exist_ok=True)
    name = name or f"{time.time_ns()}-{command.get('do', 'command')}.json"
    part = control / f".{name}"
    part.write_text(json.dumps(dict(command)))
    part.replace(control / name)
    return control / name


class WindowCommands:
    """Asks all ranks for a profiler window now and then, at a step that all of them will reach."""

    def __init__(self, folder: Path, every: float) -> None:
        self._folder, self._every = folder, every
        self._next = time.monotonic() + every
        self._readers: dict[Path, tuple[FrameReader, list[tuple[int, int]]]] = {}

    def tick(self, now: float) -> None:
        if now < self._next:
            return
        latest = self._latest()
        if latest is None:
            return
        self._next = now + self._every
        number, step_seconds = latest
        ahead = max(2, round(_LEAD_SECONDS / max(step_seconds, 1e-4)))
        write_command(self._folder, {"do": "window", "step": number + ahead})

    def _latest(self) -> tuple[int, float] | None:
        """The furthest rank's step and the usual time of one."""
        best: tuple[int, float] | None = None
        for path in self._folder.glob("rank-*.cfr"):
            if path not in self._readers:
                self._readers[path] = (FrameReader(path.open("rb")), [])
            reader, steps = self._readers[path]
            for record in reader.read():
                if record["k"] == "s":
                    steps.append((int(record["n"]), int(record["d"])))
            del steps[:-20]
            if steps:
                seconds = sorted(d for _, d in steps)[len(steps) // 2] / 1e6
                best = max(best or (0, 0.0), (steps[-1][0], seconds))
        return best


def _recorded(folder: Path) -> tuple[int, int, int, list[str]]:
    """Ranks, most steps, bytes, and what a user should know of the recording."""
    ranks: set[str] = set()
    most = size = dropped = killed = 0
    notes: list[str] = []
    for path in sorted(folder.glob("rank-*.cfr")):
        size += path.stat().st_size
        ranks.add(path.name.partition(".")[0])
        ended = False
        for record in _records(path, notes):
            ended = record["k"] == "end"
            if record["k"] == "s":
                most = max(most, _count(record.get("n")))
            if record["k"] in ("x", "end"):
                dropped = max(dropped, _count(record.get("dropped")))
        killed += not ended
    if killed:
        notes.append(
            f"{killed} process{'es' * (killed > 1)} ended without a last record (killed, or the disk "
            "was full): what was noted in the last second of each may be missing"
        )
    if dropped:
        notes.append(f"up to {dropped:,} records of a rank were dropped")
    with contextlib.suppress(OSError):
        notes.append((folder / "not-recorded.txt").read_text(errors="replace")[:500].strip())
    if not ranks:
        notes.append(
            "no process trained with torch or JAX, or it was started without its environment "
            "(python -I, -E or -S; a launcher that does not pass PYTHONPATH on), or it could not "
            f"write to {folder}"
        )
    return len(ranks), most, size, notes


class _StoppedError(Exception):
    """A signal came while the folder was being sealed."""


def _seal(folder: Path, size: int) -> str:
    """Seal a run folder; what came of it. Nothing that goes wrong here changes how the run ended."""
    if size > MAX_SEALED_BYTES:
        return f"not sealed as Parquet: more than {MAX_SEALED_BYTES >> 20} MiB of records"
    host = _first_host(folder)
    if host != socket.gethostname():
        return f"not sealed as Parquet: that is left to {host or 'the host'} of the first rank"
    try:
        with _stopping():
            from computeflow.collection.sealing import seal

            sealed = seal(folder)
    except _StoppedError:
        return "not sealed as Parquet: a signal came meanwhile"
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return f"not sealed as Parquet: {lines[0]}"
    if not sealed.rows:
        return f"not sealed as Parquet: {'; '.join(sealed.left_out)}"
    return f"sealed as Parquet: {', '.join(sealed.rows)}"


def _first_host(folder: Path) -> str:
    """Host of the lowest rank: one of several `record`s that share a folder seals it."""
    for path in sorted(folder.glob("rank-*.cfr")):
        with contextlib.suppress(OSError, DamagedError), path.open("rb") as file:
            for record in FrameReader(file).read():
                return str(record.get("host", ""))
    return ""


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """Signals that would end this process end what it does instead."""

    def stop(number: int, _: FrameType | None) -> None:
        raise _StoppedError(signal.Signals(number).name)

    before: dict[int, Any] = {}
    for number in map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(ValueError, OSError):  # not on this thread
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _records(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Records of a rank: all, or those at the end of a large file."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            reader = FrameReader(file, size - _TAIL_BYTES if size > _TAIL_BYTES else 0)
            yield from reader.read()
            if reader.damaged_bytes and size <= _TAIL_BYTES:
                notes.append(
                    f"{path.name}: {reader.damaged_bytes:,} damaged bytes were passed over"
                )
    except (OSError, DamagedError) as error:
        notes.append(f"{path.name}: {_reason(error)}")
