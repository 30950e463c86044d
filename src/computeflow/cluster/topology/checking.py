"""Where a topology contradicts itself. Start with `check`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from computeflow.cluster.topology.topology import Node, Problem, Topology

T = TypeVar("T", bound=Hashable)
_ODD_SHARE = 0.1
"""Fewer nodes than this share of their neighbours: cabled otherwise by mistake, not by design."""


def check(topology: Topology) -> list[Problem]:
    """Every problem, those that reading and merging noticed included; none: an empty list."""
    rules = (
        _switches,
        _leaves,
        _parents,
        _split,
        _rails,
        _crossed_rails,
        _odd_leaves,
        _crossing_sources,
        _rail_speeds,
        _uplink_speeds,
        _guids,
        _devices,
        _sources,
    )
    seen = [problem for rule in rules for problem in rule(topology)]
    return list(dict.fromkeys([*topology.found, *seen]))


def _few(names: Iterable[str], most: int = 4) -> str:
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _commonest(values: Iterable[T]) -> T | None:
    counts = Counter(values).most_common(1)
    return counts[0][0] if counts else None


def _switches(topology: Topology) -> Iterator[Problem]:
    """Parents that are not there, and cycles."""
    known = {switch.name for switch in topology.switches}
    by: dict[str, list[str]] = defaultdict(list)
    for switch, up in topology.all_uplinks:
        by[up.switch].append(switch.name)
    for node, rail in topology.all_rails:
        by[rail.switch].append(node.name)
    for name, users in by.items():
        if name not in known:
            what = f"above {_few(dict.fromkeys(users))}, and not described itself"
            yield Problem(rule="unknown-switch", where=name, what=what)
    cycle = _cycle(topology)
    if cycle:
        yield Problem(rule="cycle", where=cycle[0], what=f"in a circle: {_few(cycle)}")


def _cycle(topology: Topology) -> list[str]:
    """One, from the top down. A switch without a level has a child without one: follow those."""
    below: dict[str, str] = {}
    for switch in topology.switches:
        if switch.name not in topology.levels:
            below |= {up.switch: switch.name for up in switch.uplinks}
    order: dict[str, None] = {}
    name = next((s.name for s in topology.switches if s.name not in topology.levels), None)
    while name is not None and name not in order:
        order[name] = None
        name = below.get(name)
    walked = list(order)
    return walked[walked.index(name) :] if name is not None else []


def _leaves(topology: Topology) -> Iterator[Problem]:
    for node in topology.nodes:
        leaves = dict.fromkeys(rail.switch for rail in node.rails if rail.nic is None)
        if len(leaves) > 1:
            what = f"under {_few(leaves)}; in a tree it is under one"
            yield Problem(rule="two-leaves", where=node.name, what=what)


def _parents(topology: Topology) -> Iterator[Problem]:
    for switch in topology.switches:
        above = [up.switch for up in switch.uplinks if up.links is None]
        if len(above) > 1:
            what = f"below {_few(above)}; in a tree it is below one"
            yield Problem(rule="two-parents", where=switch.name, what=what)
        if switch.peers:
            what = f"cabled to {_few(switch.peers)}, as far from the nodes as itself"
            yield Problem(rule="peer-link", where=switch.name, what=what)


def _split(topology: Topology) -> Iterator[Problem]:
    """A network with spines that still falls apart; leaves alone are a source that knows no more."""
    placed = [i for i, node in enumerate(topology.nodes) if node.rails]
    parts = Counter(topology.groups[-1][i] for i in placed)
    if topology.depth > 1 and len(parts) > 1:
        small = min(parts, key=lambda part: parts[part])
        names = [topology.nodes[i].name for i in placed if topology.groups[-1][i] == small]
        what = f"{len(parts)} parts that no switch joins; one is {_few(names)}"
        yield Problem(rule="split", where="network", what=what)


def _by_nic(topology: Topology) -> list[Node]:
    return [node for node in topology.nodes if any(rail.nic is not None for rail in node.rails)]


def _rails(topology: Topology) -> Iterator[Problem]:
    usual = _commonest(len(node.paths) for node in _by_nic(topology))
    placed = any(node.rails for node in topology.nodes)
    for node in topology.nodes:
        if placed and not node.rails:
            yield Problem(rule="no-leaf", where=node.name, what="under no switch")
        elif usual is not None and node.paths[0].nic is not None and len(node.paths) != usual:
            what = f"{len(node.paths)} rails; most nodes have {usual}"
            yield Problem(rule="missing-rails", where=node.name, what=what)


def _crossed_rails(topology: Topology) -> Iterator[Problem]:
    """Nodes on the same leaves, but with NICs in another order than their neighbours."""
    orders: dict[frozenset[str], list[tuple[str, ...]]] = defaultdict(list)
    ways = {node.name: tuple(rail.switch for rail in node.paths) for node in _by_nic(topology)}
    for way in ways.values():
        orders[frozenset(way)].append(way)
    usual = {leaves: Counter(seen).most_common(1)[0] for leaves, seen in orders.items()}
    for name, way in ways.items():
        expected, times = usual[frozenset(way)]
        if way != expected and times > _majority(orders[frozenset(way)]):
            what = f"rails on {', '.join(way)}; its neighbours' on {', '.join(expected)}"
            yield Problem(rule="crossed-rails", where=name, what=what)


def _majority(orders: list[tuple[str, ...]]) -> float:
    return (1 - _ODD_SHARE) * len(orders) if len(orders) > 2 else len(orders)


def _odd_leaves(topology: Topology) -> Iterator[Problem]:
    """Nodes that share leaves with many neighbours on all rails but some."""
    sets = {node.name: frozenset(r.switch for r in node.paths) for node in _by_nic(topology)}
    times = Counter(sets.values())
    usual = _usual_leaves(times)
    for name, leaves in sets.items():
        for expected in (usual[leaf] for leaf in sorted(leaves)):
            odd = len(leaves) == len(expected) and leaves != expected
            if odd and times[leaves] < _ODD_SHARE * times[expected]:
                what = f"on {_few(sorted(leaves - expected))}, where its neighbours are on "
                what += _few(sorted(expected - leaves))
                yield Problem(rule="odd-leaf", where=name, what=what)
                break


def _usual_leaves(times: Counter[frozenset[str]]) -> dict[str, frozenset[str]]:
    """The set of leaves that most nodes on a leaf share, by leaf."""
    usual: dict[str, frozenset[str]] = {}
    for leaves, count in times.items():
        for leaf in leaves:
            if count > times[usual.get(leaf, frozenset())]:
                usual[leaf] = leaves
    return usual


def _crossing_sources(topology: Topology) -> Iterator[Problem]:
    """A tree's leaf and the leaves of NICs that overlap, neither inside the other."""
    pairs: dict[tuple[str, int], list[str]] = defaultdict(list)
    for i, node in enumerate(topology.nodes):
        bare = [rail.switch for rail in node.rails if rail.nic is None]
        if 0 < len(bare) < len(node.rails) and topology.depth:
            pairs[bare[0], topology.groups[1][i]].append(node.name)
    in_leaf: Counter[str] = Counter()
    in_group: Counter[int] = Counter()
    for (leaf, group), names in pairs.items():
        in_leaf[leaf] += len(names)
        in_group[group] += len(names)
    for (leaf, group), names in pairs.items():
        if len(names) < min(in_leaf[leaf], in_group[group]):
            what = f"holds {_few(names)}, but not all nodes whose NICs share their leaves"
            yield Problem(rule="crossing-leaf", where=leaf, what=what)


