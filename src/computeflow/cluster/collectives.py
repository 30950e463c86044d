"""Time of a collective: rings, neighbours, all-to-all and trees over links of several tiers.

A group is `ranks` devices that lie `stride` apart, as frameworks number them. All functions work on
arrays, one row for each job. Neglected: contention between groups, and the algorithms that libraries
choose by message size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.machine import MAX_TIERS

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links of every row's cluster, by tier from the inside out: arrays of rows x tiers."""

    devices: Floats
    """Devices that one unit of the tier joins."""
    bytes_per_second: Floats
    """Rated speed of one device, one direction; infinite where there is no such tier."""
    scale_up_efficiency: float
    """Share of the rated speed that collectives reach inside the innermost tier."""
    network_efficiency: float
    """Share of the rated speed that collectives reach outside of it."""

    def __len__(self) -> int:
        return len(self.devices)

    def efficiency(self, tier: int) -> float:
        return self.scale_up_efficiency if tier == 0 else self.network_efficiency


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over payload / time, in the convention of nccl-tests: 2 (n - 1) / n for an
    all-reduce, (n - 1) / n for an all-gather, reduce-scatter or all-to-all.
    """
    share = (ranks - 1) / ranks
    return 2 * share if operation == "all-reduce" else share


def ring_speed(links: Links, ranks: Floats, stride: Floats) -> Floats:
    """Bytes/s of a ring: its narrowest crossing.

    Where the ring leaves a unit of some tier, its members in that unit share the way out: each brings
    its own NIC.
    """
    speed = np.full(len(links), np.inf)
    unit = np.ones(len(links))
    for tier in range(MAX_TIERS):
        members = np.minimum(np.maximum(unit / stride, 1.0), ranks)
        way_out = members * links.bytes_per_second[:, tier] * links.efficiency(tier)
        speed = np.where(ranks * stride > unit, np.minimum(speed, way_out), speed)
        unit = links.devices[:, tier]
    return speed


def ring_seconds(links: Links, size: Floats, ranks: Floats, stride: Floats) -> Floats:
    """Gathering or scattering `size` bytes around a ring, without latency: (n - 1) / n x size / speed.
    An all-reduce is both.
    """
    return (ranks - 1) / ranks * size / ring_speed(links, ranks, stride)


def neighbour_speed(links: Links, ranks: Floats, stride: Floats) -> Floats:
    """Bytes/s between the slowest pair of neighbours.

    Where the whole row does not fit into a unit, some pair of neighbours is in two.
    """
    speed, unit = np.full(len(links), np.inf), np.ones(len(links))
    for tier in range(MAX_TIERS):
        crosses = ranks * stride > unit
        speed = np.where(crosses, links.bytes_per_second[:, tier] * links.efficiency(tier), speed)
        unit = links.devices[:, tier]
    return speed


def all_to_all_seconds(
    links: Links,
    size: Floats,
    ranks: Floats,
    stride: Floats,
    *,
    copies: Floats,
    once_per_node: NDArray[np.bool_],
    latency_seconds: float,
) -> Floats:
    """Every device sends `size` bytes, evenly to all `ranks`; the slowest tier decides.

    `copies` of each token leave. A dispatcher that sends a token once to each node of the network,
    and spreads it there (`once_per_node`), sends fewer: as many as different nodes are drawn.
    """
    seconds, unit = np.zeros(len(links)), np.ones(len(links))
    for tier in range(MAX_TIERS):
        inside = np.minimum(np.maximum(unit / stride, 1.0), ranks)
        units = ranks / inside
        share = (ranks - inside) / ranks
        if tier > 0:
            drawn = (units - 1) * (1 - (1 - 1 / units) ** copies)
            fewer = drawn / np.maximum(copies * share, 1e-9)
            share = share * np.where(once_per_node & (units > 1), np.minimum(fewer, 1.0), 1.0)
        speed = links.bytes_per_second[:, tier] * links.efficiency(tier)
        seconds = np.maximum(seconds, size * share / speed)
        unit = links.devices[:, tier]
    return np.where(ranks > 1, seconds + latency_seconds, 0.0)


def pool_sum_seconds(size: float, speed: float) -> float:
    """Two pools add up `size` bytes: once over and once back, at the speed of the narrower way out."""
    return 2 * size / speed


def distinct_share(share: Floats, copies: float) -> Floats | float:
    """Share of the copies drawn into a domain with this share of the ranks that are of different
    tokens: (1 - (1 - share)^copies) / (copies x share), as in `all_to_all_seconds`.
    """
    return (1 - (1 - share) ** copies) / (copies * share) if copies > 0 else 1.0


def ring_latency(hop_seconds: float, ranks: Floats) -> Floats:
    """Latency of a ring: one hop for every other rank."""
    return hop_seconds * (ranks - 1)


def tree_latency(hop_seconds: float, ranks: Floats) -> Floats:
    """Latency of a tree: one hop for every doubling of the ranks."""
    return hop_seconds * np.log2(np.maximum(ranks, 1.0))
