"""`calibrate`: a site's own factor, from a few of its measured steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, NewFile, open_catalog, this_day
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file
from computeflow.prediction import load_parameters
from computeflow.prediction.calibration.calibrate import calibrate as calibrate_site
from computeflow.prediction.calibration.file import SCHEMA, plain_calibration, read_calibration
from computeflow.prediction.calibration.site import SiteCalibration
from computeflow.prediction.published_runs import read_cases
from computeflow.views.calibrations import site_headline, site_table
from computeflow.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalibrateAnswer(Answer):
    site: SiteCalibration
    machine: dict[str, Any]
    """The machine's own calibration, written to the same file."""

    def _data(self) -> dict[str, Any]:
        return {**self.machine, "site": codec.encode(self.site)}

    @property
    def headline(self) -> str:
        return site_headline(self.site)

    def tables(self) -> list[Table]:
        return [site_table(self.site)]


@checked
def calibrate(
    rows: File,
    *,
    to: NewFile | None = None,
    force: bool = False,
    calibration: File | None = None,
    catalog: CatalogFiles = (),
) -> CalibrateAnswer:
    """Compare a few measured steps of a site with their predictions and keep their common factor.

    `rows` is a table like those of `validate`; `calibration` is the machine's, with which the steps
    are predicted. Both go to the file `to`.
    """
    facts = open_catalog(catalog)
    cases, skipped = read_cases(read_text(Path(rows)), facts, str(rows))
    measured, machine = None, {"schema": SCHEMA}
    if calibration is not None:
        text = read_text(Path(calibration))
        measured = read_calibration(text, str(calibration), facts)
        machine = plain_calibration(text, str(calibration))
    site = calibrate_site(
        cases, skipped, load_parameters(), measured, made_on=this_day().isoformat()
    )
    answer = CalibrateAnswer(site=site, machine=machine)
    if to is not None:
        write_file(to, codec.to_json(answer.to_dict()) + "\n", "--to", force=force)
    return answer
