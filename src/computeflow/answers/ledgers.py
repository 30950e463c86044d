"""`ledger`: a ledger file, or two compared line by line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.inputs import File
from computeflow.errors import InputError
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.ledger import Gap, Ledger, gaps, ledger_from_data, ledger_to_data
from computeflow.views.ledgers import gap_table, ledger_headline, ledger_table
from computeflow.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LedgerAnswer(Answer):
    ledger: Ledger
    expected: Ledger | None = None
    lines: tuple[Gap, ...] = ()
    at: str = ""
    """What is equal in the comparison, in words."""

    def _data(self) -> dict[str, Any]:
        if self.expected is None:
            return ledger_to_data(self.ledger)
        return {
            "schema": "computeflow.comparison/1",
            "measured": ledger_to_data(self.ledger),
            "expected": ledger_to_data(self.expected),
            "gaps": [codec.encode(line) for line in self.lines],
        }

    @property
    def headline(self) -> str:
        return ledger_headline(self.ledger, self.lines)

    def tables(self) -> list[Table]:
        shown, on_host = [ledger_table(self.ledger)], self.ledger.on_host
        return (
            shown
            if self.expected is None
            else [*shown, gap_table(self.lines, self.at, on_host=on_host)]
        )


def show_ledger(
    file: File, *, expect: File | None = None, work_ratio: float | None = None
) -> LedgerAnswer:
    """Read a ledger file, and compare it with another where one is given."""
    ledger = _read_ledger(Path(file))
    if expect is None:
        if work_ratio is not None:
            raise InputError("--work-ratio needs --expect")
        return LedgerAnswer(ledger=ledger)
    expected = _read_ledger(Path(expect))
    return LedgerAnswer(
        ledger=ledger,
        expected=expected,
        lines=tuple(gaps(ledger, expected, work_ratio=work_ratio)),
        at="equal model FLOPs" if work_ratio is None else f"a work ratio of {work_ratio:g}",
    )


def _read_ledger(path: Path) -> Ledger:
    return ledger_from_data(parse_json(read_text(path), str(path)), str(path))
