"""Predict measured runs and say how far off the predictions are, source by source."""

from __future__ import annotations

from pathlib import Path

import click

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.catalog.files import read_text
from computeflow.cli.output import calibration_option, catalog_option, emit, output_option
from computeflow.prediction import load_parameters
from computeflow.prediction.calibration.file import load_calibration
from computeflow.prediction.cases import PACKAGED, Case, read_cases
from computeflow.prediction.validation import validate as validate_cases
from computeflow.views.predictions import validation_table


@click.command(help=__doc__)
@click.option(
    "--cases",
    "tables",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="CSV",
    help="Runs of your own, in the columns of the packaged table; may be repeated.",
)
@calibration_option
@catalog_option
@output_option
def validate(
    tables: tuple[Path, ...], calibration: Path | None, files: tuple[str, ...], output: str
) -> None:
    facts = load_catalog(files)
    cases: list[Case] = []
    skipped: dict[str, str] = {}
    for path in tables or (PACKAGED,):
        found, left_out = read_cases(read_text(path), facts)
        cases += found
        skipped |= left_out
    measured = load_calibration(calibration, facts) if calibration else None
    result = validate_cases(cases, skipped, load_parameters(), measured)
    data = codec.encode(result)
    data["skipped"] = [{"row_id": row, "reason": why} for row, why in result.skipped.items()]
    emit(output, {"schema": "computeflow.validation/1", **data}, [validation_table(result)])
