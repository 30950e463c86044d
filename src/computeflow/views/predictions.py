"""Predictions and their validation as tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.ledgers import ledger_table
from computeflow.views.plans import memory_text
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from computeflow.prediction import Prediction
    from computeflow.prediction.validation import ErrorSummary, Validation


def prediction_headline(prediction: Prediction) -> str:
    low, high = map(format_seconds, prediction.step_seconds_range)
    mfu = prediction.ledger.mfu
    efficiency = "" if mfu is None else f", MFU {format_share(mfu)}"
    return (
        f"{format_seconds(prediction.step_seconds)} a step (predicted range {low} to {high})"
        f"{efficiency}, {memory_text(prediction)}: {_verdict(prediction)}."
    )


def prediction_tables(prediction: Prediction) -> list[Table]:
    low, high = prediction.step_seconds_range
    power = "unavailable: the catalog has no power limit"
    watts, per_joule = prediction.watts_per_gpu, prediction.tokens_per_joule
    if watts is not None and per_joule is not None:
        power = f"{watts:.0f} W per GPU, {per_joule:.2f} tokens per joule"
    fullest = f"fullest in {prediction.memory_by_stage[prediction.fullest_stage].moment}"
    if prediction.layout.pp > 1:
        fullest += f" of stage {prediction.fullest_stage + 1} of {prediction.layout.pp}"
    owners = ", ".join(
        f"{name} {format_si(size, 'B')}"
        for name, size in prediction.memory_by_owner.items()
        if size
    )
    away = _elsewhere(prediction)
    calibrated = [("calibrated", "; ".join(prediction.calibrated))] if prediction.calibrated else []
    facts = (
        (
            "step",
            f"{format_seconds(prediction.step_seconds)} ({format_seconds(low)} to "
            f"{format_seconds(high)}; 80 % of published runs fell inside such a range)",
        ),
        ("evidence", prediction.evidence.line),
        ("throughput", f"{prediction.tokens_per_second_per_gpu:,.0f} tokens/s per GPU"),
        (
            "memory",
            f"{memory_text(prediction)}, {_verdict(prediction)}; {fullest}: {owners}",
        ),
        *away,
        ("power", power),
        ("assumptions", "; ".join(prediction.assumed)),
        *calibrated,
    )
    layout = prediction.layout
    size = f"{layout.gpus:,} GPU{'s' if layout.gpus > 1 else ''}"
    title = (
        f"{prediction.job.model.name} on {size}: tp {layout.tp}, pp {layout.pp}, vp {layout.vp}, cp "
        f"{layout.cp}, {layout.sharding}, micro-batch {layout.micro_batch}, recompute "
        f"{layout.recompute}, {prediction.job.precision}, stack {prediction.stack.name}"
    )
    summary = Table(
        title=title, columns=columns("quantity", "predicted", wrap="predicted"), rows=facts
    )
    return [summary, ledger_table(prediction.ledger)]


def memory_table(prediction: Prediction) -> Table:
    """GB by owner on one device of each pipeline stage, at its fullest moment."""
    stages = prediction.memory_by_stage
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
        notes=(f"A device has {prediction.memory_limit_bytes / 1e9:,.2f} GB.",),
    )


def validation_headline(result: Validation) -> str:
    errors = result.summary
    return (
        "Each run is predicted without data from its own source: step times are "
        f"{format_share(errors.mape)} off in the mean over {errors.n:,} measured runs; "
        f"{format_share(errors.in_range)} of the runs fell inside the predicted range."
    )


def validation_tables(result: Validation) -> list[Table]:
    reasons = Counter(result.skipped.values())
    first = {"all": result.summary, **{_SEEN[k]: v for k, v in result.by_evidence.items()}}
    scales = {
        f"{name} device{'s' if name != '1' else ''}": errors
        for name, errors in result.by_scale.items()
    }
    groups = (
        ("Predicted against measured step time", first | result.by_kind | scales),
        ("By device", result.by_device),
        ("By stack", result.by_stack),
        ("By source", result.by_source),
    )
    tables = [_errors_table(title, errors) for title, errors in groups]
    tables[0] = replace(tables[0], notes=(_COLUMNS_NOTE,))
    notes = (_skipped_note(reasons),) if reasons else ()
    return [*tables[:-1], replace(tables[-1], notes=notes)]


_COLUMNS_NOTE = (
    "n: runs. MAPE: mean error of the step's time, either way; median and p90: half and 90 % of the "
    "runs are off by no more. bias: mean error with its sign, minus is predicted too fast. inside: "
    "runs within the predicted range; width: its slow end over its fast end, the median."
)
_SEEN = {
    "together": "device and stack seen together",
    "apart": "both seen, apart",
    "one seen": "one of them seen",
    "none seen": "neither seen",
}


def _errors_table(title: str, groups: Mapping[str, ErrorSummary]) -> Table:
    right = "n,MAPE,median,bias,p90,inside,width"
    return Table(
        title=title,
        columns=columns(
            "runs", *right.split(","), right=right, wrap="runs", wide="median,p90,width"
        ),
        rows=tuple(_row(name, errors) for name, errors in groups.items()),
        strong=frozenset({0}) if "all" in groups else frozenset(),
    )


def _skipped_note(reasons: Mapping[str, int]) -> str:
    return f"Not predicted: {'; '.join(f'{n} ({why})' for why, n in reasons.items())}."


def _row(name: str, e: ErrorSummary) -> tuple[str, ...]:
    return (
        name,
        str(e.n),
        format_share(e.mape),
        format_share(e.median_ape),
        f"{100 * e.bias:+.1f} %",
        format_share(e.p90_ape),
        f"{100 * e.in_range:.0f} %",
        f"{e.width:.2f}",
    )


def _verdict(prediction: Prediction) -> str:
    return "fits tightly" if prediction.tight else "fits" if prediction.fits else "DOES NOT FIT"


def _elsewhere(prediction: Prediction) -> list[tuple[str, str]]:
    """Offloaded bytes of one device, beside the memory of its host."""
    host = max(stage.host_bytes for stage in prediction.memory_by_stage)
    disk = max(stage.disk_bytes for stage in prediction.memory_by_stage)
    limit = prediction.host_limit_bytes
    total = "" if limit is None else f" of {format_si(limit, 'B')}"
    parts = [f"{format_si(host, 'B')}{total} in the host's memory"] if host else []
    parts += [f"{format_si(disk, 'B')} on disk"] if disk else []
    return [("offloaded", ", ".join(parts))] if parts else []
