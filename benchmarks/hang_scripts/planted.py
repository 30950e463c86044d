"""What goes wrong in a script, and the flight recorder that its author switched on.

`Planted` holds one rank up at one step. `FlightWatch` is what users of gloo write by hand, as only NCCL
dumps by itself: a thread that dumps when no step ends for a while, and a dump where an error ends the
program.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HANG_SECONDS = 8.0
"""More than three times the longest pause of the first step: a dump sooner counts as moving."""
START_SECONDS = 15.0
"""The same for the first step, which loads parts of torch."""
GRACE_SECONDS = 4.0
"""Time for all to dump before the first process ends and closes its connections."""
TIMEOUT_SECONDS = 3.0
FOREVER = 600.0
LATE_SECONDS = 1.0
POINTS = {
    "first": "forward",
    "before": "forward",
    "inside": "collective",
    "loader": "loader",
    "save": "save",
    "subgroup": "subgroup",
    "late": "forward",
    "killed": "forward",
    "raises": "forward",
    "store": "forward",
    "send": "forward",
    "recv": "forward",
}
"""Where a rank is held up, by kind of hang."""
WRONG = ("shapes", "kinds", "order", "skips", "branch", "batches", "leaves")
"""Kinds in which the culprit does something else than its peers; the scripts ask `wrong`."""
RUNNING = "running"
"""No hang: all ranks dump as they pass a step, and run on."""
KINDS = (*POINTS, *WRONG, RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    kind: str
    culprit: int
    step: int

    @property
    def timeout(self) -> timedelta:
        """The timeout of collectives; a rank that is late by more ends the job."""
        return timedelta(seconds=TIMEOUT_SECONDS if self.kind == "late" else FOREVER)

    @property
    def here(self) -> bool:
        return dist.get_rank() == self.culprit

    def wrong(self, kind: str, step: int) -> bool:
        return kind == self.kind and step == self.step and self.here

    def at(self, point: str, step: int) -> None:
        """Be held up at this point, if this is the rank, the step and the kind."""
        if POINTS.get(self.kind) != point or step != self.step:
            return
        if self.kind == "inside":
            self._stop_inside()
        elif self.here:
            _HOLD_UPS.get(self.kind, _sleep)()

    def _stop_inside(self) -> None:
        """Stop the culprit while it waits in a collective for its peers, which come a little late."""
        if self.here:
            stop = signal.SIGSTOP
            threading.Timer(LATE_SECONDS / 2, lambda: os.kill(os.getpid(), stop)).start()
        else:
            time.sleep(LATE_SECONDS)


def _sleep() -> None:
    time.sleep(FOREVER)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise ValueError("loss is not finite")


def _wait_for_a_key() -> None:
    dist.distributed_c10d._get_default_store().wait(["vocabulary"])


def _send() -> None:
    dist.send(torch.ones(1 << 20), (dist.get_rank() + 1) % dist.get_world_size(), tag=77)


def _recv() -> None:
    dist.recv(torch.ones(1 << 20), (dist.get_rank() + 1) % dist.get_world_size(), tag=77)


_HOLD_UPS: dict[str, Callable[[], None]] = {
    "killed": _kill,
    "raises": _raise,
    "store": _wait_for_a_key,
    "send": _send,
    "recv": _recv,
}


class FlightWatch:
    """Dumps when no step ends for a while, and when an error ends the program."""

    def __init__(self, folder: Path, planted: Planted) -> None:
        self._snapshot = planted.step if planted.kind == RUNNING else -1
        self._steps = 0
        self.path = folder / f"rank_{dist.get_rank()}"
        self._last = time.monotonic() + START_SECONDS - HANG_SECONDS
        self._once = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def step_done(self) -> None:
        self._last = time.monotonic()
        self._steps += 1
        if self._steps == self._snapshot:
            self._dump()

    def __enter__(self) -> FlightWatch:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self._dump()

    def _watch(self) -> None:
        while time.monotonic() - self._last < HANG_SECONDS:
            time.sleep(0.05)
        self._dump()
        time.sleep(GRACE_SECONDS)
        os._exit(17)

    def _dump(self) -> None:
        if self._once.acquire(blocking=False):
            torch_c: Any = torch._C._distributed_c10d
            self.path.write_bytes(torch_c._dump_fr_trace())
