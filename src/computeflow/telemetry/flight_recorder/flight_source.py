"""Flight-recorder dumps as a source: one job's ranks together, and which of them hold it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.flight_recorder.dump import Dump, read_dump
from computeflow.telemetry.flight_recorder.dumped_runs import Run, sort_by_run, world_of
from computeflow.telemetry.flight_recorder.gloo import complete_gloo
from computeflow.telemetry.flight_recorder.hang import Culprit, Standstill, find_culprits
from computeflow.telemetry.flight_recorder.operations import ProcessGroup
from computeflow.telemetry.flight_recorder.rank_progress import DumpedRanks, PendingPoint
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest

MAX_RANKS = 16
_SIGNS = (b"pg_config", b"profiling_name", b"collective_seq_id")
_NOTHING = (
    "no operation is recorded. The recorder is off with TORCH_FR_BUFFER_SIZE=0 (older torch: "
    "TORCH_NCCL_TRACE_BUFFER_SIZE): set it to 2000 before the job starts. TORCH_INCLUDE_ONLY_ACTIVE=1 "
    "leaves out what is done: unset it. gloo records no send and recv"
)
_REASON = "a flight recorder keeps the order of collectives, not where the time went"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """Progress of the ranks of a process group; None where no dump says."""

    group: str
    size: int
    seen: int
    """Members with a dump that mentions the group."""
    entered_first: int | None
    """The collective that the slowest member has entered; `entered_last` is the fastest's."""
    entered_last: int | None
    completed_first: int | None
    completed_last: int | None
    behind: tuple[int, ...]
    """Ranks that have not entered the last collective that others have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Facts from the dumps of one job."""

    ranks: int
    """Ranks with a dump."""
    ranks_total: int
    absent: tuple[int, ...]
    empty: tuple[int, ...]
    """Ranks whose dump holds no operation."""
    versions: tuple[str, ...]
    culprits: tuple[Culprit, ...]
    suspects: tuple[Culprit, ...]
    """Ranks among which the culprit is, where the dumps cannot tell."""
    untold: str
    """Why no rank is named; without suspects it is not even known that the job hangs."""
    in_flight: tuple[Culprit, ...]
    waiting: tuple[int, ...]
    timed_out: tuple[int, ...]
    groups: tuple[GroupState, ...]
    last_completion: float | None
    """Unix seconds; None where no dump has a time of completion."""
    last_event: float | None


class FlightRecorder:
    kind = "flight-recorder"

    def recognises(self, path: Path, head: bytes) -> bool:
        if head[:1] == b"\x80":
            return any(sign in head for sign in _SIGNS)
        opening = head.lstrip()[:1]
        return opening in (b"{", b"[") and any(b'"%s"' % sign in head for sign in _SIGNS)

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        dumps, left_out = [], []
        for path in paths:
            try:
                dumps.append(read_dump(path))
            except InputError as error:
                left_out.append(str(error))
        if all(dump.is_empty for dump in dumps):
            left_out += [_all_empty(dumps)] if dumps else []
            raise InputError("; ".join(left_out) or "no flight-recorder dump to read")
        runs, older = sort_by_run(dumps)
        left_out += [f"{d.path}: an older dump of rank {d.rank}" for d in older]
        rest = [tuple(left_out)] + [()] * (len(runs) - 1)
        reports = [_observed(run, out) for run, out in zip(runs, rest, strict=True)]
        return _numbered(reports) if len(reports) > 1 else reports


def _all_empty(dumps: Sequence[Dump]) -> str:
    ranks = sorted({dump.rank for dump in dumps})
    return f"the dumps of {list_ranks(ranks)} are empty: {_NOTHING}"


def _numbered(reports: Sequence[SourceReport]) -> list[SourceReport]:
    """Reports of several runs, each with a note that says which it is."""
    count = len(reports)
    return [
        replace(each, notes=(f"run {index} of {count}: {_files(each)}", *each.notes))
        for index, each in enumerate(reports, 1)
    ]


