"""`Trouble`: what a finding means for a decision: where, how slow, since when, and whether it may heal.

`trouble_from` turns the fields of a finding into one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from computeflow.errors import InputError, UnknownNameError
from computeflow.scheduling.job_state import JobState

TroubleKind = Literal[
    "slow-node",
    "slow-rank",
    "slow-link",
    "throttle",
    "degraded-hardware",
    "dead-node",
    "dead-rank",
    "hang",
    "checkpoint-interval",
    "off-critical-path",
]
TROUBLE_KINDS: tuple[str, ...] = get_args(TroubleKind)
DEAD: frozenset[str] = frozenset({"dead-node", "dead-rank", "hang"})
"""Kinds with which the job stands still."""
SLOW: frozenset[str] = frozenset(
    {"slow-node", "slow-rank", "slow-link", "throttle", "degraded-hardware"}
)
"""Kinds with which all of the job waits for a part of it."""
VALID_SECONDS = 120.0
"""A finding that was not seen for so long is void: windows of a minute are judged every 20 s."""
_VALID_STEPS = 10.0
"""The same in steps, where steps are long: a window has nine or more."""
_KIND_OF_RULE: dict[str, TroubleKind] = {
    "straggler-rank": "slow-rank",
    "host-stall": "slow-rank",
    "input-stall": "slow-rank",
    "clock-throttle": "throttle",
    "slow-link": "slow-link",
    "hang": "hang",
    "silent-rank": "dead-rank",
    "failed-rank": "dead-rank",
    "failing-node": "dead-node",
    "node-out": "dead-node",
    "checkpoint-interval": "checkpoint-interval",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    kind: TroubleKind
    run: str
    nodes: tuple[str, ...] = ()
    """Nodes that cause it."""
    ranks: tuple[int, ...] = ()
    slowdown: float = 0.0
    """By which it lengthens every step: 0.1 is a step of 1.1 times the healthy one."""
    slowdown_range: tuple[float, float] | None = None
    """None: `slowdown` alone."""
    swapped_slowdown: float | None = None
    """Predicted slowdown with its ranks elsewhere in the order; None: unknown."""
    watts_saved: float | None = None
    """For `off-critical-path`: per GPU, within what the others wait anyway; None: unknown."""
    since: float
    """When its cause began; Unix seconds."""
    seen: float
    """When it was last seen."""
    valid_until: float
    """After which a decision on it is void."""
    rule: str = ""
    """The rule that found it."""
    key: str = ""
    """The finding's key."""
    confidence: float = 1.0
    """The measured precision of the rule: how likely there is such a cause at all."""
    closed: bool = False
    """It is over."""

    def __post_init__(self) -> None:
        if self.kind not in TROUBLE_KINDS:
            raise UnknownNameError("kind of trouble", self.kind, TROUBLE_KINDS)
        if not 0 <= self.slowdown < math.inf:
            raise InputError(f"{self.kind}: a slowdown of {self.slowdown:g}: zero or more")
        if self.slowdown_range is not None:
            low, high = self.slowdown_range
            if not 0 <= low <= self.slowdown <= high < math.inf:
                raise InputError(
                    f"{self.kind}: a slowdown of {self.slowdown:g} outside of its range, {low:g} "
                    f"to {high:g}"
                )
        if not 0 < self.confidence <= 1:
            raise InputError(f"{self.kind}: confidence {self.confidence:g} is not in (0, 1]")
        if self.seen < self.since:
            raise InputError(f"{self.kind}: seen before it began")

    @property
    def is_dead(self) -> bool:
        return self.kind in DEAD

    @property
    def is_slow(self) -> bool:
        return self.kind in SLOW

    def lasted(self) -> float:
        """Seconds from its onset to its last sight."""
        return self.seen - self.since

    def expired(self, now: float) -> bool:
        """It is over, or was not seen for too long: a decision on it is void."""
        return self.closed or now > self.valid_until


def trouble_from(
    state: JobState,
    *,
    rule: str,
    nodes: tuple[str, ...],
    ranks: tuple[int, ...] = (),
    share: float,
    onset: float,
    seen: float,
    key: str = "",
    confidence: float = 1.0,
    closed: bool = False,
    degraded: bool = False,
) -> Trouble | None:
    """What a finding with these fields means for the job; None where no move would help.

    A slow part is one only if it is a part: a rule that names all nodes of the job, or none, speaks
    of the job itself. How slow is what the job's own steps say; a finding's `share` of the
    GPU-seconds, as share / (1 - share), is the other end of the range. `degraded`: its evidence is
    of hardware that does not mend itself (an Xid, remapped rows, a link at half its width).
    """
    kind = _KIND_OF_RULE.get(rule)
    if kind is None:
        return None
    where = tuple(node for node in state.nodes if node in nodes)
    if kind in SLOW and not 0 < len(where) < len(state.nodes):
        return None
    if kind == "slow-rank":
        kind = "degraded-hardware" if degraded else "slow-node" if len(where) == 1 else kind
    slowdown, ends = _slowdown(state, min(share, 0.99)) if kind in SLOW else (0.0, None)
    return Trouble(
        kind=kind,
        run=state.run,
        nodes=where,
        ranks=ranks,
        slowdown=slowdown,
        slowdown_range=ends,
        since=onset,
        seen=max(seen, onset),
        valid_until=seen + max(VALID_SECONDS, _VALID_STEPS * (state.step_seconds or 0.0)),
        rule=rule,
        key=key,
        confidence=confidence,
        closed=closed,
    )


def _slowdown(state: JobState, share: float) -> tuple[float, tuple[float, float]]:
    by_share = share / (1 - share)
    if not state.healthy_step_seconds or not state.step_seconds:
        return by_share, (by_share, by_share)
    by_steps = max(state.step_seconds / state.healthy_step_seconds - 1, 0.0)
    return by_steps, (min(by_steps, by_share), max(by_steps, by_share))
