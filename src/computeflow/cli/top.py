"""Show what goes on right now: runs, where their time goes, slowest ranks, findings by cost.

On a terminal it is a view that is drawn again every second; j and k select, Enter opens a finding with
its evidence and remedy, ? lists the keys. Elsewhere, and with --once, it is printed once.
"""

from __future__ import annotations

import sys

import click

from computeflow.cli.command import AnswerCommand, choice, flag, option
from computeflow.cli.types import FILE


class _Watching(AnswerCommand):
    """A view on a terminal; one answer where nobody sits in front."""

    def invoke(self, ctx: click.Context) -> int:
        options = self.options(ctx)
        typed = {"once", "html", "output"} & options.keys()
        if typed or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return super().invoke(ctx)
        from computeflow.cli.live_view import watch

        options.pop("quiet", None)
        options.pop("force", None)
        return watch(self.library_function(), options)


top = _Watching(
    "top",
    "live_tops:top",
    [
        option("--store", type=FILE, metavar="DIR", help="Folder of `computeflow collect`."),
        option(
            "--collector",
            metavar="URL",
            help="Address of a collector; COMPUTEFLOW_TOKEN holds its token.",
        ),
        flag("--once", help="Print tables once instead of the view."),
        choice("--sort", ["cost", "age", "run"], "cost", "Order of findings."),
    ],
    help=__doc__ or "",
)
