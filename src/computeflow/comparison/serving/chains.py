"""Network time of chains of calls, from round trips between regions."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from computeflow.catalog.files import read_text
from computeflow.comparison import DATA
from computeflow.errors import InputError, UnknownNameError

SOURCE = (
    "learn.microsoft.com/azure/networking/azure-network-latency: P95 over 30 days to 2026-07-30"
)
"""Of the round trips: between Azure's East US, West US 2, South Central US, Brazil South, West Europe,
Sweden Central, Japan East, Southeast Asia, Central India, Australia East, UAE North and South Africa
North. Other backbones and the internet differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Calls from users in one region to a model in another."""

    users: str
    place: str
    round_trip_seconds: float
    network_seconds: float
    """Of the whole chain: calls x hops x (round trip + on-ramp)."""


@cache
def round_trips() -> dict[frozenset[str], float]:
    rows = csv.DictReader(read_text(DATA / "round_trips.csv").splitlines())
    return {frozenset((row["from"], row["to"])): float(row["p95_ms"]) / 1e3 for row in rows}


def places() -> list[str]:
    return sorted({name for pair in round_trips() for name in pair})


def chains(
    users: str, *, calls: int = 1, hops: int = 1, onramp_seconds: float = 0.0
) -> Sequence[Chain]:
    """To every region, nearest first. Within the users' own no trip over the backbone is counted: what
    its own network takes is not in the source.
    """
    if users not in places():
        raise UnknownNameError("region of users", users, places(), hint=", ".join(places()))
    if calls < 1 or hops < 1 or not 0 <= onramp_seconds < math.inf:
        raise InputError("calls and hops from one up, an on-ramp of zero seconds or more")
    found = [
        Chain(
            users=users,
            place=next(iter(pair - {users})),
            round_trip_seconds=seconds,
            network_seconds=calls * hops * (seconds + onramp_seconds),
        )
        for pair, seconds in round_trips().items()
        if users in pair
    ]
    found.append(Chain(users=users, place=users, round_trip_seconds=0.0,
                       network_seconds=calls * hops * onramp_seconds))  # fmt: skip
    return sorted(found, key=lambda chain: chain.round_trip_seconds)
