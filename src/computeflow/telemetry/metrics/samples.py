"""Samples grouped by GPU and by node, which every reader of metrics fills.

A reader asks `SampledFleet.slot` once per series and adds values to the slot. Memory is bounded by the
number of samples, series, GPUs and nodes; what is beyond is counted, never dropped silently.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from computeflow.files.limits import (
    METRIC_DEVICES,
    METRIC_NAMES_BYTES,
    METRIC_SAMPLES,
    METRIC_SERIES,
)
from computeflow.telemetry.metrics.exporter_fields import (
    ACTIVITY,
    GPU_FIELDS,
    NODE_FIELDS,
    Field,
    is_blank,
)

Floats = NDArray[np.float64]
_MAX_OTHERS = 1000
_LATEST = 1e11
"""Latest time that is accepted: the year 5138."""
_LAST = ("xid", "afid", "reasons", "held")
"""Codes and masks: of two at one time the later counts; for measures, their mean."""
_PORT = re.compile(r":\d{1,5}$")
_NOT_A_NETWORK = re.compile(r"lo|docker|veth|cali|cni|br-|virbr|flannel|tunl")


@dataclass(frozen=True, slots=True)
class Series:
    """Values in order of time; all times are NaN where the source lacks any."""

    times: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def at(self, times: Floats, reach: float) -> Floats:
        """The last value at or before each of these times, not older than `reach`; else NaN."""
        if not len(self):
            return np.full(len(times), np.nan)
        index = np.searchsorted(self.times, times, side="right") - 1
        values = np.where(index >= 0, self.values[index], np.nan)
        age = np.where(index >= 0, times - self.times[index], np.inf)
        return np.asarray(np.where(age <= reach, values, np.nan))


_NO_SERIES = Series(np.zeros(0), np.zeros(0))


@dataclass(slots=True)
class Track:
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def series(self, *, last: bool) -> Series:
        times, values = np.array(self.times), np.array(self.values)
        if np.isnan(times).any():  # some without a time: only their order is known
            return Series(np.full(len(values), np.nan), values)
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        if not len(times) or (times[1:] > times[:-1]).all():
            return Series(times, values)
        first = np.flatnonzero(np.concatenate([[True], times[1:] > times[:-1]]))
        counts = np.diff(np.concatenate([first, [len(times)]]))
        merged = values[first + counts - 1] if last else np.add.reduceat(values, first) / counts
        return Series(times[first], np.asarray(merged))


@dataclass(slots=True)
class SampledDevice:
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
        """The series in order of time; call it once all samples are in, as it replaces them."""
        if name in self.tracks and name not in self._ready:
            series = self.tracks[name].series(last=name.partition(":")[0] in _LAST)
            self._ready[name] = series
            self.tracks[name] = Track()
        return self._ready.get(name, _NO_SERIES)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.tracks if name.startswith(prefix + ":")]


@dataclass(slots=True)
class Slot:
    """The destination of the samples of one series."""

    fleet: SampledFleet
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
        if fleet.samples >= METRIC_SAMPLES:
            fleet.samples_beyond += 1
            return
        fleet.samples += 1
        self.track.times.append(when)
        self.track.values.append(value * self.field.scale)
        if self.held is not None:
            self.held.times.append(when)
            self.held.values.append(self.workload)


@dataclass(slots=True)
class SampledFleet:
    start: float = float("-inf")
    end: float = float("inf")
    gpus: dict[str, SampledDevice] = field(default_factory=dict)
    nodes: dict[str, SampledDevice] = field(default_factory=dict)
    workloads: list[str] = field(default_factory=lambda: [""])
    samples: int = 0
    outside: int = 0
    samples_beyond: int = 0
    series_beyond: int = 0
    series: int = 0
    partitions: int = 0
    others: Counter[str] = field(default_factory=Counter)
    more_others: bool = False
    blanks: Counter[str] = field(default_factory=Counter)
    node_values: dict[str, dict[str, float]] = field(default_factory=dict)
    """Figures that a server already computed, by node."""
    _workload_index: dict[str, int] = field(default_factory=lambda: {"": 0})
    _names_bytes: int = 0

    def slot(self, metric: str, labels: Mapping[str, str], source: str) -> Slot | None:
        """The slot of a series; None for an unknown metric, or beyond the limits."""
        known = gpu_field(metric)
        if known is not None:
            return self._gpu_slot(metric, known, labels, source)
        if metric in NODE_FIELDS:
            return self._node_slot(metric, NODE_FIELDS[metric], labels, source)
        if len(self.others) < _MAX_OTHERS or metric in self.others:
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
        device = self.gpu(labels, source)
        track = self.track(device, known.name)
        if device is None or track is None:
            return None
        slot = Slot(self, metric, known, track)
        if known.name in ACTIVITY:
            workload = self._workload(_workload_of(labels))
            if workload is None:
                return None
            slot.held, slot.workload = device.track(f"held:{known.name}"), workload
            if workload:
                device.workloads[workload] = None
        return slot

    def _workload(self, name: str) -> int | None:
        """The index of a job or pod; None beyond the limits."""
        index = self._workload_index.get(name)
        if index is not None:
            return index
        if len(self.workloads) >= METRIC_SERIES or self._names_bytes > METRIC_NAMES_BYTES:
            self.series_beyond += 1
            return None
        index = self._workload_index[self._kept(name)] = len(self.workloads)
        self.workloads.append(name)
        return index

    def _kept(self, name: str) -> str:
        self._names_bytes += text_bytes(name)
        return name

    @property
    def _full(self) -> bool:
        """Whether no other GPU or node is kept."""
        devices = len(self.gpus) + len(self.nodes)
        return devices >= METRIC_DEVICES or self._names_bytes > METRIC_NAMES_BYTES

    def track(self, device: SampledDevice | None, name: str) -> Track | None:
        """The track of a GPU or node; None, and a series beyond the limits, where there is none."""
        if device is None or (name not in device.tracks and self.series >= METRIC_SERIES):
            self.series_beyond += 1
            return None
        self.series += name not in device.tracks
        return device.track(name)

    def gpu(self, labels: Mapping[str, str], source: str) -> SampledDevice | None:
        """The GPU of these labels: by UUID, else by its node (or its file) and index; None beyond
        the limits.
        """
        node = node_of(labels)
        gpu = _first(labels, "gpu", "gpu_id", "minor_number")
        uuid = _first(labels, "UUID", "uuid", "gpu_uuid")
        key = uuid or f"{node or source}/{gpu}"
        device = self.gpus.get(key)
        if device is None:
            if self._full:
                return None
            device = self.gpus[self._kept(key)] = SampledDevice(node="", uuid=uuid)
        device.node = device.node or self._kept(node)
        device.gpu = device.gpu or self._kept(gpu)
        model = _first(labels, "modelName", "card_series", "card_model")
        device.model = device.model or self._kept(model)
        return device

    def node(self, name: str, source: str) -> SampledDevice | None:
        """The node of this name, or of this file; None beyond the limits."""
        key = name or source
        if key not in self.nodes and not self._full:
            self.nodes[self._kept(key)] = SampledDevice(node=name)
        return self.nodes.get(key)

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
        track = self.track(self.node(node_of(labels), source), f"{known.name}:{part}")
        return None if track is None else Slot(self, metric, known, track)

    def names_of(self, device: SampledDevice) -> tuple[str, ...]:
        """Jobs or pods that held the GPU, in order of appearance."""
        return tuple(self.workloads[index] for index in device.workloads)


def text_bytes(text: str) -> int:
    """Memory of a text's characters: four bytes each where one of them may be a wide one."""
    return len(text) if text.isascii() else 4 * len(text)


def gpu_field(metric: str) -> Field | None:
    """The field of a metric; AMD's names come in either case, OpenMetrics adds `_total` to counters."""
    for name in (metric, metric.lower(), metric.removesuffix("_total")):
        if name in GPU_FIELDS:
            return GPU_FIELDS[name]
    return None


def node_of(labels: Mapping[str, str]) -> str:
    named = _first(labels, "Hostname", "hostname", "nodename", "node", "kubernetes_node")
    return named or _host(labels.get("instance", ""))


def _host(instance: str) -> str:
    """The host: `node-3` of `node-3:9400`, `[::1]` of `[::1]:9400`."""
    return _PORT.sub("", instance)


def _workload_of(labels: Mapping[str, str]) -> str:
    """The job or pod that holds the GPU; "" where the labels name none.

    Prometheus keeps a target's own `pod` and renames the exporter's (`exported_pod`) unless told to
    honour it, so an exporter's pod is no workload.
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
        value = labels.get(name, "").strip()
        if value and value != "NA":
            return value
    return ""
