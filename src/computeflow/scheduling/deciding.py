"""`decide`: the best move for a running job in trouble, with the numbers of all that were looked at.

1. Troubles that have expired, or that are of another run, are void.
2. A job that stands is dealt with before one that is slow. Slow nodes leave together; the slowest
   sets the price.
3. Every option is priced; the one with the highest expected net gain that may be made now is chosen.
4. A move that would pay is held while its cause may be a blip, while waiting is worth more than
   moving, or too soon after the job's last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from computeflow.scheduling.cases import Case
from computeflow.scheduling.dead_options import dead_options
from computeflow.scheduling.job_state import JobState, PastMove
from computeflow.scheduling.move_policy import MovePolicy
from computeflow.scheduling.move_words import idle_reason, move_reason, rests_on
from computeflow.scheduling.options import RESTARTS, JobDecision, PricedOption
from computeflow.scheduling.pricing import patience_seconds
from computeflow.scheduling.slow_options import slow_options
from computeflow.scheduling.troubles import Trouble
from computeflow.units import format_seconds


def decide(
    state: JobState,
    troubles: Sequence[Trouble],
    *,
    policy: MovePolicy | None = None,
    past: Sequence[PastMove] = (),
) -> JobDecision:
    """The option with the highest expected net gain that the policy allows now.

    `past` are the moves made so far, of any job: those of this job set the pace, and what all of
    them gained corrects the claims.
    """
    rules = policy or MovePolicy()
    mine = [trouble for trouble in troubles if trouble.run == state.run]
    valid = [trouble for trouble in mine if not trouble.expired(state.now)]
    cases = _cases(state, valid, rules, rules.trust(past))
    nothing = PricedOption(action="nothing", usd=None if state.usd_per_gpu_hour is None else 0.0)
    priced = [(option, case) for case in cases for option in _options(case)]
    priced.sort(key=lambda pair: _rank(pair[0]))
    chosen, why, held = nothing, None, ""
    for option, case in priced:
        if not _pays(option, rules):
            continue
        reason = _held(option, case, past)
        if not reason:
            chosen, why = option, case
            break
        held = held or reason
    options = sorted([nothing, *(option for option, _ in priced)], key=_rank)
    return JobDecision(
        run=state.run,
        job=state.job,
        at=state.now,
        chosen=chosen,
        options=tuple(options),
        reason=(
            idle_reason(state, mine, valid, [option for option, _ in priced], held)
            if why is None
            else move_reason(chosen, why)
        ),
        troubles=tuple(trouble.key for trouble in valid if trouble.key),
        valid_until=min((trouble.valid_until for trouble in valid), default=math.inf),
        rests_on=rests_on(cases),
        held=held,
    )


def _rank(option: PricedOption) -> tuple[bool, float, float, bool]:
    """Sorts what can be made before what cannot, then by net gain; nothing wins a tie."""
    usd = -(option.usd or 0.0)
    return not option.is_possible, -option.net_seconds, usd, option.action != "nothing"


def _cases(
    state: JobState, troubles: Sequence[Trouble], policy: MovePolicy, trust: float
) -> list[Case]:
    """What is decided on: all that is dead as one, all that is slow as one, the rest one by one."""
    dead = [trouble for trouble in troubles if trouble.is_dead]
    slow = [trouble for trouble in troubles if trouble.is_slow]
    chosen: list[tuple[Trouble, list[Trouble]]] = []
    if dead:
        chosen.append((max(dead, key=lambda trouble: trouble.kind == "dead-node"), dead))
    elif slow:
        lasting = [t for t in slow if t.lasted() >= policy.debounce_seconds]
        chosen.append((max(lasting or slow, key=lambda t: t.slowdown), lasting or slow))
    if not dead:
        chosen += [(t, [t]) for t in troubles if not t.is_slow]
    return [
        Case(
            state=state,
            trouble=first,
            policy=policy,
            trust=trust * first.confidence,
            nodes_out=tuple(n for n in state.nodes if any(n in trouble.nodes for trouble in group)),
        )
        for first, group in chosen
    ]


def _options(case: Case) -> list[PricedOption]:
    return dead_options(case) if case.trouble.is_dead else slow_options(case)


def _pays(option: PricedOption, policy: MovePolicy) -> bool:
    if not option.is_possible:
        return False
    if option.action == "cap-power":
        return (option.usd or 0.0) > 0
    return option.gain_seconds > float(policy.demanded(option.price.seconds))


def _held(option: PricedOption, case: Case, past: Sequence[PastMove]) -> str:
    """Why an option that pays is not taken now; "" where it is."""
    state, trouble, policy = case.state, case.trouble, case.policy
    if trouble.is_dead:
        silent = state.now - trouble.since
        if silent < policy.dead_after_seconds:
            wait = format_seconds(policy.dead_after_seconds)
            return f"silent for {format_seconds(silent)} only; dead after {wait}"
        return policy.too_soon(state.job, option.action, state.now, past, dead=True)
    if trouble.is_slow and (reason := _too_early(option, case)):
        return reason
    return policy.too_soon(state.job, option.action, state.now, past)


def _too_early(option: PricedOption, case: Case) -> str:
    """Whether it may be a blip, or waiting is worth more: causes like this go away, which would save
    the price.
    """
    trouble, policy = case.trouble, case.policy
    lasted = trouble.lasted()
    if lasted < policy.debounce_seconds:
        blip = format_seconds(policy.debounce_seconds)
        return f"it has lasted {format_seconds(lasted)}; what is shorter than {blip} may be a blip"
    if option.action not in RESTARTS or option.action == "restart-after-checkpoint":
        return ""  # the latter waits, and its price is weighed with how likely it is needed then
    whole = case.gains().lasting
    share = min(option.lasting_gain_seconds / whole, 1.0) if whole else 1.0
    patience = float(
        patience_seconds(
            trouble.slowdown,
            policy.demanded(option.price.seconds),
            policy.persistence(trouble.kind),
            case.trust * share,
        )
    )
    if lasted >= patience:
        return ""
    return (
        f"it has lasted {format_seconds(lasted)}; until "
        f"{format_seconds(patience)} it is likelier to go away than a move is to pay"
    )
