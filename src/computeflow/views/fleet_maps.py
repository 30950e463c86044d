"""`FleetMap`: every GPU of a fleet with what is known of it, in columns, so that all are one picture.

A cell is a GPU; where a run is on its node, it is a rank of that run: the first rank there on GPU 0.
What a collector knows of a node (its faults, a late rank of which it knows the node alone) holds for
all of its cells; what it knows of a rank or a GPU holds for one. None is unknown: also for a GPU that
its node's run does not use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from computeflow.collection.online.live_values import POWER_READINGS, TEMPERATURE_READINGS
from computeflow.diagnosis.rules.live_states import SILENT_SECONDS
from computeflow.telemetry.kernel_logs.messages import tells_fault
from computeflow.units import format_count

if TYPE_CHECKING:
    from computeflow.cluster.topology import Topology
    from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRun
    from computeflow.collection.outputs.snapshots import LiveSnapshot

HEALTH = ("healthy", "fault reported", "open finding", "silent")
_PROBLEMS = {
    "fault reported": ("reported a fault", "reported faults"),
    "open finding": ("has an open finding", "have open findings"),
    "silent": ("is silent", "are silent"),
}
"""What a headline says of one node with such a problem, and of several."""
MAX_CELLS = 65_536
Places = Mapping[str, Mapping[int, str]]
"""Rank to node, by run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMeasure:
    name: str
    title: str
    unit: str
    by_node: tuple[float | None, ...] = ()
    by_gpu: tuple[float | None, ...] = ()
    """The value of each cell where agents tell of GPUs, and shown instead of that of the node."""
    by_cell: dict[int, float] = field(default_factory=dict)
    """Values of the few cells that differ from their nodes, and shown instead of both."""
    missing: str = ""
    """Why nothing is known; "" where something is."""
    missing_of: str = ""
    """Why it is not known of some runs, and of how many."""
    better: Literal["more", "less"] = "less"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGroup:
    """Nodes of one switch."""

    name: str
    above: str
    """The switch or rack above it; "" where it is not known."""
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    id: str
    name: str
    state: str
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMap:
    schema: str = "computeflow.fleet-map/1"
    of: Literal["GPU", "rank"] = "GPU"
    """What a cell is."""
    grouped_by: Literal["node", "switch", "run"]
    groups: tuple[FleetGroup, ...]
    """In the order of the nodes."""
    nodes: tuple[str, ...]
    cells: tuple[int, ...]
    """GPUs of each node."""
    ranks: tuple[tuple[int, ...], ...]
    """Ranks of each node's run, as first and last of every row of them."""
    runs: tuple[FleetRun, ...]
    run_of: tuple[int | None, ...]
    """The run of each node by its place among the runs."""
    measures: tuple[FleetMeasure, ...]
    notes: dict[int, str]
    """What is wrong with a node: findings on it, and the last fault that it told of."""
    silent_since: dict[int, float] = field(default_factory=dict)
    """When a silent node was last heard of, Unix time."""
    left_out: int = 0
    """GPUs beyond the most that are shown."""


def fleet_map(snapshot: LiveSnapshot, places: Places, topology: Topology | None = None) -> FleetMap:
    """What a collector knows of all nodes at one moment."""
    runs = [run for run in snapshot.runs if run.state != "ended"]
    found = {node.node: node for node in snapshot.nodes}
    names = list(dict.fromkeys([*found, *(node for run in runs for node in run.nodes)]))
    groups, order = _grouped(names, topology)
    run_index = {node: number for number, run in enumerate(runs) for node in run.nodes}
    of_node = _ranks_by_node(places, runs, run_index)
    counts = [_cells(name, found.get(name), runs, of_node) for name in order]
    shown = _shown(counts)
    order, kept = order[:shown], counts[:shown]
    ranks = [of_node.get(name, ()) for name in order]
    cell_of = _cell_numbers(order, kept, run_index, runs, ranks)
    on_host = bool(runs) and all(run.device == "cpu" for run in runs)
    return FleetMap(
        of="rank" if on_host and not any(node.gpus for node in snapshot.nodes) else "GPU",
        grouped_by="switch" if topology is not None else "node",
        groups=_cut(groups, shown),
        nodes=tuple(order),
        cells=tuple(kept),
        ranks=tuple(_spans(each) for each in ranks),
        runs=tuple(
            FleetRun(id=r.run, name=r.name or r.run, state=r.state, mfu=r.mfu) for r in runs
        ),
        run_of=tuple(run_index.get(name) for name in order),
        measures=(
            _mfu(order, kept, ranks, runs, run_index),
            _lateness(order, kept, ranks, runs, run_index),
            _reading("power", "Power", "W", POWER_READINGS, order, kept, found),
            _reading("temperature", "Temperature", "°C", TEMPERATURE_READINGS, order, kept, found),
            _health(order, found, snapshot, cell_of),
        ),
        notes=_notes(order, found, snapshot.open_findings),
        silent_since={
            number: found[name].last_seen
            for number, name in enumerate(order)
            if name in found and _is_silent(found[name], snapshot)
        },
        left_out=sum(counts[shown:]),
    )


