"""Output of `ibnetdiscover`: every switch and HCA with the far end of each of its ports.

Checked against a recorded HDR fabric and the NDR one in NVIDIA/topograph's tests. Speeds are data rates
per lane (InfiniBand Trade Association): HDR 50, NDR 100, XDR 200 Gb/s, four lanes in most cables.
A node's name and NIC are the two words of its HCA's description ("node01 mlx5_0").
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from computeflow.catalog.config import short
from computeflow.cluster.topology.topology import Node, Problem, Rail, Switch, Topology, Uplink
from computeflow.errors import InputError
from computeflow.files.names import is_host

_DEVICE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-f]+)"\s*#\s*"([^"]*)".*')
_PORT = re.compile(
    r'\[(\d{1,4})\](?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]+)"\[(\d{1,4})\](?:\([0-9a-f]+\))?'
    r'\s*#\s*(?:lid\s+\d+\s+lmc\s+\d+\s+)?"([^"]*)"(?:.*?\b(\d{1,2})x([A-Z]{3}\d*)\b)?.*'
)
_LANE_GBPS = {
    "SDR": 2, "DDR": 4, "QDR": 8, "FDR10": 10, "FDR": 13.64, "EDR": 25, "HDR": 50, "NDR": 100,
    "XDR": 200,
}  # fmt: skip
_SWITCH_NAME = re.compile(r"[^;:]*;([^;:]+):([^;:]+)")
_SHARP = "Aggregation Node"  # in-switch reduction: an HCA that no node has

Port = tuple[str, int]


@dataclass(slots=True)
class _Fabric:
    described: dict[str, str] = field(default_factory=dict)
    switches: dict[str, None] = field(default_factory=dict)
    ends: dict[tuple[Port, Port], float | None] = field(default_factory=dict)
    """Speed that the near end states for the link, by near and far port."""
    found: list[Problem] = field(default_factory=list)


def read_ibnetdiscover(text: str, where: str) -> Topology:
    fabric = _read(text, where)
    links = _links(fabric)
    hosts, left_out = _hosts(fabric, links)
    names = _switch_names(fabric)
    level = _levels(fabric, links, hosts)
    ups: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    peers: dict[str, dict[str, None]] = defaultdict(dict)
    rails: dict[str, list[Rail]] = defaultdict(list)
    for (a, port), b, speed in _to_switches(links):
        called, mine, other = names.get(b, b), level.get(a, 0), level.get(b, 0)
        if a in hosts:
            node, nic = hosts[a]
            nic = nic if port == 1 else f"{nic}/{port}"
            rails[node].append(Rail(switch=called, nic=nic, bytes_per_second=speed, guid=a))
        elif a in fabric.switches and mine < other:
            ups[a, b].append(speed)
        elif a in fabric.switches and mine == other:
            peers[names[a]][called] = None
    uplinks: dict[str, list[Uplink]] = defaultdict(list)
    for (a, b), speeds in ups.items():
        uplinks[a].append(_uplink(names.get(b, b), speeds))
    return Topology(
        nodes=tuple(
            Node(name=name, rails=tuple(found), sources=(where,)) for name, found in rails.items()
        ),
        switches=tuple(
            Switch(name=names[s], uplinks=tuple(uplinks[s]), peers=tuple(peers[names[s]]), guid=s)
            for s in fabric.switches
        ),
        sources=(where,),
        found=(*fabric.found, *left_out),
    )


def _to_switches(
    links: dict[tuple[Port, Port], float | None],
) -> Iterator[tuple[Port, str, float | None]]:
    """Every link as each of its ends sees it, where the other end is a switch."""
    for (near, far), speed in links.items():
        for port, (other, _) in ((near, far), (far, near)):
            if other.startswith("S-"):
                yield port, other, speed


def _uplink(switch: str, speeds: list[float | None]) -> Uplink:
    total = None if None in speeds else sum(speed or 0.0 for speed in speeds)
    return Uplink(switch=switch, links=len(speeds), bytes_per_second=total)


def _read(text: str, where: str) -> _Fabric:
    fabric = _Fabric()
    current: str | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith(("Switch", "Ca", "Rt", "[")):
            continue
        device, port = _DEVICE.fullmatch(line), _PORT.fullmatch(line)
        if device:
            kind, current, description = device.groups()
            if current in fabric.described:
                what = f"{fabric.described[current]} and {description}"
                fabric.found.append(Problem(rule="duplicate-guid", where=current, what=what))
            fabric.described[current] = description
            if kind == "Switch":
                fabric.switches[current] = None
        elif port and current:
            near, far = (current, int(port[1])), (port[2], int(port[3]))
            fabric.ends[near, far] = _bytes_per_second(port[5], port[6])
            if port[2].startswith("H-"):
                fabric.described.setdefault(port[2] + "?", port[4])
        else:
            raise InputError(
                f"{where}: line {number}: '{short(line)}' is not what ibnetdiscover prints: "
                "the file is cut off or changed"
            )
    return fabric


def _bytes_per_second(lanes: str | None, rate: str | None) -> float | None:
    gbps = _LANE_GBPS.get(rate or "")
    return None if gbps is None or not int(lanes or 0) else int(lanes or 0) * gbps * 1e9 / 8


def _links(fabric: _Fabric) -> dict[tuple[Port, Port], float | None]:
    """Every cable once, at the slower speed where its ends disagree."""
    links: dict[tuple[Port, Port], float | None] = {}
    for (near, far), speed in fabric.ends.items():
        if (far, near) not in links:
            links[near, far] = speed
            continue
        other = links[far, near]
        if speed is not None and other is not None and speed != other:
            what = (
                f"{other * 8e-9:g} Gb/s at {far[0]}[{far[1]}], {speed * 8e-9:g} Gb/s at the other"
            )
            fabric.found.append(
                Problem(rule="asymmetric-speed", where=f"{near[0]}[{near[1]}]", what=what)
            )
            links[far, near] = min(speed, other)
    return links


def _hosts(
    fabric: _Fabric, links: dict[tuple[Port, Port], float | None]
) -> tuple[dict[str, tuple[str, str]], list[Problem]]:
    """Node and NIC of each HCA; and HCAs whose description names no node."""
    hosts: dict[str, tuple[str, str]] = {}
    nameless: dict[str, list[str]] = defaultdict(list)
    for guid in dict.fromkeys(guid for link in links for guid, _ in link if guid[0] == "H"):
        described = fabric.described.get(guid) or fabric.described.get(guid + "?", "")
        words = described.split()
        if 1 <= len(words) <= 2 and is_host(words[0]):
            node, nic = (*words, guid)[:2]
            hosts[guid] = (node, nic)
        elif _SHARP not in described:
            nameless[described].append(guid)
    return hosts, [
        Problem(
            rule="nameless-hca",
            where=guids[0],
            what=f"{len(guids):,} described as '{short(described)}', which names no node: left out",
        )
        for described, guids in nameless.items()
    ]


def _switch_names(fabric: _Fabric) -> dict[str, str]:
    """Switch names by GUID, from the description; with the board's where a chassis holds several."""
    parts = {}
    for guid in fabric.switches:
        match = _SWITCH_NAME.fullmatch(fabric.described[guid])
        parts[guid] = (match[1], match[2]) if match else (fabric.described[guid], "")
    times = Counter(name for name, _ in parts.values())
    names = {
        guid: name if times[name] == 1 and name else f"{name}/{board.partition('/')[2]}"
        for guid, (name, board) in parts.items()
    }
    times = Counter(names.values())
    return {guid: name if times[name] == 1 else guid for guid, name in names.items()}


def _levels(
    fabric: _Fabric,
    links: dict[tuple[Port, Port], float | None],
    hosts: dict[str, tuple[str, str]],
) -> dict[str, int]:
    """Cables between each switch and the nearest node."""
    beside: dict[str, set[str]] = defaultdict(set)
    for (a, _), (b, _) in links:
        beside[a].add(b)
        beside[b].add(a)
    leaves = [s for s in fabric.switches if any(other in hosts for other in beside[s])]
    level = dict.fromkeys(leaves, 1)
    ready = deque(leaves)
    while ready:
        switch = ready.popleft()
        for other in sorted(beside[switch]):
            if other.startswith("S-") and other not in level:
                level[other] = level[switch] + 1
                ready.append(other)
    return level
