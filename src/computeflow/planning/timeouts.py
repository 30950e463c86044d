"""Timeouts of a launch that contradict each other: `contradictions`, in the order they must nest in.

A timeout inside must end what hangs before one outside ends everything: else the inner one never
acts, and what it would have saved or written is lost. `script_timeouts` reads what a launch script
states; a timeout that is not stated counts with its default where the other one is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from computeflow.units import DAY_SECONDS, HOUR_SECONDS, format_seconds

DEFAULTS: dict[str, float] = {
    "collective": 600.0,
    "dump": 15.0,
    "heartbeat": 480.0,
    "shutdown": 30.0,
    "kill-wait": 30.0,
    "node-silence": 300.0,
}
"""Seconds: PyTorch 2.13 with NCCL (process group, flight recorder's time to write, watchdog's heart
beat, elastic agent between SIGTERM and SIGKILL) and Slurm (KillWait, SlurmdTimeout)."""
NAMES: dict[str, str] = {
    "step": "a healthy step",
    "replica-collective": "torchft's timeout of a collective between replicas",
    "collective": "the timeout of a collective",
    "first-collective": "the timeout of collectives during start-up",
    "dump": "the time to write down a hang",
    "heartbeat": "the heart beat of NCCL's watchdog",
    "shutdown": "the elastic agent's time between SIGTERM and SIGKILL",
    "kill-wait": "Slurm's time between SIGTERM and SIGKILL",
    "notice": "Slurm's notice before the time limit",
    "node-silence": "the silence after which Slurm gives up a node",
    "job": "the job's time limit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutOrder:
    """`inner` must be shorter than `outer`."""

    inner: str
    outer: str
    why: str
    """What happens where it is not."""
    breaks: bool = False
    """A healthy run would be ended."""
    needs: str = ""
    """Counts only where this one is stated, too."""
    unless: str = ""
    """Does not count where this one is stated."""


ORDERS: tuple[TimeoutOrder, ...] = (
    TimeoutOrder(
        inner="step",
        outer="collective",
        why="ranks that wait for a slow one would be killed",
        breaks=True,
    ),
    TimeoutOrder(
        inner="replica-collective",
        outer="collective",
        why="the process is killed before torchft can go on without the replica that died "
        "(pytorch/torchtitan#2899)",
    ),
    TimeoutOrder(
        inner="collective",
        outer="first-collective",
        why="start-up, which takes longer than a step, has less time than one "
        "(pytorch/torchtitan#2899)",
    ),
    TimeoutOrder(
        inner="dump",
        outer="heartbeat",
        why="the rank is killed while it writes down what hung",
    ),
    TimeoutOrder(
        inner="collective",
        outer="job",
        why="the job ends before a hang is noticed",
        needs="collective",
    ),
    TimeoutOrder(
        inner="shutdown",
        outer="notice",
        why="Slurm kills ranks that the elastic agent still lets save",
    ),
    TimeoutOrder(
        inner="shutdown",
        outer="kill-wait",
        why="Slurm kills ranks that the elastic agent still lets save",
        needs="shutdown",
        unless="notice",
    ),
    TimeoutOrder(
        inner="notice",
        outer="job",
        why="the notice would come before the job begins",
    ),
    TimeoutOrder(
        inner="node-silence",
        outer="collective",
        why="ranks give up before Slurm knows that the node is dead: a requeued job may get it again",
        needs="requeue",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    order: TimeoutOrder
    inner_seconds: float
    outer_seconds: float

    @property
    def what(self) -> str:
        """The rule in words, with both numbers."""
        inner = f"{NAMES[self.order.inner]} ({format_seconds(self.inner_seconds)})"
        outer = f"{NAMES[self.order.outer]} ({format_seconds(self.outer_seconds)})"
        return f"{inner} is not shorter than {outer}: {self.order.why}"


def contradictions(timeouts: Mapping[str, float]) -> list[Contradiction]:
    """Pairs that do not nest, of which at least one is stated. Names are those of `NAMES`."""
    found = []
    for order in ORDERS:
        stated = [name for name in (order.inner, order.outer) if name in timeouts]
        if not stated or (order.needs and order.needs not in timeouts) or order.unless in timeouts:
            continue
        inner, outer = (timeouts.get(n, DEFAULTS.get(n)) for n in (order.inner, order.outer))
        if inner is not None and outer is not None and not inner < outer:
            found.append(Contradiction(order=order, inner_seconds=inner, outer_seconds=outer))
    return found


_VARIABLES = {
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": ("dump", 1e-3),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": ("heartbeat", 1.0),
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": ("shutdown", 1.0),
    "TORCHFT_TIMEOUT_SEC": ("replica-collective", 1.0),
}
"""Environment variables, and their units in seconds."""
_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_TIME = re.compile(r"(?:^|\s)(?:--time[= ]|-t[ \t]*)([0-9:-]{1,20})")
_SIGNAL = re.compile(r"(?:^|\s)--signal[= ](?:[RB]{0,2}:)?\w{1,12}(?:@(\d{1,6}))?")
_REQUEUE = re.compile(r"(?:^|\s)--requeue\b")
_NOTICE_SECONDS = 60.0
"""Slurm's notice where `--signal` has no time."""
_LONGEST = 1e9


def script_timeouts(text: str, variables: Mapping[str, str]) -> dict[str, float]:
    """What a launch script states: its environment, and its `#SBATCH` lines. `requeue` is there, with
    0 seconds, where the job asks to be requeued.
    """
    found = {}
    for name, (what, unit) in _VARIABLES.items():
        seconds = plain_seconds(variables.get(name), unit)
        if seconds is not None:
            found[what] = seconds
    for line in _SBATCH.findall(text):
        if match := _TIME.search(line):
            limit = slurm_seconds(match[1])
            if limit is not None:
                found["job"] = limit
        if match := _SIGNAL.search(line):
            found["notice"] = float(match[1]) if match[1] else _NOTICE_SECONDS
        if _REQUEUE.search(line):
            found["requeue"] = 0.0
    return found


def plain_seconds(value: object, unit: float) -> float | None:
    """A number times its unit; None where it is none, or no timeout that ever ends."""
    try:
        seconds = float(str(value)) * unit
    except ValueError:
        return None
    return seconds if 0 < seconds < _LONGEST else None


def slurm_seconds(text: str) -> float | None:
    """Slurm's time limits: minutes, min:s, h:min:s, days-h, days-h:min, days-h:min:s."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3 or (dash and not days.isdigit()):
        return None
    units = [HOUR_SECONDS, 60.0, 1.0] if dash or len(parts) == 3 else [60.0, 1.0]
    seconds = math.fsum(int(part) * unit for part, unit in zip(parts, units, strict=False))
    seconds += int(days) * DAY_SECONDS if dash else 0.0
    return seconds if 0 < seconds < _LONGEST else None
