"""Batches as the columns of Parquet: `SegmentTables` gathers a journal, `tables` gives its columns.

The tables are those of a run folder (docs/sources/run-folder.md) with run and node before them, and
`leads`, `readings`, `signals`. What a rank says rarely (its start, memory, heart beats, its end) is a
row of `events`. Words are gathered once and columns refer to them by number, which is what makes a
journal of a million steps a matter of seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow import codec
from computeflow.collection.wire.batches import Batch, RankRows
from computeflow.telemetry.run_folders.arrivals import UNKNOWN
from computeflow.telemetry.run_folders.phases import name_of, place_of, renamed_kinds

Column = NDArray[Any]
Columns = dict[str, Column]
_KEY = "run VARCHAR, node VARCHAR, rank INTEGER, attempt INTEGER"
SCHEMAS = {
    "steps": f"{_KEY}, step BIGINT, optimizer_step BIGINT, start TIMESTAMP, seconds DOUBLE, "
    "tokens BIGINT, samples BIGINT, profiled BOOLEAN, loss DOUBLE, collections BIGINT, "
    "collecting_seconds DOUBLE",
    "spans": f"{_KEY}, step BIGINT, phase VARCHAR, place VARCHAR, start TIMESTAMP, seconds DOUBLE",
    "leads": f"{_KEY}, phase VARCHAR, start TIMESTAMP, seconds DOUBLE",
    "collectives": f"{_KEY}, process_group VARCHAR, operation VARCHAR, sequence BIGINT, "
    "arrival TIMESTAMP, finish TIMESTAMP, bytes BIGINT, every BIGINT",
    "events": f"{_KEY}, start TIMESTAMP, seconds DOUBLE, what VARCHAR, text VARCHAR, bytes BIGINT",
    "readings": "name VARCHAR, node VARCHAR, time TIMESTAMP, value DOUBLE, labels VARCHAR",
    "signals": "name VARCHAR, node VARCHAR, time TIMESTAMP, detail VARCHAR, gpu VARCHAR, "
    "fault BOOLEAN",
}
"""Columns of each table."""
ORDERS = {
    "steps": "run, rank, attempt, step",
    "spans": "run, rank, attempt, start",
    "leads": "run, rank, attempt, start",
    "collectives": "run, rank, attempt, arrival",
    "events": "run, rank, attempt, start",
    "readings": "name, node, time",
    "signals": "name, node, time",
}
WORDS = {
    "steps": ("run", "node"),
    "spans": ("run", "node", "phase", "place"),
    "leads": ("run", "node", "phase"),
    "collectives": ("run", "node", "process_group", "operation"),
    "events": ("run", "node", "what", "text"),
    "readings": ("name", "node", "labels"),
    "signals": ("name", "node", "detail", "gpu"),
}
"""Columns that are numbers of words until they are written."""
_TABLES = ("steps", "pieces", "leads", "arrivals")
_GATHERED = 1024
"""Batches whose columns are joined at a time: many small ones take three times as much memory."""


@dataclass(slots=True)
class _Words:
    """Distinct texts in the order they came."""

    places: dict[str, int] = field(default_factory=dict)

    def place(self, word: str) -> int:
        return self.places.setdefault(word, len(self.places))


@dataclass(slots=True)
class _Pile:
    """Columns that come in small parts, and are joined now and then."""

    joined: list[Columns] = field(default_factory=list)
    loose: list[Columns] = field(default_factory=list)

    def add(self, part: Columns) -> None:
        self.loose.append(part)
        if len(self.loose) >= _GATHERED:
            self.joined.append(_joined(self.loose))
            self.loose = []

    def columns(self) -> Columns:
        return _joined([*self.joined, *self.loose])


def _joined(parts: Sequence[Columns]) -> Columns:
    names = parts[0] if parts else ()
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


@dataclass(slots=True)
class SegmentTables:
    words: _Words = field(default_factory=_Words)
    _phases: dict[str, int] = field(default_factory=dict)
    _rows: _Pile = field(default_factory=_Pile)
    """Run, node, rank, attempt, then rows in each of the four tables."""
    _parts: dict[str, _Pile] = field(default_factory=lambda: {name: _Pile() for name in _TABLES})
    _groups: _Pile = field(default_factory=_Pile)
    _events: list[tuple[Any, ...]] = field(default_factory=list)
    _readings: list[tuple[Any, ...]] = field(default_factory=list)
    _signals: list[tuple[Any, ...]] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        place = self.words.place
        run, node = place(batch.run), place(batch.node)
        keys = [
            (run, node, r.rank, r.attempt, r.steps, r.pieces, r.leads, r.arrivals)
            for r in batch.ranks
        ]
        self._rows.add({"key": np.array(keys, np.int64).reshape(-1, 8)})
        for rows in batch.ranks:
            if rows.news is not None:
                self._take_news(run, node, rows)
        for name in _TABLES:
            table = getattr(batch, name)
            if table:
                self._parts[name].add(self._renamed(batch, table))
        if batch.arrivals and len(batch.arrivals["at"]):
            pairs = [[place(label), place(operation)] for label, operation in batch.groups]
            self._groups.add({"pair": np.array(pairs, np.int64)[batch.arrivals["group"]]})
        for reading in batch.readings:
            labels = json.dumps(reading.labels, sort_keys=True) if reading.labels else "{}"
            self._readings.append(
                (place(reading.name), node, reading.at, reading.value, place(labels))
            )
        for signal in batch.signals:
            self._signals.append(
                (
                    *(place(signal.what), node, signal.at),
                    *(place(signal.detail), place(signal.gpu), signal.fault),
                )
            )

    def _renamed(self, batch: Batch, table: dict[str, Column]) -> dict[str, Column]:
        """Columns with the user's phases numbered as in the whole journal."""
        if not batch.phases or "kind" not in table:
            return table
        for name in batch.phases:
            self._phases.setdefault(name, len(self._phases))
        kinds = renamed_kinds(table["kind"].astype(np.int64), batch.phases, self._phases)
        return {**table, "kind": kinds}

    def _take_news(self, run: int, node: int, rows: RankRows) -> None:
        news, place = rows.news, self.words.place
        assert news is not None
        key = (run, node, rows.rank, rows.attempt)

        def add(what: str, start: int, end: int, text: Any = "", size: int | None = None) -> None:
            words = text if isinstance(text, str) else json.dumps(text)
            self._events.append(
                (
                    *(*key, start, (end - start) / 1e6, place(what), place(words)),
                    UNKNOWN if size is None else size,
                )
            )

        if news.start is not None:
            add("start", news.start.epoch, news.start.epoch, codec.encode(news.start))
        for event in news.events:
            add(event.what, event.start, event.end, event.text, event.bytes)
        for beat in news.beats:
            add("beat", beat.since, beat.at, beat.inside)
        if news.memory:
            add("memory", rows.last, rows.last, news.memory)
        if news.parameters or news.config or news.dtype:
            model = {"parameters": news.parameters, "dtype": news.dtype, "config": news.config}
            add("model", rows.last, rows.last, model)
        if news.dropped or news.errors or news.left_out:
            lost = {"dropped": news.dropped, "errors": news.errors, "left_out": news.left_out}
            add("lost", rows.last, rows.last, lost)
        if news.ended is not None:
            add("end", rows.last, rows.last, news.ended)

    def tables(self) -> dict[str, Columns]:
        """Columns by table; those without a row are left out."""
        rows = self._rows.columns().get("key", np.zeros((0, 8), np.int64)).T
        steps, pieces, leads, arrivals = (self._parts[name].columns() for name in _TABLES)
        made: dict[str, Columns] = {}
        if steps:
            made["steps"] = _keys(rows, 4) | _step_columns(steps)
        if pieces:
            made["spans"] = _keys(rows, 5) | self._span_columns(rows, steps, pieces)
        if leads:
            made["leads"] = _keys(rows, 6) | {
                "phase": self._phase_words(leads["kind"])[0],
                "start": leads["start"],
                "seconds": (leads["end"] - leads["start"]) / 1e6,
            }
        if arrivals:
            made["collectives"] = _keys(rows, 7) | _arrival_columns(
                arrivals, self._groups.columns().get("pair", np.zeros((0, 2), np.int64))
            )
        made |= self._rare()
        return {name: table for name, table in made.items() if len(next(iter(table.values())))}

    def _span_columns(self, rows: Column, steps: Columns, pieces: Columns) -> Columns:
        """Starts and steps of pieces; lengths of all ranks, one after the other, are one axis."""
        length = pieces["length"]
        ends = np.cumsum(length)
        has = rows[5] > 0
        first_piece = (np.cumsum(rows[5]) - rows[5])[has]
        first_step = (np.cumsum(rows[4]) - rows[4])[has]
        before = np.concatenate([[0], ends])[first_piece]
        began = steps["begin"][first_step]
        of_piece = np.repeat(np.arange(has.sum()), rows[5][has])
        of_step = np.repeat(np.where(has, np.cumsum(has) - 1, -1), rows[4])
        filled = of_step >= 0
        step_ends = (steps["end"][filled] - began[of_step[filled]]) + before[of_step[filled]]
        row = np.searchsorted(step_ends, ends - length, side="right")
        number = steps["number"][filled][np.minimum(row, len(step_ends) - 1)]
        phase, place = self._phase_words(pieces["kind"])
        return {
            "step": number,
            "phase": phase,
            "place": place,
            "start": ends - length - before[of_piece] + began[of_piece],
            "seconds": length / 1e6,
        }

    def _phase_words(self, kinds: Column) -> tuple[Column, Column]:
        """Words of phases and places."""
        names = tuple(self._phases)
        distinct, row = np.unique(kinds, return_inverse=True)
        words = [
            [self.words.place(text(int(kind), names)) for kind in distinct]
            for text in (name_of, place_of)
        ]
        phase, place = np.array(words, np.int64).reshape(2, -1)
        return phase[row], place[row]

    def _rare(self) -> dict[str, Columns]:
        events = _transposed(
            self._events,
            ("run", "node", "rank", "attempt", "start", "seconds", "what", "text", "bytes"),
            floats=("seconds",),
        )
        if events:
            events["bytes"] = _known(events["bytes"])
        return {
            "events": events or {"run": np.zeros(0)},
            "readings": _transposed(
                self._readings, ("name", "node", "time", "value", "labels"), floats=("value",)
            )
            or {"name": np.zeros(0)},
            "signals": _transposed(
                self._signals, ("name", "node", "time", "detail", "gpu", "fault")
            )
            or {"name": np.zeros(0)},
        }