def problems(found: FleetMap) -> dict[str, int]:
    """How many nodes have which problem, the worst of each counted, in the order of `HEALTH`."""
    health = next(each for each in found.measures if each.name == "health")
    worst: dict[str, float] = {}
    nodes = [
        name for name, count in zip(found.nodes, found.cells, strict=True) for _ in range(count)
    ]
    known = zip(found.nodes, health.by_node, strict=True)
    for name, value in [*known, *((nodes[cell], each) for cell, each in health.by_cell.items())]:
        worst[name] = max(worst.get(name, 0.0), value or 0.0)
    counts = Counter(HEALTH[int(value)] for value in worst.values() if value)
    return {kind: counts[kind] for kind in HEALTH if counts[kind]}


def headline(found: FleetMap) -> str:
    """How large it is, and how many of its nodes have a problem, where that is known."""
    nodes, runs = len({*found.nodes}), len({*found.run_of} - {None})
    text = format_count(sum(found.cells), found.of)
    if found.grouped_by == "run":
        text += f" of {format_count(runs, 'recorded run')}"
    text += f" on {format_count(nodes, 'node')}"
    lost = f" {found.left_out:,} more are not shown." if found.left_out else ""
    said = [f"{count:,} {_PROBLEMS[kind][count > 1]}" for kind, count in problems(found).items()]
    return f"{text}{': ' if said else ''}{', '.join(said)}.{lost}"


def _grouped(names: Sequence[str], topology: Topology | None) -> tuple[list[FleetGroup], list[str]]:
    """Groups in order, and the nodes in the order of their groups."""
    if topology is None:
        return [FleetGroup(name="all nodes", above="", nodes=len(names))], sorted(
            names, key=_natural
        )
    leaves = {
        node.name: node.rails[0].switch if node.rails else node.block or ""
        for node in topology.nodes
    }
    above = {
        switch.name: switch.uplinks[0].switch if switch.uplinks else ""
        for switch in topology.switches
    }

    def key(name: str) -> tuple[str, str]:
        leaf = leaves.get(name, "")
        return above.get(leaf, ""), leaf

    order = sorted(names, key=lambda name: (*map(_natural, key(name)), _natural(name)))
    groups = [
        FleetGroup(name=leaf or "not in the topology", above=parent, nodes=len(list(nodes)))
        for (parent, leaf), nodes in groupby(order, key=key)
    ]
    return groups, order


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A sorting key that puts node-2 before node-10."""
    parts: list[tuple[int, int, str]] = []
    for digits, letters in groupby(name, key=str.isdecimal):
        text = "".join(letters)
        parts.append((0, int(text[:18]), "") if digits else (1, 0, text))
    return parts


def _cut(groups: Sequence[FleetGroup], nodes: int) -> tuple[FleetGroup, ...]:
    kept, left = [], nodes
    for group in groups:
        if left > 0:
            kept.append(
                FleetGroup(name=group.name, above=group.above, nodes=min(group.nodes, left))
            )
        left -= group.nodes
    return tuple(kept)


def _shown(counts: Sequence[int]) -> int:
    total = 0
    for number, count in enumerate(counts):
        total += count
        if total > MAX_CELLS:
            return number
    return len(counts)


NodeRanks = dict[str, tuple[int, ...]]


def _ranks_by_node(
    places: Places, runs: Sequence[LiveRun], run_index: Mapping[str, int]
) -> NodeRanks:
    """Ranks of each node's run there, of runs of which the node of every rank is known.

    Of a part of the ranks of a node nobody could tell which GPU each one has.
    """
    found: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        known = _places_of(run, places)
        if len(known) < min(run.ranks, MAX_CELLS):
            continue
        for rank, node in sorted(known.items()):
            if run_index.get(node) == number:
                found.setdefault(node, []).append(rank)
    return {node: tuple(ranks) for node, ranks in found.items()}


def _places_of(run: LiveRun, places: Places) -> dict[int, str]:
    """Rank to node; a store of before these were kept at once names those of the slowest ranks."""
    return {rank.rank: rank.node for rank in run.slowest} | dict(places.get(run.run, {}))


def _cells(name: str, node: LiveNode | None, runs: Sequence[LiveRun], of_node: NodeRanks) -> int:
    """GPUs that a node tells of; else ranks on it; else an equal part of its run."""
    if node is not None and node.gpus:
        return node.gpus
    if name in of_node:
        return len(of_node[name])
    mine = [run for run in runs if name in run.nodes]
    return max(mine[0].world // len(mine[0].nodes), 1) if mine else 1


def _cell_numbers(
    order: Sequence[str],
    counts: Sequence[int],
    run_index: Mapping[str, int],
    runs: Sequence[LiveRun],
    ranks: Sequence[Sequence[int]],
) -> dict[tuple[str, int], int]:
    """The cell of each run's rank."""
    cells: dict[tuple[str, int], int] = {}
    first = 0
    for name, count, mine in zip(order, counts, ranks, strict=True):
        if name in run_index:
            run = runs[run_index[name]].run
            cells |= {(run, rank): first + at for at, rank in enumerate(mine[:count])}
        first += count
    return cells


