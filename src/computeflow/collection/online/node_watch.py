"""What nodes say of themselves: the latest readings and signals, and what they explain.

A throttle, an Xid, a link that flaps or a CPU quota on the node of a slow rank becomes evidence of the
finding on that rank. `state_findings` judges what no such finding explains.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from computeflow.collection.online.live_values import GPU_READINGS, LiveGpu, LiveNode
from computeflow.collection.wire.batches import Batch, NodeSignal
from computeflow.ledger import Evidence
from computeflow.telemetry.kernel_logs.messages import classify_message, classify_xid
from computeflow.telemetry.live.live_states import (
    CounterGrowth,
    LiveNodeState,
    SlowedGpuClock,
    ToldFault,
)
from computeflow.telemetry.metrics.exporter_fields import NOT_SLOWING, SETTINGS, reasons_of

_BEFORE_SECONDS = 120.0
"""Seconds before the onset of a finding in which a node's signal may explain it."""
_MAX_SIGNALS = 64
_SHOWN = 8
_FAULT_SECONDS = 900.0
"""Seconds for which a fault that a node told of counts, where it does not come again."""
_GROWTH_SECONDS = 60.0
_ACTIVITY = "DCGM_FI_DEV_GPU_UTIL"
_QUOTA = "cpu quota"
_XID = re.compile(r"xid (\d{1,9})")
_MAX_READINGS = 4096
_MAX_GPUS = 1024
_NUMBER, _UUID = ("gpu", "gpu_id"), ("UUID", "gpu_uuid")
"""Labels of a GPU: NVIDIA's, AMD's."""
_THROTTLES = {
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "clocks are throttled (bit mask)",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "clocks are throttled (bit mask)",
}
_SLOWING = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits of NVML's reasons that slow a GPU: power cap, hardware slowdown, heat, power brake."""
_THROTTLED_SECONDS = "computeflow_cgroup_throttled_seconds_total"
_GROWING = {
    _THROTTLED_SECONDS: "seconds in which a CPU quota stopped the training",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "NVLink errors",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "NVLink replays",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "PCIe replays",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "remapped rows after uncorrectable errors",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrectable ECC errors",
    "computeflow_infiniband_symbol_errors_total": "InfiniBand symbol errors",
    "computeflow_infiniband_link_downed_total": "InfiniBand link downs",
}
"""Counters whose growth slows or stops what runs on the node."""


@dataclass(slots=True)
class _Series:
    """A counter or a bit mask of one device, over the last minutes."""

    labels: dict[str, str]
    values: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=256))

    def newest(self, since: float) -> Iterator[tuple[float, float]]:
        """Times and values from the newest back to a moment."""
        for at, value in reversed(self.values):
            if at < since:
                return
            yield at, value

    def growth(self, since: float) -> float:
        inside = [value for at, value in self.values if at >= since]
        before = [value for at, value in self.values if at < since]
        if not inside:
            return 0.0
        return inside[-1] - (before[-1] if before else inside[0])


@dataclass(slots=True)
class _Node:
    agent: str
    heard: float
    latest: dict[str, float] = field(default_factory=dict)
    series: dict[tuple[str, str], _Series] = field(default_factory=dict)
    signals: deque[NodeSignal] = field(default_factory=lambda: deque(maxlen=_MAX_SIGNALS))
    missing: dict[str, str] = field(default_factory=dict)
    gpus: set[str] = field(default_factory=set)
    by_gpu: dict[int, dict[str, float]] = field(default_factory=dict)
    """The latest of `GPU_READINGS`, by the number of the GPU."""
    tells: bool = False
    """Whether its agent tells of the node itself, and so is heard every few seconds."""
    measured_since: float | None = None
    """When the activity of its GPUs was first read."""
    active: float = 0.0
    """When a GPU was last active."""


