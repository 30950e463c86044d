"""What nodes say of themselves: the latest readings and signals, and what they explain.

A throttle, an Xid, a link that flaps or a CPU quota on the node of a slow rank becomes evidence of the
finding on that rank; by itself it costs nobody anything, and is no finding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from computeflow.collection.online.live_values import LiveNode
from computeflow.collection.wire.batches import Batch, NodeSignal
from computeflow.ledger import Evidence

_BEFORE_SECONDS = 120.0
"""Seconds before the onset of a finding in which a node's signal may explain it."""
_MAX_SIGNALS = 64
_SHOWN = 8
_MAX_READINGS = 4096
_THROTTLES = {
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "clocks are throttled (bit mask)",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "clocks are throttled (bit mask)",
}
_SLOWING = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits of NVML's reasons that slow a GPU: power cap, hardware slowdown, heat, power brake."""
_GROWING = {
    "computeflow_cgroup_throttled_seconds_total": "seconds in which a CPU quota stopped the training",
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


class NodeWatch:
    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def take(self, batch: Batch, received: float) -> None:
        node = self._nodes.get(batch.node)
        if node is None:
            node = self._nodes[batch.node] = _Node(agent=batch.agent, heard=received)
        node.agent, node.heard = batch.agent, received
        if batch.missing:
            node.missing = dict(list(batch.missing.items())[:_MAX_SIGNALS])
        node.signals.extend(batch.signals)
        largest: dict[str, float] = {}
        for reading in batch.readings:
            largest[reading.name] = max(reading.value, largest.get(reading.name, reading.value))
            if gpu := reading.labels.get("UUID") or reading.labels.get("gpu"):
                node.gpus.add(gpu)
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
                if signal.fault and signal.at / 1e6 >= since
            ][-_SHOWN:]
            found += [
                evidence
                for (reading, _), series in node.series.items()
                if (evidence := _explains(name, reading, series, onset)) is not None
            ]
        return tuple(found[:_SHOWN])

    def views(self) -> tuple[LiveNode, ...]:
        return tuple(
            LiveNode(
                node=name,
                agent=node.agent,
                last_seen=node.heard,
                gpus=len(node.gpus),
                readings=dict(sorted(node.latest.items())),
                missing=node.missing,
                signals=tuple(f"{each.what} {each.detail}".strip() for each in node.signals)[
                    -_SHOWN:
                ],
            )
            for name, node in sorted(self._nodes.items())
        )

    def forget(self, before: float) -> None:
        """Forget nodes that were not heard of since."""
        for name in [name for name, node in self._nodes.items() if node.heard < before]:
            del self._nodes[name]


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