def _spans(ranks: Sequence[int]) -> tuple[int, ...]:
    """First and last of every row of consecutive ranks."""
    spans: list[int] = []
    for rank in ranks:
        if spans and rank == spans[-1] + 1:
            spans[-1] = rank
        else:
            spans += [rank, rank]
    return tuple(spans)


def _mfu(
    order: Sequence[str],
    counts: Sequence[int],
    ranks: Sequence[Sequence[int]],
    runs: Sequence[LiveRun],
    run_index: Mapping[str, int],
) -> FleetMeasure:
    found = _RankValues()
    for name, count, mine in zip(order, counts, ranks, strict=True):
        value = runs[run_index[name]].mfu if name in run_index else None
        found.add(count, value, dict.fromkeys(range(len(mine)), value))
    missing = "no run reports the FLOPs of its model"
    return _measure("mfu", "MFU", "%", found.by_node, missing, by_cell=found.by_cell, better="more")


@dataclass(slots=True)
class _RankValues:
    """Values of ranks, node by node."""

    by_node: list[float | None] = field(default_factory=list)
    by_cell: dict[int, float] = field(default_factory=dict)
    cells: int = 0

    def add(self, count: int, usual: float | None, own: Mapping[int, float | None]) -> None:
        """A node of so many cells: `own` has the values of those that are ranks, by their places.

        It is empty where nobody knows which they are; `usual` is then the value of all.
        """
        unused = any(place not in own for place in range(count)) if own else False
        if unused or None in own.values():
            usual = None
        self.by_node.append(usual)
        self.by_cell |= {
            self.cells + place: value
            for place, value in own.items()
            if value is not None and value != usual and place < count
        }
        self.cells += count


def _lateness(
    order: Sequence[str],
    counts: Sequence[int],
    ranks: Sequence[Sequence[int]],
    runs: Sequence[LiveRun],
    run_index: Mapping[str, int],
) -> FleetMeasure:
    """Seconds that a rank comes after its peers: of a run's slowest ranks; the others come earlier.

    Of ranks whose GPU is not known the latest one stands for its node.
    """
    known = [any(rank.late_seconds is not None for rank in run.slowest) for run in runs]
    late = [{rank.rank: _late(rank.late_seconds) for rank in run.slowest} for run in runs]
    latest = _latest_by_node(runs)
    found = _RankValues()
    for name, count, mine in zip(order, counts, ranks, strict=True):
        number = run_index.get(name)
        if number is None or not known[number]:
            found.add(count, None, {})
            continue
        own = {place: late[number].get(rank, 0.0) for place, rank in enumerate(mine)}
        found.add(count, 0.0 if own else latest.get((number, name), 0.0), own)
    missing = "no run has collectives in which ranks wait for each other"
    return _measure(
        "wait", "Wait caused", "s a step", found.by_node, missing, by_cell=found.by_cell
    )


