"""Compare a few measured steps of a site with their predictions and keep their common factor.

ROWS has the columns of `computeflow validate --cases`. What is written goes to `--calibration` of
`predict` and `validate`.
"""

from __future__ import annotations

import click

from computeflow.cli.command import FORCE, AnswerCommand, option
from computeflow.cli.options import CATALOG
from computeflow.cli.types import FILE

calibrate = AnswerCommand(
    "calibrate",
    "calibrations:calibrate",
    [
        click.Argument(["rows"], type=FILE),
        option(
            "--to",
            type=FILE,
            metavar="FILE",
            help="Calibration file to write; by default it is only shown.",
        ),
        FORCE,
        option(
            "--calibration",
            type=FILE,
            metavar="FILE",
            help="Calibration from `computeflow probe`: used in the predictions and written along.",
        ),
        CATALOG,
    ],
    help=__doc__ or "",
    html=False,
)
