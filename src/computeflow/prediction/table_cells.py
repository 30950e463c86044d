"""Cells of a table of runs as numbers; what is no number is an error that names the column."""

from __future__ import annotations

import math
from collections.abc import Mapping

from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.workload.job import MAX_SIZE

Row = Mapping[str, str]


def number(row: Row, name: str, default: float | None = None) -> float:
    """A cell above zero; an empty one is the default."""
    text = row.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name} = '{shown(text, 40)}' is not a number") from None
    if not 0 < value < math.inf:
        raise InputError(f"{name} = {shown(text, 40)}: must be above zero and finite")
    return value


def whole(row: Row, name: str, default: int = 1) -> int:
    value = number(row, name, default)
    if value != int(value) or value > MAX_SIZE:
        raise InputError(f"{name} = {value:g}: not a whole number up to {MAX_SIZE:,}")
    return int(value)


def words(row: Row, *names: str) -> str:
    """Cells of text in small letters, one after the other."""
    return "; ".join((row.get(name) or "")[:MAX_CHARACTERS].lower() for name in names)


MAX_CHARACTERS = 2000
"""Characters of a cell that are searched for words."""