class NodeWatch:
    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def take(self, batch: Batch, received: float) -> None:
        node = self._nodes.get(batch.node)
        if node is None:
            node = self._nodes[batch.node] = _Node(agent=batch.agent, heard=received)
        node.agent, node.heard = batch.agent, received
        node.tells = node.tells or not batch.run
        if batch.missing:
            node.missing = dict(list(batch.missing.items())[:_MAX_SIGNALS])
        node.signals.extend(batch.signals)
        largest: dict[str, float] = {}
        for reading in batch.readings:
            largest[reading.name] = max(reading.value, largest.get(reading.name, reading.value))
            number = _label(reading.labels, _NUMBER)
            if gpu := _label(reading.labels, _UUID) or number:
                node.gpus.add(gpu)
            if reading.name in GPU_READINGS and number.isdecimal() and int(number) < _MAX_GPUS:
                node.by_gpu.setdefault(int(number), {})[reading.name] = reading.value
            if reading.name == _ACTIVITY:
                node.measured_since = node.measured_since or received
                node.active = received if reading.value > 0 else node.active
            if reading.name in _GROWING or reading.name in _THROTTLES:
                key = reading.name, str(sorted(reading.labels.items()))
                series = node.series.setdefault(key, _Series(labels=reading.labels))
                series.values.append((reading.at / 1e6, reading.value))
        for name, value in largest.items():
            if name in node.latest or len(node.latest) < _MAX_READINGS:
                node.latest[name] = value

    def heard(self, node: str) -> float | None:
        found = self._nodes.get(node)
        return None if found is None else found.heard

    def silent(self, now: float, seconds: float) -> list[tuple[str, float]]:
        """Nodes whose agents told of them and say nothing since, and for how long."""
        return [
            (name, now - node.heard)
            for name, node in self._nodes.items()
            if node.tells and now - node.heard >= seconds
        ]

    def inactive_seconds(self, nodes: Iterable[str], now: float) -> float | None:
        """For how long no GPU of these nodes was active; None where one of them does not tell."""
        since = 0.0
        for name in nodes:
            node = self._nodes.get(name)
            if node is None or node.measured_since is None:
                return None
            since = max(since, node.active, node.measured_since)
        return now - since if since else None

    def state(self, name: str, now: float) -> LiveNodeState | None:
        """What a node tells of itself now, without its jobs; None where that is nothing."""
        node = self._nodes.get(name)
        if node is None:
            return None
        faults = tuple(
            fault
            for signal in node.signals
            if signal.fault and now - signal.at / 1e6 <= _FAULT_SECONDS
            if (fault := _node_fault(signal)) is not None
        )
        slowed, grown = [], []
        for (reading, _), series in node.series.items():
            device = series.labels.get("gpu", "") or series.labels.get("port", "")
            if reading in _THROTTLES:
                slowed += _slowed(device, series)
            else:
                found = list(series.newest(now - _GROWTH_SECONDS))
                if len(found) > 1 and found[0][1] > found[-1][1]:
                    grown.append(
                        CounterGrowth(
                            name=reading,
                            device=device,
                            grown=found[0][1] - found[-1][1],
                            seconds=found[0][0] - found[-1][0],
                        )
                    )
        if not (faults or slowed or grown):
            return None
        return LiveNodeState(
            node=name, ranks=0, jobs=(), faults=faults, slowed=tuple(slowed), grown=tuple(grown)
        )

    def evidence(self, nodes: Iterable[str], onset: float) -> tuple[Evidence, ...]:
        """What these nodes said of themselves around the onset of a finding and since."""
        since = onset - _BEFORE_SECONDS
        found: list[Evidence] = []
        for name in nodes:
            node = self._nodes.get(name)
            if node is None:
                continue
            found += [
                Evidence(what=f"{signal.what} {signal.detail}".strip()[:200], where=name)
                for signal in node.signals
                if signal.fault and signal.at / 1e6 >= since and not _is_over(signal, node, onset)
            ][-_SHOWN:]
            found += [
                evidence
                for (reading, _), series in node.series.items()
                if (evidence := _explains(name, reading, series, onset)) is not None
            ]
        return tuple(found[:_SHOWN])

    def views(self, now: float) -> tuple[LiveNode, ...]:
        """How nodes are now: what they said long ago is no news, though it may explain a finding."""
        since = (now - _FAULT_SECONDS) * 1e6
        return tuple(
            LiveNode(
                node=name,
                agent=node.agent,
                last_seen=node.heard,
                gpus=len(node.gpus),
                readings=dict(sorted(node.latest.items())),
                by_gpu=tuple(
                    LiveGpu(gpu=number, readings=dict(readings))
                    for number, readings in sorted(node.by_gpu.items())
                ),
                missing=node.missing,
                signals=tuple(
                    f"{each.what} {each.detail}".strip()
                    for each in node.signals
                    if each.at >= since
                )[-_SHOWN:],
            )
            for name, node in sorted(self._nodes.items())
        )

    def forget(self, before: float) -> None:
        """Forget nodes that were not heard of since."""
        for name in [name for name, node in self._nodes.items() if node.heard < before]:
            del self._nodes[name]


def _label(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _is_over(signal: NodeSignal, node: _Node, onset: float) -> bool:
    """Whether a quota that was told of held nobody back since the onset."""
    return signal.what == _QUOTA and not any(
        series.growth(onset) > 0
        for (reading, _), series in node.series.items()
        if reading == _THROTTLED_SECONDS
    )


def _node_fault(signal: NodeSignal) -> ToldFault | None:
    """The fault of a kernel's message; None of other signals."""
    message = classify_message(signal.detail)
    number = _XID.fullmatch(signal.what)
    if message is not None:
        sign = message.sign
    elif number is not None:
        sign = classify_xid(int(number[1]), signal.detail)
    else:
        return None
    return ToldFault(
        what=signal.what,
        detail=signal.detail,
        gpu=signal.gpu,
        at=signal.at / 1e6,
        meaning=sign.meaning,
        action=sign.action,
    )


def _slowed(device: str, series: _Series) -> list[SlowedGpuClock]:
    """The clock of a GPU, where its last readings all show that it is slowed."""
    first, last, reasons = 0.0, 0.0, dict[str, None]()
    for at, value in series.newest(0.0):
        named = [name for name in reasons_of(value) if name not in SETTINGS | NOT_SLOWING]
        if not named:
            break
        first, last = at, last or at
        reasons |= dict.fromkeys(named)
    if not reasons:
        return []
    return [SlowedGpuClock(gpu=device, reasons=tuple(reasons), seconds=last - first)]


def _explains(node: str, reading: str, series: _Series, onset: float) -> Evidence | None:
    gpu = series.labels.get("gpu", "")
    where = f"{node} GPU {gpu}" if gpu else node
    if reading in _THROTTLES:
        since = [int(value) for at, value in series.values if at >= onset]
        if not any(value & _SLOWING for value in since):
            return None
        mask = next(value for value in reversed(since) if value & _SLOWING)
        return Evidence(what=_THROTTLES[reading], where=where, value=float(mask), expected=0.0)
    grown = series.growth(onset)
    if grown <= 0:
        return None
    return Evidence(what=_GROWING[reading], where=where, value=grown, expected=0.0)
