"""Predictions and their validation as tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.ledgers import ledger_table
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.prediction import Prediction
    from computeflow.prediction.validation import Errors, Validation


def prediction_tables(found: Prediction) -> list[Table]:
    low, high = found.step_seconds_range
    power = "unavailable: the catalog has no power limit"
    if found.watts_per_gpu is not None and found.tokens_per_joule is not None:
        power = (
            f"{found.watts_per_gpu:.0f} W per GPU, {found.tokens_per_joule:.2f} tokens per joule"
        )
    fullest = f"fullest in {found.memory_by_stage[found.fullest_stage].moment}"
    if found.layout.pp > 1:
        fullest += f" of stage {found.fullest_stage + 1} of {found.layout.pp}"
    owners = ", ".join(
        f"{name} {format_si(size, 'B')}" for name, size in found.memory_by_owner.items() if size
    )
    away = _elsewhere(found)
    calibrated = [("calibrated", "; ".join(found.calibrated))] if found.calibrated else []
    facts = (
        (
            "step",
            f"{format_seconds(found.step_seconds)} ({format_seconds(low)} to "
            f"{format_seconds(high)} holds 80 % of runs)",
        ),
        ("throughput", f"{found.tokens_per_second_per_gpu:,.0f} tokens/s per GPU"),
        (
            "memory",
            f"{format_si(found.memory_bytes, 'B')} of "
            f"{format_si(found.memory_limit_bytes, 'B')}, "
            f"{_verdict(found)}; {fullest}: {owners}",
        ),
        *away,
        ("power", power),
        ("assumed", "; ".join(found.assumed)),
        *calibrated,
    )
    layout = found.layout
    size = f"{layout.gpus:,} GPU{'s' if layout.gpus > 1 else ''}"
    title = (
        f"{found.job.model.name} on {size}: tp {layout.tp}, pp {layout.pp}, vp {layout.vp}, cp "
        f"{layout.cp}, {layout.sharding}, micro-batch {layout.micro_batch}, recompute "
        f"{layout.recompute}, {found.job.precision}, stack {found.stack.name}"
    )
    summary = Table(title=title, columns=columns("what", "predicted", wrap="predicted"), rows=facts)
    return [summary, ledger_table(found.ledger)]


def memory_table(found: Prediction) -> Table:
    """GB by owner on one device of each pipeline stage, at its fullest moment."""
    stages = found.memory_by_stage
    parts = {name: [stage.by_owner[name] for stage in stages] for name in stages[0].by_owner}
    for name, field in (("total", "bytes"), ("host", "host_bytes"), ("disk", "disk_bytes")):
        parts[name] = [getattr(stage, field) for stage in stages]
    shown = [name for name, sizes in parts.items() if any(sizes)]
    return Table(
        title="Memory of one device of each stage at its fullest moment (GB)",
        columns=columns("stage", "fullest in", *shown, right=",".join(["stage", *shown])),
        rows=tuple(
            (str(n + 1), stage.moment, *(f"{parts[name][n] / 1e9:,.2f}" for name in shown))
            for n, stage in enumerate(stages)
        ),
        notes=(f"a device has {found.memory_limit_bytes / 1e9:,.2f} GB",),
    )


def validation_table(result: Validation) -> Table:
    groups = [("all", result.summary), *result.by_kind.items(), *result.by_source.items()]
    reasons = Counter(result.skipped.values())
    return Table(
        title="Predicted against measured step time",
        columns=columns(
            "runs",
            "n",
            "MAPE",
            "median",
            "bias",
            "p90",
            "in range",
            right="n,MAPE,median,bias,p90,in range",
            wrap="runs",
        ),
        rows=tuple(_row(name, errors) for name, errors in groups),
        notes=tuple(f"not predicted: {n} ({why})" for why, n in reasons.items()),
        strong=frozenset({0}),
    )


def _row(name: str, e: Errors) -> tuple[str, ...]:
    return (
        name,
        str(e.n),
        format_share(e.mape),
        format_share(e.median_ape),
        f"{100 * e.bias:+.1f} %",
        format_share(e.p90_ape),
        f"{100 * e.in_range:.0f} %",
    )


def _verdict(found: Prediction) -> str:
    return "fits tightly" if found.tight else "fits" if found.fits else "DOES NOT FIT"


def _elsewhere(found: Prediction) -> list[tuple[str, str]]:
    """What is offloaded, for one device, and what its host has for it."""
    host = max(stage.host_bytes for stage in found.memory_by_stage)
    disk = max(stage.disk_bytes for stage in found.memory_by_stage)
    limit = found.host_limit_bytes
    of = "" if limit is None else f" of {format_si(limit, 'B')}"
    parts = [f"{format_si(host, 'B')}{of} in the host's memory"] if host else []
    parts += [f"{format_si(disk, 'B')} on disk"] if disk else []
    return [("offloaded", ", ".join(parts))] if parts else []
