"""Predict a training step: time with its range, where it goes, memory, power."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computeflow.catalog import Catalog, load_catalog
from computeflow.cli.jobs import (
    asked,
    cluster_of,
    from_option,
    job_options,
    layout_options,
    place_options,
    title_of,
)  # fmt: skip
from computeflow.cli.output import (
    calibration_option,
    catalog_option,
    emit,
    html_option,
    output_option,
    write_report,
)  # fmt: skip
from computeflow.ledger import ledger_to_data
from computeflow.prediction import Prediction
from computeflow.prediction import predict as predict_step
from computeflow.views.predictions import prediction_tables
from computeflow.views.reviews import with_reading

if TYPE_CHECKING:
    from computeflow.planning.exports.model import Reading
    from computeflow.prediction.calibration import Calibration


@click.command(help=__doc__)
@click.argument("model", required=False)
@place_options
@job_options
@layout_options
@from_option
@click.option(
    "--stack",
    "stack_name",
    metavar="NAME",
    help="The software; left out: today's practice, with a wider range.",
)
@calibration_option
@catalog_option
@html_option
@output_option
def predict(
    model: str | None, source: Path | None, stack_name: str | None,
    calibration: Path | None, files: tuple[str, ...], html: Path | None, output: str, **options: Any,
) -> None:  # fmt: skip
    facts = load_catalog(files)
    cluster = cluster_of(options, facts)
    what = asked(model, source, stack_name, options, cluster, facts)
    assert what.layout is not None
    measured = _calibration(calibration, facts) if calibration else None
    found = predict_step(what.job, cluster, what.layout, what.stack, calibration=measured)
    summary, ledger = prediction_tables(found)
    data = prediction_data(found)
    if what.reading is not None:
        summary = with_reading(summary, what.reading)
        data |= reading_data(what.reading)
    if html is not None:
        from computeflow.views.figures import ledger_figure, memory_figure

        drawn = (ledger_figure(found.ledger), memory_figure(found))
        write_report(html, title_of(what.job, cluster), [summary, *drawn])
    emit(output, data, [summary, ledger])


def _calibration(path: Path, facts: Catalog) -> Calibration:
    from computeflow.prediction.calibration.file import load_calibration

    return load_calibration(path, facts)


def reading_data(reading: Reading) -> dict[str, Any]:
    """What became of a configuration file's keys."""
    return {
        "format": reading.format,
        "unknown": list(reading.unknown),
        "notes": list(reading.notes),
    }


def prediction_data(found: Prediction) -> dict[str, Any]:
    peak = found.ledger.peak
    assert peak is not None
    return {
        "schema": "computeflow.prediction/1",
        "step_seconds": found.step_seconds,
        "step_seconds_range": list(found.step_seconds_range),
        "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu,
        "mfu": found.ledger.mfu,
        "mfu_palm": found.ledger.mfu_palm,
        "peak_flops": peak.flops,
        "peak_precision": peak.precision,
        "memory": {
            "bytes": found.memory_bytes,
            "by_owner": found.memory_by_owner,
            "by_stage": [asdict(stage) for stage in found.memory_by_stage],
            "fits": found.fits,
        },
        "watts_per_gpu": found.watts_per_gpu,
        "tokens_per_joule": found.tokens_per_joule,
        "ledger": ledger_to_data(found.ledger),
        "layout": asdict(found.layout),
        "stack": found.stack.name,
        "assumed": list(found.assumed),
        "calibrated": list(found.calibrated),
    }
