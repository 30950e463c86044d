"""A topology from chains: of each node, the switches above it from its leaf outwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from computeflow.cluster.topology.model import Node, Rail, Switch, Topology, Uplink
from computeflow.errors import InputError
from computeflow.files.limits import LEVELS

Step = tuple[str, str]
"""The tier that a source names ("leaf"), and the switch that it says the node is under there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    node: Node
    steps: tuple[Step, ...] = ()
    """From the leaf outwards."""
    nic: str | None = None
    bytes_per_second: float | None = None


def from_chains(chains: Iterable[Chain], where: str, *, own_names: bool = False) -> Topology:
    """`own_names`: a switch is known by its name only within its parent, as in a table of paths."""
    chains = list(chains)
    deepest = max((len(chain.steps) for chain in chains), default=0)
    if deepest > LEVELS:
        raise InputError(f"{where}: {deepest} tiers of switches; at most {LEVELS} are read")
    nodes: dict[str, Node] = {}
    rails: dict[str, dict[Rail, None]] = defaultdict(dict)
    uplinks: dict[str, dict[str, Uplink]] = {}
    for chain, names in zip(chains, _switch_names(chains, own_names), strict=True):
        name = nodes.setdefault(chain.node.name, chain.node).name
        for switch in names:
            uplinks.setdefault(switch, {})
        for switch, parent in pairwise(names):
            uplinks[switch][parent] = Uplink(switch=parent)
        if names:
            rail = Rail(switch=names[0], nic=chain.nic, bytes_per_second=chain.bytes_per_second)
            rails[name][rail] = None
    return Topology(
        nodes=tuple(replace(node, rails=tuple(rails[name])) for name, node in nodes.items()),
        switches=tuple(
            Switch(name=name, uplinks=tuple(known.values())) for name, known in uplinks.items()
        ),
        sources=(where,),
    )


def _switch_names(chains: list[Chain], own_names: bool) -> Iterator[list[str]]:
    """Of each chain, from the leaf outwards; with its tier or parents where a name has several."""
    tiers: dict[str, set[str]] = defaultdict(set)
    above: dict[Step, set[tuple[Step, ...]]] = defaultdict(set)
    for chain in chains:
        for place, step in enumerate(chain.steps):
            tiers[step[1]].add(step[0])
            above[step].add(chain.steps[place + 1 :])

    def called(steps: tuple[Step, ...]) -> str:
        (tier, name), outer = steps[0], steps[1:]
        if own_names and len(above[steps[0]]) > 1 and outer:
            return f"{called(outer)}/{name}"
        return name if len(tiers[name]) == 1 else f"{tier}:{name}"

    for chain in chains:
        yield [called(chain.steps[place:]) for place in range(len(chain.steps))]
