"""Values of records that anybody may have written: whole numbers, texts and lists, or nothing."""

from __future__ import annotations

import math
from typing import Any

from computeflow.files.limits import NAME_CHARACTERS
from computeflow.files.names import printable

MAX_MICROSECONDS = 10**15
"""Thirty years: a larger time is damage."""


def whole(value: Any, low: int = 0, high: int = MAX_MICROSECONDS) -> int | None:
    """A number between two bounds, rounded; None for anything else."""
    kind = type(value)
    if kind is not int and (kind is not float or not math.isfinite(value)):
        return None
    return round(value) if low <= value <= high else None


def real(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if type(value) not in (int, float) or not abs(value) < 1e300:
        return None
    return float(value)


def text(value: Any, most: int = NAME_CHARACTERS) -> str:
    return printable(value[:most]) if isinstance(value, str) else ""


def texts(value: Any, most: int = 32) -> dict[str, str]:
    """A table of short texts; a list has its items as keys."""
    if isinstance(value, list):
        return {text(item): "" for item in value[:most] if text(item)}
    if isinstance(value, str):
        return {text(value): ""} if value else {}
    if not isinstance(value, dict):
        return {}
    return {text(key): text(str(item)) for key, item in list(value.items())[:most]}


def numbers(value: Any, low: int = 0, high: int = MAX_MICROSECONDS) -> list[int] | None:
    """A list of whole numbers; None where one of them is none."""
    if not isinstance(value, list):
        return None
    kept = [whole(item, low, high) for item in value]
    return None if None in kept else [item for item in kept if item is not None]
