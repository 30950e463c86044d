"""A topology from switch paths: the switches above each node, from its leaf outwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from computeflow.cluster.topology.topology import Node, Rail, Switch, Topology, Uplink
from computeflow.errors import InputError
from computeflow.files.limits import LEVELS

Hop = tuple[str, str]
"""The tier that a source names ("leaf"), and the switch that it says the node is under there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPath:
    node: Node
    hops: tuple[Hop, ...] = ()
    """Switches from the leaf outwards."""
    nic: str | None = None
    bytes_per_second: float | None = None


def from_switch_paths(
    paths: Iterable[SwitchPath], where: str, *, own_names: bool = False
) -> Topology:
    """`own_names`: a switch is known by its name only within its parent, as in a table of paths."""
    paths = list(paths)
    deepest = max((len(path.hops) for path in paths), default=0)
    if deepest > LEVELS:
        raise InputError(f"{where}: {deepest} tiers of switches; at most {LEVELS} are read")
    nodes: dict[str, Node] = {}
    rails: dict[str, dict[Rail, None]] = defaultdict(dict)
    uplinks: dict[str, dict[str, Uplink]] = {}
    for path, names in zip(paths, _switch_names(paths, own_names), strict=True):
        name = nodes.setdefault(path.node.name, path.node).name
        for switch in names:
            uplinks.setdefault(switch, {})
        for switch, parent in pairwise(names):
            uplinks[switch][parent] = Uplink(switch=parent)
        if names:
            rail = Rail(switch=names[0], nic=path.nic, bytes_per_second=path.bytes_per_second)
            rails[name][rail] = None
    return Topology(
        nodes=tuple(replace(node, rails=tuple(rails[name])) for name, node in nodes.items()),
        switches=tuple(
            Switch(name=name, uplinks=tuple(known.values())) for name, known in uplinks.items()
        ),
        sources=(where,),
    )


def _switch_names(paths: list[SwitchPath], own_names: bool) -> Iterator[list[str]]:
    """Names of a path's switches, leaf first; with tier or parents where a name has several."""
    tiers: dict[str, set[str]] = defaultdict(set)
    above: dict[Hop, set[tuple[Hop, ...]]] = defaultdict(set)
    for path in paths:
        for index, hop in enumerate(path.hops):
            tiers[hop[1]].add(hop[0])
            above[hop].add(path.hops[index + 1 :])

    def called(hops: tuple[Hop, ...]) -> str:
        (tier, name), outer = hops[0], hops[1:]
        if own_names and len(above[hops[0]]) > 1 and outer:
            return f"{called(outer)}/{name}"
        return name if len(tiers[name]) == 1 else f"{tier}:{name}"

    for path in paths:
        yield [called(path.hops[index:]) for index in range(len(path.hops))]
