"""Sites of one's own beside the offers of the catalog: `own_offerings` reads them from a TOML file.

A site is what `ProviderTerms` say of a provider, with its machines, what an hour of a GPU costs there,
and either the GPUs that it has or the limits that say how many it takes (`site_limits`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from computeflow import codec
from computeflow.catalog import Catalog, NodeType, Offer
from computeflow.catalog.config import short
from computeflow.comparison.machines import machine_of
from computeflow.comparison.offers import Offering
from computeflow.comparison.planner import MachineShape
from computeflow.comparison.providers import ProviderTerms, country_of
from computeflow.comparison.site_limits import SiteCapacity, deploy
from computeflow.errors import InputError
from computeflow.files.parsing import parse_toml
from computeflow.simulation import inputs

_LIMITS = (
    "contracted_watts",
    "cooling_watts",
    "racks",
    "rack_watts",
    "floor_kg_per_m2",
    "cable_metres",
    "switch_ports",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSite(ProviderTerms):
    kind: ClassVar[str] = "site"
    accelerator: str
    usd_per_gpu_hour: float
    """Full cost of a GPU-hour: `computeflow build` computes it from its parts."""
    gigabits_per_device: float | None = None
    """Rate between machines; None: that of the catalog's usual node of this device."""
    grid: str | None = None
    """Row of the catalog: price and carbon of its power, and its country."""
    contracted_watts: float | None = None
    cooling_watts: float | None = None
    racks: int | None = None
    rack_watts: float | None = None
    floor_kg_per_m2: float | None = None
    cable_metres: float | None = None
    switch_ports: int | None = None

    def __post_init__(self) -> None:
        super(OwnSite, self).__post_init__()
        if self.preemptions_per_node_day is not None:
            raise InputError(f"{self.name}: preemptions are of rented machines")
        self._check_within(usd_per_gpu_hour=(1e-3, 1e4))
        for limit in _LIMITS:
            if not math.isfinite(getattr(self, limit) or 0.0):
                raise InputError(f"{limit} is not a finite number")
        if self.gigabits_per_device is not None:
            self._check_within(gigabits_per_device=(0.1, 1e4))

    @property
    def limited(self) -> bool:
        return any(getattr(self, name) is not None for name in _LIMITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    site: tuple[OwnSite, ...] = ()


def own_offerings(text: str, where: str, catalog: Catalog) -> list[Offering]:
    data = parse_toml(text, where, finite=False)  # the last tier of egress has no end
    if "story" in data:
        raise InputError(
            f"{where}: a file for `computeflow compare-sites`; docs/compare.md has this one's form"
        )
    sites = codec.decode(_File, data, where).site
    if not sites:
        raise InputError(f"{where}: no [[site]] in it")
    taken = {row.name for row in catalog.providers} | {row.provider for row in catalog.offers}
    for site in sites:
        if site.name in taken:
            raise InputError(f"{where}: {short(site.name)}: a site needs a name of its own")
        taken.add(site.name)
    return [_offering(site, catalog) for site in sites]


def _offering(site: OwnSite, catalog: Catalog) -> Offering:
    device = catalog.accelerators[site.accelerator]
    node = catalog.nodes.get(device.node) if device.node else None
    rate = _nic_bytes_per_second(site, node)
    devices = node.count if node is not None else 1
    grid = catalog.grids[site.grid] if site.grid is not None else None
    most, limit = _largest(site, catalog)
    price = Offer(
        name=f"{site.name}/{device.node or device.name}",
        provider=site.name,
        instance=device.node or device.name,
        accelerator=device.name,
        count=devices,
        region=site.grid or "own site",
        term="owned",
        usd_per_hour=devices * site.usd_per_gpu_hour,
        source=site.source,
        as_of=site.as_of,
    )
    return Offering(
        provider=site.name,
        instance=price.instance,
        accelerator=device.name,
        devices=devices,
        region=price.region,
        prices=(price,),
        shape=MachineShape(accelerator=device.name, devices=devices, nic_bytes_per_second=rate),
        network="none" if rate is None else f"{rate * 8e-9:,.4g} Gb/s a device",
        network_known=True,
        joined=rate is not None,
        access="own",
        orchestration="your own",
        own=True,
        terms=replace(site, most_gpus=most, **_repair(site)),
        grid=grid,
        country=country_of(grid),
        limit=limit,
    )


def _repair(site: OwnSite) -> dict[str, Any]:
    """Repair time of a failed node where the site states none: there is no replacement."""
    if site.replace_seconds is not None:
        return {}
    usual = inputs()
    return {
        "replace_seconds": usual["repair_seconds"].value,
        "replace_spread": usual["repair_spread"].value,
    }


def _nic_bytes_per_second(site: OwnSite, node: NodeType | None) -> float | None:
    if site.gigabits_per_device is not None:
        return site.gigabits_per_device * 1e9 / 8
    if node is None or not node.nics or not node.nic_bytes_per_second:
        return None
    return node.nics * node.nic_bytes_per_second / node.count


def _largest(site: OwnSite, catalog: Catalog) -> tuple[int | None, str]:
    """GPUs of the site, and what limits their number."""
    if not site.limited:
        if site.most_gpus is None:
            raise InputError(
                f"{site.name}: state most_gpus, or its limits (contracted_watts, racks)"
            )
        return site.most_gpus, "as stated"
    deployment = deploy(
        SiteCapacity(
            **{name: getattr(site, name) for name in _LIMITS},
            cooling=catalog.coolings[site.cooling] if site.cooling else None,
            pue=site.pue,
        ),
        machine_of(site.accelerator, catalog),
    )
    if site.most_gpus is not None and site.most_gpus <= deployment.gpus:
        return site.most_gpus, "as stated"
    if not deployment.gpus:
        raise InputError(f"{site.name} takes no {site.accelerator}: {deployment.binding}")
    return deployment.gpus, deployment.binding
