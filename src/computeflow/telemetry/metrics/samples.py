"""Samples as they come in, put together by GPU and by node: what every reader of metrics fills.

A reader asks `Fleet.slot` once per series and adds values to the slot. Memory is bounded by the
number of samples and series; what is beyond is counted, never dropped in silence.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from computeflow.files.limits import NAMES_CHARACTERS
from computeflow.telemetry.metrics.fields import (
    ACTIVITY,
    GPU_FIELDS,
    NODE_FIELDS,
    Field,
    is_blank,
)

Floats = NDArray[np.float64]
MOST_SAMPLES = 10_000_000
MOST_SERIES = 500_000
_MOST_OTHERS = 1000
_LATEST = 1e11
"""The year 5138: later is no time."""
_LAST = ("xid", "afid", "reasons", "held")
"""Codes and masks: of two at one moment the later counts; of measures, the mean."""
_PORT = re.compile(r":\d{1,5}$")
_NOT_A_NETWORK = re.compile(r"lo|docker|veth|cali|cni|br-|virbr|flannel|tunl")


@dataclass(frozen=True, slots=True)
class Series:
    """In order of time; times are NaN where the source gives none, all or nothing."""

    times: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def at(self, times: Floats, reach: float) -> Floats:
        """The last value at or before each of these times, not older than `reach`; else NaN."""
        if not len(self):
            return np.full(len(times), np.nan)
        place = np.searchsorted(self.times, times, side="right") - 1
        found = np.where(place >= 0, self.values[place], np.nan)
        age = np.where(place >= 0, times - self.times[place], np.inf)
        return np.asarray(np.where(age <= reach, found, np.nan))


_NO_SERIES = Series(np.zeros(0), np.zeros(0))


@dataclass(slots=True)
class Track:
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def series(self, *, last: bool) -> Series:
        times, values = np.array(self.times), np.array(self.values)
        if np.isnan(times).any():  # some without a time: their order is all that is known
            return Series(np.full(len(values), np.nan), values)
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        if not len(times) or (times[1:] > times[:-1]).all():
            return Series(times, values)
        first = np.flatnonzero(np.concatenate([[True], times[1:] > times[:-1]]))
        counts = np.diff(np.concatenate([first, [len(times)]]))
        one = values[first + counts - 1] if last else np.add.reduceat(values, first) / counts
        return Series(times[first], np.asarray(one))


@dataclass(slots=True)
class Device:
    """A GPU, or a node, with its series."""

    node: str
    gpu: str = ""
    uuid: str = ""
    model: str = ""
    tracks: dict[str, Track] = field(default_factory=dict)
    workloads: dict[int, None] = field(default_factory=dict)
    _ready: dict[str, Series] = field(default_factory=dict)

    def track(self, name: str) -> Track:
        return self.tracks.setdefault(name, Track())

    def series(self, name: str) -> Series:
        """In order; once all samples are in, for it takes the place of what was added."""
        if name in self.tracks and name not in self._ready:
            found = self.tracks[name].series(last=name.partition(":")[0] in _LAST)
            self._ready[name] = found
            self.tracks[name] = Track()
        return self._ready.get(name, _NO_SERIES)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.tracks if name.startswith(prefix + ":")]


@dataclass(slots=True)
class Slot:
    """Where the samples of one series go."""

    fleet: Fleet
    metric: str
    field: Field
    track: Track
    held: Track | None = None
    workload: int = 0

    def add(self, value: float, seconds: float | None) -> None:
        fleet = self.fleet
        if seconds is None:
            when = float("nan")
        elif not (fleet.start <= seconds <= fleet.end and 0 <= seconds < _LATEST):
            fleet.outside += 1
            return
        else:
            when = seconds
        below = value < 0 and "temperature" not in self.field.name
        if below or is_blank(value, amd=self.field.amd):
            fleet.blanks[self.metric] += 1
            return
        if fleet.samples >= MOST_SAMPLES:
            fleet.beyond += 1
            return
        fleet.samples += 1
        self.track.times.append(when)
        self.track.values.append(value * self.field.scale)
        if self.held is not None:
            self.held.times.append(when)
            self.held.values.append(self.workload)


@dataclass(slots=True)
class Fleet:
    start: float = float("-inf")
    end: float = float("inf")
    gpus: dict[str, Device] = field(default_factory=dict)
    nodes: dict[str, Device] = field(default_factory=dict)
    workloads: dict[str, int] = field(default_factory=lambda: {"": 0})
    samples: int = 0
    outside: int = 0
    beyond: int = 0
    series: int = 0
    partitions: int = 0
    others: Counter[str] = field(default_factory=Counter)
    more_others: bool = False
    blanks: Counter[str] = field(default_factory=Counter)
    node_values: dict[str, dict[str, float]] = field(default_factory=dict)
    """What a server already worked out, by node."""
    _characters: int = 0
    """Of all labels."""

    def slot(self, metric: str, labels: Mapping[str, str], source: str) -> Slot | None:
        """None where the metric is none of ours, or there are too many series."""
        self._characters += sum(map(len, labels.values()))
        if self.series >= MOST_SERIES or self._characters > NAMES_CHARACTERS:
            self.beyond += 1
            return None
        known = gpu_field(metric)
        if known is not None:
            return self._gpu_slot(metric, known, labels, source)
        if metric in NODE_FIELDS:
            return self._node_slot(metric, NODE_FIELDS[metric], labels, source)
        if len(self.others) < _MOST_OTHERS or metric in self.others:
            self.others[metric] += 1
        else:
            self.more_others = True
        return None

    def _gpu_slot(
        self, metric: str, known: Field, labels: Mapping[str, str], source: str
    ) -> Slot | None:
        if known.where and labels.get(known.where[0], "") != known.where[1]:
            return None
        if _first(labels, "GPU_I_ID", "gpu_i_id"):
            self.partitions += 1
            return None
        device = self.device(labels, source)
        self.series += 1
        slot = Slot(self, metric, known, device.track(known.name))
        if known.name in ACTIVITY:
            slot.held = device.track(f"held:{known.name}")
            slot.workload = self.workloads.setdefault(_workload_of(labels), len(self.workloads))
            if slot.workload:
                device.workloads[slot.workload] = None
        return slot

    def device(self, labels: Mapping[str, str], source: str) -> Device:
        """The GPU of these labels: by UUID, else by its node (or its file) and index."""
        node = node_of(labels)
        gpu = _first(labels, "gpu", "gpu_id", "minor_number")
        uuid = _first(labels, "UUID", "uuid", "gpu_uuid")
        key = uuid or f"{node or source}/{gpu}"
        found = self.gpus.get(key)
        if found is None:
            found = self.gpus[key] = Device(node=node, gpu=gpu, uuid=uuid)
        found.node = found.node or node
        found.gpu = found.gpu or gpu
        found.model = found.model or _first(labels, "modelName", "card_series", "card_model")
        return found

    def _node_slot(
        self, metric: str, known: Field, labels: Mapping[str, str], source: str
    ) -> Slot | None:
        part = ""
        if known.name == "cpu":
            if labels.get("mode") != "idle":
                return None
            part = labels.get("cpu", "")
        elif known.name.startswith(("network", "infiniband")):
            part = f"{labels.get('device', '')}/{labels.get('port', '')}"
            if _NOT_A_NETWORK.match(part):
                return None
        key = node_of(labels) or source
        device = self.nodes.setdefault(key, Device(node=node_of(labels)))
        self.series += 1
        return Slot(self, metric, known, device.track(f"{known.name}:{part}"))

    def names_of(self, device: Device) -> tuple[str, ...]:
        """Who held the GPU, in order of appearance."""
        if not device.workloads:
            return ()
        names = list(self.workloads)
        return tuple(names[index] for index in device.workloads)


def gpu_field(metric: str) -> Field | None:
    """AMD's names come in either case; OpenMetrics writes counters with `_total` behind them."""
    for name in (metric, metric.lower(), metric.removesuffix("_total")):
        if name in GPU_FIELDS:
            return GPU_FIELDS[name]
    return None


def node_of(labels: Mapping[str, str]) -> str:
    named = _first(labels, "Hostname", "hostname", "nodename", "node", "kubernetes_node")
    return named or _host(labels.get("instance", ""))


def _host(instance: str) -> str:
    """`node-3` of `node-3:9400`, `[::1]` of `[::1]:9400`."""
    return _PORT.sub("", instance)


def _workload_of(labels: Mapping[str, str]) -> str:
    """The job or pod that holds the GPU; "" where the labels name none.

    Prometheus keeps a target's own `pod` and renames the exporter's (`exported_pod`) unless told to
    honour it, so a pod that is an exporter is nobody's work.
    """
    job = _first(labels, "hpc_job", "job_id", "slurm_job_id", "slurm_job")
    if job:
        return job
    pod = _first(labels, "exported_pod", "pod", "pod_name")
    if not pod or "exporter" in pod:
        return ""
    space = _first(labels, "exported_namespace", "namespace", "pod_namespace")
    return f"{space}/{pod}" if space else pod


def _first(labels: Mapping[str, str], *names: str) -> str:
    for name in names:
        found = labels.get(name, "").strip()
        if found and found != "NA":
            return found
    return ""
