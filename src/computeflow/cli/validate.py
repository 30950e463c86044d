"""Predict measured runs and say how far off the predictions are, source by source."""

from __future__ import annotations

from pathlib import Path

import click

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.catalog.files import read_text
from computeflow.cli.output import calibration_option, catalog_option, emit, output_option
from computeflow.errors import InputError
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
@click.option("--runs", is_flag=True, help="Whole published runs in place of steps, simulated.")
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --runs: write the result as a page of Markdown, too.",
)
@calibration_option
@catalog_option
@output_option
def validate(
    tables: tuple[Path, ...], runs: bool, page: Path | None, calibration: Path | None,
    files: tuple[str, ...], output: str,
) -> None:  # fmt: skip
    if runs:
        if tables or calibration:
            raise InputError("--runs goes with neither --cases nor --calibration")
        _validate_runs(page, output)
        return
    if page is not None:
        raise InputError("--page goes with --runs")
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


def _validate_runs(page: Path | None, output: str) -> None:
    from computeflow.cli.simulate import write_page
    from computeflow.simulation.published import validate_runs
    from computeflow.simulation.traces import SOURCE, predict_second_half
    from computeflow.views.run_pages import runs_page, runs_table, trace_table

    found, trace = validate_runs(), predict_second_half()
    if page is not None:
        write_page(page, runs_page(found, trace, SOURCE))
    data = {"runs": [codec.encode(one) for one in found],
            "trace": [codec.encode(one) | {"agrees": one.agrees} for one in trace],
            "trace_source": SOURCE}  # fmt: skip
    emit(output, {"schema": "computeflow.run-validation/1", **data},
         [runs_table(found), trace_table(trace, SOURCE)])  # fmt: skip
