"""Types of option values, the same in every command: 2T tokens, 30d, $2.49, 50TB, 1,024."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import click

from computeflow.errors import InputError
from computeflow.files.limits import LIST_ITEMS
from computeflow.files.names import shown
from computeflow.units import parse


class _Type(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases of click only
    """A type of option values."""


class Quantity(_Type):
    """A number with a unit, converted to SI."""

    def __init__(self, quantity: str, name: str, *, unit_needed: str = "") -> None:
        self.quantity, self.name, self.unit_needed = quantity, name, unit_needed

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if not isinstance(value, str):
            return float(value)
        if self.unit_needed and value.strip()[-1:].isdigit():
            self.fail(f"{shown(value)} needs a unit ({self.unit_needed})", param, ctx)
        try:
            return parse(value, self.quantity)
        except InputError as error:
            self.fail(str(error), param, ctx)


class Number(_Type):
    """A finite number within limits."""

    name = "number"

    def __init__(self, least: float = 0.0, most: float = 1e18) -> None:
        self.least, self.most = least, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not self.least <= number <= self.most:
            text = shown(str(value))
            self.fail(
                f"'{text}' must be a number between {self.least:g} and {self.most:g}", param, ctx
            )
        return number


class CountType(_Type):
    """A whole number, with or without commas between thousands."""

    name = "count"

    def __init__(self, least: int = 1, most: int = 1_000_000_000) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).replace(",", "").replace("_", "")
        if not text.removeprefix("-").isdecimal():
            self.fail(f"'{shown(str(value))}' is not a whole number", param, ctx)
        if len(text) > len(str(self.most)) or not self.least <= int(text) <= self.most:
            limits = f"between {self.least:,} and {self.most:,}"
            self.fail(f"{shown(str(value))} must be {limits}", param, ctx)
        return int(text)


class ListType(_Type):
    """Values of one type, comma-separated."""

    def __init__(self, kind: Any, name: str, form: str) -> None:
        self.kind, self.name, self.form = kind, name, form

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if not isinstance(value, str):
            return tuple(value)
        parts = list(filter(None, map(str.strip, value.split(","))))
        if not parts:
            self.fail(f"the list must not be empty ({self.form}, comma-separated)", param, ctx)
        if len(parts) > LIST_ITEMS:
            self.fail(f"{len(parts):,} values: must be at most {LIST_ITEMS:,}", param, ctx)
        try:
            return tuple(self.kind.convert(part, param, ctx) for part in parts)
        except click.BadParameter as error:
            self.fail(f"{error.message} ({self.form}, comma-separated)", param, ctx)


class Day(_Type):
    name = "date"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime.date:
        try:
            return value if isinstance(value, datetime.date) else datetime.date.fromisoformat(value)
        except ValueError:
            self.fail(f"{shown(value)} must be a date (2026-11-15)", param, ctx)


class Pair(_Type):
    """NAME=VALUE."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if not isinstance(value, str):
            return (value[0], value[1])
        name, equals, text = value.partition("=")
        if not equals:
            self.fail(f"'{shown(value)}': write NAME=VALUE", param, ctx)
        return name, text


class RangeType(_Type):
    """Two whole numbers, as FROM:TO."""

    name = "from:to"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if not isinstance(value, str):
            return (value[0], value[1])
        first, colon, last = value.partition(":")
        if not colon:
            self.fail(f"{shown(value)}: write FROM:TO (256:2048)", param, ctx)
        return COUNT.convert(first, param, ctx), COUNT.convert(last, param, ctx)


class FileName(click.Path):
    """The name of a file; an empty one, which would be the present folder, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty text names no file", param, ctx)
        return super().convert(value, param, ctx)


TOKENS = Quantity("tokens", "tokens")
DURATION = Quantity("seconds", "time", unit_needed="30d, 12h, 90s")
USD = Quantity("usd", "usd")
BYTES = Quantity("bytes", "bytes")
RATE = Quantity("bytes_per_second", "rate")
WATTS = Quantity("watts", "watts")
NUMBER = Number()
COUNT = CountType()
COUNTS = ListType(COUNT, "counts", "whole numbers")
AMOUNTS = ListType(CountType(0), "counts", "whole numbers")
NAMES = ListType(click.STRING, "names", "names")
DAY = Day()
PAIR = Pair()
SPAN = RangeType()
FILE = FileName(path_type=Path)
