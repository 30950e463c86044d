"""Decisions in words: one sentence with the numbers that decided, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.scheduling.cases import Case
from computeflow.scheduling.job_state import JobState
from computeflow.scheduling.options import PricedOption
from computeflow.scheduling.troubles import Trouble
from computeflow.units import format_count, format_seconds

_ACTIONS = {
    "nothing": "doing nothing",
    "checkpoint-now": "saving now",
    "checkpoint-interval": "another checkpoint interval",
    "restart-on-spare": "a restart without it",
    "restart-after-checkpoint": "a restart without it after the next checkpoint",
    "swap-ranks": "another order of ranks",
    "shrink": "going on without it",
    "cap-power": "less power for ranks that wait anyway",
}
_USED = (
    "remaining_steps", "healthy_step_seconds", "step_seconds", "checkpoint_age_seconds",
    "checkpoint_interval_seconds", "save_seconds", "persist_seconds", "drain_seconds",
    "restart_seconds", "queue_seconds", "neighbour_gpu_seconds", "repair_seconds",
    "failures_per_node_day", "usd_per_gpu_hour",
)  # fmt: skip


def describe_trouble(trouble: Trouble) -> str:
    where = ", ".join(trouble.nodes) or ", ".join(f"rank {rank}" for rank in trouble.ranks)
    where = where if len(where) <= 60 else f"{where[:57]}..."
    if trouble.is_dead:
        return f"{where or 'the job'}: {trouble.kind}"
    if trouble.is_slow:
        lasted = format_seconds(trouble.lasted())
        return f"{where} makes steps {100 * trouble.slowdown:.0f} % longer, for {lasted} now"
    return f"{where or 'the job'}: {trouble.kind}"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{format_seconds(abs(seconds))}"


def describe_numbers(option: PricedOption) -> str:
    low, high = option.net_range
    return (
        f"costs {_signed(option.price.seconds)}, gains {_signed(option.gain_seconds)}, net "
        f"{_signed(option.net_seconds)} ({_signed(low)} to {_signed(high)})"
    )


def move_reason(option: PricedOption, case: Case) -> str:
    """Why this one: the trouble, the move, its numbers."""
    what = _ACTIONS[option.action]
    if option.action == "cap-power":
        return f"{describe_trouble(case.trouble)}; {what} saves ${option.usd or 0.0:,.2f}"
    where = f" on {', '.join(option.nodes_in)}" if option.nodes_in else ""
    return f"{describe_trouble(case.trouble)}; {what}{where} {describe_numbers(option)}"


def idle_reason(
    state: JobState,
    mine: Sequence[Trouble],
    valid: Sequence[Trouble],
    options: Sequence[PricedOption],
    held: str,
) -> str:
    """Why nothing is done."""
    if not mine:
        return "nothing is wrong with the job"
    if not valid:
        last = max(trouble.seen for trouble in mine)
        ago = format_seconds(max(state.now - last, 0.0))
        many = format_count(len(mine), "finding")
        return f"{many} void: over, or not seen for {ago}"
    what = describe_trouble(max(valid, key=lambda trouble: (trouble.is_dead, trouble.slowdown)))
    if held:
        return f"{what}; nothing is done yet: {held}"
    possible = [option for option in options if option.is_possible]
    if not possible:
        why = "; ".join(dict.fromkeys(o.impossible for o in options)) or "no move bears on it"
        return f"{what}; nothing can be done: {why}"
    best = possible[0]
    return f"{what}; nothing is better: {_ACTIONS[best.action]} {describe_numbers(best)}"


def rests_on(cases: Sequence[Case]) -> tuple[str, ...]:
    """Every figure that was used, each with whether it was measured."""
    if not cases:
        return ()
    state = cases[0].state
    lines = []
    for name in _USED:
        value = getattr(state, name)
        if value is not None:
            kind = "assumed" if name in state.assumed else "measured"
            lines.append(f"{kind}: {name} = {value:g}")
    for case in cases:
        persistence = case.policy.persistence(case.trouble.kind) if case.trouble.is_slow else None
        if persistence is not None:
            lines.append(
                f"assumed: such slowdowns last {format_seconds(persistence.mean_seconds)} on average "
                f"({persistence.source or 'stated'})"
            )
        if case.trust < 1:
            lines.append(f"measured: {100 * case.trust:.0f} % of a claimed gain is believed")
    return tuple(dict.fromkeys(lines))
