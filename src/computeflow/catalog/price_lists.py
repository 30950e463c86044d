"""Price lists read into offers: start with `import_prices`, write with `write_offers`.

Two kinds of CSV are read: a SkyPilot catalog, known by its columns (`skypilot_prices`), and a user's
own list (`own_price_list`). What cannot be used is left out and counted by reason; a damaged file is an
error.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from computeflow.catalog.lookup import provider_name
from computeflow.catalog.own_price_list import own_lines
from computeflow.catalog.price_line import PriceLine, Term, clean, read_count, read_usd, says_price
from computeflow.catalog.recognition import Mention, Recogniser
from computeflow.catalog.rows import Offer
from computeflow.catalog.skypilot_prices import COLUMNS as SKYPILOT_COLUMNS
from computeflow.catalog.skypilot_prices import TPU, skypilot_lines
from computeflow.errors import InputError
from computeflow.files.limits import NAME_CHARACTERS
from computeflow.files.names import printable
from computeflow.files.parsing import parse_csv

if TYPE_CHECKING:
    from collections.abc import Iterable

    from computeflow.catalog.loading import CatalogTable
    from computeflow.catalog.rows import Accelerator, Provider

_OFFER_COLUMNS = (
    "name", "provider", "instance", "accelerator", "count", "region", "term", "commitment",
    "usd_per_hour", "as_of", "source", "note",
)  # fmt: skip

_PLAUSIBLE_USD_PER_DEVICE_HOUR = (0.02, 60.0)
"""Outside: a placeholder (an auction's floor of 0.01, a TPU at 700), a monthly or yearly price."""

# SkyPilot's catalog says 12; 8 is from learn.microsoft.com/azure/virtual-machines/sizes/
# gpu-accelerated/ndh100v5-series.
_DEVICES = {"standard_nd96isr_h100_v5": 8}
_FORMULA = ("=", "+", "-", "@")
_TPU_CORES = ("v2", "v3", "v4", "v5p")  # slices named by cores, two a chip: cloud.google.com/tpu


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    offers: tuple[Offer, ...]
    left_out: dict[str, int]
    """Why rows, or the spot price of a row, were not taken: reason -> how many."""
    notes: tuple[str, ...] = ()
    """Notes for the user."""


def import_prices(
    text: str,
    where: str,
    *,
    as_of: str,
    source: str,
    provider: str | None,
    accelerators: CatalogTable[Accelerator],
    providers: CatalogTable[Provider],
) -> ImportResult:
    """Offers of a price list; `as_of`, `source` and `provider` hold where a row does not say."""
    records = [record for _, record in parse_csv(text, where)]
    left_out: Counter[str] = Counter()
    seller = provider_name(providers, provider) if provider else ""
    if set(records[0]) >= SKYPILOT_COLUMNS:
        read = skypilot_lines(records, where, as_of, source, seller, left_out)
    else:
        known_as = partial(provider_name, providers)
        read = own_lines(records, where, as_of, source, seller, known_as)
    lines = list(read)
    recogniser = Recogniser(accelerators, [(line.device, _context(line)) for line in lines])
    offers = _one_each(_all_offers(lines, recogniser, left_out), left_out)
    if not offers:
        reasons = "; ".join(f"{reason} ({n})" for reason, n in left_out.most_common(4))
        raise InputError(f"{where}: no usable price in {len(records)} rows: {reasons}")
    notes = () if text.endswith("\n") else ("The last line has no line end: it may be cut off.",)
    return ImportResult(offers=tuple(offers), left_out=dict(left_out), notes=notes)


def write_offers(offers: Iterable[Offer]) -> str:
    """A catalog CSV of offers, as `offers.csv` is written; no cell is a formula to a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_OFFER_COLUMNS)
    for offer in offers:
        writer.writerow([_cell(getattr(offer, column)) for column in _OFFER_COLUMNS])
    return text.getvalue()


def _cell(value: str | float) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _context(line: PriceLine) -> str:
    return f"{line.info} {line.upstream} {line.instance}"


def _all_offers(
    lines: Iterable[PriceLine], recogniser: Recogniser, left_out: Counter[str]
) -> list[Offer]:
    offers: list[Offer] = []
    for line in lines:
        try:
            offers += _offers(line, recogniser, left_out)
        except InputError as error:
            left_out[_reason(error)] += 1
    return offers


def _reason(error: InputError) -> str:
    """What is wrong, without the names that would do."""
    return str(error).partition("; ")[0]


def _offers(line: PriceLine, recogniser: Recogniser, left_out: Counter[str]) -> list[Offer]:
    """The offers of a line; what is wrong with one of its prices is counted in `left_out`."""
    _check(line)
    device, listed = _chips(line.device, read_count(line.count))
    accelerator, doubt = recogniser.recognise(
        Mention(
            device=device,
            count=listed,
            instance=line.instance,
            upstream=line.upstream,
            info=line.info,
        )
    )
    count = _DEVICES.get(line.instance.casefold(), listed)
    corrected = f"count corrected from {listed}" if count != listed else ""
    note = "; ".join(filter(None, (line.note, doubt, corrected)))
    offers: list[Offer] = []
    for term, text in _stated_prices(line):
        try:
            usd = read_usd(text) * (count if line.per_device else 1)
            if term == "spot" and offers and usd >= offers[0].usd_per_hour:
                raise InputError("spot price not below the on-demand price: taken as none given")
            offers.append(_offer(line, accelerator, count, term, usd, note))
        except InputError as error:
            left_out[_reason(error)] += 1
    return offers


def _check(line: PriceLine) -> None:
    if not line.provider:
        raise InputError("no provider")
    for name in map(clean, (line.provider, line.instance, line.region, line.commitment)):
        if not name.isprintable() or len(name) > NAME_CHARACTERS or name.startswith(_FORMULA):
            raise InputError("a name that cannot be printed, is too long or opens a formula")
    if not line.prices:
        raise InputError("a term that is none of on-demand, spot, reserved")
    if line.problem:
        raise InputError(line.problem)


def _stated_prices(line: PriceLine) -> list[tuple[Term, str]]:
    prices = [(term, text) for term, text in line.prices if says_price(text)]
    if not prices:
        raise InputError("no price")
    return prices


def _chips(device: str, count: int) -> tuple[str, int]:
    """A TPU slice ("tpu-v5p-8") is its chips (4 of "tpu-v5p"); other devices stay."""
    match = TPU.fullmatch(device)
    if not match:
        return device, count
    cores = 2 if match[1].casefold() in _TPU_CORES else 1
    return f"tpu-{match[1]}", max(1, int(match[2]) // cores)


def _offer(
    line: PriceLine, accelerator: str, count: int, term: Term, usd: float, note: str
) -> Offer:
    low, high = _PLAUSIBLE_USD_PER_DEVICE_HOUR
    if not low <= usd / count <= high:
        raise InputError(f"price outside {low:g}..{high:g} USD per device-hour")
    instance = clean(line.instance)
    return Offer(
        name=f"{line.provider}/{instance}",
        provider=line.provider,
        instance=instance,
        accelerator=accelerator,
        count=count,
        region=clean(line.region) or "all",
        term=term,
        commitment=line.commitment if term == "reserved" else "",
        usd_per_hour=usd,
        as_of=line.as_of,
        source=_text(line.source),
        note=_text(note),
    )


def _text(text: str) -> str:
    """With the mark that spreadsheets have for text that is no formula, where it would be one."""
    text = printable(clean(text))
    return f"'{text}" if text.startswith(_FORMULA) else text


def _one_each(offers: list[Offer], left_out: Counter[str]) -> list[Offer]:
    """A single price for each instance, region and term: the newest, and of these the cheapest."""
    kept: dict[str, Offer] = {}
    for offer in offers:
        other = kept.setdefault(offer.key, offer)
        if other is offer:
            continue
        left_out["another price of the same instance, region and term (the best is taken)"] += 1
        if (offer.as_of, -offer.usd_per_hour) > (other.as_of, -other.usd_per_hour):
            kept[offer.key] = offer
    return list(kept.values())