def _files(report: SourceReport) -> str:
    first, *others = report.sources
    seconds = report.facts.last_event
    when = (
        ""
        if seconds is None
        else f", last event {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    )
    return f"{first}{f' and {len(others)} more' if others else ''}{when}"


def _observed(run: Run, left_out: tuple[str, ...]) -> SourceReport:
    dumps = [dump for dump in run.values() if not dump.is_empty]
    empty = tuple(number for number, dump in run.items() if dump.is_empty)
    completed = complete_gloo(dumps)
    standstill = find_culprits(completed, empty)
    world = world_of([*completed, *run.values()])
    events = [dump.last_event for dump in dumps if dump.last_event is not None]
    completions = [d.last_completion for d in dumps if d.last_completion is not None]
    facts = Flight(
        ranks=len(run),
        ranks_total=len(world),
        absent=tuple(sorted(world - run.keys())),
        empty=empty,
        versions=tuple(sorted({dump.version for dump in dumps})),
        culprits=standstill.culprits,
        suspects=standstill.suspects,
        untold=standstill.untold if any(dump.ops for dump in dumps) else _NOTHING,
        in_flight=standstill.in_flight,
        waiting=standstill.waiting,
        timed_out=standstill.timed_out,
        groups=_states(completed),
        last_completion=max(completions, default=None),
        last_event=max(events, default=None),
    )
    return SourceReport(
        kind=FlightRecorder.kind,
        sources=tuple(dump.path for dump in run.values()),
        facts=facts,
        ledger_reason=_REASON,
        happenings=tuple(
            Event(
                seconds=c.last_seen, what=f"hang: {c.why}", rank=c.rank, detail=c.where, fault=True
            )
            for c in facts.culprits
        ),
        left_out=left_out,
        notes=(*_notes(facts, standstill), *(note for dump in run.values() for note in dump.notes)),
    )


def _states(dumps: Sequence[Dump]) -> tuple[GroupState, ...]:
    ranks = DumpedRanks(dumps)
    entered: dict[ProcessGroup, dict[int, int]] = {}
    through: dict[ProcessGroup, list[int]] = {}
    for rank in ranks.by_number.values():
        for group, last in rank.entered.items():
            entered.setdefault(group, {})[rank.number] = last
            through.setdefault(group, []).append(rank.through[group])
    states = []
    for group, by_rank in sorted(entered.items(), key=lambda item: item[0].label):
        last = max(by_rank.values())
        states.append(
            GroupState(
                group=group.label,
                size=len(group.ranks) or len(by_rank),
                seen=len(by_rank),
                entered_first=min(by_rank.values()),
                entered_last=last,
                completed_first=min(through[group]),
                completed_last=max(through[group]),
                behind=ranks.away(PendingPoint(group=group, number=last)),
            )
        )
    return tuple(states)


def _notes(facts: Flight, standstill: Standstill) -> list[str]:
    notes = []
    if facts.absent:
        notes.append(f"no dump from {list_ranks(facts.absent)}")
    if facts.empty:
        notes.append(f"empty dumps, the recorder was off: {list_ranks(facts.empty)}")
    if standstill.older:
        notes.append(
            f"dumped before the others, so their position is unknown: {list_ranks(standstill.older)}"
        )
    if standstill.moving:
        notes.append(
            f"still moving when they dumped, so not counted as hung: {list_ranks(standstill.moving)}"
        )
    if facts.in_flight and not facts.culprits:
        ranks = sorted({culprit.rank for culprit in facts.in_flight})
        notes.append(f"operations in flight, as in any running job: {list_ranks(ranks)}")
    if facts.timed_out:
        notes.append(f"operations timed out on {list_ranks(facts.timed_out)}")
    if facts.culprits and facts.last_completion is None:
        notes.append("no completion times in the dumps: the lost GPU-seconds are unknown")
    return notes


def list_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, the first `MAX_RANKS` by number."""
    shown = ", ".join(map(str, ranks[:MAX_RANKS]))
    more = f" and {len(ranks) - MAX_RANKS} more" if len(ranks) > MAX_RANKS else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{more}"
