"""Print files for your monitoring: a Grafana dashboard, alert rules, a Prometheus configuration.

They are over the metrics that `computeflow collect` serves under /metrics. Without --to the file is
printed, so that it can go through a pipe.
"""

from __future__ import annotations

import sys
from typing import get_args

import click

from computeflow.cli.command import FORCE, AnswerCommand, option
from computeflow.cli.output import show
from computeflow.cli.types import FILE
from computeflow.collection.outputs.monitoring_files import MonitoringFile


class _Printing(AnswerCommand):
    """Prints the file itself, unless it was written or JSON was asked for."""

    def invoke(self, ctx: click.Context) -> int:
        options = self.options(ctx)
        output, quiet = options.pop("output", "table"), options.pop("quiet", False)
        answer = self.library_function()(**options)
        if output == "json":
            show(answer, output)
        elif "to" not in options:
            sys.stdout.write(answer.to_dict()["text"])
        elif not quiet:
            click.echo(f"[computeflow] {answer.headline}", err=True)
        return answer.exit_code


export = _Printing(
    "export",
    "exports:export",
    [
        click.Argument(["what"], type=click.Choice(get_args(MonitoringFile))),
        option("--to", type=FILE, metavar="FILE", help="Write to this file instead of printing."),
        option(
            "--collector",
            multiple=True,
            metavar="HOST:PORT",
            help="For prometheus: a collector to scrape (127.0.0.1:8471); may be repeated.",
        ),
        option(
            "--remote-write",
            metavar="URL",
            help="For prometheus: also write to this server, as to VictoriaMetrics or Mimir.",
        ),
        FORCE,
    ],
    help=__doc__ or "",
    html=False,
)
