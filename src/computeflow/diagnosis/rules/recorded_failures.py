"""Rules on run folders whose processes die, hang or restart: `silent_ranks`, `stuck`, `restarts`,
`checkpoint_interval`.
"""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import Draft, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.rules.recordings import framework_in, training_seconds
from computeflow.diagnosis.slow_ranks import LEAST
from computeflow.economics.checkpoint_intervals import daly_seconds, poisson_range, saving_cost
from computeflow.ledger import Evidence, Ledger, Remedy
from computeflow.telemetry.run_folders.run_facts import RecordedRun, SilentRank, StuckRun
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_count, format_seconds

_SHOWN = 5
_NAMED = 16
"""Most ranks that a title names."""
_MIN_FAILURES = 3
"""Fewest failures that make a rate: its range of 95 % is 0.2 to 2.9 times what was seen."""


def _names(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_NAMED]))
    more = f" and {len(numbers) - _NAMED:,} more" if len(numbers) > _NAMED else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{more}"


def stuck(observed: SourceReport) -> Outcome:
    """Processes that live and do no steps."""
    run, ledger = observed.facts, observed.ledger
    found = run.stuck
    silent = {each.rank for each in run.silent if each.last_attempt}
    if found is None or (silent and silent >= set(found.missing)):
        return []
    lost = found.seconds * run.ranks
    return report(
        f"no step for {format_seconds(found.seconds)} after step {found.step:,}: "
        f"{_who_is_missing(found)}, {format_count(len(found.waiting), 'rank')} wait",
        [("idle", min(lost, ledger.booked("idle")) if ledger else lost)],
        _stuck_evidence(run, found),
        Remedy(
            change="check what the process does outside collectives (py-spy dump, last log lines) "
            "and the health of its node; exclude the node if it happens again"
        ),
        ranks=list(found.missing),
    )


def _who_is_missing(found: StuckRun) -> str:
    if found.operations and not found.missing:
        return f"ranks came to different collectives ({', '.join(_operations(found))})"
    if not found.missing:
        return "no rank is behind in its collectives"
    who = _names(found.missing)
    if found.operations:
        return f"{who} came to another collective than the others"
    return f"{who} never arrived"


def _operations(found: StuckRun) -> list[str]:
    return list(dict.fromkeys(found.operations.values()))


def _stuck_evidence(run: RecordedRun, found: StuckRun) -> list[Evidence]:
    inside: dict[str, int] = {}
    for phase in found.inside.values():
        inside[phase] = inside.get(phase, 0) + 1
    doing = "; ".join(f"{phase}: {count}" for phase, count in inside.items())
    hosts = {rank.rank: rank.host for rank in run.per_rank}
    evidence = [
        seconds_evidence(
            f"since the last step; ranks by phase: {doing}",
            "heart beats",
            found.seconds,
            found.usual_seconds,
        )
    ]
    if found.wait_seconds is not None:
        evidence.append(
            seconds_evidence("ranks waiting in a collective", "collectives", found.wait_seconds, 0)
        )
    for rank in found.missing[:_SHOWN]:
        came_to = f", came to {found.operations[rank]}" if rank in found.operations else ""
        evidence.append(
            seconds_evidence(
                f"rank {rank} in {found.inside.get(rank, 'no heart beat')}{came_to}",
                hosts.get(rank, ""),
                found.inside_seconds.get(rank),
            )
        )
    return evidence


def silent_ranks(observed: SourceReport) -> Outcome:
    """Ranks that were killed, or lost with their node, while the others lived on."""
    run, ledger = observed.facts, observed.ledger
    together: dict[tuple[int, ...], list[SilentRank]] = {}
    for attempt in dict.fromkeys(each.attempt for each in run.silent):
        some = [each for each in run.silent if each.attempt == attempt]
        together.setdefault(tuple(each.rank for each in some), []).extend(some)
    return [_silent(ranks, some, ledger) for ranks, some in together.items()]


def _silent(ranks: tuple[int, ...], some: Sequence[SilentRank], ledger: Ledger | None) -> Draft:
    """One finding on ranks that fell silent together, however often."""
    last, times = some[-1], len(some) // len(ranks)
    hosts = list(dict.fromkeys(each.host for each in some))
    where = f"{hosts[0]}" if len(hosts) == 1 else f"{len(hosts):,} hosts"
    again = f", {times} times" if times > 1 else ""
    idle = sum(each.lost_seconds for each in some if each.last_attempt)
    restarted = sum(each.lost_seconds for each in some if not each.last_attempt)
    if ledger is not None:
        idle = min(idle, ledger.booked("idle"))
        restarted = min(restarted, ledger.booked("restart"))
    waited = max(each.wait_seconds for each in some)
    then = f"the others {last.others}"
    if waited >= 1:
        then += f", up to {format_seconds(waited)} after it"
    what = "fell silent after" if last.step else "fell silent before its first step, not even"
    (finding,) = report(
        f"{_names(ranks)} on {where} {what} step {max(last.step, 1):,} without a last record{again}: "
        f"{then}",
        [("idle", idle), ("restart", restarted)],
        [
            seconds_evidence(
                f"rank {each.rank} of attempt {each.attempt}, last step {each.step:,}; others waited",
                each.host,
                each.wait_seconds,
                0.0,
            )
            for each in some[:_SHOWN]
        ],
        Remedy(
            change="it was killed, or its node was lost: look for the OOM killer and Xid errors in "
            "the kernel log of its node, and at the node's health; exclude the node if it happens "
            "again. If its process is still there, it does not let its threads run: py-spy dump",
            command=f"dmesg -T | grep -iE 'out of memory|oom-kill|NVRM|Xid|mce' (on {hosts[0]})",
        ),
        ranks=ranks,
    )
    return finding


