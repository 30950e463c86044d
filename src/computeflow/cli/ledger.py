"""`computeflow ledger`: a ledger file as a table; a second one beside it, line by line."""

from __future__ import annotations

from pathlib import Path

import click

from computeflow import codec
from computeflow.catalog.loading import read_text
from computeflow.cli.output import emit, output_option
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
    data = ledger_to_data(shown)
    tables = [ledger_table(shown)]
    if expect is not None:
        lines = gaps(shown, read_ledger(expect), work_ratio=work_ratio)
        data["gaps"] = [
            {"accounts": line.accounts, "measured": line.measured, "expected": line.expected}
            for line in lines
        ]
        tables.append(gap_table(lines))
    emit(output, data, tables)


def read_ledger(path: Path) -> Ledger:
    return ledger_from_data(codec.from_json(read_text(path), str(path)), str(path))
