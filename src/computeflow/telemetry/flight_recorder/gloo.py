"""What gloo leaves out of its dumps, and how far it can be put back.

- Members of its groups: only the group made last is listed, and only if it is the default one.
- Failures: an operation that timed out, or whose connection broke, is marked as done.
- Messages: counted with the collectives, never recorded. A rank that is in no collective may wait for
  one (`may_await_message`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from computeflow.telemetry.flight_recorder.dump import Dump
from computeflow.telemetry.flight_recorder.operations import Op, ProcessGroup
from computeflow.telemetry.flight_recorder.rank_progress import DumpedRanks, PendingPoint
from computeflow.telemetry.flight_recorder.signatures import elements, signature

_DEFAULT = "default_pg"


def complete_gloo(dumps: Sequence[Dump]) -> list[Dump]:
    """The dumps of one job, with what can be concluded about groups and failures."""
    if not any(dump.gloo for dump in dumps):
        return list(dumps)
    world = _world(dumps)
    grouped = [_with_members(dump, world) for dump in dumps]
    failed = _failed(grouped)
    return [_reopened(dump, failed.get(dump.rank, set())) for dump in grouped]


def _world(dumps: Sequence[Dump]) -> tuple[int, ...]:
    """All ranks: those that dumps have or list, what an all_gather shows, and the gaps between."""
    ranks = {dump.rank for dump in dumps}
    ranks |= {rank for dump in dumps for group in dump.groups for rank in group.ranks}
    default = {op.group.name for dump in dumps for op in dump.ops if op.group.desc == _DEFAULT}
    shown = [dump.gathered.get(name, 0) for dump in dumps for name in default]
    return tuple(range(max([max(ranks) + 1, *shown])))


def _with_members(dump: Dump, world: tuple[int, ...]) -> Dump:
    def complete(group: ProcessGroup) -> ProcessGroup:
        return replace(group, ranks=world if group.desc == _DEFAULT else ())

    ops = tuple(replace(op, group=complete(op.group)) if op.gloo else op for op in dump.ops)
    return replace(dump, ops=ops, groups=(*dump.groups, ProcessGroup(name="", ranks=world)))


def _failed(dumps: Sequence[Dump]) -> dict[int, set[int]]:
    """Records, by rank, of operations that are marked as done and cannot be."""
    failed: dict[int, set[int]] = {}
    for group in {op.group: None for dump in dumps for op in dump.ops if op.gloo}:
        members = [
            d for d in dumps if d.rank in group.ranks or any(op.group == group for op in d.ops)
        ]
        own = {d.rank: [op for op in d.ops if op.group == group] for d in members}
        for rank, ops in (_mismatched(own) or _unattended(group, members, own)).items():
            failed.setdefault(rank, set()).update(op.record for op in ops)
    return failed


def _mismatched(own: Mapping[int, Sequence[Op]]) -> dict[int, list[Op]]:
    """Operations from the first number on under which ranks entered different ones."""
    signed: dict[int, set[object]] = {}
    for ops in own.values():
        for op in ops:
            signed.setdefault(op.sequence, set()).add(signature(op))
    first = min((number for number, some in signed.items() if len(some) > 1), default=None)
    if first is None:
        return {}
    return {rank: [op for op in ops if op.sequence >= first] for rank, ops in own.items()}


def _unattended(
    group: ProcessGroup, members: Sequence[Dump], own: Mapping[int, Sequence[Op]]
) -> dict[int, list[Op]]:
    """Operations that a member never entered, or that come last on all who dumped where some did not.
    Only the last ones of a program count: in front of others, the dump of that member is older.
    """
    entered = {rank: max((op.sequence for op in ops), default=0) for rank, ops in own.items()}
    common = min(entered.values())
    absent = len(group.ranks) - len(members) if group.ranks else 0
    if max(entered.values()) == common and 0 < absent < len(members):
        common -= 1
    late = {
        rank: [op for op in ops if op.sequence > common and op.done and op.synchronises]
        for rank, ops in own.items()
    }
    at_the_end = all(not late[d.rank] or d.ops[-1].group == group for d in members)
    return {rank: ops for rank, ops in late.items() if ops} if at_the_end else {}


def _reopened(dump: Dump, records: set[int]) -> Dump:
    if not records:
        return dump
    ops = (replace(op, state="scheduled") if op.record in records else op for op in dump.ops)
    return replace(dump, ops=tuple(ops))


def may_await_message(ranks: DumpedRanks, number: int, places: Sequence[PendingPoint]) -> bool:
    """Whether a rank that is in no collective may wait for a message that gloo did not record. Not if
    it went from its last operation to the awaited one before and passed no message on the way.
    """
    dump = ranks.by_number[number].dump
    if not any(rank.dump.gloo for rank in ranks.by_number.values()):
        return False
    if not dump.ops:
        return True
    last = dump.ops[-1].site
    awaited = [
        rank.pending[place][0].site
        for place in places
        for rank in ranks.by_number.values()
        if place in rank.pending
    ]
    if not any((last, site) in dump.passages.quiet for site in awaited):
        return True
    counted = any(op.messages for op in dump.ops)  # then stages pass them where they are counted
    return not counted and _may_have_stages(dump, ranks)


def has_messages(dump: Dump, ranks: DumpedRanks) -> bool:
    """Whether a rank passed messages, or may have: in a group of which nothing is recorded."""
    return any(op.messages for op in dump.ops) or _may_have_stages(dump, ranks)


def _may_have_stages(dump: Dump, ranks: DumpedRanks) -> bool:
    """Whether the rank may pass messages in a group of which nothing is recorded, as the stages of a
    pipeline do. Groups are numbered as they are made, so one left out shows; one made last does not,
    unless the default group, which is listed, was the last. Where the largest tensors are reduced over
    all ranks, all hold the same model and there are no stages.
    """
    if not dump.ops or any(group.ranks for group in dump.groups[:-1]) or _are_joined(ranks):
        return False
    used = {op.pg_id for op in dump.ops if op.pg_id is not None}
    left_out = used == {0} or used != set(range(max(used, default=0) + 1))
    return left_out or not _reduces_over_all(dump)


def _reduces_over_all(dump: Dump) -> bool:
    heaviest = max(dump.ops, key=lambda op: max(map(elements, op.sizes)))
    return heaviest.group.desc == _DEFAULT


def _are_joined(ranks: DumpedRanks) -> bool:
    """Whether collectives of groups smaller than the job join all its ranks: then its parts need no
    messages to work together, as the stages of a pipeline do.
    """
    parts = [{number} for number in ranks.by_number]
    for group in ranks.groups:
        members = set(ranks.members(PendingPoint(group=group, number=0)))
        if len(members) < len(ranks.by_number):
            met = [part for part in parts if part & members]
            parts = [part for part in parts if not part & members] + [set().union(*met)]
    return len(parts) == 1
