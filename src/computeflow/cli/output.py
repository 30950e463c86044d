"""How an answer leaves the program: one JSON object, or tables (rich on a terminal)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from computeflow import codec
from computeflow.views.tables import WIDTH, Table, to_rich, to_text

F = TypeVar("F", bound=Callable[..., Any])


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


def emit(output: str, data: dict[str, Any], tables: Iterable[Table]) -> None:
    """Print `data` (which carries its `schema`) or the tables, whichever was asked for."""
    if output == "json":
        print(codec.to_json(data))
    elif sys.stdout is not None and sys.stdout.isatty():
        _emit_rich(tables)
    else:
        print("\n\n".join(to_text(table, _width()) for table in tables))


def _emit_rich(tables: Iterable[Table]) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=_width())
    for table in tables:
        console.print(to_rich(table, _width()), soft_wrap=False)
        console.print()


def _width() -> int:
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, 20)
