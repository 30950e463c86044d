"""How far a step's bytes go under a placement: `crossing` counts them, message by message.

Inside a node and inside an NVLink block bytes travel on NVLink. Between those, a message uses the rail
of the device that receives it: where the sender has another rail, it first hands the bytes over NVLink
to the device of its node that has this one (NCCL's PXN). A dispatcher that sends one copy of a token to
each domain does it the other way around: over the sender's rail, then NVLink at the other end. Either
way those bytes count twice, once as `node`.

What is neglected: that rings with several ranks in a node spread over all of their rails, trees in
place of rings, and the ways that single messages take through a fabric of several spines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.collectives import distinct_share
from computeflow.cluster.placement import Placement
from computeflow.cluster.wiring import BLOCK, CORE, LEAF, NODE, SPINE, TIERS, TORUS, Ints, Wiring
from computeflow.errors import InputError
from computeflow.planning.placement.traffic import Flow, Traffic

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossing:
    """Bytes of one step, all devices together; `torus`: bytes times links passed."""

    tiers: Floats
    """Bytes by tier, in the order of `TIERS`."""
    nic: Floats
    """Bytes out of every node, by rail: nodes x rails."""
    leaf: Floats
    """Bytes out of every leaf, upwards."""
    pod: Floats
    """Bytes out of every parent, upwards."""

    def __add__(self, other: Crossing) -> Crossing:
        return Crossing(
            tiers=self.tiers + other.tiers,
            nic=self.nic + other.nic,
            leaf=self.leaf + other.leaf,
            pod=self.pod + other.pod,
        )

    @property
    def by_tier(self) -> dict[str, float]:
        return dict(zip(TIERS, self.tiers.tolist(), strict=True))

    @property
    def between_nodes(self) -> float:
        """Bytes on a network, not on NVLink."""
        return float(self.tiers[LEAF:].sum())

    @property
    def between_leaves(self) -> float:
        return float(self.tiers[[SPINE, CORE]].sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Bytes from node to node over a rail, and what of it NVLink carries besides."""

    source: Ints
    target: Ints
    rail: Ints
    bytes: Floats
    """Bytes on the way from the source to the target."""
    forwarded: Floats
    """Bytes over NVLink, to or from the device that has the rail."""


def messages(
    flow: Flow, placement: Placement, domain: Ints, *, rails: int, devices: int
) -> Iterator[Messages]:
    """Messages of one flow, many at a time; `domain` is the NVLink domain of every node."""
    gpus = len(placement)
    rail_of = placement.device * rails // devices
    domain_of = domain[placement.node]
    together = _together(flow, gpus, domain_of) if flow.copies > 0 else np.ones(gpus)
    for sender, receiver, size in flow.pairs(gpus):
        source, target = placement.node[sender], placement.node[receiver]
        away = domain_of[sender] != domain_of[receiver]
        there = together[receiver] / flow.ranks
        sent = np.where(away, distinct_share(there, flow.copies), 1.0) * size
        rail = rail_of[sender if flow.copies > 0 else receiver]
        moved = away & (rail_of[sender] != rail_of[receiver])
        yield Messages(
            source=source,
            target=target,
            rail=rail,
            bytes=sent,
            forwarded=np.where(moved, size, 0.0),
        )


def _together(flow: Flow, gpus: int, domain: Ints) -> Floats:
    """For every rank, the ranks of its group in the same domain."""
    key = flow.groups(gpus) * (int(domain.max()) + 1) + domain
    _, index, counts = np.unique(key, return_inverse=True, return_counts=True)
    return np.asarray(counts[index], np.float64)


def crossing(placement: Placement, wiring: Wiring, traffic: Traffic) -> dict[str, Crossing]:
    """Bytes that cross each link, by account, counted exactly."""
    placement.check(wiring)
    if len(placement) != traffic.gpus:
        raise InputError(f"a placement of {len(placement)} ranks for traffic of {traffic.gpus}")
    by_account: dict[str, Crossing] = {}
    for flow in traffic.flows:
        crossed = _count(flow, placement, wiring)
        by_account[flow.account] = (
            by_account[flow.account] + crossed if flow.account in by_account else crossed
        )
    return by_account


def total(crossings: dict[str, Crossing], wiring: Wiring) -> Crossing:
    return sum(crossings.values(), start=_nothing(wiring))


def _nothing(wiring: Wiring) -> Crossing:
    pods = int(wiring.parent.max()) + 1
    return Crossing(
        tiers=np.zeros(len(TIERS)),
        nic=np.zeros((wiring.nodes, wiring.rails)),
        leaf=np.zeros(len(wiring.parent)),
        pod=np.zeros(pods),
    )


def _count(flow: Flow, placement: Placement, wiring: Wiring) -> Crossing:
    crossed = _nothing(wiring)
    size = {"rails": wiring.rails, "devices": wiring.devices}
    for m in messages(flow, placement, wiring.domain, **size):
        tier = wiring.tier(m.source, m.target, m.rail)
        loaded = m.bytes * np.where(tier == TORUS, wiring.hops(m.source, m.target), 1)
        crossed.tiers[:] += np.bincount(tier, loaded, len(TIERS))
        crossed.tiers[NODE] += m.forwarded.sum()
        out = tier > BLOCK
        nic = m.source * wiring.rails + m.rail
        crossed.nic.reshape(-1)[:] += np.bincount(nic[out], m.bytes[out], crossed.nic.size)
        leaf = wiring.leaf[m.source, m.rail]
        for tiers, switch, total in (
            ((SPINE, CORE), leaf, crossed.leaf),
            ((CORE,), wiring.parent[leaf], crossed.pod),
        ):
            up = np.isin(tier, tiers)
            total[:] += np.bincount(switch[up], m.bytes[up], len(total))
    return crossed
