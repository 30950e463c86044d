"""`site_limits`: how many GPUs one site takes, and what limits it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, Quantity, open_catalog, read_quantity, this_day
from computeflow.comparison.machines import machine_of, rack_rows
from computeflow.comparison.rents import age_text, find_rents
from computeflow.comparison.site_limits import Deployment, SiteCapacity, deploy
from computeflow.comparison.tiers import TierLoss, tier_losses
from computeflow.views import site_limits as views
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.catalog import Catalog
    from computeflow.views.html_report import Part


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SiteLimitsAnswer(Answer):
    deployment: Deployment
    others: tuple[Deployment, ...]
    """The same site with other machines."""
    usd_per_gpu_hour: float | None
    priced: str
    """The source and the age of the price."""
    tiers: tuple[TierLoss, ...]

    @property
    def headline(self) -> str:
        return views.limits_headline(self.deployment, self.usd_per_gpu_hour)

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.site/1",
            **codec.encode(self.deployment),
            "binding": self.deployment.binding,
            "next": self.deployment.next,
            "usd_per_gpu_hour": self.usd_per_gpu_hour,
            "priced": self.priced,
            "others": [
                {
                    "node": other.machine.node,
                    "gpus": other.gpus,
                    "low": other.low,
                    "high": other.high,
                    "binding": other.binding,
                }
                for other in self.others
            ],
            "tiers": codec.encode(self.tiers),
        }

    def tables(self) -> list[Table]:
        return [views.limits_table(self.deployment), *self._details()]

    def parts(self) -> Sequence[Part]:
        return [views.limits_figure(self.deployment), *self._details()]

    def _details(self) -> list[Table]:
        deployment = self.deployment
        based = deployment.assumed or deployment.unknown or self.priced
        return [
            views.terms_table(deployment),
            *([views.lifts_table(deployment)] if deployment.lifts else []),
            views.machines_table(self.others),
            *([views.tiers_table(self.tiers, deployment.gpus)] if self.tiers else []),
            *([views.assumptions_table(deployment, self.priced)] if based else []),
        ]


@checked
def site_limits(
    *,
    accelerator: str = "h100-sxm",
    power: Quantity | None = None,
    cooling_power: Quantity | None = None,
    racks: int | None = None,
    rack_power: Quantity | None = None,
    floor_load: float | None = None,
    cooling: str | None = None,
    pue: float | None = None,
    cable: float | None = None,
    switch_ports: int | None = None,
    switch_tiers: int = 3,
    price: Quantity | None = None,
    tiers: bool = True,
    seed: int = 0,
    today: datetime.date | None = None,
    catalog: CatalogFiles = (),
) -> SiteLimitsAnswer:
    """Find how many GPUs a site takes, what limits it, and what lifting each limit brings."""
    facts = open_catalog(catalog)
    limits = SiteCapacity(
        contracted_watts=read_quantity(power, "watts"),
        cooling_watts=read_quantity(cooling_power, "watts"),
        racks=racks,
        rack_watts=read_quantity(rack_power, "watts"),
        floor_kg_per_m2=floor_load,
        cooling=facts.coolings[cooling] if cooling else None,
        pue=pue,
        cable_metres=cable,
        switch_ports=switch_ports,
        switch_tiers=switch_tiers,
    )
    machine = machine_of(accelerator, facts)
    deployment = deploy(limits, machine)
    usd, priced = _price(price, accelerator, this_day(today), facts)
    others = [
        deploy(limits, machine_of(facts.nodes[name].accelerator, facts)) for name in rack_rows()
    ]
    worths = (
        tier_losses(
            facts,
            gpus=deployment.gpus,
            node_gpus=facts.nodes[machine.node].count,
            usd_per_gpu_hour=usd,
            seed=seed,
        )
        if tiers and deployment.gpus
        else ()
    )
    return SiteLimitsAnswer(
        deployment=deployment,
        others=tuple(others),
        usd_per_gpu_hour=usd,
        priced=priced,
        tiers=tuple(worths),
    )


def _price(
    price: Quantity | None, accelerator: str, today: datetime.date, facts: Catalog
) -> tuple[float | None, str]:
    """USD per GPU-hour, and the source of the price."""
    if price is not None:
        return read_quantity(price, "usd"), "as stated"
    rent = find_rents(facts, accelerator).on_demand
    if rent is None:
        return None, ""
    age = age_text(rent.dates, today)
    return rent.middle, f"the median on-demand price of {rent.providers} providers; {age}"
