"""One step of a run in a collector's store along time: `sealed_spans`, `sealed_leads`, `make_spans`.

Sealed ones are in Parquet, the last minutes in the journal; a step that is in both counts once. Where
ranks have a device, its time is shown, not that of the host which queues its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.telemetry.run_folders.device_time import device_pieces
from computeflow.telemetry.run_folders.phases import account_of
from computeflow.telemetry.run_folders.rank_file import Pieces
from computeflow.web.step_spans import PhaseSpan, RankSpans, StepSpans, join_spans, make_span

Columns = dict[str, Any]
_SPANS = ("rank", "node", "attempt", "phase", "place", "start", "seconds")
_LEADS = ("rank", "attempt", "phase", "start", "seconds")
_MAX_SPANS = 200_000
_NO_PHASE = ("gap", "gc", "profiler", "user")
_BEFORE_SECONDS = 1.0
"""So long before a step, and as long again as the step, a device may have got its last work."""


def sealed_spans(run: str, step: int, files: Sequence[str]) -> Columns:
    return _read(_SPANS, "step = ?", files, [run, step])


def sealed_leads(run: str, spans: Sequence[Columns], files: Sequence[str]) -> Columns:
    """Where the device came to the ends of spans, while these went on and shortly before."""
    found = _joined(spans, ("start", "seconds"))
    if not len(found["start"]):
        return {}
    begin = int(found["start"].min())
    end = int((found["start"] + found["seconds"] * 1e6).max())
    before = end - begin + round(_BEFORE_SECONDS * 1e6)
    moment = "epoch_us(start) BETWEEN ? AND ?"
    return _read(_LEADS, moment, files, [run, begin - before, end])


def make_spans(
    spans: Sequence[Columns], leads: Sequence[Columns], step: int, most: int
) -> StepSpans | None:
    """One step along time, in the last attempt that has it."""
    found, led = _joined(spans, _SPANS), _joined(leads, _LEADS)
    if not len(found["rank"]):
        return None
    attempt = int(found["attempt"].max())
    columns, led = _of_attempt(found, attempt), _of_attempt(led, attempt)
    began = int(columns["start"].min())
    ranks, first = np.unique(columns["rank"], return_index=True)
    lines = []
    for rank, (low, high) in zip(ranks, pairwise([*first, len(columns["rank"])]), strict=True):
        mine = {name: values[low:high] for name, values in columns.items()}
        its_leads = led["rank"] == rank
        lines.append(
            _rank_spans(mine, {name: values[its_leads] for name, values in led.items()}, began)
        )
    longest = sorted(lines, key=lambda line: -line.seconds)[:most]
    return StepSpans(
        step=step,
        attempt=attempt,
        began=began / 1e6,
        seconds=max(line.start_seconds + line.seconds for line in lines),
        ranks=tuple(sorted(longest, key=lambda line: line.rank)),
        ranks_total=len(ranks),
    )


def _of_attempt(columns: Columns, attempt: int) -> Columns:
    kept = np.flatnonzero(columns["attempt"] == attempt)
    order = kept[np.lexsort((columns["start"][kept], columns["rank"][kept]))]
    return {name: values[order] for name, values in columns.items()}


def _rank_spans(spans: Columns, leads: Columns, began: int) -> RankSpans:
    """Phases become numbers, as the device's time is laid out by."""
    _, once = np.unique(spans["start"], return_index=True)  # sealed meanwhile, one is there twice
    spans = {name: values[once] for name, values in spans.items()}
    on_host = [*zip(map(str, spans["phase"]), map(str, spans["place"]), strict=True)]
    places = dict(on_host)
    phases = [*on_host, *((name, places.get(name, "")) for name in map(str, leads["phase"]))]
    known = sorted({*phases})
    kinds = np.array([known.index(phase) for phase in phases], np.int64)
    host = _pieces(spans, kinds[: len(once)])
    pieces = device_pieces(host, _pieces(leads, kinds[len(once) :])) if len(leads["rank"]) else host
    shown = [
        _span(known[kind], start - began, end - start)
        for start, end, kind in zip(pieces.start, pieces.end, pieces.kind, strict=True)
    ]
    return RankSpans(
        rank=int(spans["rank"][0]),
        node=str(spans["node"][0]),
        start_seconds=(int(host.start[0]) - began) / 1e6,
        seconds=int(host.end.max() - host.start[0]) / 1e6,
        spans=join_spans(shown),
    )


def _span(phase: tuple[str, str], start: int, micros: int) -> PhaseSpan:
    name, place = phase
    return make_span(name, _account(name), start / 1e6, micros / 1e6, place)


def _pieces(columns: Columns, kinds: NDArray[np.int64]) -> Pieces:
    start = columns["start"].astype(np.int64)
    return Pieces(
        start=start,
        end=start + np.round(columns["seconds"] * 1e6).astype(np.int64),
        kind=kinds,
    )


def _account(phase: str) -> str:
    return "host" if phase in _NO_PHASE else account_of(phase)


def _joined(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    there = [part for part in parts if part]
    if not there:
        return {name: np.zeros(0) for name in names}
    return {name: np.concatenate([np.asarray(part[name]) for part in there]) for name in names}


def _read(names: Sequence[str], where: str, files: Sequence[str], values: list[Any]) -> Columns:
    if not files:
        return {}
    columns = ", ".join(names).replace("start", "epoch_us(start) AS start")
    query = f"SELECT {columns} FROM read_parquet(?) WHERE run = ? AND {where} LIMIT {_MAX_SPANS}"
    with parquet_engine("reading steps") as (engine, engine_error):
        try:
            found: Columns = engine.execute(query, [[*files], *values]).fetchnumpy()
        except engine_error as error:
            raise InputError(f"steps of this run: {error}") from None
    return found
