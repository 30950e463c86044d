"""How an answer leaves the program: one JSON object, or tables (rich on a terminal), or a report."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from computeflow import codec
from computeflow.errors import InputError
from computeflow.views.tables import WIDTH, Table, to_rich, to_text

if TYPE_CHECKING:
    from computeflow.answers import Answer
    from computeflow.views.report import Part

F = TypeVar("F", bound=Callable[..., Any])
_QUIET_SECONDS = 2.0


def output_option(function: F) -> F:
    return click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True,
        help="Tables for people, or one JSON object on stdout.",
    )(function)  # fmt: skip


def catalog_option(function: F) -> F:
    return click.option(
        "--catalog", "files", multiple=True, type=click.Path(dir_okay=False), metavar="FILE",
        help="Rows of your own (TOML or CSV) over ours; may be repeated.",
    )(function)  # fmt: skip


def calibration_option(function: F) -> F:
    return click.option(
        "--calibration", type=click.Path(path_type=Path), metavar="FILE",
        help="Measured figures in place of generic ones: of `probe --calibration`, `calibrate --to`.",
    )(function)  # fmt: skip


def html_option(function: F) -> F:
    return click.option(
        "--html", type=click.Path(path_type=Path), callback=_checked, metavar="FILE",
        help="Write tables and figures as one HTML file, too.",
    )(function)  # fmt: skip


def _checked(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """What can be told before the work is told before it."""
    if path is not None:
        from computeflow.views.report import require_plotly

        require_plotly()
        if path.is_dir() or not path.parent.is_dir():
            what = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise InputError(f"--html {path}: {what}")
    return path


def write_report(path: Path, title: str, parts: Sequence[Part]) -> None:
    from computeflow.views.report import report_html

    try:
        path.write_text(report_html(title, parts), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--html {path}: {error.strerror or error}") from None


class Progress:
    """One line on stderr, once a thing takes longer than two seconds and somebody watches."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._began = time.monotonic()
        self._quiet = quiet
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def say(self, text: str) -> None:
        if self._quiet or not sys.stderr.isatty():
            return
        if time.monotonic() - self._began > _QUIET_SECONDS:
            self._shown = True
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def show(answer: Answer, output: str) -> None:
    """Print the answer as JSON or as tables, whichever was asked for.

    A reader that has gone (`| head`) is no failure, and what follows, the exit code among it, holds.
    """
    try:
        if output == "json":
            print(codec.to_json(answer.to_dict()))
        elif sys.stdout is not None and sys.stdout.isatty():
            _emit_rich(answer.tables())
        else:
            print("\n\n".join(to_text(table, _width()) for table in answer.tables()))
    except BrokenPipeError:
        silence_stdout()


def emit(output: str, data: dict[str, Any], tables: Iterable[Table]) -> None:
    """Print `data` (which carries its `schema`) or the tables, whichever was asked for.

    A reader that has gone (`| head`) is no failure, and what follows, the exit code among it, holds.
    """
    try:
        if output == "json":
            print(codec.to_json(data))
        elif sys.stdout is not None and sys.stdout.isatty():
            _emit_rich(tables)
        else:
            print("\n\n".join(to_text(table, _width()) for table in tables))
    except BrokenPipeError:
        silence_stdout()


def silence_stdout() -> None:
    """What is still buffered for a reader that cannot take it goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _emit_rich(tables: Iterable[Table]) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=_width())
    for table in tables:
        console.print(to_rich(table, _width()), soft_wrap=False)
        console.print()


def _width() -> int:
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, 20)
