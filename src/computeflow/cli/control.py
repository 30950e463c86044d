"""Decide on jobs in trouble, with prices, and act through Slurm as far as the mode allows.

advise prints what an operator would run, and needs no rights. ask waits for `computeflow actions
approve`. auto acts within the limits of --limits. Every decision is in the store's journal with its
evidence, prices and outcome: `computeflow actions list`.
"""

from __future__ import annotations

import click

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.output import show
from computeflow.cli.types import FILE, Number


class _Controlling(AnswerCommand):
    """Says what it decides as it goes; with `-o json` on stderr, and one object at the end."""

    def invoke(self, ctx: click.Context) -> int:
        options = self.options(ctx)
        output, quiet = options.pop("output", "table"), options.pop("quiet", False)

        def say(text: str) -> None:
            click.echo(text, err=output == "json")

        answer = self.library_function()(**options, say=say)
        if output == "json":
            show(answer, output)
        elif not quiet:
            click.echo(f"[computeflow] {answer.headline}", err=True)
        return answer.exit_code


control = _Controlling(
    "control",
    "controls:control",
    [
        option(
            "--store",
            type=FILE,
            required=True,
            metavar="DIR",
            help="Folder of `computeflow collect`; the journal is in it, too.",
        ),
        choice("--engine", ["slurm"], "slurm", "Scheduler that carries decisions out."),
        choice("--mode", ["advise", "ask", "auto"], "advise", "How far it acts by itself."),
        option(
            "--limits",
            type=FILE,
            metavar="FILE",
            help="TOML file with the limits of its actions; auto does not start without.",
        ),
        option(
            "--slurmrestd",
            metavar="URL",
            help="Address of slurmrestd (unix:/PATH or http://HOST:PORT) to read jobs and nodes from.",
        ),
        flag("--once", help="Stop when nothing is under way."),
        option("--seconds", type=Number(), metavar="N", help="Stop after so long."),
    ],
    help=__doc__ or "",
    html=False,
)
