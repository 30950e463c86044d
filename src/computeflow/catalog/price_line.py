"""A line of a price list as written, and how its numbers are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from computeflow import units
from computeflow.errors import InputError

Term = Literal["on-demand", "spot", "reserved"]

_GROUPED = re.compile(r"\D*\d{1,3}(,\d{3})+(?![,\d])(\.\d*)?[^\d,.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLine:
    provider: str
    instance: str
    device: str
    count: str
    prices: tuple[tuple[Term, str], ...]
    per_device: bool = False
    region: str = ""
    commitment: str = ""
    upstream: str = ""
    """The type's name at the cloud that a reseller sells on."""
    info: str = ""
    """SkyPilot's GpuInfo."""
    as_of: str
    source: str
    note: str = ""
    problem: str = ""
    """Why the line cannot be used, if the reader already saw it."""


def says_price(text: str) -> bool:
    """An empty cell, a dash or a zero says that there is no price."""
    return bool(text.strip("$ 0.-")) and text.strip().casefold() not in ("n/a", "na", "none")


def read_usd(text: str) -> float:
    if text.strip().lstrip("$ ").startswith("-"):
        raise InputError("price below zero")
    if "," in text and not _GROUPED.fullmatch(text):
        raise InputError("price not a number in US dollars")
    try:
        return units.parse(text, "usd_per_hour")
    except InputError:
        raise InputError("price not a number in US dollars") from None


def read_count(text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        raise InputError("device count not a number") from None
    if not 1 <= number <= 1e5 or number != int(number):
        raise InputError("device count not a whole number of devices")
    return int(number)


def clean(text: str) -> str:
    return " ".join(text.split())
