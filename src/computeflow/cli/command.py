"""`AnswerCommand`: parse, call one library function, show its answer.

A command passes on what was typed and nothing else, so the function's defaults hold; a test keeps the
defaults in help texts equal to them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from computeflow.answers.renames import KEYWORDS
from computeflow.cli.output import Progress, show
from computeflow.cli.streams import note_new_name

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
        html: bool = True,
        **settings: Any,
    ) -> None:
        common = [HTML, FORCE, QUIET, OUTPUT] if html else [QUIET, OUTPUT]
        super().__init__(name, params=[*params, *common], help=help, **settings)
        self.function = function
        self.renamed = {
            _option(old): _option(new)
            for old, new in KEYWORDS.get(function.partition(":")[2], {}).items()
        }

    def library_function(self) -> Callable[..., Answer]:
        module, _, name = self.function.partition(":")
        function: Callable[..., Answer] = getattr(
            import_module(f"computeflow.answers.{module}"), name
        )
        return function

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [self._rename(arg) for arg in args])

    def _rename(self, word: str) -> str:
        option, equals, value = word.partition("=")
        if option not in self.renamed:
            return word
        note_new_name(option, self.renamed[option])
        return f"{self.renamed[option]}{equals}{value}"

    def options(self, ctx: click.Context) -> dict[str, Any]:
        """Return the parameters that were typed."""
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
        if answer.prints:
            show(answer, output)
            if html is not None:  # after the answer, so that it is not lost if this fails
                answer.save_html(html, force=force)
        return answer.exit_code


def option(*names: str, **settings: Any) -> click.Option:
    """An option with its default, if it has one, in its help."""
    settings.setdefault("show_default", settings.get("default") is not None)
    return click.Option(names, **settings)


def flag(*names: str, help: str) -> click.Option:
    return click.Option(names, is_flag=True, help=help)


def choice(
    name: str,
    choices: Sequence[str],
    default: str | None,
    help: str,
    renamed: Mapping[str, str] | None = None,
) -> click.Option:
    return option(name, type=_Choice(choices, renamed or {}), default=default, help=help)


class _Choice(click.Choice):  # type: ignore[type-arg]  # generic in newer releases of click only
    """A choice that still takes the old names of its values."""

    def __init__(self, choices: Sequence[str], renamed: Mapping[str, str]) -> None:
        super().__init__(choices)
        self.renamed = renamed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.renamed:
            name = param.opts[0] if param else ""
            note_new_name(f"{name} {value}", f"{name} {self.renamed[value]}")
            value = self.renamed[value]
        return super().convert(value, param, ctx)


def _option(keyword: str) -> str:
    return f"--{keyword.replace('_', '-')}"


def _check_report(path: str, options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Refuse before the work a report that could not be written after it."""
    from computeflow.answers.checking import outputs
    from computeflow.files.writing import check_apart, check_target, inputs_kept, named_files
    from computeflow.views.html_report import require_plotly

    require_plotly()
    others = [(options[name], _option(name)) for name in outputs(function) if options.get(name)]
    check_apart([*others, (path, "--html")])
    with inputs_kept(named_files(options.values())):
        check_target(path, "--html")


OUTPUT = option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="Format of the answer: tables, or one JSON object on stdout.",
)
HTML = option("--html", metavar="FILE", help="Also write tables and figures to this HTML file.")
FORCE = flag("--force", help="Overwrite existing output files; never inputs.")
QUIET = flag("--quiet", help="Do not show progress.")
