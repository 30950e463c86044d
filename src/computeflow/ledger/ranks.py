"""`ranks_with_most`: which ranks have most of each account, where there are too many to show all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_RANKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeconds:
    """What one rank has in an account."""

    rank: int
    gpu_seconds: float


RanksByAccount = Mapping[str, tuple[RankSeconds, ...]]


def ranks_with_most(
    by_rank: Mapping[int, Mapping[str, float]], most: int = MAX_RANKS
) -> dict[str, tuple[RankSeconds, ...]]:
    """By account, the ranks that have most of it first; equal ones by number."""
    found: dict[str, list[RankSeconds]] = {}
    for rank, accounts in by_rank.items():
        for name, seconds in accounts.items():
            if seconds > 0:
                found.setdefault(name, []).append(RankSeconds(rank=rank, gpu_seconds=seconds))
    return {
        name: tuple(sorted(parts, key=lambda part: (-part.gpu_seconds, part.rank))[:most])
        for name, parts in found.items()
    }
