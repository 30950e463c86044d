"""Moving data to an offer: what it costs and how long it takes.

Egress is paid where the data leaves, by the month's tiers; coming in is free at every provider of
these rows. Hours are bytes over the line that the user has: rates between two clouds are not
published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from computeflow.catalog import Catalog
from computeflow.comparison.providers import ProviderTable, ProviderTerms
from computeflow.errors import InputError, UnknownNameError
from computeflow.units import HOUR_SECONDS

LINES = (1.25e9, 12.5e9)
"""Bytes per second of the line, slow and fast, where the user states none: 10 and 100 Gb/s, the ports
of dedicated connections (AWS Direct Connect, Azure ExpressRoute, Google Interconnect)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    source: str
    target: str
    bytes: float
    usd: float | None
    """None: the provider's egress price is unknown."""
    hours: tuple[float, float]
    """Hours on the fast and on the slow line; zero within one provider."""
    note: str


def egress_usd(terms: ProviderTerms, size_bytes: float) -> float | None:
    """Egress dollars of one month; None where no price is known."""
    if not terms.egress_tiers:
        return None
    usd = start = 0.0
    for end, per_gb in terms.egress_tiers:
        usd += max(min(size_bytes, end) - start, 0.0) / 1e9 * per_gb
        start = end
    return usd if size_bytes <= start or math.isinf(start) else None


def move(
    size_bytes: float, source: str, target: str, book: ProviderTable, *, line: float | None = None
) -> Move:
    if not 0 < size_bytes < math.inf:
        raise InputError(f"{size_bytes:g} bytes to move must be above zero and finite")
    if line is not None and not 0 < line < math.inf:
        raise InputError(f"a line of {line:g} bytes/s must be above zero and finite")
    if source == target:
        note = "the same provider; time and cost between regions are unknown"
        return Move(
            source=source, target=target, bytes=size_bytes, usd=0.0, hours=(0.0, 0.0), note=note
        )
    slow, fast = LINES if line is None else (line, line)
    hours = (size_bytes / fast / HOUR_SECONDS, size_bytes / slow / HOUR_SECONDS)
    usd, note = None, f"the egress price of {source} is unknown"
    terms = book.of(source)
    if terms is not None and (usd := egress_usd(terms, size_bytes)) is not None:
        note = f"{terms.source} ({terms.as_of})"
    return Move(source=source, target=target, bytes=size_bytes, usd=usd, hours=hours, note=note)


def move_to_each(
    size_bytes: float,
    source: str,
    targets: Iterable[str],
    book: ProviderTable,
    catalog: Catalog,
    *,
    line: float | None = None,
) -> dict[str, Move]:
    """Moves by target provider."""
    places = list(dict.fromkeys(targets))
    home = data_home(source, [*(row.name for row in catalog.providers), *places], book)
    return {target: move(size_bytes, home, target, book, line=line) for target in places}


def data_home(name: str, known: list[str], book: ProviderTable) -> str:
    """The provider where the data lies; it must be one of the catalog or of the terms."""
    choices = sorted({*known, *book.terms})
    if name not in choices:
        raise UnknownNameError("provider", name, choices)
    return name
