"""Flight-recorder dumps as a source: one job's ranks together, and who holds the others up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.flight.dump import Dump, Group, read_dump
from computeflow.telemetry.flight.hang import Culprit, Standstill, find_culprits
from computeflow.telemetry.flight.ranks import Place, Ranks
from computeflow.telemetry.observed import Asked, Happening, Observed

MOST_RANKS = 16
_SIGNS = (b"pg_config", b"profiling_name", b"collective_seq_id")
_REASON = "a flight recorder keeps the order of collectives, not what the time went on"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """How far the ranks of a process group have come; None where no dump says."""

    group: str
    size: int
    seen: int
    """Members with a dump that mentions the group."""
    entered_first: int | None
    """The collective that the last of them has come to, and the first."""
    entered_last: int | None
    completed_first: int | None
    completed_last: int | None
    behind: tuple[int, ...]
    """Ranks that have not come to the last collective that others have entered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What the dumps of one job say."""

    ranks: int
    """With a dump."""
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

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
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
    """Dumps of one folder are one job's; so are those of several folders that have the same world and
    no rank twice (a folder per node). Of a rank that a folder has twice, the one with later events.
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
    found: set[int] = set()
    for dump in dumps:
        found |= {dump.rank, *(rank for group in dump.groups for rank in group.ranks)}
    return found


def _observed(dumps: list[Dump], left_out: tuple[str, ...]) -> Observed:
    found = find_culprits(dumps)
    world = _world(dumps)
    seen = {dump.rank for dump in dumps}
    events = [dump.last_event for dump in dumps if dump.last_event is not None]
    completions = [d.last_completion for d in dumps if d.last_completion is not None]
    facts = Flight(
        ranks=len(dumps),
        ranks_total=len(world),
        absent=tuple(sorted(world - seen)),
        versions=tuple(sorted({dump.version for dump in dumps})),
        culprits=found.culprits,
        in_flight=found.in_flight,
        waiting=found.waiting,
        timed_out=found.timed_out,
        groups=_states(dumps),
        last_completion=max(completions, default=None),
        last_event=max(events, default=None),
    )
    return Observed(
        kind=FlightRecorder.kind,
        sources=tuple(dump.path for dump in dumps),
        facts=facts,
        ledger_reason=_REASON,
        happenings=tuple(
            Happening(
                seconds=c.last_seen, what=f"hang: {c.why}", rank=c.rank, detail=c.where, fault=True
            )
            for c in facts.culprits
        ),
        left_out=left_out,
        notes=(*_notes(facts, found), *(note for dump in dumps for note in dump.notes)),
    )


def _states(dumps: Sequence[Dump]) -> tuple[GroupState, ...]:
    ranks = Ranks(dumps)
    entered: dict[Group, dict[int, int]] = {}
    through: dict[Group, list[int]] = {}
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
                behind=ranks.away(Place(group=group, number=last)),
            )
        )
    return tuple(states)


def _notes(facts: Flight, found: Standstill) -> list[str]:
    notes = []
    if facts.absent:
        notes.append(f"no dump from {list_ranks(facts.absent)}")
    if found.older:
        notes.append(
            f"dumped before the others, so their place is unknown: {list_ranks(found.older)}"
        )
    if found.moving:
        notes.append(
            f"still moving when they dumped, so not held for hung: {list_ranks(found.moving)}"
        )
    if facts.in_flight and not facts.culprits:
        ranks = sorted({culprit.rank for culprit in facts.in_flight})
        notes.append(f"operations in flight, as in any running job: {list_ranks(ranks)}")
    if facts.timed_out:
        notes.append(f"operations timed out on {list_ranks(facts.timed_out)}")
    if facts.culprits and facts.last_completion is None:
        notes.append("no time of completion in the dumps: the lost GPU-seconds are unknown")
    return notes


def list_ranks(ranks: Sequence[int]) -> str:
    """In words, the first ones by number."""
    shown = ", ".join(map(str, ranks[:MOST_RANKS]))
    more = f" and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{more}"
