"""`ListeningCommand`: a command that serves until it is stopped, and says where once it listens."""

from __future__ import annotations

from typing import Any

import click

from computeflow.cli.command import AnswerCommand
from computeflow.cli.output import show


class ListeningCommand(AnswerCommand):
    """Says its address on stdout, and what it did on stderr; with `-o json` one object at the end."""

    def __init__(self, *arguments: Any, says: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._says = says

    def invoke(self, ctx: click.Context) -> int:
        options = self.options(ctx)
        output, quiet = options.pop("output", "table"), options.pop("quiet", False)

        def ready(address: str) -> None:
            click.echo(f"{self._says} {address}", err=output == "json")

        answer = self.library_function()(**options, ready=ready)
        if output == "json":
            show(answer, output)
        elif not quiet:
            click.echo(f"[computeflow] {answer.headline}", err=True)
        return answer.exit_code
