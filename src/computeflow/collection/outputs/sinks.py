"""`Sink`: where findings go when they open, change and close.

The collector calls `publish` about twice a second and must never wait for anybody: a sink hands over to
a thread of its own, keeps a bounded amount, and counts what it had to drop.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.economics import usd_per_hour
from computeflow.files.names import shown

LABEL_CHARACTERS = 200
_MAX_STRETCHES = 6
_MAX_NODES = 4


class FindingChanges(Protocol):
    """What changed since the last tick."""

    @property
    def opened(self) -> tuple[LiveFinding, ...]: ...
    @property
    def updated(self) -> tuple[LiveFinding, ...]: ...
    @property
    def closed(self) -> tuple[LiveFinding, ...]: ...


class Sink(Protocol):
    def publish(self, changes: FindingChanges, runs: Sequence[LiveRun]) -> None:
        """Take what changed; returns at once."""
        ...

    def counts(self) -> dict[str, float]:
        """What was sent, tried again and dropped, by name."""
        ...

    def close(self, seconds: float = 5.0) -> None:
        """Send what is waiting, for at most this long, and stop."""
        ...


def label(text: str, most: int = LABEL_CHARACTERS) -> str:
    """A name from the wire as one printable line."""
    return shown(text, most)


def ranks_label(ranks: Sequence[int]) -> str:
    """`0-7,12`: short enough for a label whatever the number of ranks."""
    ordered = sorted(set(ranks))
    breaks = [index for index, (a, b) in enumerate(pairwise(ordered), 1) if b > a + 1]
    bounds = [0, *breaks, len(ordered)] if ordered else []
    stretches = [ordered[a:b] for a, b in pairwise(bounds)]
    words = [str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in stretches[:_MAX_STRETCHES]]
    more = sum(map(len, stretches[_MAX_STRETCHES:]))
    return ",".join([*words, *([f"+{more}"] if more else [])])


def nodes_label(nodes: Sequence[str]) -> str:
    names = [label(node, 64) for node in nodes[:_MAX_NODES]]
    more = len(nodes) - len(names)
    return ",".join([*names, *([f"+{more}"] if more else [])])


def is_silenced(finding: LiveFinding, now: float) -> bool:
    return finding.silenced_until is not None and finding.silenced_until > now


def severity(finding: LiveFinding) -> str:
    """`critical` where nothing moves, or a tenth of the run is lost; else `warning`."""
    return "critical" if finding.rule == "hang" or finding.share >= 0.1 else "warning"


def run_name(run: str, runs: Sequence[LiveRun]) -> str:
    """What people call the run; its id where it has no name."""
    return next((each.name for each in runs if each.run == run and each.name), run)


def run_usd_per_hour(run: LiveRun) -> float | None:
    """What its GPUs cost an hour; None without a price."""
    if run.usd_per_gpu_hour is None:
        return None
    return usd_per_hour(run.world, 1.0, run.usd_per_gpu_hour)
