"""Values that callers give: files, catalogs, quantities with or without a unit, the day."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

from computeflow.catalog import Catalog, load_catalog
from computeflow.units import parse

File = str | PathLike[str]
CatalogFiles = Catalog | Sequence[File]
"""Rows of the caller's own over the packaged ones, or a catalog that is loaded already."""
Quantity = float | str
"""A number in SI units, or a text with its unit: 2e12 or "2T", 3600 or "1h"."""


def open_catalog(catalog: CatalogFiles) -> Catalog:
    return catalog if isinstance(catalog, Catalog) else load_catalog([Path(p) for p in catalog])


@overload
def read_quantity(value: Quantity, quantity: str) -> float: ...


@overload
def read_quantity(value: Quantity | None, quantity: str) -> float | None: ...


def read_quantity(value: Quantity | None, quantity: str) -> float | None:
    if isinstance(value, str):
        return parse(value, quantity)
    return None if value is None else float(value)


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that ask for something."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != ()
    }


def this_day(today: datetime.date | None = None) -> datetime.date:
    """The day that was given, else the present one."""
    return today or datetime.datetime.now(tz=datetime.UTC).date()