def _transposed(
    rows: Sequence[tuple[Any, ...]], names: Sequence[str], floats: Sequence[str] = ()
) -> Columns:
    if not rows:
        return {}
    return {
        name: np.array(values, np.float64 if name in floats else np.int64)
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }


def _keys(rows: Column, count: int) -> Columns:
    """Run, node, rank and attempt of each row of a table."""
    names = ("run", "node", "rank", "attempt")
    return {name: np.repeat(rows[at], rows[count]) for at, name in enumerate(names)}


def _step_columns(steps: Columns) -> Columns:
    return {
        "step": steps["number"],
        "optimizer_step": _known(steps["own"]),
        "start": steps["begin"],
        "seconds": (steps["end"] - steps["begin"]) / 1e6,
        "tokens": _known(steps["tokens"]),
        "samples": _known(steps["samples"]),
        "profiled": steps["profiled"],
        "loss": np.ma.masked_invalid(steps["loss"]),
        "collections": steps["collections"],
        "collecting_seconds": steps["collecting"] / 1e6,
    }


def _arrival_columns(arrivals: Columns, pairs: Column) -> Columns:
    return {
        "process_group": pairs[:, 0],
        "operation": pairs[:, 1],
        "sequence": arrivals["sequence"],
        "arrival": arrivals["at"],
        "finish": np.ma.masked_array(arrivals["end"], arrivals["end"] == UNKNOWN),
        "bytes": arrivals["bytes"],
        "every": arrivals["every"],
    }


def _known(values: Column) -> Column:
    return np.ma.masked_array(values, values < 0)