def _rail_speeds(topology: Topology) -> Iterator[Problem]:
    usual = _commonest(rail.bytes_per_second for _, rail in topology.all_rails)
    for node, rail in topology.all_rails:
        if usual and rail.bytes_per_second not in (None, 0, usual):
            what = f"{rail.nic}: {_gigabits(rail.bytes_per_second)} Gb/s; "
            what += f"most rails have {_gigabits(usual)}"
            yield Problem(rule="link-speed", where=node.name, what=what)


def _uplink_speeds(topology: Topology) -> Iterator[Problem]:
    by_level: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
    for switch, up in topology.all_uplinks:
        if up.links and up.bytes_per_second and switch.name in topology.levels:
            speed = up.bytes_per_second / up.links
            by_level[topology.levels[switch.name]].append((switch.name, up.switch, speed))
    for ups in by_level.values():
        most = _commonest(speed for *_, speed in ups)
        for name, parent, speed in ups:
            if speed != most:
                what = f"{_gigabits(speed)} Gb/s a link to {parent}; most have {_gigabits(most)}"
                yield Problem(rule="link-speed", where=name, what=what)


def _gigabits(bytes_per_second: float | None) -> str:
    return f"{(bytes_per_second or 0) * 8e-9:g}"


def _guids(topology: Topology) -> Iterator[Problem]:
    owned = [(rail.guid, node.name) for node, rail in topology.all_rails]
    owned += [(switch.guid, switch.name) for switch in topology.switches]
    holders: dict[str, dict[str, None]] = defaultdict(dict)
    for guid, name in owned:
        if guid:
            holders[guid][name] = None
    for guid, names in holders.items():
        if len(names) > 1:
            yield Problem(rule="duplicate-guid", where=guid, what=_few(names))


def _devices(topology: Topology) -> Iterator[Problem]:
    usual = topology.board.devices if topology.board else None
    usual = usual or _commonest(node.devices for node in topology.nodes if node.devices)
    product = _commonest(node.product for node in topology.nodes if node.product)
    for node in topology.nodes:
        if node.devices not in (None, 0, usual):
            what = f"{node.devices} devices, not {usual}"
            yield Problem(rule="devices", where=node.name, what=what)
        if node.product not in (None, "", product):
            what = f"{node.product}; most nodes have {product}"
            yield Problem(rule="product", where=node.name, what=what)


def _sources(topology: Topology) -> Iterator[Problem]:
    """Nodes that some source does not know; a source that names no node has no say."""
    naming = {source for node in topology.nodes for source in node.sources}
    for source in (source for source in topology.sources if source in naming):
        lacking = [node.name for node in topology.nodes if source not in node.sources]
        if lacking:
            what = f"does not know {_few(lacking)}"
            yield Problem(rule="one-source", where=source, what=what)
