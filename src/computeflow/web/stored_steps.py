"""`stored_spans`: one step of a run in a collector's store along time.

Sealed ones are in Parquet, the last minutes in the journal; a step that is in both counts once. The
ranks in which the step takes longest are found first, and spans of those alone are read. Where ranks
have a device, its time is shown, not that of the host which queues its work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.parquet import parquet_engine
from computeflow.telemetry.run_folders.device_time import device_pieces
from computeflow.telemetry.run_folders.phases import account_of
from computeflow.telemetry.run_folders.rank_file import Pieces
from computeflow.web.row_columns import Columns, join_columns
from computeflow.web.step_spans import PhaseSpan, RankSpans, StepSpans, join_spans, make_span

MAX_SPANS = 200_000
"""Spans that are read for one drawing; of ranks that have more, fewer are drawn."""
_SPANS = {
    "rank": np.int64,
    "node": object,
    "attempt": np.int64,
    "phase": object,
    "place": object,
    "start": np.int64,
    "seconds": np.float64,
}
_LEADS = {name: _SPANS[name] for name in ("rank", "attempt", "phase", "start", "seconds")}
_SUMS = dict.fromkeys(("attempt", "rank", "start", "end", "count"), np.int64)
_NO_PHASE = ("gap", "gc", "profiler", "user")
_BEFORE_SECONDS = 1.0
"""So long before a step, and as long again as the step, a device may have got its last work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedStep:
    run: str
    step: int
    attempt: int | None
    """The last one that has the step, without it."""
    most: int
    """Ranks."""


def stored_spans(
    asked: AskedStep, files: Callable[[str], Sequence[str]], unsealed: Mapping[str, Columns]
) -> StepSpans | None:
    """One step along time, of the ranks in which it takes longest; None where no rank has it.

    `files` are those of a table; `unsealed` are `spans` of the step, and `leads` of about its time.
    """
    loose = unsealed.get("spans", {})
    sums = join_columns([_sealed_sums(asked, files("spans")), _sums_of(loose)], _SUMS)
    if asked.attempt is not None:
        sums = _rows(sums, sums["attempt"] == asked.attempt)
    if not len(sums["rank"]):
        return None
    attempt = int(sums["attempt"].max())
    sums = _by_rank(_rows(sums, sums["attempt"] == attempt))
    began, ended = int(sums["start"].min()), int(sums["end"].max())
    shown = _longest(sums, asked.most)
    spans = _read_ranks(
        _SPANS, files("spans"), [asked.run, attempt, shown], "AND step = ?", [asked.step]
    )
    leads = _sealed_leads(asked.run, attempt, shown, sums, files("leads"))
    return StepSpans(
        step=asked.step,
        attempt=attempt,
        began=began / 1e6,
        seconds=(ended - began) / 1e6,
        ranks=_lines(
            _of_ranks([spans, loose], _SPANS, attempt, shown),
            _of_ranks([leads, unsealed.get("leads", {})], _LEADS, attempt, shown),
            began,
        ),
        ranks_total=len(sums["rank"]),
    )


def _sealed_sums(asked: AskedStep, files: Sequence[str]) -> Columns:
    """When each rank began and ended the step, and how many spans it has of it."""
    return _query(
        "SELECT attempt, rank, min(epoch_us(start)) AS start, count(*) AS count, "
        'max(epoch_us(start) + round(seconds * 1e6)::BIGINT) AS "end" FROM read_parquet(?) '
        "WHERE run = ? AND step = ? GROUP BY attempt, rank",
        files,
        [asked.run, asked.step],
    )


def _sums_of(spans: Columns) -> Columns:
    """The same of spans that are not sealed; each is a sum of one."""
    if not spans:
        return {}
    end = spans["start"] + np.round(spans["seconds"] * 1e6).astype(np.int64)
    kept = {name: spans[name] for name in ("attempt", "rank", "start")}
    return kept | {"end": end, "count": np.ones(len(end), np.int64)}


def _by_rank(sums: Columns) -> Columns:
    sums = _rows(sums, np.argsort(sums["rank"], kind="stable"))
    ranks, first = np.unique(sums["rank"], return_index=True)
    return {
        "rank": ranks,
        "start": np.minimum.reduceat(sums["start"], first),
        "end": np.maximum.reduceat(sums["end"], first),
        "count": np.add.reduceat(sums["count"], first),
    }


def _longest(sums: Columns, most: int) -> list[int]:
    """At most so many ranks, and of so many spans; always one."""
    order = np.argsort(sums["start"] - sums["end"], kind="stable")[:most]
    fit = np.cumsum(sums["count"][order]) <= MAX_SPANS
    kept: list[int] = sums["rank"][order[: max(int(fit.sum()), 1)]].tolist()
    return kept


def _sealed_leads(
    run: str, attempt: int, ranks: list[int], sums: Columns, files: Sequence[str]
) -> Columns:
    """Where the device came to the ends of spans, while these went on and shortly before: the last
    ones of each rank, where there are more than can be read.
    """
    mine = _rows(sums, np.isin(sums["rank"], ranks))
    begin, end = int(mine["start"].min()), int(mine["end"].max())
    before = end - begin + round(_BEFORE_SECONDS * 1e6)
    each = max(MAX_SPANS // len(ranks), 2 * int(mine["count"].max()))
    return _read_ranks(
        _LEADS,
        files,
        [run, attempt, ranks],
        "AND epoch_us(start) BETWEEN ? AND ? "
        "QUALIFY row_number() OVER (PARTITION BY rank ORDER BY start DESC) <= ?",
        [begin - before, end, each],
    )


def _of_ranks(
    parts: Sequence[Columns], kinds: Mapping[str, Any], attempt: int, ranks: list[int]
) -> Columns:
    """Rows of these ranks by rank and time."""
    found = join_columns(parts, kinds)
    found = _rows(found, (found["attempt"] == attempt) & np.isin(found["rank"], ranks))
    return _rows(found, np.lexsort((found["start"], found["rank"])))


def _lines(spans: Columns, leads: Columns, began: int) -> tuple[RankSpans, ...]:
    ranks, first = np.unique(spans["rank"], return_index=True)
    edges = pairwise([*first, len(spans["rank"])])
    return tuple(
        _rank_spans(_rows(spans, slice(low, high)), _rows(leads, leads["rank"] == rank), began)
        for rank, (low, high) in zip(ranks, edges, strict=True)
    )


def _rows(columns: Columns, which: Any) -> Columns:
    return {name: values[which] for name, values in columns.items()}


def _rank_spans(spans: Columns, leads: Columns, began: int) -> RankSpans:
    """Phases become numbers, as the device's time is laid out by."""
    _, once = np.unique(spans["start"], return_index=True)  # sealed meanwhile, one is there twice
    spans = _rows(spans, once)
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


def _read_ranks(
    names: Mapping[str, Any],
    files: Sequence[str],
    of: list[Any],
    more: str,
    values: list[Any],
) -> Columns:
    """Columns of a run, an attempt and some ranks."""
    columns = ", ".join(names).replace("start", "epoch_us(start) AS start")
    return _query(
        f"SELECT {columns} FROM read_parquet(?) "
        f"WHERE run = ? AND attempt = ? AND rank IN (SELECT unnest(?)) {more}",
        files,
        [*of, *values],
    )


def _query(query: str, files: Sequence[str], values: list[Any]) -> Columns:
    if not files:
        return {}
    with parquet_engine("reading steps") as (engine, engine_error):
        try:
            found: Columns = engine.execute(query, [[*files], *values]).fetchnumpy()
        except engine_error as error:
            raise InputError(f"steps of this run: {error}") from None
    return found
