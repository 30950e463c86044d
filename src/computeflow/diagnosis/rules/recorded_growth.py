"""`regression` on run folders: steps that grew inside the run, or are longer than its plan."""

from __future__ import annotations

from computeflow.diagnosis.rule import Outcome, report, seconds_evidence
from computeflow.ledger import Ledger, Remedy
from computeflow.ledger.book import is_within
from computeflow.telemetry.run_folders.run_facts import PlannedStep, RecordedRun
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_seconds, format_share

_GROWN = 0.05
"""Least growth of the step inside a run; steps of one host differ by up to 4 % (slow_ranks)."""
_NOISE = 4.0


def slower_steps(observed: SourceReport) -> Outcome:
    """A step that grew inside the run, or is longer than the plan that the run was started for."""
    run, ledger = observed.facts, observed.ledger
    growth = run.growth
    if growth is None or ledger is None or not growth.apart:
        return _slower_than_planned(run, ledger)
    more = growth.late_seconds - growth.early_seconds
    if more < max(_GROWN * growth.early_seconds, _NOISE * growth.noise_seconds):
        return _slower_than_planned(run, ledger)
    lost = min(growth.lost_seconds, ledger.booked(growth.account))
    per = " for the same tokens" if growth.per_token else ""
    return report(
        f"steps grew by {format_share(more / growth.early_seconds)} inside the run{per}: from "
        f"{format_seconds(growth.early_seconds)} to {format_seconds(growth.late_seconds)}, most of it "
        f"in {growth.account}",
        [(growth.account, lost)],
        [
            seconds_evidence(
                "median step of the last third of the run",
                "steady steps",
                growth.late_seconds,
                growth.early_seconds,
            )
        ],
        _remedy(
            "find what grows with the steps: lists that are kept, logs, fragmented memory, heat",
            lost,
        ),
    )


def _slower_than_planned(run: RecordedRun, ledger: Ledger | None) -> Outcome:
    """Steps beyond the range of the plan; a plan for another number of GPUs is none."""
    plan, step = run.planned, run.step_seconds
    if plan is None or step is None or ledger is None or plan.gpus != run.world:
        return []
    more = step - plan.step_seconds
    if step <= plan.high_seconds or more < _GROWN * plan.step_seconds:
        return []
    account = _most_beyond(plan, ledger, run.steady_steps)
    lost = min(more * run.steady_steps * run.ranks, ledger.booked(account))
    return report(
        f"steps take {format_share(more / plan.step_seconds)} longer than planned: "
        f"{format_seconds(step)}, {format_seconds(plan.step_seconds)} in {plan.source}; most of it in "
        f"{account}",
        [(account, lost)],
        [
            seconds_evidence("median step", plan.source, step, plan.step_seconds),
            seconds_evidence(
                f"{account} in a step of one rank",
                plan.source,
                ledger.booked(account) / max(run.steady_steps * run.ranks, 1),
                _planned_in(plan, account) / plan.gpus,
            ),
        ],
        _remedy(
            "compare the run with its plan (audit --expect): precision, batch, layout, kernels, links",
            lost,
        ),
    )


def _planned_in(plan: PlannedStep, account: str) -> float:
    return sum(s for name, s in plan.accounts.items() if is_within(name, account))


def _most_beyond(plan: PlannedStep, ledger: Ledger, steps: int) -> str:
    """The account with most GPU-seconds beyond the plan."""
    tops = dict.fromkeys(name.partition(".")[0] for name in ledger.accounts)
    beside = {"startup", "restart", "lost", "idle"}
    return max(
        (name for name in tops if name not in beside),
        key=lambda name: ledger.booked(name) - steps * _planned_in(plan, name),
        default="compute",
    )


def _remedy(change: str, lost: float) -> Remedy:
    return Remedy(change=change, gain_gpu_seconds=lost, gain_low=0.5 * lost, gain_high=lost)
