"""Predict a training step: time with its range, where the time goes, memory and power."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand, option
from computeflow.cli.job_options import CLUSTER, FROM, JOB, LAYOUT
from computeflow.cli.options import CALIBRATION, CATALOG, MODEL, STACK
from computeflow.cli.types import NUMBER

MEASURED = option(
    "--measured",
    type=NUMBER,
    metavar="SECONDS",
    help="A step of this very job as measured: corrects the prediction and narrows its range.",
)
predict = AnswerCommand(
    "predict",
    "predictions:predict",
    [MODEL, *CLUSTER, *JOB, *LAYOUT, *FROM, STACK, CALIBRATION, MEASURED, CATALOG],
    help=__doc__ or "",
)
