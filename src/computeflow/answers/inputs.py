"""Arguments of library functions: files, catalogs, quantities with or without a unit, dates."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, overload

from computeflow.catalog import Catalog, load_catalog
from computeflow.errors import InputError
from computeflow.units import parse

File = str | PathLike[str]
NewFile = Annotated[File, "file"]
"""An output file: checked before the work starts, never one of the inputs."""
NewFolder = Annotated[File, "folder"]
CatalogFiles = Catalog | File | Sequence[File]
"""Files with the caller's own rows, which override packaged ones; or a loaded catalog."""
Quantity = float | str
"""A number in SI units, or a text with its unit: 2e12 or "2T", 3600 or "1h"."""


_MAX_QUANTITY = 1e24
"""Largest number of any quantity, so that products of several stay finite."""


def as_list(value: str | PathLike[str] | Sequence[Any]) -> tuple[Any, ...]:
    """A single name or path as a list of one."""
    return (value,) if isinstance(value, str | PathLike) else tuple(value)


def open_catalog(catalog: CatalogFiles) -> Catalog:
    if isinstance(catalog, Catalog):
        return catalog
    return load_catalog([Path(path) for path in as_list(catalog)])


@overload
def read_quantity(value: Quantity, quantity: str) -> float: ...


@overload
def read_quantity(value: Quantity | None, quantity: str) -> float | None: ...


def read_quantity(value: Quantity | None, quantity: str) -> float | None:
    if value is None:
        return None
    number = parse(value, quantity) if isinstance(value, str) else float(value)
    if not 0 <= number <= _MAX_QUANTITY:
        what = quantity.replace("_", " ")
        raise InputError(
            f"{number:g} is not a finite number of {what} between 0 and {_MAX_QUANTITY:g}"
        )
    return number


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are set."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value not in ((), [])
    }


def this_day(today: datetime.date | None = None) -> datetime.date:
    """The given day, else today."""
    return today or datetime.datetime.now(tz=datetime.UTC).date()
