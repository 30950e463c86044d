"""Run a training command and record every step of every rank.

The command needs no change: its Python processes get the recorder from their environment. Its output
and its exit code are its own.
"""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, flag, option
from computeflow.cli.output import show
from computeflow.cli.types import DURATION, FILE, CountType, Number


class _Recording(AnswerCommand):
    """Says on stderr what was recorded: stdout is the command's."""

    def invoke(self, ctx: click.Context) -> int:
        options = self.options(ctx)
        output, quiet = options.pop("output", "table"), options.pop("quiet", False)
        answer = self.library_function()(**options)
        if output == "json" or "attach" in options:
            show(answer, output)
        elif not quiet:
            click.echo(f"[computeflow] {answer.headline}", err=True)
        return answer.exit_code


record = _Recording(
    "record",
    "records:record",
    [
        click.Argument(["command"], nargs=-1, type=click.UNPROCESSED),
        option(
            "--out",
            type=FILE,
            metavar="DIR",
            help="Run folder; by default a new one in the user's state.",
        ),
        option("--name", metavar="NAME", help="Name of the run; by default the command's."),
        option(
            "--expect",
            type=FILE,
            metavar="FILE",
            help="Plan of this run (`plan -o json`, `predict -o json`): longer steps are a finding.",
        ),
        option(
            "--kineto",
            type=DURATION,
            metavar="TIME",
            help="Open a profiler window on all ranks this often (30min).",
        ),
        option(
            "--attach",
            type=CountType(0),
            metavar="PID",
            help="Look at a process that runs already, by samples (py-spy) and /proc.",
        ),
        option(
            "--seconds", type=Number(), metavar="N", help="How long --attach looks; 10 by default."
        ),
        option(
            "--total-steps",
            type=CountType(1),
            metavar="N",
            help="Steps that the run is to do, for `control`.",
        ),
        option(
            "--checkpoints",
            type=FILE,
            metavar="DIR",
            help="Folder that the run saves checkpoints to, for `control`.",
        ),
        flag("--no-seal", help="Write no Parquet tables beside the files of the ranks at the end."),
    ],
    help=__doc__ or "",
    html=False,
    context_settings={"allow_interspersed_args": False},
)
