"""Findings that a log alone supports: restarts, and checkpoints that block."""

from __future__ import annotations

from computeflow.ledger import Claim, Evidence, Finding, Ledger, Remedy
from computeflow.telemetry.logs.facts import Run

CHECKPOINT_SHARE = 0.05
"""Of the time from the first step on: less is the price of safety."""
_SHOWN = 5
_CONFIDENCE = 0.9
"""Not measured yet on labelled logs: what the made ones support."""


def findings(run: Run, ledger: Ledger) -> tuple[Finding, ...]:
    return tuple(found for found in (_restarts(run, ledger), _checkpoints(run, ledger)) if found)


def _restarts(run: Run, ledger: Ledger) -> Finding | None:
    claims = tuple(
        Claim(account=name, gpu_seconds=seconds)
        for name in ("restart", "lost")
        if (seconds := ledger.booked(name)) or name == "restart"
    )
    if not run.restarts or not sum(claim.gpu_seconds for claim in claims):
        return None
    worst = sorted(run.restarts, key=lambda restart: -(restart.seconds or 0.0))[:_SHOWN]
    steps = sum(restart.lost_steps for restart in run.restarts)
    again = f", {steps:,} {run.unit} done again" if steps else ""
    many = "once" if len(run.restarts) == 1 else f"{len(run.restarts):,} times"
    return Finding(
        rule="restarts",
        title=f"the run started again {many}{again}",
        account="restart",
        claims=claims,
        evidence=tuple(
            Evidence(
                what=f"restart after iteration {restart.after}: {restart.cause or 'no cause named'}",
                where=restart.where,
                value=restart.seconds,
                unit="s",
            )
            for restart in worst
        ),
        confidence=_CONFIDENCE,
        remedy=Remedy(
            change="find the cause in the happenings before each restart; save more often to lose "
            "fewer steps, keep spare nodes to restart sooner"
        ),
    )


def _checkpoints(run: Run, ledger: Ledger) -> Finding | None:
    booked = ledger.booked("checkpoint")
    running = ledger.gpu_seconds - ledger.booked("startup")
    if not booked or booked < CHECKPOINT_SHARE * running or not run.saves:
        return None
    timed = sorted(run.saves, key=lambda save: -(save.seconds or 0.0))[:_SHOWN]
    return Finding(
        rule="checkpoint-stall",
        title=f"{len(run.saves):,} checkpoints block {booked / running:.1%} of the run",
        account="checkpoint",
        claims=(Claim(account="checkpoint", gpu_seconds=booked),),
        evidence=tuple(
            Evidence(what=f"checkpoint of iteration {save.iteration}", where=save.where,
                     value=save.seconds, unit="s")
            for save in timed
        ),
        confidence=_CONFIDENCE,
        remedy=Remedy(change="save in the background", command="--async-save (Megatron), "
                      "checkpoint.async_mode = async (torchtitan), async_checkpointing (MaxText)",
                      gain_high=booked),
    )  # fmt: skip
