"""Predict measured runs and show how far off the predictions are, source by source."""

from __future__ import annotations

from computeflow.cli.command import FORCE, AnswerCommand, flag, option
from computeflow.cli.options import CALIBRATION, CATALOG
from computeflow.cli.types import FILE

validate = AnswerCommand(
    "validate",
    "validations:validate",
    [
        option(
            "--cases",
            multiple=True,
            type=FILE,
            metavar="CSV",
            help="CSV of your own runs with the columns of the packaged table; may be repeated.",
        ),
        flag("--runs", help="Simulate whole published runs instead of predicting steps."),
        option(
            "--page",
            type=FILE,
            metavar="FILE",
            help="With --runs: also write the result to this Markdown file.",
        ),
        FORCE,
        CALIBRATION,
        CATALOG,
    ],
    help=__doc__ or "",
    html=False,
)
