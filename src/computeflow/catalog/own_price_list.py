"""A user's own price list: a CSV whose headers say what the columns are.

Case, spaces and dashes in headers do not matter, other columns are ignored. Currency is US dollars:
"$98.32" and "1,234.5" are read, other signs are not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from computeflow.catalog.config import short
from computeflow.catalog.price_line import PriceLine, Term, clean, read_count, read_usd, says_price
from computeflow.errors import InputError

HEADERS = {
    "accelerator": ("accelerator", "gpu", "gpu_type", "gpu_model", "device"),
    "count": ("count", "gpus", "gpu_count", "num_gpus", "devices"),
    "price": ("usd_per_hour", "price", "price_per_hour", "hourly_price", "price_hr"),
    "device_price": (
        "usd_per_device_hour", "price_per_gpu_hour", "usd_per_gpu_hour", "price_per_gpu",
    ),
    "spot": ("spot", "spot_price", "spot_hr"),
    "provider": ("provider", "cloud", "vendor"),
    "instance": ("instance", "instance_type", "type", "sku", "machine_type", "flavor"),
    "region": ("region", "location"),
    "term": ("term", "pricing"),
    "commitment": ("commitment", "contract"),
    "as_of": ("as_of", "date"),
    "source": ("source", "url"),
    "note": ("note", "notes"),
}  # fmt: skip
MEANINGS = {
    "accelerator": "accelerator *",
    "count": "devices in it",
    "price": "price of it *, or",
    "device_price": "price of a device *",
    "spot": "spot price",
    "region": "region (else all)",
    "as_of": "date",
}
"""Meaning of fields whose name does not say it."""

_TERMS: dict[str, Term] = {
    "ondemand": "on-demand", "od": "on-demand", "payg": "on-demand", "payasyougo": "on-demand",
    "list": "on-demand", "spot": "spot", "preemptible": "spot", "interruptible": "spot",
    "reserved": "reserved", "committed": "reserved", "commitment": "reserved",
}  # fmt: skip


def own_lines(
    records: list[dict[str, str]],
    where: str,
    as_of: str,
    source: str,
    provider: str,
    known_as: Callable[[str], str],
) -> Iterator[PriceLine]:
    """The lines of a list; `known_as` gives a provider the catalog's name."""
    columns = _columns(records[0], where, provider)
    for record in records:
        row = {field: record[column].strip() for field, column in columns.items()}
        term, commitment = _read_term(row)
        per_device = not says_price(row.get("price", "")) and "device_price" in row
        yield PriceLine(
            provider=known_as(row["provider"]) if row.get("provider") else provider,
            instance=row.get("instance") or row["accelerator"],
            device=row["accelerator"],
            count=row.get("count") or "1" * per_device,
            prices=_prices(row, term, per_device),
            per_device=per_device,
            region=row.get("region", ""),
            commitment=commitment,
            as_of=row.get("as_of", "")[:10] or as_of,
            source=row.get("source") or source,
            note=row.get("note", ""),
            problem=_contradiction(row),
        )


def _read_term(row: dict[str, str]) -> tuple[Term | None, str]:
    """None where the term is none that is known."""
    commitment = _commitment(row.get("commitment", ""))
    stated = row.get("term") or ("reserved" if commitment else "on-demand")
    term = _TERMS.get(re.sub(r"[^a-z]", "", stated.casefold()))
    return term, commitment or ("unstated" if term == "reserved" else "")


def _prices(
    row: dict[str, str], term: Term | None, per_device: bool
) -> tuple[tuple[Term, str], ...]:
    price = row["device_price" if per_device else "price"]
    prices: list[tuple[Term, str]] = [(term, price)] if term else []
    if row.get("spot"):
        prices.append(("spot", row["spot"]))
    return tuple(prices)


def _contradiction(row: dict[str, str]) -> str:
    """A price of the whole and one of a device that do not go together: neither is taken."""
    whole, each = row.get("price", ""), row.get("device_price", "")
    if not says_price(whole) or not says_price(each):
        return ""
    try:
        devices = read_usd(each) * read_count(row.get("count", ""))
        return (
            ""
            if abs(read_usd(whole) - devices) <= 0.01 * devices
            else ("price and price per device contradict each other")
        )
    except InputError:
        return ""  # reported for the number itself


def _columns(record: dict[str, str], where: str, provider: str) -> dict[str, str]:
    """Which column holds which field; what is missing or there twice is one error."""
    by_field = _by_field(record)
    twice = [" and ".join(map(repr, columns)) for columns in by_field.values() if len(columns) > 1]
    if twice:
        raise InputError(f"{where}: two columns of one meaning: {'; '.join(twice)}")
    there = {field: columns[0] for field, columns in by_field.items()}
    if missing := _missing(there.keys() | ({"provider"} if provider else set())):
        names = ", ".join(repr(short(column)) for column in list(record)[:20])
        raise InputError(f"{where}: no column for {', '.join(missing)}; the columns are {names}")
    if "count" not in there:
        there.pop("price", None)
    return there


def _by_field(columns: Iterable[str]) -> dict[str, list[str]]:
    """The columns that hold each field; without fields that nothing holds."""
    spelled: dict[str, list[str]] = {}
    for column in columns:
        spelled.setdefault(re.sub(r"[\s\-]+", "_", column.strip().casefold()), []).append(column)
    columns_of = {
        field: [column for name in names for column in spelled.get(name, [])]
        for field, names in HEADERS.items()
    }
    return {field: columns for field, columns in columns_of.items() if columns}


def _missing(there: set[str]) -> list[str]:
    missing = [] if "accelerator" in there else ["accelerator"]
    if not there & {"price", "device_price"}:
        missing += ["price (or price_per_gpu_hour)"]
    elif not there & {"count", "device_price"}:
        missing += ["count (how many devices the price is for)"]
    if "provider" not in there:
        missing += ["provider (or say whose prices these are)"]
    return missing


def _commitment(text: str) -> str:
    """12 months, 1 year and 1yr are "1y"; what is not understood stays as it is."""
    length = re.fullmatch(r"(\d{1,3})\s*-?\s*(y|m)[a-z]*\.?", text.strip().casefold())
    if not length:
        return "" if text.strip().casefold() in ("", "none", "no", "-") else clean(text)
    number, unit = int(length[1]), length[2]
    return f"{number // 12}y" if unit == "m" and number % 12 == 0 else f"{number}{unit}"
