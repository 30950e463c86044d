"""Ranks onto the nodes of an allocation: `place`, and the orders it is compared with.

A node takes as many consecutive ranks as it has devices, which keeps tensor parallelism (then context,
expert and data parallelism) on NVLink and device `d` of every node in the same rings. What is chosen
is which node takes which such slot:

1. The slots are a graph: bytes between two of them, rail by rail.
2. Nodes on the same switches are of one kind. Bytes between two kinds have a cost per rail.
3. Slots are laid down one after another, each beside those it talks to (`_grow`); the order of host
   names and the order of the switches are tried too.
4. Pairs of nodes are swapped while that lowers the cost; then again after a few random swaps, as long
   as the budget lasts (`_Search`).

The cost of a byte is the sum over the links it passes, each as scarce as it is oversubscribed, so the
goal is not "few leaf switches" but few bytes between leaves of the same rail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.placement import Placement
from computeflow.cluster.wiring import BLOCK, CORE, LEAF, SPINE, TIERS, TORUS, Ints, Wiring
from computeflow.errors import InputError
from computeflow.planning.limits import MAX_PLACEMENT_TABLE
from computeflow.planning.placement.crossing import messages
from computeflow.planning.placement.traffic import Traffic

Floats = NDArray[np.float64]
Nodes = Sequence[int] | Ints

NVLINK_COST = 0.1
"""Cost of a byte on NVLink over one on a NIC: 450 against 50 GB/s on H100 nodes."""
_EFFORT = 30_000
"""Slots whose swaps are looked at; a look takes 20 to 60 microseconds."""
_KICK = 3
"""Random swaps before the search goes down again."""
_AT_ONCE = 1 << 21
"""Messages that are held before they are summed."""


def hostname_order(gpus: int, wiring: Wiring, allocation: Nodes) -> Placement:
    """Placement by a scheduler that knows no topology: nodes by name."""
    nodes = wiring.name_order(_checked(wiring, allocation))
    return Placement.of_nodes(nodes, devices=wiring.devices, ranks=gpus)


def random_order(gpus: int, wiring: Wiring, allocation: Nodes, *, seed: int) -> Placement:
    nodes = np.random.default_rng(seed).permutation(_checked(wiring, allocation))
    return Placement.of_nodes(nodes, devices=wiring.devices, ranks=gpus)


def place(
    traffic: Traffic,
    wiring: Wiring,
    allocation: Nodes,
    *,
    seed: int = 0,
    effort: int = _EFFORT,
) -> Placement:
    """Every rank on a node of the allocation; never costs more than `hostname_order`.

    Nodes that are not needed stay free. The same seed gives the same placement.
    """
    nodes = wiring.name_order(_checked(wiring, allocation))
    by_name = Placement.of_nodes(nodes, devices=wiring.devices, ranks=traffic.gpus)
    kinds = _kinds(wiring, nodes)
    graph = _graph(traffic, wiring, len(nodes), kinds.rail_groups)
    by_switch = np.argsort(kinds.of_node, kind="stable")
    starts = (kinds.of_node, kinds.of_node[by_switch], _grow(graph, kinds))
    searches = [_Search(graph, kinds.costs, start, effort=effort // 4) for start in starts]
    for search in searches:
        search.descend(range(len(graph)))
    best = min(searches, key=lambda search: search.cost)
    best.left = effort - effort // 4 * 3
    best.persist(np.random.default_rng(seed))
    # nodes of one kind are alike: they take their slots in the order of their names
    order = np.empty(len(nodes), np.int64)
    order[np.argsort(best.kind, kind="stable")] = nodes[by_switch]
    return Placement(node=order[np.arange(traffic.gpus) // wiring.devices], device=by_name.device)


def _checked(wiring: Wiring, allocation: Nodes) -> Ints:
    nodes = np.asarray(allocation, np.int64)
    if nodes.ndim != 1 or not len(nodes):
        raise InputError("an allocation is a list of one or more node numbers")
    if len(np.unique(nodes)) < len(nodes):
        twice = next(n for n in nodes.tolist() if (nodes == n).sum() > 1)
        raise InputError(f"node {twice} is twice in the allocation")
    if nodes.min() < 0 or nodes.max() >= wiring.nodes:
        raise InputError(f"the allocation names node {nodes.max()}; the wiring has {wiring.nodes}")
    return nodes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kinds:
    """Nodes of an allocation by the switches that they are on."""

    of_node: Ints
    rail_groups: Ints
    """Rails that join the nodes in the same way count as one: its number, of every rail."""
    costs: Floats
    """Cost of a byte between nodes of two kinds: rail groups x kinds x kinds."""


def _kinds(wiring: Wiring, nodes: Ints) -> _Kinds:
    leaf = wiring.leaf[nodes]
    parent = wiring.parent[leaf]
    columns = [
        wiring.domain[nodes, None] if wiring.block is not None else np.zeros((len(nodes), 1))
    ]
    if wiring.coordinates is None:
        columns += [parent, leaf]  # parents first: kinds of one pod are neighbours in the order
    else:
        columns = [wiring.coordinates[nodes]]
    _, first, of_node = np.unique(
        np.concatenate(columns, axis=1), axis=0, return_index=True, return_inverse=True
    )
    examples = nodes[first]
    if len(examples) * len(nodes) > MAX_PLACEMENT_TABLE:
        raise InputError(
            f"{len(nodes):,} nodes on {len(examples):,} different sets of switches: at most "
            f"{MAX_PLACEMENT_TABLE // len(examples):,} nodes are placed at once: name fewer with "
            "--nodes"
        )
    patterns = [(_labels(leaf[:, r]), _labels(parent[:, r])) for r in range(wiring.rails)]
    rail_groups = np.array([patterns.index(pattern) for pattern in patterns])
    distinct, rail_groups = np.unique(rail_groups, return_inverse=True)
    costs = np.stack([_costs(wiring, examples, int(rail)) for rail in distinct])
    return _Kinds(of_node=of_node.reshape(-1), rail_groups=rail_groups, costs=costs)


def _labels(switches: Ints) -> tuple[int, ...]:
    """Labels that are the same for two rails that join the same nodes."""
    _, first, index = np.unique(switches, return_index=True, return_inverse=True)
    return tuple(first[index].tolist())


def _costs(wiring: Wiring, nodes: Ints, rail: int) -> Floats:
    """Cost of a byte between different nodes of the kinds that `nodes` represent."""
    up = wiring.leaf_oversubscription
    cost = np.zeros(len(TIERS))
    cost[[BLOCK, LEAF, TORUS]] = NVLINK_COST, 1.0, 1.0
    cost[SPINE] = 1.0 + up
    cost[CORE] = 1.0 + up + up * wiring.pod_oversubscription
    source, target = np.meshgrid(nodes, nodes, indexing="ij")
    tier = wiring.tier(source, target, np.full(source.shape, rail))
    inside = LEAF if wiring.block is None else BLOCK
    tier[np.diag_indices(len(nodes))] = inside
    hops = np.where(tier == TORUS, wiring.hops(source, target), 1)
    return np.asarray(cost[tier] * hops)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Graph:
    """Slots and what passes between them, both ways together; the edges of slot `i` are
    `start[i]:start[i + 1]`. Slots that no rank needs have no edges.
    """

    start: Ints
    target: Ints
    bytes: Floats
    """Edges x rail groups."""

    def __len__(self) -> int:
        return len(self.start) - 1

    def edges(self, slot: int) -> slice:
        return slice(self.start[slot], self.start[slot + 1])


def _graph(traffic: Traffic, wiring: Wiring, slots: int, rail_groups: Ints) -> _Graph:
    groups = int(rail_groups.max()) + 1
    keys, sizes = _summed(_slot_messages(traffic, wiring, slots, rail_groups))
    edge, group = keys // groups, keys % groups
    pairs, index = np.unique(edge, return_inverse=True)
    bytes_ = np.zeros((len(pairs), groups))
    bytes_[index, group] = sizes
    source = pairs // slots
    start = np.searchsorted(source, np.arange(slots + 1))
    return _Graph(start=start, target=pairs % slots, bytes=bytes_)


def _slot_messages(
    traffic: Traffic, wiring: Wiring, slots: int, rail_groups: Ints
) -> Iterator[tuple[Ints, Floats]]:
    """Keys of (slot, slot, rail group) and bytes; every message in both directions."""
    ranks = Placement.of_nodes(np.arange(slots), devices=wiring.devices, ranks=traffic.gpus)
    groups = int(rail_groups.max()) + 1
    for flow in traffic.flows:
        size = {"rails": wiring.rails, "devices": wiring.devices}
        for m in messages(flow, ranks, np.arange(slots), **size):
            out = m.source != m.target
            source, target, rail = m.source[out], m.target[out], rail_groups[m.rail[out]]
            yield (source * slots + target) * groups + rail, m.bytes[out]
            yield (target * slots + source) * groups + rail, m.bytes[out]


def _summed(parts: Iterator[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    """Bytes by key, in bounded memory."""
    keys, sizes = [np.empty(0, np.int64)], [np.empty(0)]
    held = 0
    for key, size in parts:
        keys.append(key)
        sizes.append(size)
        held += len(key)
        if held > _AT_ONCE:
            summed = _unique_sums(keys, sizes)
            keys, sizes, held = [summed[0]], [summed[1]], 0
    return _unique_sums(keys, sizes)


def _unique_sums(keys: list[Ints], sizes: list[Floats]) -> tuple[Ints, Floats]:
    unique, index = np.unique(np.concatenate(keys), return_inverse=True)
    return unique, np.bincount(index, np.concatenate(sizes), len(unique)).astype(np.float64)


def _grow(graph: _Graph, kinds: _Kinds) -> Ints:
    """Kinds of node by slot: the slot that talks most to those laid down last goes beside them.

    A kind is filled while slots that talk to its own are left; the next slot then goes where it is
    cheapest, and among equals where most nodes are free.
    """
    free = np.bincount(kinds.of_node, minlength=kinds.costs.shape[1])
    cost = np.zeros((len(graph), len(free)))
    near, here = np.zeros(len(graph)), np.zeros(len(graph))
    near[np.diff(graph.start) == 0] = -1.0  # slots without ranks come last
    kind_of_slot = np.full(len(graph), -1, np.int64)
    kind = 0
    for _ in range(len(graph)):
        slot = int(np.argmax(near + 1000 * here))
        if free[kind] == 0 or here[slot] <= 0:
            price = np.where(free > 0, cost[slot], np.inf)
            kind = int(np.argmax(np.where(price == price.min(), free, 0)))
            here[kind_of_slot < 0] = 0.0
        kind_of_slot[slot] = kind
        free[kind] -= 1
        edges = graph.edges(slot)
        others, sizes = graph.target[edges], graph.bytes[edges]
        cost[others] += sizes @ kinds.costs[:, kind, :]
        near[others] += sizes.sum(axis=1)
        here[others] += sizes.sum(axis=1)
        near[slot] = here[slot] = -np.inf
    return kind_of_slot


class _Search:
    """Swaps of nodes between slots, with the cost of every slot on every kind of node at hand.

    `table[i, t]` is what slot `i` would cost on a node of kind `t` while all others stay; a swap
    changes the rows of the neighbours only.
    """

    def __init__(self, graph: _Graph, costs: Floats, kind: Ints, effort: int) -> None:
        self.graph, self.costs, self.kind, self.left = graph, costs, kind.copy(), effort
        self.table = np.zeros((len(graph), costs.shape[1]))
        for slot in range(len(graph)):
            edges = graph.edges(slot)
            mine = costs[:, kind[graph.target[edges]], :]
            self.table[slot] = np.einsum("er,ret->t", graph.bytes[edges], mine)
        self.own = self.table[np.arange(len(graph)), kind]
        self.done: list[tuple[int, int]] = []

    @property
    def cost(self) -> float:
        """Every pair of slots counts once."""
        return float(self.own.sum()) / 2

    def descend(self, slots: Iterable[int]) -> None:
        """Best swaps of these slots, then of those whose neighbourhood changed, until none helps."""
        queue = deque(slots)
        queued = set(queue)
        least = -1e-9 * self.own.sum() / max(len(self.kind), 1)
        while queue and self.left > 0:
            slot = queue.popleft()
            queued.discard(slot)
            other, gain = self.best_swap(slot)
            if gain < least:
                changed = self.swap(slot, other)
                queue.extend(new := [s for s in changed if s not in queued])
                queued.update(new)

    def best_swap(self, slot: int) -> tuple[int, float]:
        """The slot to swap with, and what the cost changes by."""
        self.left -= 1
        kind = self.kind[slot]
        change = self.table[slot, self.kind] - self.own[slot] + self.table[:, kind] - self.own
        edges = self.graph.edges(slot)
        others = self.graph.target[edges]
        theirs = self.kind[others]
        same = np.einsum("rtt->rt", self.costs)
        both = 2 * self.costs[:, kind, theirs] - same[:, [kind]] - same[:, theirs]
        change[others] += np.einsum("er,re->e", self.graph.bytes[edges], both)
        other = int(np.argmin(change))
        return other, float(change[other])

    def swap(self, slot: int, other: int) -> list[int]:
        """Returns the slots that are touched by it."""
        self.done.append((slot, other))
        first, second = self.kind[slot], self.kind[other]
        step = self.costs[:, second, :] - self.costs[:, first, :]
        touched = [slot, other]
        for moved, sign in ((slot, 1.0), (other, -1.0)):
            edges = self.graph.edges(moved)
            others = self.graph.target[edges]
            self.table[others] += sign * (self.graph.bytes[edges] @ step)
            touched += others.tolist()
        self.kind[slot], self.kind[other] = second, first
        touched = list(dict.fromkeys(touched))
        self.own[touched] = self.table[touched, self.kind[touched]]
        return touched

    def persist(self, random: np.random.Generator) -> None:
        """A few random swaps, then down again; back to where it was unless that was no worse."""
        used = np.flatnonzero(np.diff(self.graph.start))
        while self.left > 0 and len(used) > 1:
            before, touched = self.cost, []
            self.done.clear()
            first = int(random.choice(used))
            for _ in range(_KICK):
                edges = self.graph.target[self.graph.edges(first)]
                touched += self.swap(first, int(random.choice(edges)))
                first = int(random.choice(touched))
            self.descend(touched)
            if self.cost > before:
                for pair in reversed(self.done.copy()):
                    self.swap(*pair)
