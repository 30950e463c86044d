"""Time of a collective: the fastest algorithm that the library has, over links of several tiers.

A group is `ranks` devices that lie `stride` apart, as frameworks number them. All functions work on
arrays, one row for each job. Start with `Group.of`, `all_reduce_seconds` and `gather_seconds`.

Latencies and the shares of bandwidth are those by which NCCL itself chooses an algorithm (NCCL 2.30,
src/graph/tuning.cc: `ncclTunerConstantsDefaults` and `ncclTopoTuneModel`); RCCL's table differs by
microseconds. Neglected: contention between groups, messages of less than some 100 KB (protocol LL),
networks slower to answer than InfiniBand, in-network reduction outside of a domain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.machine import MAX_TIERS

Floats = NDArray[np.float64]

LINK_HOP_SECONDS = 3.4e-6
"""From one rank of a ring to the next inside a domain (ring, Simple, NVLink)."""
NETWORK_HOP_SECONDS = 14e-6
"""Likewise over the network (ring and tree, Simple); InfiniBand adds nothing to it."""
BASE_SECONDS = 8.4e-6
"""Once per collective (ring and tree, Simple)."""
_LOW_LATENCY_BASE_SECONDS = 14e-6
"""Likewise with the protocol for middle sizes (LL128)."""
_PLATEAU = 1.4
"""An all-reduce around a ring that crosses the network takes so much longer per step."""
NETWORKED_HOP = 4.5 / 3.4
"""Hop inside a domain over the usual one, where the ring leaves it: the host posts every step to the
network, too, 3 us with Intel's and 6 us with AMD's processors; the mean of both."""
_TREE_HOP = 4.0 / 3.4
"""Hop of a tree inside a domain, over that of a ring."""
_LOW_LATENCY_HOPS = (1.25 / 3.4, 8.5 / 14)
"""Hops of a tree with LL128 over those of a ring with Simple: in a domain, over the network."""
_LOW_LATENCY_SPEED = 0.5
"""Speed of such a tree over one with Simple: 0.94 by its wire format, times 0.5 to 0.7 for messages of
1 to 8 MB (`treeCorrectionFactor`)."""
_TREE_SPEED = 0.92
"""Speed of a tree over that of the links (`busBw * .92`)."""
_TREE_FILL = 2.0
"""Chunks of large messages fill a tree more slowly than the latencies say: set on 16 and 32 H100, 1 MB
to 8 GB (benchmarks/reports/collectives.md)."""
_SWITCH_HOP = 25.0 / 3.4
"""Reduction inside a switch (NVLS), over a hop of a ring inside the domain."""
_SWITCH_TREE_HOP = 20.9 / 14
"""Hop of a tree over domains that reduce inside their switches (NVLSTree), over one of a ring."""
_SWITCH_SPEED = 0.72
"""Payload per second of a reduction inside the switch over the speed of a ring's links: 8 H200 reach
276 of 368 GB/s, 64 GB300 472 of some 680 (nccl-tests)."""
_SWITCH_TREE_SPEED = 0.85
"""Likewise of domains that a tree joins, over one alone: two nodes of H100 250 of 276 GB/s, two racks
of GB300 372 of 472."""
_AGGREGATED_HOP = 1 / 3.5
"""Hop of aggregated trees (PAT) over the network's."""
_AGGREGATED_RANK = 2.8 / 14
"""Their part that grows with the ranks, over a hop of the network."""
_AGGREGATED_SPEED = 0.75
"""Their speed over that of a ring (`busBw *= .75`)."""
TREE_YEAR = 2019
"""NCCL 2.4 (January 2019) has double binary trees for all-reduce."""
SWITCH_YEAR = 2023
"""NCCL 2.17 (March 2023) reduces inside NVLink switches."""
AGGREGATED_YEAR = 2025
"""NCCL 2.23 (September 2024) has aggregated trees, for groups with one rank per domain."""


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
    year: Floats
    """Year of the library: which algorithms it has."""
    switch_reduces: NDArray[np.bool_]
    """Where the switches of the innermost tier can reduce (NVLink SHARP, from Hopper on)."""
    torus: NDArray[np.bool_]
    """Where the innermost tier is a torus (TPU): a collective runs along its axes at once."""
    link_hop_seconds: float = LINK_HOP_SECONDS
    network_hop_seconds: float = NETWORK_HOP_SECONDS

    def __len__(self) -> int:
        return len(self.devices)

    def efficiency(self, tier: int) -> float:
        return self.scale_up_efficiency if tier == 0 else self.network_efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group of every row: how it lies in the domains, and its speeds in bytes/s."""

    links: Links
    ranks: Floats
    members: Floats
    """Ranks in one domain."""
    domains: Floats
    speed: Floats
    """Speed of a ring through all of it: its narrowest crossing."""
    inside: Floats
    """Speed of one rank inside its domain; infinite where it is alone there."""
    outside: Floats
    """Speed of a domain's ranks together to other domains; infinite where there are none."""
    latency: Floats
    """Once around a ring with messages too small to take time."""

    @classmethod
    def of(cls, links: Links, ranks: Floats, stride: Floats) -> Group:
        """Where a ring leaves a unit of some tier, its members in that unit share the way out: each
        brings its own NIC.
        """
        inside = outside = np.full(len(links), np.inf)
        domain = unit = np.ones(len(links))
        reach = ranks * stride
        for tier in range(MAX_TIERS):
            speeds = links.bytes_per_second[:, tier]
            if tier > 1 and np.isinf(speeds).all():
                break
            members = np.minimum(np.maximum(unit / stride, 1.0), ranks)
            way_out = np.where(reach > unit, members * speeds * links.efficiency(tier), np.inf)
            if tier == 0:
                inside = way_out
            else:
                domain = members if tier == 1 else domain
                outside = np.minimum(outside, way_out)
            unit = links.devices[:, tier]
        # alone in its domain, a rank sends nothing inside it
        inside = np.where(domain > 1, inside, np.inf)
        domains = ranks / domain
        return cls(
            links=links,
            ranks=ranks,
            members=domain,
            domains=domains,
            latency=_ring_latency(links, ranks, domain, domains),
            speed=np.minimum(inside, outside),
            inside=inside,
            outside=outside,
        )


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over payload / time, in the convention of nccl-tests: 2 (n - 1) / n for an
    all-reduce, (n - 1) / n for an all-gather, reduce-scatter or all-to-all.
    """
    share = (ranks - 1) / ranks
    return 2 * share if operation == "all-reduce" else share


def ring_speed(links: Links, ranks: Floats, stride: Floats) -> Floats:
    """Bytes/s of a ring: its narrowest crossing."""
    return Group.of(links, ranks, stride).speed


def all_reduce_seconds(group: Group, size: Floats, count: Floats | float = 1.0) -> Floats:
    """`count` all-reduces of `size` bytes each, one after another."""
    links = group.links
    seconds = _ring_seconds(group, 2.0, size, count)
    trees = (links.year >= TREE_YEAR) & ~links.torus
    if trees.any():
        tree = np.minimum(
            _tree_seconds(group, size, count), _low_latency_tree_seconds(group, size, count)
        )
        seconds = np.where(trees, np.minimum(seconds, tree), seconds)
    switches = links.switch_reduces & (links.year >= SWITCH_YEAR) & (group.members > 1)
    if switches.any():
        switch = _switch_seconds(group, size, count)
        seconds = np.where(switches, np.minimum(seconds, switch), seconds)
    return np.where(group.ranks > 1, seconds, 0.0)


def gather_seconds(group: Group, size: Floats, count: Floats | float = 1.0) -> Floats:
    """`count` all-gathers or reduce-scatters of `size` bytes each (of all ranks together), one after
    another.
    """
    seconds = _ring_seconds(group, 1.0, size, count)
    scattered = (group.links.year >= AGGREGATED_YEAR) & (group.members == 1) & ~group.links.torus
    if scattered.any():
        trees = _aggregated_seconds(group, size, count)
        seconds = np.where(scattered, np.minimum(seconds, trees), seconds)
    return np.where(group.ranks > 1, seconds, 0.0)


def _ring_latency(links: Links, ranks: Floats, members: Floats, domains: Floats) -> Floats:
    """Hops inside the domains and between them."""
    hops = ranks - domains
    if links.torus.any():
        hops = np.where(links.torus, domains * _torus_hops(members), hops)
    inside = np.where(domains > 1, NETWORKED_HOP, 1.0) * links.link_hop_seconds
    seconds = BASE_SECONDS + hops * inside + (domains - 1) * links.network_hop_seconds
    return np.where(ranks > 1, seconds, 0.0)


def _ring_seconds(group: Group, passes: float, size: Floats, count: Floats | float) -> Floats:
    """Around the ring once (gather, scatter) or twice (all-reduce).

    Every step is as long as the hop or the transfer of a rank's part, whichever is longer, so the two
    add up like the sides of a right angle: 1,024 ranks take 19 ms for 1 GB and 20 ms for 2 GB.
    """
    latency = passes * group.latency
    if passes > 1:
        latency = latency * np.where(group.domains > 1, _PLATEAU, 1.0)
    transfer = passes * (group.ranks - 1) / group.ranks * size / group.speed
    return count * np.hypot(latency, transfer)


_TORUS_HOP = 1.0 / 3.4
"""A hop between neighbours of a torus takes about 1 us (jax-ml.github.io/scaling-book, TPUs)."""


def _torus_hops(members: Floats) -> Floats:
    """Hops along the axes of a square, in hops of a ring. A cube has fewer."""
    return _TORUS_HOP * 2 * (np.sqrt(members) - 1)


def _tree_seconds(group: Group, size: Floats, count: Floats | float) -> Floats:
    """Two binary trees over the domains, a chain inside each: up and down, half of the data each."""
    links = group.links
    hops = (group.members - 1) * _TREE_HOP * links.link_hop_seconds
    hops = hops + np.log2(group.domains) * links.network_hop_seconds
    return _piped(BASE_SECONDS + _TREE_FILL * 2 * hops, size / _tree_speed(group), count)


def _low_latency_tree_seconds(group: Group, size: Floats, count: Floats | float) -> Floats:
    links, (inside, outside) = group.links, _LOW_LATENCY_HOPS
    hops = (group.members - 1) * inside * links.link_hop_seconds
    hops = hops + np.log2(group.domains) * outside * links.network_hop_seconds
    transfer = size / (_LOW_LATENCY_SPEED * _tree_speed(group))
    return _piped(_LOW_LATENCY_BASE_SECONDS + 2 * hops, transfer, count)


def _tree_speed(group: Group) -> Floats:
    """Payload per second. Of two domains each sends its sum once; of more, some send for two."""
    outside = np.where(group.domains > 2, 0.5, 1.0) * group.outside
    return _TREE_SPEED * np.minimum(0.5 * group.inside, outside)


def _switch_seconds(group: Group, size: Floats, count: Floats | float) -> Floats:
    """Reduced inside the switch of every domain, and over a tree of the domains."""
    links = group.links
    hops = np.log2(group.domains) * _SWITCH_TREE_HOP * links.network_hop_seconds
    latency = _SWITCH_HOP * links.link_hop_seconds + _TREE_FILL * 2 * hops
    outside = _TREE_SPEED * np.where(group.domains > 2, 0.5, 1.0) * group.outside
    inside = _SWITCH_SPEED * np.where(group.domains > 1, _SWITCH_TREE_SPEED, 1.0) * group.inside
    return _piped(latency, size / np.minimum(inside, outside), count)


def _aggregated_seconds(group: Group, size: Floats, count: Floats | float) -> Floats:
    """PAT (arXiv:2506.20252): as many trees as ranks, their messages sent together."""
    hop = group.links.network_hop_seconds
    latency = np.log2(group.ranks) * _AGGREGATED_HOP * hop + group.ranks * _AGGREGATED_RANK * hop
    transfer = (group.ranks - 1) / group.ranks * size / (_AGGREGATED_SPEED * group.speed)
    return count * np.hypot(BASE_SECONDS + latency, transfer)


def _piped(fill: Floats, transfer: Floats, count: Floats | float) -> Floats:
    """The first message fills the tree, then passes; the next ones follow on its heels, each as late as
    its transfer or its way through the tree makes it.
    """
    return fill + transfer + (count - 1) * np.hypot(fill, transfer)


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
