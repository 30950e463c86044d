"""Options of a job that is slow, or that saves too rarely or too often: `slow_options`.

Left alone, a slow job loses what its slow steps lose until the cause goes away; all gains are against
that. Neglected: a second trouble during the move; a spare that is slow itself; that a job which shrinks
may grow again before its own nodes are repaired.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from computeflow.economics.checkpoint_intervals import daly_seconds, saving_cost
from computeflow.scheduling.cases import LEMON_FACTOR, Case, Gains
from computeflow.scheduling.options import ActionKind, MovePrice, PricedOption
from computeflow.scheduling.pricing import expected_cost, slow_cost
from computeflow.units import DAY_SECONDS, KWH_JOULES

_UNKNOWN = "the remaining steps or the healthy step time are not known"


def slow_options(case: Case) -> list[PricedOption]:
    """All moves that bear on this trouble; those that cannot be made say why."""
    if case.trouble.kind == "checkpoint-interval":
        return [_new_interval(case)]
    if case.trouble.kind == "off-critical-path":
        return [_cap_power(case)]
    if case.state.left_seconds is None:
        return [_impossible(action, _UNKNOWN) for action in _MOVES]
    return [make(case) for make in _MOVES.values()]


def _impossible(action: ActionKind, why: str) -> PricedOption:
    return PricedOption(action=action, impossible=why)


def _restart(case: Case) -> PricedOption:
    return _leaving(case, "restart-on-spare", case.stop_price())


def _leaving(
    case: Case, action: ActionKind, price: MovePrice, *, weight: float = 1.0, wait: float = 0.0
) -> PricedOption:
    """The job leaves its bad nodes for others: it is as fast as it was, and their risk is gone."""
    if not case.nodes_out:
        return _impossible(action, "no node is known to be the cause")
    state = case.state
    price = replace(
        price,
        queue_seconds=weight * state.queue_seconds,
        neighbour_seconds=weight * state.neighbour_gpu_seconds / state.gpus,
    )
    gains = case.gains().plus(case.trust * _risk_seconds(case))
    if wait:  # a cause that lasts is paid for whole: the slow steps of the wait, and the move
        waited = float(slow_cost(case.trouble.slowdown, wait))
        later = (price.seconds - price.wait_seconds) / weight if weight else 0.0
        gains = replace(gains, lasting=gains.lasting - waited - later + price.seconds)
    return case.option(
        action,
        price,
        gains,
        nodes_out=case.nodes_out,
        nodes_in=state.usable_spares[: len(case.nodes_out)],
        not_before_seconds=wait,
        impossible=case.why_no_nodes(),
    )


def _risk_seconds(case: Case) -> float:
    """What the failures of degraded nodes would cost until the job ends."""
    if case.trouble.kind != "degraded-hardware":
        return 0.0
    state = case.state
    rate = len(case.nodes_out) * state.failures_per_node_day / DAY_SECONDS * (LEMON_FACTOR - 1)
    between = state.checkpoint_interval_seconds or state.lost_seconds
    return rate * case.slow_left * (between / 2 + state.restart_seconds + state.queue_seconds)


def _restart_after_checkpoint(case: Case) -> PricedOption:
    """The move is made at the next save if the cause is still there: its price counts as often."""
    state, trouble = case.state, case.trouble
    interval, age = state.checkpoint_interval_seconds, state.checkpoint_age_seconds
    if interval is None or age is None:
        why = "when the next checkpoint comes is not known"
        return _impossible("restart-after-checkpoint", why)
    wait = max(interval - age, 0.0) + state.save_seconds + state.persist_seconds
    if wait >= case.slow_left:
        return _impossible("restart-after-checkpoint", "the job ends before its next checkpoint")
    persistence = case.policy.persistence(trouble.kind)
    still = 1.0 if persistence is None else float(persistence.survival(wait, trouble.lasted()))
    waited = float(expected_cost(trouble.slowdown, trouble.lasted(), wait, persistence))
    price = MovePrice(
        wait_seconds=case.trust * waited,
        drain_seconds=still * state.drain_seconds,
        restart_seconds=still * state.restart_seconds,
    )
    return _leaving(case, "restart-after-checkpoint", price, weight=still, wait=wait)


def _swap(case: Case) -> PricedOption:
    """The same nodes in another order, in which the trouble slows less."""
    after, slowdown = case.trouble.swapped_slowdown, case.trouble.slowdown
    if not case.state.can_swap:
        return _impossible("swap-ranks", "the order of ranks cannot be changed")
    if after is None or not slowdown:
        return _impossible("swap-ranks", "what another order would do is not predicted")
    gains = case.gains().part(1 - min(after / slowdown, 1.0))
    return case.option("swap-ranks", case.stop_price(), gains, ranks=case.trouble.ranks)


def _shrink(case: Case) -> PricedOption:
    """The job goes on without its bad nodes until they are repaired, and grows again then."""
    if why := case.why_no_shrinking():
        return _impossible("shrink", why)
    smaller, restarts = case.smaller(case.state.left_seconds or 0.0)
    price = case.stop_price(restarts=restarts, wait_seconds=smaller)
    return case.option("shrink", price, case.gains(), nodes_out=case.nodes_out)


def _checkpoint_now(case: Case) -> PricedOption:
    """A save now spares the work since the last one, if the job fails before the next."""
    state = case.state
    if not state.can_checkpoint:
        return _impossible("checkpoint-now", "it does not save on request")
    interval = state.checkpoint_interval_seconds
    until = case.slow_left if interval is None else max(interval - state.lost_seconds, 0.0)
    fails = min(case.failures_per_second * until, 1.0)
    gain = fails * case.redone_seconds
    return case.option(
        "checkpoint-now",
        MovePrice(save_seconds=state.save_seconds),
        Gains(expected=gain, lasting=gain, low=0.0, high=case.redone_seconds),
    )


def _new_interval(case: Case) -> PricedOption:
    """Daly's interval in place of the present one."""
    state = case.state
    left, interval = state.left_seconds, state.checkpoint_interval_seconds
    if not state.can_checkpoint:
        return _impossible("checkpoint-interval", "it does not save on request")
    rate = case.failures_per_second
    if not left or not interval or not state.save_seconds or not rate:
        why = "the interval, what a save takes, failures or the remaining work are not known"
        return _impossible("checkpoint-interval", why)
    best = max(daly_seconds(state.save_seconds, 1 / rate), state.persist_seconds, 1.0)
    before = saving_cost(interval, state.save_seconds, rate)
    gain = left * (before - saving_cost(best, state.save_seconds, rate))
    gains = Gains(expected=case.trust * gain, lasting=gain, low=gain, high=gain)
    return case.option("checkpoint-interval", MovePrice(), gains, new_interval_seconds=best)


def _cap_power(case: Case) -> PricedOption:
    """Less power for ranks that wait anyway; it gains joules, no seconds."""
    state, trouble = case.state, case.trouble
    left, saved = state.left_seconds, trouble.watts_saved
    if left is None or saved is None or state.watts_per_gpu is None or state.usd_per_kwh is None:
        why = "the watts saved, the remaining work or the price of energy is not known"
        return _impossible("cap-power", why)
    joules = saved * len(trouble.ranks) * left
    return PricedOption(
        action="cap-power",
        watts=max(state.watts_per_gpu - saved, 0.0),
        ranks=trouble.ranks,
        usd=case.trust * joules / KWH_JOULES * state.usd_per_kwh,
    )


_MOVES: dict[ActionKind, Callable[[Case], PricedOption]] = {
    "restart-on-spare": _restart,
    "restart-after-checkpoint": _restart_after_checkpoint,
    "swap-ranks": _swap,
    "shrink": _shrink,
    "checkpoint-now": _checkpoint_now,
}