def _late(seconds: float | None) -> float | None:
    return None if seconds is None else max(seconds, 0.0)


def _latest_by_node(runs: Sequence[LiveRun]) -> dict[tuple[int, str], float | None]:
    """How late the latest rank of each run and node is, by the run's place; None is not known."""
    found: dict[tuple[int, str], float | None] = {}
    for number, run in enumerate(runs):
        for rank in run.slowest:
            mine, before = _late(rank.late_seconds), found.get((number, rank.node), 0.0)
            known = mine is not None and before is not None
            found[number, rank.node] = max(mine or 0.0, before or 0.0) if known else None
    return found


def _reading(
    name: str,
    title: str,
    unit: str,
    readings: Sequence[str],
    order: Sequence[str],
    counts: Sequence[int],
    found: Mapping[str, LiveNode],
) -> FleetMeasure:
    """The readings of each GPU, in whole units; the largest of its node where they are not known."""
    by_node, by_gpu = list[float | None](), list[float | None]()
    for each, count in zip(order, counts, strict=True):
        node = found.get(each)
        by_node.append(None if node is None else _first_of(readings, node.readings))
        own = {} if node is None else {gpu.gpu: gpu.readings for gpu in node.by_gpu}
        values = (_first_of(readings, own.get(gpu, {})) for gpu in range(count))
        by_gpu += [None if value is None else round(value) for value in values]
    if all(value is None for value in by_gpu):
        by_gpu = []
    return _measure(name, title, unit, by_node, f"no agent reports {readings[0]}", by_gpu=by_gpu)


def _first_of(names: Sequence[str], readings: Mapping[str, float]) -> float | None:
    return next((readings[name] for name in names if name in readings), None)


def _health(
    order: Sequence[str],
    found: Mapping[str, LiveNode],
    snapshot: LiveSnapshot,
    cell_of: Mapping[tuple[str, int], int],
) -> FleetMeasure:
    """A place in `HEALTH`; a finding on ranks whose GPU is not known is one on its nodes."""
    whole, by_cell = set[str](), dict[int, float]()
    for finding in snapshot.open_findings:
        cells = [cell_of[finding.run, r] for r in finding.ranks if (finding.run, r) in cell_of]
        by_cell |= dict.fromkeys(cells, float(HEALTH.index("open finding")))
        if not cells or len(cells) < len(finding.ranks):
            whole |= {*finding.nodes}
    values: list[float | None] = []
    for name in order:
        node = found.get(name)
        if node is not None and _is_silent(node, snapshot):
            values.append(HEALTH.index("silent"))
        elif name in whole:
            values.append(HEALTH.index("open finding"))
        elif node is not None:
            values.append(HEALTH.index("fault reported") if any(_faults(node)) else 0.0)
        else:
            values.append(None)
    return _measure("health", "Health", "", values, "no agent runs on these nodes", by_cell=by_cell)


def _is_silent(node: LiveNode, snapshot: LiveSnapshot) -> bool:
    return snapshot.taken - node.last_seen > SILENT_SECONDS


def _faults(node: LiveNode) -> list[str]:
    """What it said of itself that is a fault: a boot is none."""
    return [signal for signal in node.signals if tells_fault(signal)]


def _measure(
    name: str,
    title: str,
    unit: str,
    values: Sequence[float | None],
    missing: str,
    *,
    by_gpu: Sequence[float | None] = (),
    by_cell: dict[int, float] | None = None,
    better: Literal["more", "less"] = "less",
) -> FleetMeasure:
    known = bool(by_cell) or any(value is not None for value in (*values, *by_gpu))
    return FleetMeasure(
        name=name,
        title=title,
        unit=unit,
        by_node=tuple(values),
        by_gpu=tuple(by_gpu),
        by_cell=by_cell or {},
        missing="" if known else missing,
        better=better,
    )


def _notes(
    order: Sequence[str], found: Mapping[str, LiveNode], findings: Sequence[LiveFinding]
) -> dict[int, str]:
    texts: dict[str, list[str]] = {}
    for finding in findings:
        for name in finding.nodes:
            texts.setdefault(name, []).append(finding.title)
    for name, node in found.items():
        texts.setdefault(name, []).extend(_faults(node)[-1:])
    return {
        number: "; ".join(texts[name][:2]) for number, name in enumerate(order) if texts.get(name)
    }
