"""Show a ledger file as a table, or two of them line by line."""

from __future__ import annotations

from pathlib import Path

import click

from computeflow import codec
from computeflow.catalog.loading import read_text
from computeflow.cli.output import emit, output_option
from computeflow.errors import InputError
from computeflow.ledger import Ledger, gaps, ledger_from_data, ledger_to_data
from computeflow.views.ledgers import gap_table, ledger_table


@click.command(help=__doc__)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--expect", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The ledger to compare with, at equal model FLOPs.",
)  # fmt: skip
@click.option(
    "--work-ratio", type=float, metavar="R",
    help="Work in FILE over work in the expected one, where model FLOPs are unknown.",
)  # fmt: skip
@output_option
def ledger(file: Path, expect: Path | None, work_ratio: float | None, output: str) -> None:
    shown = read_ledger(file)
    if expect is None:
        if work_ratio is not None:
            raise InputError("--work-ratio goes with --expect")
        emit(output, ledger_to_data(shown), [ledger_table(shown)])
        return
    expected = read_ledger(expect)
    lines = gaps(shown, expected, work_ratio=work_ratio)
    data = {
        "schema": "computeflow.comparison/1",
        "measured": ledger_to_data(shown),
        "expected": ledger_to_data(expected),
        "gaps": [codec.encode(line) for line in lines],
    }
    at = "equal model FLOPs" if work_ratio is None else f"a work ratio of {work_ratio:g}"
    emit(output, data, [ledger_table(shown), gap_table(lines, at)])


def read_ledger(path: Path) -> Ledger:
    return ledger_from_data(codec.from_json(read_text(path), str(path)), str(path))
