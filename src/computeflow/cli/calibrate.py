"""Compare a few measured steps of a site with their predictions and keep their common factor.

ROWS has the columns of `computeflow validate --cases`. What is written goes to `--calibration` of
`predict` and `validate`.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.catalog.files import read_text
from computeflow.cli.output import catalog_option, emit, output_option
from computeflow.errors import InputError
from computeflow.prediction import load_parameters
from computeflow.prediction.calibration.calibrate import calibrate as calibrate_site
from computeflow.prediction.calibration.file import SCHEMA, plain_calibration, read_calibration
from computeflow.prediction.cases import read_cases
from computeflow.views.calibrations import site_table


@click.command(help=__doc__)
@click.argument("rows", type=click.Path(path_type=Path))
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The calibration to write. [default: only show it]",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The machine's, of `computeflow probe`: predict with it, and write it along.",
)
@catalog_option
@output_option
def calibrate(
    rows: Path, to: Path | None, calibration: Path | None, files: tuple[str, ...], output: str
) -> None:
    facts = load_catalog(files)
    cases, skipped = read_cases(read_text(rows), facts)
    measured, data = None, {"schema": SCHEMA}
    if calibration is not None:
        text = read_text(calibration)
        measured = read_calibration(text, str(calibration), facts)
        data = plain_calibration(text, str(calibration))
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    site = calibrate_site(cases, skipped, load_parameters(), measured, made_on=today)
    data = {**data, "site": codec.encode(site)}
    if to is not None:
        _write(to, codec.to_json(data))
    emit(output, data, [site_table(site)])


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
