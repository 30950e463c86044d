"""`StoredReadings`: power, memory, temperature and clocks of a run's GPUs, from a collector's store.

Readings are put into slots where they are, by DuckDB, and those of a sealed file once: eight million
readings take 0.4 s of CPU, and 800 numbers of each meter are kept. The last minutes come from the
journal.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from computeflow.collection.online.live_values import LiveNode
from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.web.sources.reading_curves import (
    METERS,
    OF_READING,
    Meter,
    MeterSlots,
    ReadingCurves,
    Slots,
    make_slots,
)
from computeflow.web.sources.row_columns import Columns, join_columns

_MAX_RUNS = 8
_INTERVAL_SECONDS = 5.0
"""`computeflow agent --every`, unless the readings show another one."""
_ASKED_NODES = 4
"""Nodes whose readings show how often they are taken."""
_NAMES = ", ".join(f"'{name}'" for name in OF_READING)
_PICKED = "name, node, epoch_us(time) / 1e6 AS moment, value AS mean, value AS largest"
_UNSEALED = {"name": object, "node": object, "moment": float, "mean": float, "largest": float}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredRun:
    run: str
    gpus: Mapping[str, int]
    """GPUs of each of its nodes."""
    begin: float
    end: float
    nodes: tuple[LiveNode, ...]
    """Those of its nodes that an agent tells of."""


@dataclass(slots=True)
class _Known:
    """What is kept of a run: its slots, and sums of each sealed file."""

    key: object = None
    slots: Slots | None = None
    files: dict[str, Columns] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class StoredReadings:
    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def curves(
        self, run: MeteredRun, files: Sequence[str], unsealed: Sequence[Columns]
    ) -> ReadingCurves:
        known = self._known(run.run)
        with known.lock, parquet_engine("reading readings", threads=2) as (engine, engine_error):
            try:
                return _curves(engine, run, files, join_columns(unsealed, _UNSEALED), known)
            except engine_error as error:
                text = str(error).splitlines()[0][:300]
                raise InputError(f"readings of {run.run}: {text}; ask again") from None

    def _known(self, run: str) -> _Known:
        with self._lock:
            known = self._runs.setdefault(run, _Known())
            self._runs.move_to_end(run)
            while len(self._runs) > _MAX_RUNS:
                self._runs.popitem(last=False)
            return known


def _curves(
    engine: Any, run: MeteredRun, files: Sequence[str], unsealed: Columns, known: _Known
) -> ReadingCurves:
    nodes, gpus = np.array([*run.gpus], object), np.array([*run.gpus.values()], float)
    engine.register("mine", {"node": nodes, "gpus": gpus})
    engine.register("unsealed", unsealed)
    slots = make_slots(run.begin, run.end, _interval(engine, run, files))
    key = (slots.seconds, run.begin, *run.gpus.items())
    if known.key != key:
        known.key, known.files = key, {}
    known.files = {file: known.files[file] for file in files if file in known.files}
    fresh = [file for file in files if file not in known.files]
    if fresh:
        known.files |= _sealed_sums(engine, run, slots, fresh)
    parts = [*known.files.values(), _sums(engine, run, slots, "unsealed")]
    return _made(run, slots, parts)


def _interval(engine: Any, run: MeteredRun, files: Sequence[str]) -> float:
    """Seconds between two readings of a node, as the last ones show it."""
    some = ", ".join(_quoted(name) for name in sorted(run.gpus)[:_ASKED_NODES])
    last = f"SELECT {_PICKED} FROM read_parquet({_quoted(files[-1])})" if files else ""
    for source in ("SELECT * FROM unsealed", last):
        if not source:
            continue
        ((found,),) = engine.execute(
            "SELECT median(gap) FROM (SELECT moment - lag(moment) "
            "OVER (PARTITION BY node, name ORDER BY moment) AS gap "
            f"FROM (SELECT DISTINCT node, name, moment FROM ({source}) "
            f"WHERE name IN ({_NAMES}) AND node IN ({some}))) WHERE gap > 0"
        ).fetchall()
        if found is not None:
            return float(found)
    return _INTERVAL_SECONDS


def _sealed_sums(
    engine: Any, run: MeteredRun, slots: Slots, files: Sequence[str]
) -> dict[str, Columns]:
    names = ", ".join(map(_quoted, files))
    found = _sums(
        engine,
        run,
        slots,
        f"(SELECT {_PICKED}, filename FROM read_parquet([{names}], filename = true) "
        f"WHERE name IN ({_NAMES}) AND time >= make_timestamp({_micros(run.begin)}))",
        ", filename",
    )
    of = found.pop("filename")
    return {
        file: {name: values[rows] for name, values in found.items()}
        for file in files
        for rows in (np.flatnonzero(of == file),)
    }


def _sums(engine: Any, run: MeteredRun, slots: Slots, source: str, more: str = "") -> Columns:
    """Sums over the run's GPUs by reading and slot; the GPUs of a node are read equally often."""
    found: Columns = engine.execute(
        f"SELECT name, slot, sum(mean * gpus) AS total, sum(gpus) AS gpus, "
        f"max(largest) AS largest{more} FROM ("
        f"SELECT name, node, floor(moment / {slots.seconds!r})::BIGINT AS slot, avg(mean) AS mean, "
        f"max(largest) AS largest{more} FROM {source} "
        f"WHERE moment >= {run.begin!r} AND isfinite(mean) GROUP BY ALL"
        ") JOIN mine USING (node) GROUP BY ALL"
    ).fetchnumpy()
    return found


def _made(run: MeteredRun, slots: Slots, parts: Sequence[Columns]) -> ReadingCurves:
    """The curves, of which none goes on after the run's last sign."""
    filled = [MeterSlots.empty(slots.count) for _ in METERS]
    for part in parts:
        meter = np.array([OF_READING[name] for name in part["name"]], np.int64)
        factor = np.array([_factor(name) for name in part["name"]], float)
        at = np.asarray(part["slot"], np.int64) - slots.first
        for number, each in enumerate(filled):
            rows = np.flatnonzero((meter == number) & (at < slots.count))
            times = factor[rows]
            each.add(
                at[rows],
                part["total"][rows] * times,
                np.asarray(part["gpus"][rows], float),
                part["largest"][rows] * times,
            )
    gpus = sum(run.gpus.values())
    return ReadingCurves(
        start=slots.first * slots.seconds,
        slot_seconds=slots.seconds,
        of="GPU",
        count=gpus,
        meters=tuple(
            each.curve(meter, _limit(meter, run.nodes))
            for meter, each in zip(METERS, filled, strict=True)
            if each.known.any()
        ),
        energy=filled[0].energy(slots, gpus),
        missing="" if any(each.known.any() for each in filled) else _missing(run),
    )


def _factor(name: str) -> float:
    return METERS[OF_READING[name]].readings[name]


def _limit(meter: Meter, nodes: Sequence[LiveNode]) -> float | None:
    """The largest of the nodes, as they said it last."""
    found = [
        node.readings[name] * factor
        for name, factor in meter.limits.items()
        for node in nodes
        if name in node.readings
    ]
    return max(found, default=None)


def _missing(run: MeteredRun) -> str:
    reasons = {f"{name}: {why}" for node in run.nodes for name, why in node.missing.items() if why}
    told = f" The agent says: {'; '.join(sorted(reasons)[:2])}." if reasons else ""
    return (
        "No GPU readings from the time of this run: `computeflow agent` on its nodes sends them to "
        f"a collector.{told}"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)
