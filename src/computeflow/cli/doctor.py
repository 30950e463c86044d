"""Show what works on this machine, what is missing, and the command that installs it."""

from __future__ import annotations

from computeflow.cli.command import AnswerCommand

doctor = AnswerCommand("doctor", "installation:examine", [], help=__doc__ or "", html=False)
