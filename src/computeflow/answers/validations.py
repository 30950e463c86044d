"""`validate`: how far predictions are from measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, NewFile, open_catalog
from computeflow.answers.requests import read_calibration
from computeflow.errors import InputError
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file
from computeflow.prediction import load_parameters
from computeflow.prediction.published_runs import TABLES, MeasuredRun, read_cases
from computeflow.prediction.validation import Validation
from computeflow.prediction.validation import validate as validate_cases
from computeflow.simulation.fault_trace import SOURCE, SecondHalfCheck, predict_second_half
from computeflow.simulation.run_validation import RunCheck, validate_runs
from computeflow.views.predictions import validation_headline, validation_tables
from computeflow.views.run_pages import runs_headline, runs_page, runs_table, trace_table
from computeflow.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ValidateAnswer(Answer):
    """Predicted steps against measured ones."""

    validation: Validation

    def _data(self) -> dict[str, Any]:
        left_out = self.validation.skipped
        skipped = [{"row_id": row, "reason": reason} for row, reason in left_out.items()]
        data = codec.encode(self.validation) | {"skipped": skipped}
        return {"schema": "computeflow.validation/1", **data}

    @property
    def headline(self) -> str:
        return validation_headline(self.validation)

    def tables(self) -> list[Table]:
        return validation_tables(self.validation)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ValidateRunsAnswer(Answer):
    """Whole published runs, and a trace of failures predicted from its first half."""

    runs: list[RunCheck]
    trace: list[SecondHalfCheck]

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.run-validation/1",
            "runs": [codec.encode(run) for run in self.runs],
            "trace": [codec.encode(row) | {"agrees": row.agrees} for row in self.trace],
            "trace_source": SOURCE,
        }

    @property
    def headline(self) -> str:
        return runs_headline(self.runs, self.trace)

    def tables(self) -> list[Table]:
        return [runs_table(self.runs), trace_table(self.trace, SOURCE)]


@checked
def validate(
    *,
    cases: Sequence[File] = (),
    runs: bool = False,
    page: NewFile | None = None,
    force: bool = False,
    calibration: File | None = None,
    catalog: CatalogFiles = (),
) -> ValidateAnswer | ValidateRunsAnswer:
    """Predict measured runs and report the errors of the predictions, source by source.

    `cases` are tables of steps in place of the packaged one; with `runs` whole published runs are
    simulated instead, and also written to `page` as Markdown.
    """
    if runs:
        if cases or calibration or catalog:
            raise InputError("--runs cannot be combined with --cases, --calibration or --catalog")
        return _validate_runs(page, force=force)
    if page is not None:
        raise InputError("--page needs --runs")
    facts = open_catalog(catalog)
    measured = read_calibration(calibration, facts)
    steps: list[MeasuredRun] = []
    skipped: dict[str, str] = {}
    for path in cases or TABLES:
        some, left_out = read_cases(read_text(Path(path)), facts, str(path))
        steps += some
        skipped |= left_out
    if not cases:
        doubtful = [case.row_id for case in steps if not case.clear]
        skipped |= dict.fromkeys(doubtful, "doubtful: a chart was read, or a setting is not known")
        steps = [case for case in steps if case.clear]
    return ValidateAnswer(validation=validate_cases(steps, skipped, load_parameters(), measured))


def _validate_runs(page: File | None, *, force: bool) -> ValidateRunsAnswer:
    answer = ValidateRunsAnswer(runs=validate_runs(), trace=predict_second_half())
    if page is not None:
        text = runs_page(answer.runs, answer.trace, SOURCE)
        write_file(page, text, "--page", force=force)
    return answer
