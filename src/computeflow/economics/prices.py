"""The price of a GPU-hour: as stated, or the catalog's for an offer or a provider."""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.catalog import Catalog, Offer
from computeflow.errors import InputError, UnknownNameError
from computeflow.units import parse

_STATED = "--price"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPrice:
    """Dollars per GPU-hour, and their source."""

    usd: float
    source: str

    @property
    def note(self) -> str:
        """The source of the price; empty where the user stated it."""
        return (
            "" if self.source == _STATED else f"priced at ${self.usd:.2f} a GPU-hour: {self.source}"
        )


def find_price(price: str | float, catalog: Catalog, device: str | None) -> GpuPrice:
    """A stated number, or the cheapest price of an offer or provider for this device: on-demand, or of
    any term where there is none.
    """
    usd = _number(price)
    if usd is None:
        return _priced(_cheapest(str(price), catalog, device))
    if not 0 < usd < 1e6:
        raise InputError(f"--price {price}: dollars for a GPU and an hour, above zero")
    return GpuPrice(usd=usd, source=_STATED)


def _number(price: str | float) -> float | None:
    try:
        return float(price)
    except ValueError:
        text = str(price).strip()
        return parse(text, "usd") if text[:1] == "$" or text[:1].isdecimal() else None


def _cheapest(name: str, catalog: Catalog, device: str | None) -> Offer:
    offers = [offer for offer in catalog.offers if name in (offer.name, offer.provider)]
    if not offers:
        names = {offer.provider for offer in catalog.offers}
        raise UnknownNameError("offer or provider", name, names)
    devices = sorted({offer.accelerator for offer in offers})
    if device is None and len(devices) > 1:
        raise InputError(
            f"--price {name}: of which device? The trace names none; give --on or a number"
        )
    mine = [offer for offer in offers if device in (None, offer.accelerator)]
    if not mine:
        raise InputError(f"--price {name}: no price for {device}; it offers {', '.join(devices)}")
    fixed = [offer for offer in mine if offer.term == "on-demand"] or mine
    return min(fixed, key=lambda offer: offer.usd_per_device_hour)


def _priced(offer: Offer) -> GpuPrice:
    return GpuPrice(
        usd=offer.usd_per_device_hour,
        source=f"{offer.name}, {offer.region}, {offer.term}, as of {offer.as_of}",
    )
