"""SkyPilot's catalog: github.com/skypilot-org/skypilot-catalog, any `catalogs/v*/<cloud>/vms.csv`.

The zones of a region are rows of their own. Google's machines and accelerators are priced apart
and added up here. "A100" is the 40 GB one where nothing else is stated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from computeflow.catalog.price_line import PriceLine, read_count
from computeflow.errors import InputError

COLUMNS = frozenset(("InstanceType", "AcceleratorName", "Price"))
TPU = re.compile(r"tpu-?(v\d+[a-z]*)-(\d{1,6})", re.IGNORECASE)

# docs.cloud.google.com/compute/docs/accelerator-optimized-machines: accelerators of each type.
_GOOGLE_MACHINES = (
    {("A100", n): f"a2-highgpu-{n}g" for n in (1, 2, 4, 8)}
    | {("A100", 16): "a2-megagpu-16g", ("H100-MEGA", 8): "a3-megagpu-8g"}
    | {("A100-80GB", n): f"a2-ultragpu-{n}g" for n in (1, 2, 4, 8)}
    | {("H100", n): f"a3-highgpu-{n}g" for n in (1, 2, 4, 8)}
    | {("H200", 8): "a3-ultragpu-8g", ("B200", 8): "a4-highgpu-8g"}
)
_A100 = "SizeInMiB: 40960"
# Their APIs answer in euros (scaleway.com/en/faq, seeweb.it/en/products/cloud-server-gpu), and
# SkyPilot's fetchers write the figure as it is.
_IN_EUROS = ("scaleway", "seeweb")


def skypilot_lines(
    records: list[dict[str, str]],
    where: str,
    as_of: str,
    source: str,
    provider: str,
    left_out: Counter[str],
) -> Iterator[PriceLine]:
    _check(provider, where)
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
        count = row.get("AcceleratorCount", "")
        wanted = ("" if instance else _machine(device, count), _zone(row))
        machine = machines.get(wanted, {})
        price, spot = _prices(row, device, machine, apart=not instance)
        yield PriceLine(
            provider=provider,
            instance=machine.get("InstanceType") or instance or device,
            device=device,
            count=count,
            prices=(("on-demand", price), ("spot", spot)),
            region=row.get("Region", ""),
            upstream=row.get("UpstreamCloudId", ""),
            info=row.get("GpuInfo", "") or _A100 * (device == "A100"),
            as_of=as_of,
            source=source,
            note="machine + accelerator" if machine else "",
        )


def _check(provider: str, where: str) -> None:
    if not provider:
        raise InputError(f"{where}: a SkyPilot catalog does not name its provider: say which")
    if provider in _IN_EUROS:
        raise InputError(f"{where}: SkyPilot's prices of {provider} are euros, not US dollars")


def _prices(
    row: dict[str, str], device: str, machine: dict[str, str], *, apart: bool
) -> tuple[str, str]:
    """On-demand and spot price; `apart`: those in the row are of the device without its machine."""
    price, spot = row.get("Price", ""), row.get("SpotPrice", "")
    if machine:
        return _added(price, machine["Price"]), _added(spot, machine.get("SpotPrice", ""))
    return ("", "") if apart and not TPU.fullmatch(device) else (price, spot)


def _zone(row: dict[str, str]) -> str:
    return row.get("AvailabilityZone") or row.get("Region", "")


def _machine(device: str, count: str) -> str:
    try:
        return _GOOGLE_MACHINES.get((device, read_count(count)), "")
    except InputError:
        return ""


def _added(price: str, machine: str) -> str:
    """The sum of two prices as text; nothing if one of them is missing."""
    try:
        return repr(round(float(price) + float(machine), 5))
    except ValueError:
        return ""
