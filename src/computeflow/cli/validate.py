"""Predict measured runs and say how far off the predictions are, source by source."""

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
            help="Runs of your own, in the columns of the packaged table; may be repeated.",
        ),
        flag("--runs", help="Whole published runs in place of steps, simulated."),
        option(
            "--page",
            type=FILE,
            metavar="FILE",
            help="With --runs: write the result as a page of Markdown, too.",
        ),
        FORCE,
        CALIBRATION,
        CATALOG,
    ],
    help=__doc__ or "",
    html=False,
)
