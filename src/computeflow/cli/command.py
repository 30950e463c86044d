"""`AnswerCommand`: parse, call one library function, show its answer.

A command passes on what was typed and nothing else, so the defaults are those of the function; the
defaults that help texts show are held equal to them by a test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from computeflow.cli.output import Progress, show

if TYPE_CHECKING:
    from computeflow.answers import Answer


class AnswerCommand(click.Command):
    """`function` is "module:name" below `computeflow.answers`, imported when the command runs."""

    def __init__(
        self,
        name: str,
        function: str,
        params: Sequence[click.Parameter],
        *,
        help: str,
        renamed: Mapping[str, str] | None = None,
        html: bool = True,
        **settings: Any,
    ) -> None:
        shown = [HTML, FORCE, QUIET, OUTPUT] if html else [QUIET, OUTPUT]
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
        quiet, force = options.pop("quiet", False), options.pop("force", False)
        function = self.library_function()
        known = inspect.signature(function).parameters
        if force and "force" in known:
            options["force"] = force
        if html is not None:
            _check_report(html, options, function)
        with Progress(quiet=quiet) as progress:
            if "progress" in known:
                options["progress"] = progress.say
            answer = function(**options)
        if answer.speaks:
            show(answer, output)
            if html is not None:  # after the answer, which is not lost where this fails
                answer.save_html(html, force=force)
        return answer.exit_code


def option(*names: str, **settings: Any) -> click.Option:
    """An option whose default, where it has one, stands in its help."""
    settings.setdefault("show_default", settings.get("default") is not None)
    return click.Option(names, **settings)


def flag(*names: str, help: str) -> click.Option:
    return click.Option(names, is_flag=True, help=help)


def choice(name: str, choices: Sequence[str], default: str | None, help: str) -> click.Option:
    return option(name, type=click.Choice(choices), default=default, help=help)


def _check_report(path: str, options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Say before the work what would fail after it."""
    from computeflow.answers.checking import outputs
    from computeflow.files.writing import check_apart, check_target, inputs_kept, named_files
    from computeflow.views.report import require_plotly

    require_plotly()
    others = [(options[name], f"--{name}") for name in outputs(function) if options.get(name)]
    check_apart([*others, (path, "--html")])
    with inputs_kept(named_files(options.values())):
        check_target(path, "--html")


OUTPUT = option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="Tables for people, or one JSON object on stdout.",
)
HTML = option("--html", metavar="FILE", help="Write tables and figures as one HTML file, too.")
FORCE = flag(
    "--force", help="Write over files that are there with other content; never over inputs."
)
QUIET = flag("--quiet", help="Show no progress.")