def restarts(observed: SourceReport) -> Outcome:
    run, ledger = observed.facts, observed.ledger
    count = len(run.attempts) - 1
    if ledger is None or count < 1:
        return []
    restart, lost = ledger.booked("restart"), ledger.booked("lost")
    again = f", repeating {run.redone_steps:,} steps" if run.redone_steps else ""
    times = "once" if count == 1 else f"{count:,} times"
    return report(
        f"the run restarted {times}{again}",
        [("restart", restart), *([("lost", lost)] if lost else [])],
        [
            seconds_evidence(
                f"attempt {attempt.attempt} began after step {before.last_count}"
                if before.last_count is not None
                else f"attempt {attempt.attempt} began",
                "processes",
                max(attempt.start - before.end, 0.0),
            )
            for before, attempt in list(zip(run.attempts, run.attempts[1:], strict=False))[:_SHOWN]
        ],
        Remedy(
            change="find the cause in the events before each restart; save more often to lose fewer "
            "steps, keep spare nodes to restart sooner"
        ),
    )


def failures_of(run: RecordedRun) -> int:
    """Attempts that did not end by themselves, as far as is known."""
    ended = [attempt.ended for attempt in run.attempts]
    last_failed = "exception" in ended[-1] or any(each.last_attempt for each in run.silent)
    return sum(how != "exit" for how in ended[:-1]) + last_failed


def checkpoint_interval(observed: SourceReport) -> Outcome:
    """Saves that are too rare or too frequent for the failures that were seen."""
    run, ledger = observed.facts, observed.ledger
    failures = failures_of(run)
    if ledger is None or not failures:
        return []
    if failures < _MIN_FAILURES:
        return Missing(f"{_MIN_FAILURES} failures or more, which make a rate known")
    if run.saves is None:
        return Missing("a save in a step")
    wall = sum(max(attempt.end - attempt.start, 0.0) for attempt in run.attempts)
    trained = training_seconds(ledger)
    if wall <= 0 or trained <= 0:
        return []
    present, write = run.saves.interval_seconds, run.saves.seconds
    best = max(daly_seconds(write, wall / failures), run.step_seconds or 0.0, 1e-3)
    gains = [
        trained * (saving_cost(present, write, rate / wall) - saving_cost(best, write, rate / wall))
        for rate in (failures, *poisson_range(failures))
    ]
    held = ledger.booked("lost" if present > best else "checkpoint")
    gain, low, high = (min(each, held) for each in (gains[0], min(gains), max(gains)))
    if low <= LEAST * trained:
        return []
    return _interval_finding(observed, failures, wall, best, (gain, low, high))


def _interval_finding(
    observed: SourceReport,
    failures: int,
    wall: float,
    best: float,
    gains: tuple[float, float, float],
) -> list[Draft]:
    run: RecordedRun = observed.facts
    assert run.saves is not None
    present, write = run.saves.interval_seconds, run.saves.seconds
    rare = present > best
    fewest, most = poisson_range(failures)
    steps = max(round(best / run.step_seconds), 1) if run.step_seconds else None
    every = f" ({format_count(steps, 'step')})" if steps else ""
    return report(
        f"the run saves too {'rarely' if rare else 'often'} for its failures: every "
        f"{format_seconds(present)}; with {format_count(failures, 'failure')} in "
        f"{format_seconds(wall)} and {format_seconds(write)} a save, {format_seconds(best)}{every} "
        "costs least",
        [("lost" if rare else "checkpoint", gains[0])],
        [
            seconds_evidence("median time between two saves", "checkpoints", present, best),
            seconds_evidence("median time that a save blocks a rank", "checkpoints", write),
            seconds_evidence(
                f"between failures; {fewest:.1f} to {most:.1f} of them are to be expected in as long",
                "attempts",
                wall / failures,
            ),
            Evidence(what="steps done again", where="attempts", value=float(run.redone_steps)),
        ],
        Remedy(
            change=f"save every {format_seconds(best)}{every}"
            + ("" if rare else "; or save in the background, then more often costs less"),
            command="" if rare else command("checkpoint", framework_in(run)),
            gain_gpu_seconds=gains[0],
            gain_low=gains[1],
            gain_high=gains[2],
        ),
    )
