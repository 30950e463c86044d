"""A CSV that says where nodes are plugged in: a row for each NIC, or one for each node.

Columns are recognised by name (`HEADERS`); the nearest tier is needed, others are not.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from computeflow.catalog.config import short
from computeflow.cluster.topology.switch_paths import SwitchPath, from_switch_paths
from computeflow.cluster.topology.topology import Node, Problem, Topology
from computeflow.errors import InputError
from computeflow.files.parsing import parse_csv
from computeflow.units import parse

HEADERS = {
    "node": ("sysname", "node", "nodename", "hostname", "host", "server", "serverip", "ip"),
    "nic": ("nicname", "nic", "hca", "interface", "rail"),
    "leaf": ("switchname", "leaf", "leafswitch", "leafname", "asw", "tor", "switch", "switchip"),
    "spine": ("spine", "spineswitch", "psw", "aggregation"),
    "core": ("core", "coreswitch", "dsw", "superspine"),
    "block": ("block", "nvlinkdomain", "domain", "rack"),
    "devices": ("gpus", "devices", "gpucount"),
    "speed": ("speed", "linkspeed", "bandwidth"),
    "port": ("accessport", "switchport", "portname"),
}
_PORT_GBPS = {
    "eighthundredgige": 800, "fourhundredgige": 400, "twohundredgige": 200, "hundredgige": 100,
    "fiftygige": 50, "fortygige": 40, "twentyfivegige": 25, "ten-gigabitethernet": 10,
}  # fmt: skip
"""How switches of the H3C kind name a port of that speed."""
_UNNAMED = "? on "


def read_table(text: str, where: str) -> Topology:
    records = parse_csv(text, where)
    columns = find_columns(list(records[0][1]))
    if columns is None:
        raise InputError(
            f"{where}: no column for the node ({', '.join(HEADERS['node'])}) and for its leaf "
            f"({', '.join(HEADERS['leaf'])})"
        )
    cabled = "nic" in columns
    paths = [
        _switch_path(columns, record, f"{where}: line {line}", where) for line, record in records
    ]
    nameless = [path.node.name for path in paths if (path.nic or "").startswith(_UNNAMED)]
    problems = [
        Problem(rule="nameless-nic", where=node, what=f"{count} NICs without a name")
        for node, count in Counter(nameless).items()
    ]
    return replace(from_switch_paths(paths, where, own_names=not cabled), found=tuple(problems))


def find_columns(header: list[str]) -> dict[str, str] | None:
    """Column of each meaning; None where node or leaf is missing."""
    plain = {re.sub(r"[^a-z0-9]", "", column.lower()): column for column in reversed(header)}
    columns = {
        meaning: plain[next(name for name in names if name in plain)]
        for meaning, names in HEADERS.items()
        if any(name in plain for name in names)
    }
    return columns if {"node", "leaf"} <= columns.keys() else None


def _count(text: str, at: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise InputError(f"{at}: '{short(text)}' devices")
    return int(text)


def _switch_path(
    columns: dict[str, str], record: dict[str, str], at: str, where: str
) -> SwitchPath:
    cells = {meaning: record[column].strip() for meaning, column in columns.items()}
    if not cells["node"]:
        raise InputError(f"{at}: no node in column {columns['node']!r}")
    return SwitchPath(
        node=Node(
            name=cells["node"],
            devices=_count(cells.get("devices", ""), at),
            block=cells.get("block") or None,
            sources=(where,),
        ),
        hops=tuple((tier, cells[tier]) for tier in ("leaf", "spine", "core") if cells.get(tier)),
        nic=cells.get("nic") or (f"{_UNNAMED}{cells['leaf']}" if "nic" in cells else None),
        bytes_per_second=_speed(cells, at),
    )


def _speed(cells: dict[str, str], at: str) -> float | None:
    """Speed in the column, a bare number in Gb/s; else what the switch port's name says."""
    if text := cells.get("speed"):
        try:
            bare = re.fullmatch(r"[0-9.]+", text)
            speed = parse(f"{text} Gb/s" if bare else text, "bytes_per_second")
        except InputError as error:
            raise InputError(f"{at}: {error}") from None
        if not speed > 0:
            raise InputError(f"{at}: a speed of '{short(text)}'")
        return speed
    word = re.match(r"[A-Za-z-]*", cells.get("port", ""))
    gbps = _PORT_GBPS.get(word[0].lower()) if word else None
    return gbps * 1e9 / 8 if gbps else None
