"""A cluster's nodes, their NICs and the switches above them, as a value. Start with `Topology`.

Switches form a tree, or a Clos network where a switch has several parents. Level 1 are the leaves, the
switches that nodes are plugged into; level 0 is a block of nodes that share a scale-up link (NVL72).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from computeflow.catalog.config import short
from computeflow.errors import InputError
from computeflow.files.limits import LEVELS, NODES, RAILS
from computeflow.files.names import check_host, check_name


def _check_names(**names: str | None) -> None:
    for what, name in names.items():
        if name is not None:
            check_name(name, what)


def _check_speed(bytes_per_second: float | None) -> None:
    if bytes_per_second is not None and not 0 < bytes_per_second < 1e18:
        raise InputError(f"a link of {bytes_per_second} bytes/s")


def _natural(name: str) -> list[tuple[int, str]]:
    """A sorting key that puts mlx5_2 before mlx5_10."""
    parts: list[str] = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(len(part.lstrip("0")) if part[0] in "0123456789" else 0, part) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something in which the sources contradict each other, or a cluster contradicts itself."""

    rule: str
    where: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """A way from a node into the network: the leaf switch that a NIC is plugged into."""

    switch: str
    nic: str | None = None
    """NIC of the node; None: the source states only the leaf."""
    bytes_per_second: float | None = None
    """Speed in one direction."""
    guid: str | None = None

    def __post_init__(self) -> None:
        _check_names(switch=self.switch, NIC=self.nic, GUID=self.guid)
        _check_speed(self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """Links from a switch to one of its parents."""

    switch: str
    links: int | None = None
    """Number of cables; None: the source has a tree without cables."""
    bytes_per_second: float | None = None
    """Speed of all its links together, one direction."""

    def __post_init__(self) -> None:
        check_name(self.switch, "switch")
        _check_speed(self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    devices: int | None = None
    product: str | None = None
    """Product name of the node's accelerators."""
    block: str | None = None
    """Nodes with the same one share a scale-up link, or what a scheduler treats as such."""
    rails: tuple[Rail, ...] = ()
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_host(self.name, "node")
        _check_names(product=self.product, block=self.block)
        if self.devices is not None and not 1 <= self.devices <= NODES:
            raise InputError(f"node {self.name}: {self.devices} devices")
        if len(self.rails) > RAILS:
            raise InputError(f"node {self.name}: {len(self.rails):,} rails; at most {RAILS}")

    @property
    def paths(self) -> tuple[Rail, ...]:
        """Rails by NIC, in the order of their names; where no NIC is known, the leaf alone."""
        named = [rail for rail in self.rails if rail.nic is not None]
        return tuple(sorted(named, key=lambda rail: _natural(rail.nic or ""))) or self.rails


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    name: str
    uplinks: tuple[Uplink, ...] = ()
    peers: tuple[str, ...] = ()
    """Switches of its own level that it is cabled to, which a tree has not."""
    guid: str | None = None

    def __post_init__(self) -> None:
        _check_names(switch=self.name, GUID=self.guid)
        for peer in self.peers:
            check_name(peer, "switch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The inside of a node: which devices NVLink joins and which NIC is near to which device."""

    devices: int
    domain: int
    """Devices that NVLink joins; 1: there is none."""
    nics: tuple[str, ...] = ()
    nearest: tuple[tuple[str, ...], ...] = ()
    """The NICs nearest to each device, by the number of bridges between."""

    def __post_init__(self) -> None:
        for nic in {*self.nics}.union(*self.nearest):
            check_name(nic, "NIC")


def levels_of(parents: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Level of each switch, from those above it: leaves 1; without those in or above a cycle."""
    waiting = Counter(parent for above in parents.values() for parent in {*above})
    level = dict.fromkeys(parents, 1)
    done: dict[str, int] = {}
    ready = deque(name for name in parents if not waiting[name])
    while ready:
        name = ready.popleft()
        done[name] = level[name]
        for parent in {*parents[name]} & parents.keys():
            level[parent] = max(level[parent], level[name] + 1)
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    return done


def check_depth(levels: Mapping[str, int]) -> None:
    depth = max(levels.values(), default=0)
    if depth > LEVELS:
        raise InputError(f"{depth} levels of switches; at most {LEVELS} are read")


@dataclass(frozen=True, kw_only=True)
class Topology:  # not slotted: what is derived from it is computed once and kept
    nodes: tuple[Node, ...] = ()
    switches: tuple[Switch, ...] = ()
    board: Board | None = None
    sources: tuple[str, ...] = ()
    found: tuple[Problem, ...] = ()
    """Problems noticed while the sources were read and merged."""

    def __post_init__(self) -> None:
        for what, names in (
            ("nodes", [node.name for node in self.nodes]),
            ("switches", [switch.name for switch in self.switches]),
        ):
            if len(names) > NODES:
                raise InputError(f"{len(names):,} {what}; at most {NODES:,} are read")
            name, times = Counter(names).most_common(1)[0] if names else ("", 0)
            if times > 1:
                raise InputError(f"{times} {what} are called '{short(name)}'")
        check_depth(self.levels)

    @property
    def all_rails(self) -> Iterator[tuple[Node, Rail]]:
        return ((node, rail) for node in self.nodes for rail in node.rails)

    @property
    def all_uplinks(self) -> Iterator[tuple[Switch, Uplink]]:
        return ((switch, up) for switch in self.switches for up in switch.uplinks)

    @cached_property
    def levels(self) -> dict[str, int]:
        """Level of each switch: leaves 1, their parents 2, ...; without those in or above a cycle."""
        return levels_of({s.name: {up.switch for up in s.uplinks} for s in self.switches})

    @cached_property
    def depth(self) -> int:
        """Levels of switches."""
        return max(self.levels.values(), default=0)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Number of every node's group, by level from 0 (blocks) up.

        Nodes of one group reach each other, on every rail, through switches up to that level.
        """
        kept = [_numbered(node.block or ("", node.name) for node in self.nodes)]
        joined = {switch.name: switch.name for switch in self.switches}
        for level in range(1, self.depth + 1):
            for switch, up in self.all_uplinks:
                if self.levels.get(up.switch) == level and switch.name in self.levels:
                    joined[_root(joined, switch.name)] = _root(joined, up.switch)
            kept.append(_numbered(self._reached(node, joined) for node in self.nodes))
        return tuple(kept)

    @staticmethod
    def _reached(node: Node, joined: dict[str, str]) -> object:
        return frozenset(_root(joined, rail.switch) for rail in node.paths) or ("", node.name)

    def distance(self, a: str, b: str) -> int:
        """0 one node, 1 one block, 2 under one leaf, 3 under one spine and so on up.

        One more than the topmost level where nothing that is known joins the two.
        """
        if a == b:
            return 0
        i, j = self._index[a], self._index[b]
        for level, numbers in enumerate(self.groups):
            if numbers[i] == numbers[j]:
                return level + 1
        return len(self.groups) + 1

    @cached_property
    def _index(self) -> dict[str, int]:
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def rail_leaves(self) -> tuple[tuple[int, ...], ...]:
        """Index into `switches` of every node's leaf, by rail; -1 where it is unknown."""
        index = {switch.name: i for i, switch in enumerate(self.switches)}
        width = max((len(node.paths) for node in self.nodes), default=0)
        return tuple(
            tuple(index.get(rail.switch, -1) for rail in node.paths)
            + (-1,) * (width - len(node.paths))
            for node in self.nodes
        )

    @cached_property
    def oversubscription(self) -> dict[int, float]:
        """Speed from below over speed upwards by level, for the switch where it is worst.

        Only levels that have a switch whose links down and up are all known.
        """
        down: dict[str, list[float | None]] = defaultdict(list)
        for node in self.nodes:
            for rail in node.paths:
                down[rail.switch].append(rail.bytes_per_second)
        for _, up in self.all_uplinks:
            down[up.switch].append(up.bytes_per_second)
        worst: dict[int, float] = {}
        for switch in self.switches:
            level = self.levels.get(switch.name)
            into, out = _sum(down[switch.name]), _sum([u.bytes_per_second for u in switch.uplinks])
            if level is not None and into and out:
                worst[level] = max(worst.get(level, 0.0), into / out)
        return worst


def _numbered(keys: Iterable[object]) -> tuple[int, ...]:
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def _root(joined: dict[str, str], name: str) -> str:
    """Root of a switch's component; paths are halved on the way, so that long ones stay cheap."""
    joined.setdefault(name, name)
    while joined[name] != name:
        joined[name] = joined[joined[name]]
        name = joined[name]
    return name


def _sum(parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
