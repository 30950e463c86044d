"""`StepSpans`: one step along time, rank by rank; `chrome_trace` writes it for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from computeflow.ledger import ACCOUNTS
from computeflow.telemetry.run_folders.attempt_time import AttemptTime, RankTime
from computeflow.telemetry.run_folders.phases import (
    PARTS,
    account_of,
    name_of,
    parts_of,
    place_of,
)

MAX_RANKS = 64
"""Ranks of a drawing: those whose step is longest."""
MAX_TRACED_RANKS = 1_024
WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    name: str
    account: str
    owner: str
    start_seconds: float
    """After the step's first rank began."""
    seconds: float
    length_seconds: float
    """From its begin to its end: more than its seconds where short pieces are drawn as one."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpans:
    rank: int
    node: str
    start_seconds: float
    seconds: float
    spans: tuple[PhaseSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpans:
    step: int
    attempt: int
    began: float
    """Unix time at which its first rank began."""
    seconds: float
    """From the first rank's begin to the last one's end."""
    ranks: tuple[RankSpans, ...]
    ranks_total: int
    waits_missing: str = ""
    """Why nobody knows who waited for whom; "" where it is known."""


def make_span(
    name: str,
    account: str,
    start: float,
    seconds: float,
    detail: str = "",
    *,
    length: float | None = None,
) -> PhaseSpan:
    known = account if account in ACCOUNTS else "host"
    return PhaseSpan(
        name=name,
        account=known,
        owner=ACCOUNTS[known].owner,
        start_seconds=start,
        seconds=seconds,
        length_seconds=seconds if length is None else length,
        detail=detail,
    )


def join_spans(spans: Sequence[PhaseSpan]) -> tuple[PhaseSpan, ...]:
    """Spans in order, neighbours of one name as one."""
    joined: list[PhaseSpan] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last is not None and (last.name, last.detail) == (span.name, span.detail):
            seconds = span.start_seconds + span.seconds - last.start_seconds
            joined[-1] = replace(last, seconds=seconds, length_seconds=seconds)
        else:
            joined.append(span)
    return tuple(joined)


def recorded_spans(
    attempts: Sequence[AttemptTime], step: int, most: int, number: int | None = None
) -> StepSpans | None:
    """The step in the attempt of this number, or in the last that has it; None where none has."""
    for attempt in reversed(attempts):
        if number not in (None, attempt.number):
            continue
        rows = [(index, rank, _row(rank, step)) for index, rank in enumerate(attempt.ranks)]
        found = [(index, rank, row) for index, rank, row in rows if row is not None]
        if found:
            return _attempt_spans(attempt, found, step, most)
    return None


def _waits_missing(attempt: AttemptTime, found: Sequence[tuple[int, RankTime, int]]) -> str:
    """Why waits of a step are not known, also where those of other steps are."""
    if attempt.waits_missing:
        return attempt.waits_missing
    for _, rank, row in found:
        at, steps = rank.file.arrivals.at, rank.steps
        if len(at) and not ((at >= steps.begin[row]) & (at < steps.end[row])).any():
            return "its collectives: they come after their steps, and are not kept of every one"
    return ""


def _row(rank: RankTime, step: int) -> int | None:
    rows = np.flatnonzero(rank.steps.number == step)
    return int(rows[0]) if len(rows) else None


def _attempt_spans(
    attempt: AttemptTime, found: list[tuple[int, RankTime, int]], step: int, most: int
) -> StepSpans:
    begin = min(int(rank.steps.begin[row]) for _, rank, row in found)
    end = max(int(rank.steps.end[row]) for _, rank, row in found)
    longest = sorted(found, key=lambda each: -float(each[1].own[each[2]]))[:most]
    return StepSpans(
        step=step,
        attempt=attempt.number,
        began=begin / 1e6,
        seconds=(end - begin) / 1e6,
        ranks=tuple(
            _rank_spans(attempt, index, rank, row, begin)
            for index, rank, row in sorted(longest, key=lambda each: each[1].rank)
        ),
        ranks_total=len(found),
        waits_missing=_waits_missing(attempt, found),
    )


def _rank_spans(
    attempt: AttemptTime, index: int, rank: RankTime, row: int, begin: int
) -> RankSpans:
    first, last = int(rank.steps.begin[row]), int(rank.steps.end[row])
    phases = join_spans([*_phases(rank, first, last, begin)])
    spans = [*phases, *_waits(attempt, index, first, last, begin)]
    return RankSpans(
        rank=rank.rank,
        node=rank.file.start.host,
        start_seconds=(first - begin) / 1e6,
        seconds=(last - first) / 1e6,
        spans=tuple(spans),
    )


def _phases(rank: RankTime, first: int, last: int, begin: int) -> Iterator[PhaseSpan]:
    pieces, names = rank.file.pieces, rank.file.names
    inside = np.flatnonzero((pieces.end > first) & (pieces.start < last))
    parts = parts_of(pieces.kind[inside], names)
    for at, part in zip(inside.tolist(), parts.tolist(), strict=True):
        kind = int(pieces.kind[at])
        start, end = max(int(pieces.start[at]), first), min(int(pieces.end[at]), last)
        yield make_span(
            name_of(kind, names),
            account_of(PARTS[part]),
            (start - begin) / 1e6,
            (end - start) / 1e6,
            place_of(kind, names),
        )


def _waits(
    attempt: AttemptTime, index: int, first: int, last: int, begin: int
) -> Iterator[PhaseSpan]:
    if attempt.waits_missing:
        return
    waits = attempt.waits.ranks[index]
    for at in np.flatnonzero((waits.end > first) & (waits.start < last)).tolist():
        start, end = max(int(waits.start[at]), first), min(int(waits.end[at]), last)
        culprit = attempt.ranks[int(waits.culprit[at])].rank
        yield make_span(
            WAIT, "straggler", (start - begin) / 1e6, (end - start) / 1e6, f"for rank {culprit}"
        )


def chrome_trace(step: StepSpans, run: str) -> dict[str, Any]:
    """Events of Chrome's trace format, which ui.perfetto.dev opens: a process for each rank."""
    events: list[dict[str, Any]] = []
    for line in step.ranks:
        name = f"rank {line.rank}" + (f" ({line.node})" if line.node else "")
        events.append({"ph": "M", "name": "process_name", "pid": line.rank, "args": {"name": name}})
        events.append(_event(f"step {step.step}", line.rank, 0, line.start_seconds, line.seconds))
        for span in line.spans:
            track = 2 if span.name == WAIT else 1
            args = {"account": span.account, "owner": span.owner, "where": span.detail}
            if span.length_seconds > span.seconds:  # such ones of two accounts may overlap
                track = 3 + [*ACCOUNTS].index(span.account)
                args["filled"] = f"{span.seconds / span.length_seconds:.1%}"
            event = _event(span.name, line.rank, track, span.start_seconds, span.length_seconds)
            events.append(event | {"args": args})
    about = {"run": run, "step": step.step, "attempt": step.attempt, "began_unix": step.began}
    about |= {"waits_missing": step.waits_missing} if step.waits_missing else {}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _event(name: str, rank: int, track: int, start: float, seconds: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": rank,
        "tid": track,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
    }
