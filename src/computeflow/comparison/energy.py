"""Energy of a run at an offer's meter: devices, hosts, the site's own overhead, the region's grid."""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.catalog import Accelerator, Catalog, NodeType
from computeflow.comparison.machines import DRAWN
from computeflow.comparison.offers import Offering
from computeflow.comparison.providers import ProviderTerms
from computeflow.economics import Energy, ledger_energy, supply_of
from computeflow.ledger import Ledger
from computeflow.prediction.power import BUSY

_USUAL_FACILITY = "average-site"
"""Facility whose PUE is used where the provider reports none: the mean of Uptime's survey. Reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """Energy of a run at the meter, and its assumptions."""

    energy: Energy
    """Joules are None where the device's power is unknown, grams where the region's grid is not."""
    host_known: bool
    """False: only the devices are counted."""
    pue_known: bool
    """False: the middle of the cooling's range is taken, or the mean of a survey."""

    @property
    def notes(self) -> tuple[str, ...]:
        if self.energy.joules is None:
            return ("energy: the device's power is not published",)
        return (
            *(() if self.host_known else ("energy: without the hosts, whose power is unknown",)),
            *(() if self.pue_known else (f"PUE {self.energy.supply.pue:g} assumed",)),
            *(("carbon: the region's grid is unknown",) if self.energy.grams is None else ()),
        )


def read_meter(ledger: Ledger, offering: Offering, catalog: Catalog) -> MeterReading:
    """Energy of a simulated run's ledger."""
    device = catalog.accelerators[offering.accelerator]
    pue, known = _pue(offering.terms, catalog)
    supply = supply_of(offering.grid, pue)
    host = host_watts(catalog.nodes.get(device.node) if device.node else None, device)
    return MeterReading(
        energy=ledger_energy(ledger, supply, host_watts=host or 0.0),
        host_known=host is not None,
        pue_known=known,
    )


def _pue(terms: ProviderTerms | None, catalog: Catalog) -> tuple[float, bool]:
    """PUE measured at its sites or reported for its fleet; else of its cooling, or of a survey."""
    if terms is not None and terms.pue is not None:
        return terms.pue, True
    if terms is not None and terms.facility is not None:
        return catalog.facilities[terms.facility].pue, True
    if terms is not None and terms.cooling is not None:
        cooling = catalog.coolings[terms.cooling]
        return (cooling.pue_low + cooling.pue_high) / 2, False
    return catalog.facilities[_USUAL_FACILITY].pue, False


def host_watts(node: NodeType | None, device: Accelerator) -> float | None:
    """Watts of everything but the device, per device, whatever the plan.

    The node's mean draw under heavy load less what its devices draw then (`power.BUSY`). None where
    either is unknown.
    """
    if node is None or device.tdp_watts is None:
        return None
    watts = node.measured_watts or (DRAWN * node.rated_watts if node.rated_watts else None)
    return None if watts is None else max(watts / node.count - BUSY * device.tdp_watts, 0.0)
