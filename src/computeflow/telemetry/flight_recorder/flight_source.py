"""Flight-recorder dumps as a source: one job's ranks together, and which of them hold it up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.flight_recorder.dump import Dump, ProcessGroup, read_dump
from computeflow.telemetry.flight_recorder.hang import Culprit, Standstill, find_culprits
from computeflow.telemetry.flight_recorder.rank_progress import DumpedRanks, PendingPoint
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest

MAX_RANKS = 16
_SIGNS = (b"pg_config", b"profiling_name", b"collective_seq_id")
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
    versions: tuple[str, ...]
    culprits: tuple[Culprit, ...]
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
        if not dumps:
            raise InputError("; ".join(left_out) or "no flight-recorder dump to read")
        jobs = _jobs_of(dumps)
        kept = {dump.path for job in jobs for dump in job}
        left_out += [
            f"{d.path}: an older dump of rank {d.rank}" for d in dumps if d.path not in kept
        ]
        rest = [tuple(left_out)] + [()] * (len(jobs) - 1)
        return [_observed(job, out) for job, out in zip(jobs, rest, strict=True)]


def _jobs_of(dumps: Sequence[Dump]) -> list[list[Dump]]:
    """Dumps by job: those of a folder, and of several with the same world and no rank twice (a folder
    per node). If a folder has a rank twice, the dump with later events is kept.
    """
    folders: dict[Path, dict[int, Dump]] = {}
    for dump in dumps:
        ranks = folders.setdefault(Path(dump.path).parent, {})
        known = ranks.get(dump.rank)
        if known is None or (dump.last_event or 0.0) >= (known.last_event or 0.0):
            ranks[dump.rank] = dump
    jobs: list[dict[int, Dump]] = []
    for ranks in folders.values():
        world = _world(ranks.values())
        same = [job for job in jobs if _world(job.values()) == world and not job.keys() & ranks]
        if same and len(world) > len(ranks):
            same[0].update(ranks)
        else:
            jobs.append(dict(ranks))
    return [[job[number] for number in sorted(job)] for job in jobs]


def _world(dumps: Iterable[Dump]) -> set[int]:
    ranks: set[int] = set()
    for dump in dumps:
        ranks |= {dump.rank, *(rank for group in dump.groups for rank in group.ranks)}
    return ranks


def _observed(dumps: list[Dump], left_out: tuple[str, ...]) -> SourceReport:
    standstill = find_culprits(dumps)
    world = _world(dumps)
    seen = {dump.rank for dump in dumps}
    events = [dump.last_event for dump in dumps if dump.last_event is not None]
    completions = [d.last_completion for d in dumps if d.last_completion is not None]
    facts = Flight(
        ranks=len(dumps),
        ranks_total=len(world),
        absent=tuple(sorted(world - seen)),
        versions=tuple(sorted({dump.version for dump in dumps})),
        culprits=standstill.culprits,
        in_flight=standstill.in_flight,
        waiting=standstill.waiting,
        timed_out=standstill.timed_out,
        groups=_states(dumps),
        last_completion=max(completions, default=None),
        last_event=max(events, default=None),
    )
    return SourceReport(
        kind=FlightRecorder.kind,
        sources=tuple(dump.path for dump in dumps),
        facts=facts,
        ledger_reason=_REASON,
        happenings=tuple(
            Event(
                seconds=c.last_seen, what=f"hang: {c.why}", rank=c.rank, detail=c.where, fault=True
            )
            for c in facts.culprits
        ),
        left_out=left_out,
        notes=(*_notes(facts, standstill), *(note for dump in dumps for note in dump.notes)),
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
