"""Slurm's topology.conf and topology.yaml, which Topograph's slurm engine writes too.

After the manual pages topology.conf(5) and topology.yaml(5) of SchedMD/slurm: the plugins
topology/tree and topology/block. LinkSpeed is skipped: its unit is arbitrary. Where Topograph gives
switches and blocks short names, it writes the true one in a comment above, `# block001=B1`; that one
is taken.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from computeflow.catalog.config import short
from computeflow.cluster.topology.hostlist import expand
from computeflow.cluster.topology.topology import (
    Node,
    Problem,
    Rail,
    Switch,
    Topology,
    Uplink,
    check_depth,
    levels_of,
)
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.limits import NODES

_PAIR = re.compile(r'[ \t]*([A-Za-z_]+)[ \t]*=[ \t]*("[^"]*"|[^\s"]+)')
_TRUE_NAME = re.compile(r"#[ \t]*([^\s=]+)=(\S+)[ \t]*")
_KEYS = {
    "switchname",
    "switches",
    "nodes",
    "linkspeed",
    "blockname",
    "blocksizes",
    "ringname",
}
_YAML = re.compile(r"(?P<dash>-[ \t]+)?(?P<key>[a-z_]+):(?:[ \t]+(?P<value>.*))?")
_MAX_NAMES = 4 * NODES  # a node may appear in a tree, a block and a partition's own topology
_YAML_KEYS = {"switch": "switchname", "children": "switches", "block": "blockname"}


@dataclass(slots=True)
class _Line:
    """A line of the file, or an entry of the YAML."""

    number: int
    said: dict[str, str]


def read_conf(text: str, where: str) -> Topology:
    return _topology(_conf_lines(text, where), where)


def read_yaml(text: str, where: str) -> Topology:
    """The narrow YAML that Slurm documents and Topograph writes: lists of plain `key: value`."""
    return _topology(_yaml_lines(text, where), where)


def _conf_lines(text: str, where: str) -> Iterator[_Line]:
    true: dict[str, str] = {}
    for number, line in enumerate(text.replace("\\\n", " ").split("\n"), start=1):
        if match := _TRUE_NAME.fullmatch(line):
            true[match[1]] = match[2]
        pairs = _pairs(line.partition("#")[0].rstrip(), f"{where}: line {number}")
        for key in ("switchname", "blockname"):
            if key in pairs:
                pairs["called"] = pairs[key]
                pairs[key] = true.pop(pairs[key], pairs[key])
        if pairs:
            yield _Line(number, pairs)


def _pairs(line: str, at: str) -> dict[str, str]:
    pairs, position = {}, 0
    while position < len(line):
        pair = _PAIR.match(line, position)
        if pair is None:
            raise InputError(
                f"{at}: '{short(line[position:])}' is not Key=Value: "
                "the file is cut off or is no topology.conf"
            )
        key = pair[1].lower()
        if key not in _KEYS:
            raise UnknownNameError("key", short(pair[1]), _KEYS, hint=at)
        if key in pairs:
            raise InputError(f"{at}: {pair[1]} appears twice")
        pairs[key] = pair[2].strip('"')
        position = pair.end()
    return pairs


def _yaml_lines(text: str, where: str) -> Iterator[_Line]:
    entry: _Line | None = None
    sizes: list[str] = []
    in_sizes = False
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.partition("#")[0].strip()
        if in_sizes and re.fullmatch(r"-[ \t]*[0-9]+", line):
            sizes.append(line.strip("- \t"))
        elif line not in ("", "---"):
            dash, key, value = _yaml_entry(line, f"{where}: line {number}")
            in_sizes = key == "block_sizes"
            if in_sizes:
                sizes += re.findall(r"[0-9]+", value)
            elif key in ("switch", "block") and dash:
                if entry:
                    yield entry
                entry = _Line(number, {_YAML_KEYS[key]: value, "called": value})
            elif key in ("children", "nodes") and entry:
                key = _YAML_KEYS.get(key, key)
                if key in entry.said:
                    raise InputError(f"{where}: line {number}: {key} appears twice")
                entry.said[key] = value
    if entry:
        yield entry
    if sizes:
        yield _Line(0, {"blocksizes": ",".join(sizes)})


def _yaml_entry(line: str, at: str) -> tuple[bool, str, str]:
    """Whether it begins an item, the key and its value."""
    match = _YAML.fullmatch(line)
    if match is None:
        raise InputError(f"{at}: '{short(line)}' is not read: not Slurm's YAML")
    return bool(match["dash"]), match["key"], (match["value"] or "").strip("\"'")


def _topology(all_lines: Iterator[_Line], where: str) -> Topology:
    lines = list(itertools.islice(all_lines, 2 * NODES + 1))
    if len(lines) > 2 * NODES:
        raise InputError(f"{where}: more than {2 * NODES:,} lines of switches and blocks")
    parents: dict[str, list[str]] = {}
    leaves: dict[str, list[str]] = defaultdict(list)
    blocks: dict[str, str] = {}
    true: dict[str, str] = {}
    problems: list[Problem] = []
    sizes: list[int] = []
    named = 0
    for line in lines:
        name = _name(line, where)
        nodes = _expanded(line, "nodes", where)
        named += len(nodes)
        if named > _MAX_NAMES:
            raise InputError(f"{where}: nodes are named more than {_MAX_NAMES:,} times")
        if "blocksizes" in line.said:
            sizes = _sizes(line.said["blocksizes"], where)
        elif "blockname" in line.said:
            problems += _in_two_blocks(nodes, blocks, name)
            blocks |= dict.fromkeys(nodes, name)
        else:
            if name in parents:
                problems.append(
                    Problem(rule="duplicate", where=name, what="two lines for one switch")
                )
            parents.setdefault(name, [])
            true[line.said["called"]] = name
            for node in nodes:
                leaves[node].append(name)
    problems += _adopt(lines, parents, true, where)
    check_depth(levels_of(parents))
    problems += _small_blocks(blocks, sizes)
    return Topology(
        nodes=tuple(
            _node(node, leaves.get(node, []), blocks.get(node), where)
            for node in dict.fromkeys([*leaves, *blocks])
        ),
        switches=tuple(_switch(name, above) for name, above in parents.items()),
        sources=(where,),
        found=tuple(problems),
    )


def _name(line: _Line, where: str) -> str:
    if "ringname" in line.said:
        raise InputError(f"{where}: line {line.number}: topology/ring is not read")
    name = line.said.get("switchname") or line.said.get("blockname") or ""
    if not name and "blocksizes" not in line.said:
        raise InputError(f"{where}: line {line.number}: neither SwitchName nor BlockName")
    return name


def _node(name: str, leaves: list[str], block: str | None, where: str) -> Node:
    rails = tuple(Rail(switch=leaf) for leaf in dict.fromkeys(leaves))
    return Node(name=name, block=block, rails=rails, sources=(where,))


def _switch(name: str, above: list[str]) -> Switch:
    return Switch(name=name, uplinks=tuple(Uplink(switch=up) for up in dict.fromkeys(above)))


def _expanded(line: _Line, key: str, where: str) -> list[str]:
    try:
        return expand(line.said.get(key, ""))
    except InputError as error:
        raise InputError(f"{where}: line {line.number}: {error}") from None


def _sizes(text: str, where: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"{where}: BlockSizes '{short(text)}' are not whole numbers")
    return [int(part) for part in parts]


def _in_two_blocks(nodes: list[str], blocks: dict[str, str], name: str) -> Iterator[Problem]:
    for node in nodes:
        if node in blocks:
            both = f"in block {blocks[node]} and in block {name}"
            yield Problem(rule="two-blocks", where=node, what=both)


def _adopt(
    lines: list[_Line], parents: dict[str, list[str]], true: dict[str, str], where: str
) -> Iterator[Problem]:
    """Children get their parents; one that has no line of its own is a problem."""
    total = 0
    for line in lines:
        children = _expanded(line, "switches", where)
        total += len(children)
        if total > _MAX_NAMES:
            raise InputError(f"{where}: switches are named more than {_MAX_NAMES:,} times")
        for called in children:
            child, name = true.get(called, called), line.said.get("switchname", "")
            if child in parents:
                parents[child].append(name)
            else:
                what = f"a child of {name}, without a line of its own"
                yield Problem(rule="unknown-switch", where=child, what=what)


def _small_blocks(blocks: dict[str, str], sizes: list[int]) -> Iterator[Problem]:
    """Each block has at least the base size; each further size is a power of two times it."""
    counts: dict[str, int] = defaultdict(int)
    for block in blocks.values():
        counts[block] += 1
    for block, count in counts.items():
        if sizes and count < sizes[0]:
            what = f"{count} nodes, fewer than the base block size of {sizes[0]}"
            yield Problem(rule="small-block", where=block, what=what)
    for small, large in itertools.pairwise(sizes):
        ratio = large // max(small, 1)
        if ratio * small != large or ratio < 2 or ratio & (ratio - 1):
            what = f"{large} is not {small} times a power of two"
            yield Problem(rule="block-sizes", where="BlockSizes", what=what)
