"""Rules on whole runs: hangs, restarts, blocking checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from computeflow.diagnosis.rule import Outcome, report, seconds_evidence
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.flight_recorder.flight_source import MAX_RANKS, Flight, list_ranks
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_count, format_share

if TYPE_CHECKING:
    from computeflow.telemetry.flight_recorder.hang import Culprit
    from computeflow.telemetry.logs.log_facts import LoggedRun, Restart, RootCause, Save

_CHECKPOINT_SHARE = 0.05
"""Least share of the time since the first step: less is the price of safety."""
_SHOWN = 5
_AFTER_HANG = {
    "never arrived": "check what the process does outside collectives (py-spy dump, last log lines) "
    "and the health of its node; exclude the node if it happens again",
    "stalled": "look for an Xid or a CUDA error on the rank's node; drain it and restart from the "
    "last checkpoint",
    "disagrees": "make all ranks call the same collective with the same shape; the stack names it",
    "out of order": "make the rank call the same operations in the same order as its peers: a branch "
    "that only it takes skips one",
    "deadlock": "let all ranks call in one order (batch_isend_irecv for messages both ways)",
    "no dump": "the process ended before it could dump: read its log and the log of its node",
    "not started": "the device has not reached the operation: look for a kernel that does not end",
    "stuck": "all ranks are in the collective and none completes: check links and the library's log "
    "(NCCL_DEBUG=WARN)",
}

_AFTER_DOUBT = "look at the ranks in question with py-spy dump: its stack shows what each waits in"
_WHAT = {
    "never arrived": "never arrived",
    "stalled": "stalled",
    "disagrees": "disagrees with the others",
    "out of order": "is out of order",
    "deadlock": "in a deadlock",
    "no dump": "left no dump",
    "not started": "has not started",
    "stuck": "is stuck",
}


def hang(observed: SourceReport) -> Outcome:
    """Hangs. Their GPU-seconds span the dumps: from the last completion on any rank to the last event
    in any dump, on all ranks. Where no rank can be named, the finding says why and names none.
    """
    facts: Flight = observed.facts
    if not facts.culprits and not facts.suspects:
        return []
    lost = 0.0
    if facts.last_completion is not None and facts.last_event is not None:
        lost = (facts.last_event - facts.last_completion) * facts.ranks_total
    found = facts.culprits or facts.suspects
    ranks = [culprit.rank for culprit in facts.culprits]
    evidence = [_culprit_evidence(culprit) for culprit in found[:MAX_RANKS]]
    change = _AFTER_HANG[found[0].why] if ranks else _AFTER_DOUBT
    title = _hang_title(facts) if ranks else _doubt_title(facts)
    return report(title, [("idle", lost)], evidence, Remedy(change=change), ranks=ranks)


def _hang_title(facts: Flight) -> str:
    by_why: dict[str, list[int]] = {}
    for culprit in facts.culprits:
        by_why.setdefault(culprit.why, []).append(culprit.rank)
    who = ", ".join(f"{list_ranks(ranks)} {_WHAT[why]}" for why, ranks in by_why.items())
    return f"{who}: {_waiting(len(facts.waiting))}"


def _doubt_title(facts: Flight) -> str:
    ranks = sorted({culprit.rank for culprit in facts.suspects})
    return f"cannot tell which rank ({list_ranks(ranks)} in question), because {facts.untold}"


def _culprit_evidence(culprit: Culprit) -> Evidence:
    waits = f", {list_ranks(culprit.waiting)} in it" if culprit.waiting else ""
    lines = f"; {culprit.lines}" if culprit.lines else ""
    return Evidence(
        what=f"rank {culprit.rank} {_WHAT[culprit.why]}: {culprit.where}{waits}{lines}",
        where=f"rank {culprit.rank}",
        value=float(len(culprit.waiting)),
        unit="ranks",
    )


def restarts(observed: SourceReport) -> Outcome:
    run, ledger = observed.facts, observed.ledger
    if ledger is None or not run.restarts:
        return []
    restart, lost = ledger.booked("restart"), ledger.booked("lost")
    if not restart + lost:
        return []
    return report(
        _restarts_title(run),
        [("restart", restart), *([("lost", lost)] if lost else [])],
        [
            seconds_evidence(
                f"restart after iteration {event.after}: {event.cause or 'no cause named'}",
                event.where,
                event.seconds,
            )
            for event in _longest(run.restarts)
        ],
        Remedy(
            change="find the cause in the events before each restart; save more often to lose fewer "
            "steps, keep spare nodes to restart sooner"
        ),
    )


def failed_ranks(observed: SourceReport) -> Outcome:
    """The rank that failed first, as the launcher reports it. It claims no time: what a failure costs
    is in `restarts`, if the run went on.
    """
    causes: tuple[RootCause, ...] = getattr(observed.facts, "root_causes", ())
    if not causes:
        return []
    more = "" if len(causes) == 1 else f", and {len(causes) - 1:,} more failures"
    return report(
        f"{_first_to_fail(causes[0])}{more}",
        [("restart", 0.0)],
        [
            Evidence(
                what=f"{_first_to_fail(cause)}, after iteration {cause.after}"
                if cause.after is not None
                else _first_to_fail(cause),
                where=cause.where,
                value=None if cause.exit_code is None else float(cause.exit_code),
                unit="exit code",
            )
            for cause in causes[:_SHOWN]
        ],
        Remedy(change=_after_failure(causes[0])),
        ranks=sorted({cause.rank for cause in causes if cause.rank is not None}),
    )


def _first_to_fail(cause: RootCause) -> str:
    how = f"ended by {cause.signal}" if cause.signal else f"exit code {cause.exit_code}"
    host = f" on {cause.node}" if cause.node else ""
    error = f" ({cause.error})" if cause.error else ""
    return f"rank {cause.rank}{host} failed first: {how}{error}"


def _after_failure(cause: RootCause) -> str:
    if cause.signal == "SIGKILL":
        return (
            "look for the kernel's out-of-memory killer or the scheduler on the rank's node: "
            "SIGKILL comes from outside of the process"
        )
    if cause.signal:
        return f"look for the cause of {cause.signal} in the rank's own output and its node's log"
    if cause.error:
        return "fix the error of this rank; the others were ended because of it"
    return (
        "read this rank's own output (torchrun --log-dir --tee 3); decorate main with "
        "torch.distributed.elastic.multiprocessing.errors.record to have its traceback here"
    )


def _restarts_title(run: LoggedRun) -> str:
    steps = sum(restart.lost_steps for restart in run.restarts)
    again = f", repeating {steps:,} {run.unit}" if steps else ""
    many = "once" if len(run.restarts) == 1 else f"{len(run.restarts):,} times"
    return f"the run restarted {many}{again}"


def checkpoints(observed: SourceReport) -> Outcome:
    """Blocking checkpoints in a log."""
    run, ledger = observed.facts, observed.ledger
    if ledger is None or not run.saves:
        return []
    booked = ledger.booked("checkpoint")
    running = ledger.gpu_seconds - ledger.booked("startup")
    if not booked or booked < _CHECKPOINT_SHARE * running:
        return []
    return report(
        f"{format_count(len(run.saves), 'checkpoint')} of {format_share(booked / running)} of the time "
        "after startup",
        [("checkpoint", booked)],
        [
            seconds_evidence(f"checkpoint of iteration {save.iteration}", save.where, save.seconds)
            for save in _longest(run.saves)
        ],
        Remedy(
            change="save checkpoints in the background",
            command="--async-save (Megatron), "
            "checkpoint.async_mode = async (torchtitan), async_checkpointing (MaxText)",
            gain_high=booked,
        ),
    )


Timed = TypeVar("Timed", "Restart", "Save")


def _longest(events: Iterable[Timed]) -> list[Timed]:
    return sorted(events, key=lambda event: -(event.seconds or 0.0))[:_SHOWN]


def _waiting(ranks: int) -> str:
    return f"{format_count(ranks, 'rank')} {'waits' if ranks == 1 else 'wait'}"
