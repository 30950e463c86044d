"""Counters of InfiniBand and RoCE ports, from /sys/class/infiniband; a link that flaps is a signal."""

from __future__ import annotations

from pathlib import Path

from computeflow.collection.agent.node_sources import NodeLook
from computeflow.collection.agent.small_files import number_in, read_small
from computeflow.collection.wire.batches import NodeReading, NodeSignal

_WORD = 4
"""Data counters of a port count words of four bytes."""
_COUNTERS = {
    "port_rcv_data": ("port_data_received_bytes", _WORD),
    "port_xmit_data": ("port_data_transmitted_bytes", _WORD),
    "port_xmit_wait": ("port_transmit_wait", 1),
    "port_rcv_errors": ("port_errors_received", 1),
    "port_xmit_discards": ("port_discards_transmitted", 1),
    "symbol_error": ("symbol_error", 1),
    "link_error_recovery": ("link_error_recovery", 1),
    "link_downed": ("link_downed", 1),
    "local_link_integrity_errors": ("local_link_integrity_errors", 1),
    "excessive_buffer_overrun_errors": ("excessive_buffer_overrun_errors", 1),
}
"""Files of `counters`, node_exporter's names for them, and their units."""
_HARDWARE = (
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
    "np_cnp_sent", "rp_cnp_handled", "roce_adp_retrans",
)  # fmt: skip
"""Files of `hw_counters`: retransmissions and congestion, which slow a link that is up."""
_SAID = ("symbol_error", "link_error_recovery", "link_downed", "local_link_integrity_errors")
_MAX_PORTS = 64


class InfinibandReadings:
    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._folder = sys / "class" / "infiniband"
        self._before: dict[tuple[str, str], dict[str, float]] = {}

    def look(self, at: int) -> NodeLook:
        try:
            ports = sorted(self._folder.glob("*/ports/*"))[:_MAX_PORTS]
        except OSError:
            ports = []
        if not ports:
            return NodeLook(missing={"infiniband": f"no port in {self._folder}"})
        readings: list[NodeReading] = []
        signals: list[NodeSignal] = []
        for port in ports:
            labels = {"device": port.parent.parent.name, "port": port.name}
            figures = _figures(port)
            readings += [
                NodeReading(at=at, name=f"node_infiniband_{name}", value=value, labels=labels)
                for name, value in figures.items()
            ]
            signals += self._signals(at, (labels["device"], labels["port"]), figures)
        return NodeLook(readings=tuple(readings), signals=tuple(signals))

    def _signals(
        self, at: int, port: tuple[str, str], figures: dict[str, float]
    ) -> list[NodeSignal]:
        """Errors that came since the last look."""
        before = self._before.get(port)
        self._before[port] = figures
        if before is None:
            return []
        grown = {
            name: figures[f"{name}_total"] - before.get(f"{name}_total", 0.0)
            for name in _SAID
            if figures.get(f"{name}_total", 0.0) > before.get(f"{name}_total", 0.0)
        }
        where = f"{port[0]} port {port[1]}"
        signals = [
            NodeSignal(at=at, what=_words(name), detail=f"{where}: {count:,.0f} more")
            for name, count in grown.items()
        ]
        was, now = before.get("state_id", 4.0), figures.get("state_id", 4.0)
        if was == 4.0 and now != 4.0:
            signals.append(NodeSignal(at=at, what="infiniband link down", detail=where))
        return signals


def _words(counter: str) -> str:
    names = {"link_downed": "infiniband link down", "link_error_recovery": "infiniband link flap"}
    return names.get(counter, f"infiniband {counter.replace('_', ' ')}")


def _figures(port: Path) -> dict[str, float]:
    figures = {}
    for file, (name, unit) in _COUNTERS.items():
        value = number_in(port / "counters" / file)
        if value is not None:
            figures[f"{name}_total"] = value * unit
    for file in _HARDWARE:
        value = number_in(port / "hw_counters" / file)
        if value is not None:
            figures[f"{file}_total"] = value
    state = _leading(port / "state", ":")
    if state is not None:
        figures["state_id"] = state
    rate = _leading(port / "rate", " ")
    if rate is not None:
        figures["rate_bytes_per_second"] = rate * 1e9 / 8
    return figures


def _leading(path: Path, until: str) -> float | None:
    """The number before a word: `4: ACTIVE`, `400 Gb/sec (4X NDR)`."""
    try:
        return float(read_small(path).partition(until)[0])
    except (OSError, ValueError):
        return None
