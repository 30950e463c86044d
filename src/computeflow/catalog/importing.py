"""Price lists of others, read into offers: start with `import_prices`, write with `write_offers`.

Two kinds of CSV are read. A SkyPilot catalog (github.com/skypilot-org/skypilot-catalog, any
`catalogs/v*/<cloud>/vms.csv`) is known by its columns InstanceType, AcceleratorName and Price; the
zones of a region become one offer at the cheapest zone's price, and Google's separate rows for
machine and accelerator are added up. Anything else is a list of one's own, with these headers
(case, spaces and dashes do not matter; other columns are ignored):

    meaning                header
    provider               provider, cloud, vendor; or the argument
    instance               instance, instance_type, type, sku, machine_type, flavor
    accelerator *          accelerator, gpu, gpu_type, gpu_model, device
    devices in it          count, gpus, gpu_count, num_gpus, devices; 1 if the price is per device
    price of the whole *   usd_per_hour, price, price_per_hour, hourly_price, price_hr
    or of one device *     usd_per_device_hour, price_per_gpu_hour, usd_per_gpu_hour, price_per_gpu
    its spot price         spot, spot_price, spot_hr (per the same thing as the price)
    region                 region, location; "all" if absent
    term                   term, pricing; on-demand if absent, reserved if there is a commitment
    commitment             commitment, contract
    as_of, source, note    as_of, date; source, url; note, notes; else the arguments

Currency is US dollars: "$98.32" and "1,234.5" are read, other signs are not guessed at. What cannot
be used is left out and counted by reason; a damaged file is an error.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from computeflow import units
from computeflow.catalog.loading import csv_records
from computeflow.catalog.recognition import Mention, Recogniser
from computeflow.catalog.rows import Offer
from computeflow.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from computeflow.catalog.loading import Rows
    from computeflow.catalog.rows import Accelerator

OFFER_COLUMNS = (
    "name", "provider", "instance", "accelerator", "count", "region", "term", "commitment",
    "usd_per_hour", "as_of", "source", "note",
)  # fmt: skip
HEADERS = {
    "provider": ("provider", "cloud", "vendor"),
    "instance": ("instance", "instance_type", "type", "sku", "machine_type", "flavor"),
    "accelerator": ("accelerator", "gpu", "gpu_type", "gpu_model", "device"),
    "count": ("count", "gpus", "gpu_count", "num_gpus", "devices"),
    "price": ("usd_per_hour", "price", "price_per_hour", "hourly_price", "price_hr"),
    "device_price": (
        "usd_per_device_hour", "price_per_gpu_hour", "usd_per_gpu_hour", "price_per_gpu",
    ),
    "spot": ("spot", "spot_price", "spot_hr"),
    "region": ("region", "location"),
    "term": ("term", "pricing"),
    "commitment": ("commitment", "contract"),
    "as_of": ("as_of", "date"),
    "source": ("source", "url"),
    "note": ("note", "notes"),
}  # fmt: skip

Term = Literal["on-demand", "spot", "reserved"]

_TERMS: dict[str, Term] = {
    "ondemand": "on-demand", "od": "on-demand", "payg": "on-demand", "payasyougo": "on-demand",
    "list": "on-demand", "spot": "spot", "preemptible": "spot", "interruptible": "spot",
    "reserved": "reserved", "committed": "reserved", "commitment": "reserved",
}  # fmt: skip
_PLAUSIBLE_USD_PER_DEVICE_HOUR = (0.02, 60.0)
"""Outside: a placeholder (an auction's floor of 0.01, a TPU at 700), a monthly or yearly price."""

_DEVICES = {"standard_nd96isr_h100_v5": 8}
"""Device counts that SkyPilot's catalog has wrong (it says 12; Azure's size page says 8)."""

# Google prices the machine and its accelerators apart; SkyPilot keeps them so.
_GOOGLE_MACHINES = (
    {("A100", n): f"a2-highgpu-{n}g" for n in (1, 2, 4, 8)}
    | {("A100", 16): "a2-megagpu-16g", ("H100-MEGA", 8): "a3-megagpu-8g"}
    | {("A100-80GB", n): f"a2-ultragpu-{n}g" for n in (1, 2, 4, 8)}
    | {("H100", n): f"a3-highgpu-{n}g" for n in (1, 2, 4, 8)}
    | {("H200", 8): "a3-ultragpu-8g", ("B200", 8): "a4-highgpu-8g"}
)
_TPU = re.compile(r"tpu-?(v\d+[a-z]*)-(\d{1,6})", re.IGNORECASE)
_TPU_CORES = ("v2", "v3", "v4", "v5p")  # their slices are named by cores, two a chip
_A100_OF_SKYPILOT = "SizeInMiB: 40960"  # its "A100" is the 40 GB one where nothing else is said
_GROUPED = re.compile(r"\D*\d{1,3}(,\d{3})+(?![,\d])(\.\d*)?[^\d,.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    offers: tuple[Offer, ...]
    left_out: dict[str, int]
    """Why rows, or the spot price of a row, were not taken: reason -> how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One row of a list, as written."""

    provider: str
    instance: str
    device: str
    count: str
    prices: tuple[tuple[Term, str], ...]
    per_device: bool = False
    region: str = ""
    commitment: str = ""
    upstream: str = ""
    info: str = ""
    as_of: str
    source: str
    note: str = ""


def import_prices(
    text: str,
    where: str,
    *,
    as_of: str,
    source: str,
    provider: str | None,
    accelerators: Rows[Accelerator],
) -> ImportResult:
    """Offers of a price list; `as_of`, `source` and `provider` hold where a row does not say."""
    records = csv_records(text, where)
    if not records:
        raise InputError(f"{where}: a header and no rows")
    left_out: Counter[str] = Counter()
    skypilot = {"InstanceType", "AcceleratorName", "Price"} <= set(records[0])
    if skypilot:
        lines = _skypilot_lines(records, where, as_of, source, provider, left_out)
    else:
        lines = _own_lines(records, where, as_of, source, provider)
    recogniser = Recogniser(accelerators)
    offers: list[Offer] = []
    for line in lines:
        try:
            offers += _offers(line, recogniser, left_out)
        except InputError as error:
            left_out[str(error)] += 1
    offers = _one_per_region(offers, left_out) if skypilot else list(dict.fromkeys(offers))
    if not offers:
        reasons = "; ".join(f"{reason} ({n})" for reason, n in left_out.most_common(4))
        raise InputError(f"{where}: no usable price in {len(records)} rows: {reasons}")
    return ImportResult(offers=tuple(offers), left_out=dict(left_out))


def write_offers(offers: Iterable[Offer]) -> str:
    """A catalog CSV of offers, as `offers.csv` is written."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(OFFER_COLUMNS)
    for offer in offers:
        writer.writerow([_cell(getattr(offer, column)) for column in OFFER_COLUMNS])
    return text.getvalue()


def _cell(value: str | float) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _skypilot_lines(
    records: list[dict[str, str]],
    where: str,
    as_of: str,
    source: str,
    provider: str | None,
    left_out: Counter[str],
) -> Iterator[_Line]:
    if not provider:
        raise InputError(f"{where}: a SkyPilot catalog does not name its provider: say which")
    google = set(_GOOGLE_MACHINES.values())
    machines = {
        (row["InstanceType"], _zone(row)): row for row in records if row["InstanceType"] in google
    }
    for row in records:
        device, instance = row["AcceleratorName"].strip(), row["InstanceType"].strip()
        if not device:
            if instance not in google:
                left_out["no accelerator in it"] += 1
            continue
        count, price, spot = (row.get(c, "") for c in ("AcceleratorCount", "Price", "SpotPrice"))
        machine = None
        if not instance:
            machine = machines.get((_machine(device, count), _zone(row)))
            if machine:
                price = _added(price, machine["Price"])
                spot = _added(spot, machine.get("SpotPrice", ""))
            elif not _TPU.fullmatch(device):
                price = spot = ""  # of the device without its machine
        yield _Line(
            provider=_name(provider),
            instance=machine["InstanceType"] if machine else instance or device,
            device=device,
            count=count,
            prices=(("on-demand", price), ("spot", spot)),
            region=row.get("Region", ""),
            upstream=row.get("UpstreamCloudId", ""),
            info=row.get("GpuInfo", "") or _A100_OF_SKYPILOT * (device == "A100"),
            as_of=as_of,
            source=source,
            note="machine + accelerator" if machine else "",
        )


def _zone(row: dict[str, str]) -> str:
    return row.get("AvailabilityZone") or row.get("Region", "")


def _machine(device: str, count: str) -> str:
    try:
        return _GOOGLE_MACHINES.get((device, _whole(count)), "")
    except InputError:
        return ""


def _added(price: str, machine: str) -> str:
    """The sum of two prices as text; nothing if one of them is missing."""
    try:
        return repr(round(float(price) + float(machine), 5))
    except ValueError:
        return ""


def _own_lines(
    records: list[dict[str, str]], where: str, as_of: str, source: str, provider: str | None
) -> Iterator[_Line]:
    columns = _columns(records[0], where, provider)
    per_device = "price" not in columns
    for record in records:
        row = {field: record[column].strip() for field, column in columns.items()}
        commitment = _commitment(row.get("commitment", ""))
        term = row.get("term") or ("reserved" if commitment else "on-demand")
        known = _TERMS.get(re.sub(r"[^a-z]", "", term.casefold()))
        price = row["device_price" if per_device else "price"]
        prices: list[tuple[Term, str]] = [(known, price)] if known else []
        if row.get("spot"):
            prices.append(("spot", row["spot"]))
        yield _Line(
            provider=_name(row.get("provider") or provider or ""),
            instance=row.get("instance") or row["accelerator"],
            device=row["accelerator"],
            count=row.get("count") or ("1" if per_device else ""),
            prices=tuple(prices),
            per_device=per_device,
            region=row.get("region", ""),
            commitment=commitment or ("unstated" if known == "reserved" else ""),
            as_of=row.get("as_of", "")[:10] or as_of,
            source=row.get("source") or source,
            note=row.get("note", ""),
        )


def _columns(record: dict[str, str], where: str, provider: str | None) -> dict[str, str]:
    """Which column holds which field; what is missing or there twice is one error."""
    spelled: dict[str, list[str]] = {}
    for column in record:
        spelled.setdefault(re.sub(r"[\s\-]+", "_", column.strip().casefold()), []).append(column)
    found = {
        field: [column for name in names for column in spelled.get(name, [])]
        for field, names in HEADERS.items()
    }
    twice = [" and ".join(map(repr, columns)) for columns in found.values() if len(columns) > 1]
    if twice:
        raise InputError(f"{where}: two columns of one meaning: {'; '.join(twice)}")
    there = {field for field, columns in found.items() if columns}
    missing = [] if "accelerator" in there else ["accelerator"]
    if not there & {"price", "device_price"}:
        missing += ["price (or price_per_gpu_hour)"]
    elif "device_price" not in there and "count" not in there:
        missing += ["count (how many devices the price is for)"]
    if "provider" not in there and not provider:
        missing += ["provider (or say whose prices these are)"]
    if missing:
        raise InputError(
            f"{where}: no column for {', '.join(missing)}; the columns are "
            f"{', '.join(map(repr, record))}"
        )
    if "count" not in there:
        there.discard("price")
    return {field: columns[0] for field, columns in found.items() if field in there}


def _offers(line: _Line, recogniser: Recogniser, left_out: Counter[str]) -> list[Offer]:
    """The offers of a line; what is wrong with one of its prices is counted in `left_out`."""
    if not line.provider:
        raise InputError("no provider")
    if not line.prices:
        raise InputError("a term that is none of on-demand, spot, reserved")
    device, listed = _chips(line.device, _whole(line.count))
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
    prices = [(term, text) for term, text in line.prices if _said(text)]
    if not prices:
        raise InputError("no price")
    offers: list[Offer] = []
    for term, text in prices:
        try:
            usd = _usd(text) * (count if line.per_device else 1)
            if term == "spot" and offers and usd >= offers[0].usd_per_hour:
                raise InputError("spot price not below the on-demand price: taken as none given")
            offers.append(_offer(line, accelerator, count, term, usd, note))
        except InputError as error:
            left_out[str(error)] += 1
    return offers


def _chips(device: str, count: int) -> tuple[str, int]:
    """A TPU slice ("tpu-v5p-8") is its chips (4 of "tpu-v5p"); other devices stay."""
    found = _TPU.fullmatch(device)
    if not found:
        return device, count
    cores = 2 if found[1].casefold() in _TPU_CORES else 1
    return f"tpu-{found[1]}", max(1, int(found[2]) // cores)


def _offer(line: _Line, accelerator: str, count: int, term: Term, usd: float, note: str) -> Offer:
    low, high = _PLAUSIBLE_USD_PER_DEVICE_HOUR
    if not low <= usd / count <= high:
        raise InputError(f"price outside {low:g}..{high:g} USD per device-hour")
    instance = _clean(line.instance)
    return Offer(
        name=f"{line.provider}/{instance}",
        provider=line.provider,
        instance=instance,
        accelerator=accelerator,
        count=count,
        region=_clean(line.region) or "all",
        term=term,
        commitment=line.commitment if term == "reserved" else "",
        usd_per_hour=usd,
        as_of=line.as_of,
        source=_clean(line.source),
        note=_clean(note),
    )


def _one_per_region(offers: list[Offer], left_out: Counter[str]) -> list[Offer]:
    cheapest: dict[tuple[str, ...], Offer] = {}
    for offer in offers:
        key = (offer.name, offer.accelerator, str(offer.count), offer.region, offer.term)
        other = cheapest.setdefault(key, offer)
        if other is not offer:
            left_out["another zone of the region (the cheapest is taken)"] += 1
            if offer.usd_per_hour < other.usd_per_hour:
                cheapest[key] = offer
    return list(cheapest.values())


def _commitment(text: str) -> str:
    """12 months, 1 year and 1yr are "1y"; what is not understood stays as it is."""
    length = re.fullmatch(r"(\d{1,3})\s*-?\s*(y|m)[a-z]*\.?", text.strip().casefold())
    if not length:
        return "" if text.strip().casefold() in ("", "none", "no", "-") else _clean(text)
    number, unit = int(length[1]), length[2]
    return f"{number // 12}y" if unit == "m" and number % 12 == 0 else f"{number}{unit}"


def _usd(text: str) -> float:
    if "," in text and not _GROUPED.fullmatch(text):
        raise InputError("price not a number in US dollars")
    try:
        usd = units.parse(text, "usd_per_hour")
    except InputError:
        raise InputError("price not a number in US dollars") from None
    if usd < 0:
        raise InputError("price below zero")
    return usd


def _said(text: str) -> bool:
    """An empty cell, a dash or a zero says that there is no price."""
    return bool(text.strip("$ 0.-")) and text.strip().casefold() not in ("n/a", "na", "none")


def _whole(text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        raise InputError("device count not a number") from None
    if not 1 <= number <= 1e5 or number != int(number):
        raise InputError("device count not a whole number of devices")
    return int(number)


def _name(provider: str) -> str:
    return "-".join(provider.casefold().split())


def _clean(text: str) -> str:
    return " ".join(text.split())
