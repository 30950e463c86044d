"""Several descriptions of one cluster as one. Start with `merge`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from computeflow.cluster.topology.topology import (
    Board,
    Node,
    Problem,
    Rail,
    Switch,
    Topology,
    Uplink,
)
from computeflow.errors import InputError

T = TypeVar("T")


def merge(topologies: Sequence[Topology]) -> Topology:
    """All that any of them states; where two disagree the first holds and the problem is kept.

    Nodes are the same when their names are, case and domain aside (`n1` and `N1.example.com`);
    switches when their names are, or one's name is the other's GUID.
    """
    if not topologies:
        raise InputError("no topology to merge")
    if len(topologies) == 1:
        return topologies[0]
    problems = [problem for topology in topologies for problem in topology.found]
    proper = _proper_switch_names(topologies)
    renamed = [_renamed(topology, proper) for topology in topologies]
    return Topology(
        nodes=tuple(_merged_nodes(renamed, problems)),
        switches=tuple(_merged_switches(renamed)),
        board=_merged_board(topologies, problems),
        sources=tuple(dict.fromkeys(source for t in topologies for source in t.sources)),
        found=tuple(dict.fromkeys(problems)),
    )


def _proper_switch_names(topologies: Sequence[Topology]) -> dict[str, str]:
    names: dict[str, str] = {}
    for topology in topologies:
        for switch in topology.switches:
            if switch.guid is not None:
                names.setdefault(switch.guid, switch.name)
    return names


def _renamed(topology: Topology, proper: dict[str, str]) -> Topology:
    def name(old: str) -> str:
        return proper.get(old, old)

    switches: dict[str, Switch] = {}
    for s in topology.switches:
        ups = tuple(replace(up, switch=name(up.switch)) for up in s.uplinks)
        switches.setdefault(name(s.name), replace(s, name=name(s.name), uplinks=ups))
    return replace(
        topology,
        nodes=tuple(
            replace(n, rails=tuple(replace(r, switch=name(r.switch)) for r in n.rails))
            for n in topology.nodes
        ),
        switches=tuple(switches.values()),
    )


def _merged_switches(topologies: list[Topology]) -> Iterable[Switch]:
    known: dict[str, list[Switch]] = defaultdict(list)
    for topology in topologies:
        for switch in topology.switches:
            known[switch.name].append(switch)
    for name, same in known.items():
        yield Switch(
            name=name,
            uplinks=_merged_uplinks([up for switch in same for up in switch.uplinks]),
            peers=tuple(dict.fromkeys(peer for switch in same for peer in switch.peers)),
            guid=_first(switch.guid for switch in same),
        )


def _merged_uplinks(uplinks: list[Uplink]) -> tuple[Uplink, ...]:
    """Each parent once, from a source that knows the number of links, if one does."""
    ups: dict[str, Uplink] = {}
    for up in uplinks:
        if up.switch not in ups or ups[up.switch].links is None:
            ups[up.switch] = up
    return tuple(ups.values())


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value), None)


def _short_name(name: str) -> str:
    return name if re.fullmatch(r"[0-9.:]+", name) else name.partition(".")[0].casefold()


def _merged_nodes(topologies: list[Topology], problems: list[Problem]) -> Iterable[Node]:
    for same in _same_nodes(topologies):
        name = same[0].name
        problems += _two_values(same)
        yield Node(
            name=name,
            devices=_first(node.devices for node in same),
            product=_first(node.product for node in same),
            block=_first(node.block for node in same),
            rails=_merged_rails(name, [rail for node in same for rail in node.rails], problems),
            sources=tuple(dict.fromkeys(source for node in same for source in node.sources)),
        )


def _same_nodes(topologies: list[Topology]) -> Iterable[list[Node]]:
    # Names are shortened only where no source thereby takes two of its own nodes for one.
    unique = all(
        len({_short_name(node.name) for node in topology.nodes}) == len(topology.nodes)
        for topology in topologies
    )
    known: dict[str, list[Node]] = defaultdict(list)
    for topology in topologies:
        for node in topology.nodes:
            known[_short_name(node.name) if unique else node.name].append(node)
    return known.values()


def _two_values(same: list[Node]) -> Iterable[Problem]:
    for field in ("devices", "product"):  # each source has its own names for blocks
        stated = {getattr(n, field): n.sources[:1] for n in same if getattr(n, field) is not None}
        if len(stated) > 1:
            what = ", ".join(f"{value} in {' '.join(by)}" for value, by in stated.items())
            yield Problem(rule=f"two-{field}", where=same[0].name, what=what)


def _merged_rails(name: str, rails: list[Rail], problems: list[Problem]) -> tuple[Rail, ...]:
    """Each NIC once; a leaf that a NIC is known to lead to needs no rail without one."""
    by_nic: dict[str, Rail] = {}
    for rail in rails:
        if rail.nic is None:
            continue
        other = by_nic.setdefault(rail.nic, rail)
        if other.switch != rail.switch:
            what = f"{rail.nic} leads to {other.switch} and to {rail.switch}"
            problems.append(Problem(rule="two-switches", where=name, what=what))
    reached = {rail.switch for rail in by_nic.values()}
    bare = {rail.switch: rail for rail in rails if rail.nic is None and rail.switch not in reached}
    return (*by_nic.values(), *bare.values())


def _merged_board(topologies: Sequence[Topology], problems: list[Problem]) -> Board | None:
    boards = [(t.board, t.sources[0]) for t in topologies if t.board is not None]
    for board, source in boards[1:]:
        first, first_source = boards[0]
        if (board.devices, board.domain, board.nearest) != (
            first.devices,
            first.domain,
            first.nearest,
        ):
            what = f"devices, NVLink or NICs are joined otherwise than in {first_source}"
            problems.append(Problem(rule="unlike-nodes", where=source, what=what))
    return boards[0][0] if boards else None
