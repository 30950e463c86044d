"""Options of a job that stands because a node or a rank died, or because it hangs: `dead_options`.

Left alone it stands until its node is repaired, and then starts again from its last good checkpoint;
all gains are against that. The steps since that checkpoint are lost in any case.
"""

from __future__ import annotations

from dataclasses import replace

from computeflow.scheduling.cases import Case, Gains
from computeflow.scheduling.options import MovePrice, PricedOption

_LONG_REPAIR = 15.6
"""90th percentile of repair times over their median: 13 days over 20 hours (StepFun's fault trace)."""


def dead_options(case: Case) -> list[PricedOption]:
    return [_restart(case), _shrink(case)]


def _restart(case: Case) -> PricedOption:
    """From the last good checkpoint, without the nodes that died.

    A rank may have died of itself, and a hang has no node: with no spare they start where they were.
    """
    state = case.state
    stays = case.trouble.kind != "dead-node" and bool(case.why_no_nodes())
    out = () if stays else case.nodes_out
    price = replace(
        _stop_price(case),
        queue_seconds=state.queue_seconds,
        neighbour_seconds=0.0 if stays else state.neighbour_gpu_seconds / state.gpus,
    )
    return case.option(
        "restart-on-spare",
        price,
        _gains(case),
        nodes_out=out,
        nodes_in=state.usable_spares[: len(out)],
        impossible="" if stays else case.why_no_nodes(),
    )


def _shrink(case: Case) -> PricedOption:
    """Without the nodes that died, until they are repaired."""
    if why := case.why_no_shrinking():
        return PricedOption(action="shrink", impossible=why)
    left = case.state.left_seconds
    smaller, restarts = case.smaller(case.state.repair_seconds if left is None else left)
    price = _stop_price(case)
    price = replace(price, wait_seconds=smaller, restart_seconds=restarts * price.restart_seconds)
    return case.option("shrink", price, _gains(case), nodes_out=case.nodes_out)


def _stop_price(case: Case) -> MovePrice:
    state = case.state
    return MovePrice(
        lost_seconds=state.lost_seconds,
        drain_seconds=state.drain_seconds,
        restart_seconds=state.restart_seconds,
    )


def _gains(case: Case) -> Gains:
    state = case.state
    anyway = state.lost_seconds + state.restart_seconds
    gain = anyway + state.repair_seconds
    return Gains(
        expected=gain, lasting=gain, low=anyway, high=anyway + _LONG_REPAIR * state.repair_seconds
    )
