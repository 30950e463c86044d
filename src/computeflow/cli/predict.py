"""Predict a training step: time with its range, where the time goes, memory and power."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand
from computeflow.cli.job_options import CLUSTER, FROM, JOB, LAYOUT
from computeflow.cli.options import CALIBRATION, CATALOG, MODEL, STACK

predict = AnswerCommand(
    "predict",
    "predictions:predict",
    [MODEL, *CLUSTER, *JOB, *LAYOUT, *FROM, STACK, CALIBRATION, CATALOG],
    help=__doc__ or "",
)
