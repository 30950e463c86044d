"""How a run is at this moment, from the last window that was judged: `view_run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from computeflow.collection.online.cohorts import Cohort
from computeflow.collection.online.live_values import (
    BookState,
    LiveFinding,
    LiveRank,
    LiveRun,
    RunState,
)
from computeflow.collection.online.looks import Judged, step_seconds, stopped_seconds
from computeflow.collection.online.rank_memory import RankMemory, RunMemory
from computeflow.collection.online.run_totals import RunTotals
from computeflow.ledger import Ledger, goodput_of, ranks_with_most
from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.telemetry.run_folders.run_ledger import stuck_account

_SHOWN_RANKS = 16
_MANY = 64
"""Ranks whose last steps say how the run is."""


def view_run(
    memory: RunMemory,
    window: Judged | None,
    cohort: Cohort | None,
    totals: RunTotals,
    *,
    findings: Sequence[LiveFinding],
    ended: bool,
    usd_per_gpu_hour: float | None,
) -> LiveRun:
    latest = memory.latest()
    first = next(iter(latest.values()))
    shown = list(latest.values())[:_MANY]
    usual = step_seconds(shown)
    since = {} if ended or not totals.booked else _since_last_step(memory, shown, totals, usual)
    booked = dict(totals.booked)
    for name, gpu_seconds in since.items():
        booked[name] = booked.get(name, 0.0) + gpu_seconds
    report = None if window is None else window.report
    facts: RecordedRun | None = None if report is None else report.facts
    ledger = None if report is None else report.ledger
    accounts, window_seconds = ({}, 0.0) if ledger is None else _trained(ledger)
    return LiveRun(
        run=memory.run,
        name=str(memory.about.get("name") or memory.run),
        command=_command(memory),
        state=_state(findings, ended),
        world=memory.world,
        ranks=len(latest),
        nodes=tuple(sorted({each.node for each in latest.values()})),
        device=first.start.device,
        gpu=first.start.gpu,
        started=min(each.start.epoch + each.start.began for each in memory.ranks.values()) / 1e6,
        updated=memory.heard,
        attempt=memory.attempt,
        step=max(each.step for each in latest.values()),
        step_seconds=usual or None,
        tokens_per_second=None if facts is None else facts.tokens_per_second,
        mfu=None if ledger is None or ledger.mfu is None else accounts.get("compute.model"),
        peak=None if ledger is None else ledger.peak,
        accounts=accounts,
        window_seconds=window_seconds,
        window_ranks=0 if facts is None else facts.ranks,
        ranks_by_account={} if facts is None else ranks_with_most(facts.accounts_by_rank),
        goodput=goodput_of(booked),
        usd_per_gpu_hour=usd_per_gpu_hour,
        slowest=_slowest(latest, facts, cohort),
        dropped=sum(each.dropped for each in latest.values()),
        notes=() if report is None else report.notes[:4],
        job=_text(memory.about.get("ids"), "slurm_job"),
        run_folder=_text(memory.about, "run_folder"),
        total_steps=_whole(memory.about.get("total_steps")),
        checkpoints=_text(memory.about, "checkpoints"),
        booked=booked,
        booked_until=max(each.last for each in shown) / 1e6 if since else totals.until,
        kept_steps=totals.kept_steps,
        planned=None if facts is None else facts.planned,
        books=totals.state(),
    )


def _trained(ledger: Ledger) -> tuple[dict[str, float], float]:
    """Shares of the window's accounts and how long it is, both without start-up."""
    trained = {name: seconds for name, seconds in ledger.accounts.items() if name != "startup"}
    total = sum(trained.values())
    if not total:
        return {}, 0.0
    return {name: seconds / total for name, seconds in trained.items()}, total / ledger.gpus


def old_books(before: LiveRun) -> BookState:
    """The books of a run in a store that did not keep their state."""
    return BookState(
        booked=before.booked,
        until=before.booked_until,
        attempt=before.attempt,
        done=-1,
        seen=-1,
    )


def _since_last_step(
    memory: RunMemory, ranks: Sequence[RankMemory], totals: RunTotals, usual: float
) -> dict[str, float]:
    """GPU-seconds of a step that does not end, and of an attempt that has not begun to train, by the
    accounts that `audit` has for them at this moment. What they were in truth is booked afterwards.
    """
    unbooked = max(each.last for each in ranks) / 1e6 - totals.until
    restarts = memory.attempt > totals.attempt
    seconds = unbooked if restarts else min(stopped_seconds(ranks, usual), unbooked)
    if seconds <= 0:
        return {}
    spent = Counter("restart" if restarts else stuck_account(each.inside) for each in ranks)
    share = memory.world * seconds / len(ranks)
    return {account: count * share for account, count in spent.items()}


def _text(facts: Any, name: str) -> str:
    value = facts.get(name) if isinstance(facts, dict) else None
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _command(memory: RunMemory) -> str:
    command = memory.about.get("command")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command or "")


def _state(findings: Sequence[LiveFinding], ended: bool) -> RunState:
    if ended:
        return "ended"
    rules = {each.rule for each in findings}
    return "stuck" if "hang" in rules else "silent" if "silent-rank" in rules else "running"


def _slowest(
    latest: Mapping[int, RankMemory], facts: RecordedRun | None, cohort: Cohort | None
) -> tuple[LiveRank, ...]:
    """The ranks that others wait for, first.

    Where nobody knows who waited, a step is not told apart from its waits, nor a rank from the late.
    """
    unknown = facts is not None and facts.world > 1 and facts.waits_missing
    known = {} if facts is None else {each.rank: each for each in facts.per_rank}
    order = sorted(known, key=lambda rank: -known[rank].waited_for_seconds) or sorted(latest)
    made = []
    for rank in [rank for rank in order if rank in latest][:_SHOWN_RANKS]:
        memory, fact = latest[rank], known.get(rank)
        late = None if cohort is None else cohort.late_seconds(rank)
        if late is None and fact is not None and fact.excess is not None and not unknown:
            late = fact.excess.seconds
        made.append(
            LiveRank(
                rank=rank,
                node=memory.node,
                step=memory.step,
                step_seconds=None if fact is None else fact.step_seconds,
                own_seconds=None if fact is None or unknown else fact.own_seconds,
                late_seconds=late,
                last_seen=memory.heard,
            )
        )
    return tuple(made)
