"""Passages of a rank from one operation to the next, as its program repeats them step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from computeflow.telemetry.flight_recorder.operations import Op, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    after: Mapping[Site, Site] = field(default_factory=dict)
    """The operation that came after the latest of each kind."""
    quiet: frozenset[tuple[Site, Site]] = frozenset()
    """Passages that were made before, and never with an unrecorded message on the way."""
    before_first: Site | None = None
    """The operation before the first pending one."""


def passages(ops: Sequence[Op]) -> Passages:
    """Passages in operations of one rank, in order of record."""
    noisy = _with_messages(ops)
    pairs = [(one.site, other.site) for one, other in pairwise(ops)]
    loud = {pair for index, pair in enumerate(pairs) if noisy[index]}
    waiting = next((index for index, op in enumerate(ops) if not op.done), 0)
    return Passages(
        after=dict(pairs),
        quiet=frozenset(pairs) - loud,
        before_first=ops[waiting - 1].site if waiting else None,
    )


def _with_messages(ops: Sequence[Op]) -> list[bool]:
    """For each operation, whether messages may lie between it and the next: the count of some group
    grew from its last operation before to its first one after.
    """
    noisy = [False] * len(ops)
    last: dict[str, tuple[int, int]] = {}
    for index, op in enumerate(ops):
        start, count = last.get(op.group.name, (0, 0))
        if op.messages > count:
            noisy[start:index] = [True] * (index - start)
        last[op.group.name] = index, op.messages
    return noisy
