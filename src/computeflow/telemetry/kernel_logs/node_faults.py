"""Repeated messages folded into one fault, with its count, bursts and rate.

Messages of a fault that are less than `_SILENCE` apart are one burst (NVIDIA groups Xids so: Fleet
Intelligence, "XID bursts"). A message that two files of one node carry (syslog and kern.log) counts
once. Messages without a node are kept apart by file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from computeflow.files.limits import FAULTS, NAMES, NODES, PROCESSES
from computeflow.telemetry.kernel_logs.line_stamps import Clock, Stamp
from computeflow.telemetry.kernel_logs.messages import (
    SMALL,
    KernelMessage,
    MessageClass,
    Stops,
    pci_address,
)
from computeflow.units import DAY_SECONDS, HOUR_SECONDS

_SILENCE = 180.0
MAX_EVENTS = 500_000
_YEAR = 366 * DAY_SECONDS
_ORDER = {"yes": 0, "unknown": 1, "maybe": 2, "no": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """The period that a log covers, by its own clock."""

    owner: str
    """The node, or the file where the log names none."""
    clock: Clock
    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    what: str
    kind: str
    code: int | None
    meaning: str
    stops: Stops
    action: str
    fault: bool
    source: str
    node: str
    file: str
    """The file, where the node is unknown."""
    device: str
    gpu: str
    """The UUID where the log states it, else the PCI address."""
    who: tuple[str, ...]
    """Processes, the most frequent of the first `PROCESSES` first."""
    count: int
    bursts: int
    clock: Clock
    first: float
    last: float
    per_hour: float | None
    """Rate over the period that the log covers; None for less than a minute."""
    example: str


@dataclass(slots=True)
class _Series:
    """Messages of one fault on one node and device."""

    read: KernelMessage
    node: str
    file: str
    clock: Clock
    example: str
    events: dict[tuple[float, str], int] = field(default_factory=dict)
    more: int = 0
    who: Counter[str] = field(default_factory=Counter)

    def times(self) -> list[tuple[float, int]]:
        return sorted((seconds, count) for (seconds, _), count in self.events.items())


_Key = tuple[str, str, str, Clock, str]


class Folding:
    """Faults while logs are read. Absolute times outside `start` to `end` are skipped."""

    def __init__(self, start: float | None = None, end: float | None = None) -> None:
        self.start, self.end = start, end
        self.crowded = 0
        """Messages that are counted without their time."""
        self.beyond = 0
        """Messages of faults, nodes and devices beyond the limits."""
        self._series: dict[_Key, _Series] = {}
        self._spans: dict[tuple[str, Clock], tuple[float, float]] = {}
        self._uuids: dict[tuple[str, str], str] = {}
        self._events = 0

    class File:
        """One file: its counts are kept apart until it ends, so that copies do not add up."""

        def __init__(self, folding: Folding, path: str) -> None:
            self.folding, self.path = folding, path
            self.counts: Counter[tuple[_Key, float, str]] = Counter()
            self.last: tuple[_Key, float, str] | None = None
            self.years, self.before = 0.0, -1.0

        def seconds(self, stamp: Stamp) -> float:
            """Seconds of a stamp; a date without a year far before the last one is in the next year."""
            if stamp.clock != "no year":
                return stamp.seconds
            if stamp.seconds < self.before - _YEAR / 2:
                self.years += _YEAR
            self.before = stamp.seconds
            return stamp.seconds + self.years

        def saw(self, stamp: Stamp) -> None:
            if stamp.clock == "none":
                return
            key, now = (stamp.node or self.path, stamp.clock), self.seconds(stamp)
            spans = self.folding._spans
            if key not in spans and len(spans) >= NODES:
                self.folding.beyond += 1
                return
            first, last = spans.get(key, (now, now))
            spans[key] = (min(first, now), max(last, now))

        def uuid(self, stamp: Stamp, device: str, uuid: str) -> None:
            key, uuids = (stamp.node or self.path, pci_address(device)), self.folding._uuids
            if key not in uuids and len(uuids) >= NAMES:
                self.folding.beyond += 1
                return
            uuids[key] = uuid

        def again(self, times: int) -> None:
            if self.last is not None:
                self.counts[self.last] += times

        def add(self, stamp: Stamp, text: str, read: KernelMessage, times: int) -> None:
            now = self.seconds(stamp)
            folding, text = self.folding, text[:SMALL]
            if stamp.clock == "unix" and (
                (folding.start is not None and now < folding.start)
                or (folding.end is not None and now > folding.end)
            ):
                self.last = None
                return
            owner = stamp.node or self.path
            sign = read.sign
            key = (owner, sign.what, read.device, stamp.clock, sign.stops)
            series = folding._series.get(key)
            if series is None and len(folding._series) >= FAULTS:
                folding.beyond += times
                self.last = None
                return
            if series is None:
                file = "" if stamp.node else self.path
                series = _Series(read, stamp.node, file, stamp.clock, text)
                folding._series[key] = series
            if read.who and (read.who in series.who or len(series.who) < PROCESSES):
                series.who[read.who] += times
            self.last = (key, now, text)
            if folding._events + len(self.counts) < MAX_EVENTS or self.last in self.counts:
                self.counts[self.last] += times
            else:
                series.more += times
                folding.crowded += times
                self.last = None

        def close(self) -> None:
            for (key, now, text), count in self.counts.items():
                events = self.folding._series[key].events
                before = events.get((now, text))
                self.folding._events += before is None
                events[now, text] = max(count, before or 0)
            self.counts.clear()

    def file(self, path: str) -> File:
        return Folding.File(self, path)

    def spans(self) -> tuple[LogSpan, ...]:
        return tuple(
            LogSpan(owner=owner, clock=clock, first=first, last=last)
            for (owner, clock), (first, last) in sorted(self._spans.items())
        )

    def faults(self) -> tuple[NodeFault, ...]:
        off_the_bus = {
            (owner, series.read.device)
            for (owner, what, *_), series in self._series.items()
            if what == "xid 79" and series.read.sign.code == 79
        }
        faults = [
            self._fault(key, series)
            for key, series in self._series.items()
            if key[1] != "gpu fell off the bus" or (key[0], series.read.device) not in off_the_bus
        ]  # the driver writes it beside Xid 79
        faults.sort(
            key=lambda fault: (
                not fault.fault,
                _ORDER[fault.stops],
                -fault.count,
                fault.what,
                fault.node,
                fault.device,
            )
        )
        return tuple(faults)

    def _fault(self, key: _Key, series: _Series) -> NodeFault:
        sign: MessageClass = series.read.sign
        owner, _, device, clock, _ = key
        times = series.times()
        count = sum(number for _, number in times) + series.more
        first, last = self._spans.get((owner, clock), (0.0, 0.0))
        hours = (last - first) / HOUR_SECONDS
        gpu = self._uuids.get((owner, device), device) if series.read.on_gpu else ""
        return NodeFault(
            what=sign.what,
            kind=sign.kind,
            code=sign.code,
            meaning=sign.meaning,
            stops=sign.stops,
            action=sign.action,
            fault=sign.fault,
            source=sign.source,
            node=series.node,
            file=series.file,
            device=device,
            gpu=gpu,
            who=tuple(name for name, _ in series.who.most_common(3)),
            count=count,
            bursts=sum(1 for _ in _bursts(times)),
            clock=clock,
            first=times[0][0] if times else 0.0,
            last=times[-1][0] if times else 0.0,
            per_hour=count / hours if hours > 1 / 60 else None,
            example=series.example,
        )

    def bursts(self, fault: NodeFault) -> Iterator[tuple[float, int]]:
        """Start and number of messages of each burst."""
        key = (fault.node or fault.file, fault.what, fault.device, fault.clock, fault.stops)
        return _bursts(self._series[key].times())


def _bursts(times: list[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    begin, last, total = 0.0, 0.0, 0
    for now, count in times:
        if total and now - last > _SILENCE:
            yield begin, total
            total = 0
        if not total:
            begin = now
        last, total = now, total + count
    if total:
        yield begin, total
