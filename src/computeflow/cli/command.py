"""`AnswerCommand`: parse, call one library function, show its answer.

A command passes on what was typed and nothing else, so the defaults are those of the function; the
defaults that help texts show are held equal to them by a test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from computeflow.cli.output import Progress, show

if TYPE_CHECKING:
    from computeflow.answers import Answer


class AnswerCommand(click.Command):
    """`function` is "module:name" below `computeflow.answers`, imported when the command runs."""

    def __init__(
        self, name: str, function: str, params: Sequence[click.Parameter], *, help: str,
        renamed: Mapping[str, str] | None = None, html: bool = True, **settings: Any,
    ) -> None:  # fmt: skip
        shown = [HTML, QUIET, OUTPUT] if html else [QUIET, OUTPUT]
        super().__init__(name, params=[*params, *shown], help=help, **settings)
        self.function = function
        self.renamed = renamed or {}

    def library_function(self) -> Callable[..., Answer]:
        module, _, name = self.function.partition(":")
        function: Callable[..., Answer] = getattr(
            import_module(f"computeflow.answers.{module}"), name
        )
        return function

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [self._present_name(arg) for arg in args])

    def _present_name(self, word: str) -> str:
        option, equals, value = word.partition("=")
        if option not in self.renamed:
            return word
        click.echo(f"computeflow: {option} is now {self.renamed[option]}", err=True)
        return f"{self.renamed[option]}{equals}{value}"

    def options(self, ctx: click.Context) -> dict[str, Any]:
        """The parameters that somebody typed."""
        return {
            name: value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
        }

    def invoke(self, ctx: click.Context) -> int:
        options = self.options(ctx)
        output, html = options.pop("output", "table"), options.pop("html", None)
        function = self.library_function()
        with Progress(quiet=options.pop("quiet", False)) as progress:
            if "progress" in inspect.signature(function).parameters:
                options["progress"] = progress.say
            answer = function(**options)
        if html is not None:
            answer.save_html(html)
        if answer.speaks:
            show(answer, output)
        return answer.exit_code


def option(*names: str, **settings: Any) -> click.Option:
    """An option whose default, where it has one, stands in its help."""
    settings.setdefault("show_default", settings.get("default") is not None)
    return click.Option(names, **settings)


def flag(*names: str, help: str) -> click.Option:
    return click.Option(names, is_flag=True, help=help)


def choice(name: str, choices: Sequence[str], default: str | None, help: str) -> click.Option:
    return option(name, type=click.Choice(choices), default=default, help=help)


def _check_target(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Say before the work what would fail after it."""
    if path is not None:
        from computeflow.answers.files import check_target
        from computeflow.views.report import require_plotly

        require_plotly()
        check_target(path, "--html")
    return path


OUTPUT = option("-o", "--output", type=click.Choice(["table", "json"]), default="table",
                help="Tables for people, or one JSON object on stdout.")  # fmt: skip
HTML = option("--html", type=click.Path(path_type=Path), callback=_check_target, metavar="FILE",
              help="Write tables and figures as one HTML file, too.")  # fmt: skip
QUIET = flag("--quiet", help="Show no progress.")
