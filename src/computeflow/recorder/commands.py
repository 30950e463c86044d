"""Commands to the ranks: files in `control/`, looked for by the writer's thread, done between steps.

A command is a JSON object in a file of its own: {"do": "checkpoint" | "window" | "interval" | "stop",
"step": the step to do it at, ...}. Each rank answers with an event in its file. A command is for those
who run when it is written: a later attempt does not do it again.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = dict[str, Any]
_MAX_BYTES = 65_536
_COARSE_NS = 2_000_000_000
"""Times of files may be this coarse: so long a folder is read again though its time is the same."""


class Commands:
    def __init__(self, folder: Path, since_ns: int) -> None:
        self._folder = str(folder)
        self._since = since_ns
        self._seen: set[str] = set()
        self._changed = -1
        self._waiting: list[Command] = []

    def look(self) -> None:
        """On the writer's thread: read what has come, at the cost of one stat call."""
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - a third of Path.stat's time
            if changed == self._changed:
                return
            names = sorted(os.listdir(self._folder))  # noqa: PTH208
        except OSError:
            return
        self._changed = changed if time.time_ns() - changed > _COARSE_NS else -1
        for name in names:
            if name.endswith(".json") and not name.startswith(".") and name not in self._seen:
                self._seen.add(name)
                command = self._read(os.path.join(self._folder, name))  # noqa: PTH118
                if command is not None:
                    self._waiting.append(command | {"name": name})

    def due(self, step: int) -> list[Command]:
        """On the training thread: commands to be done after this step."""
        if not self._waiting:
            return []
        due = [each for each in self._waiting if each.get("step", 0) <= step]
        for each in due:
            self._waiting.remove(each)
        return due

    def _read(self, path: str) -> Command | None:
        """A command, unless it is from before this process, or none."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode) or facts.st_mtime_ns < self._since:
                return None
            command = json.loads(os.read(file, _MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        finally:
            os.close(file)
        known = isinstance(command, dict) and isinstance(command.get("step", 0), int)
        return command if known else None


_CHECKPOINT: list[Callable[[], object]] = []
_INTERVAL: list[Callable[[int], object]] = []
_STOP: list[Callable[[], object]] = []


def on_checkpoint(save: Callable[[], object]) -> Callable[[], object]:
    """Register what saves a checkpoint when `control` asks for one."""
    _CHECKPOINT[:] = [save]
    return save


def on_interval(change: Callable[[int], object]) -> Callable[[int], object]:
    """Register what sets the number of steps between checkpoints."""
    _INTERVAL[:] = [change]
    return change


def on_stop(stop: Callable[[], object]) -> Callable[[], object]:
    """Register what ends training when `control` asks for it."""
    _STOP[:] = [stop]
    return stop


def taken() -> str:
    """Commands that the training code registered for, as words."""
    known = {"checkpoint": _CHECKPOINT, "interval": _INTERVAL, "stop": _STOP}
    return " ".join(name for name, registered in known.items() if registered)


def carry_out(command: Command) -> str:
    """Do what a command asks of the training code; the answer says how that went."""
    do = command.get("do")
    if do in ("checkpoint", "stop"):
        registered = _CHECKPOINT if do == "checkpoint" else _STOP
        if not registered:
            return f"unavailable: nothing was registered by recorder.on_{do}"
        registered[0]()
        return "done"
    if do == "interval":
        steps = command.get("steps")
        if not _INTERVAL:
            return "unavailable: nothing was registered by recorder.on_interval"
        if not isinstance(steps, int) or steps < 1:
            return f"refused: {steps!r} is no number of steps"
        _INTERVAL[0](steps)
        return "done"
    return f"unknown: {do!r}"[:100]
