"""How many GPUs a site takes: every limit as a number of GPUs, the tightest, what lifting it gains.

Start with `deploy`. A limit that was not given is no limit, and is reported. Limits are:

    contracted power   watts / (PUE x watts of a machine x (1 + network, storage and management))
    cooling plant      watts of heat / (watts of a machine x the same)
    rack limits        positions x whole machines that feed, cooling, height or floor allow in a rack
    cable reach        racks within the cable's length of the middle of the hall x machines in a rack
    switch ports       2 (ports / 2)^tiers, one for each NIC: a fat tree without oversubscription

All are products of independent terms, so the site takes the least of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from computeflow.catalog import Cooling
from computeflow.comparison.machines import DRAWN, Machine
from computeflow.errors import InputError

BESIDE = (0.06, 0.09, 0.12)
"""Watts of network and storage (5 to 10 % of IT) and management (1 to 2 %), over those of the machines:
engineering range; the middle is taken."""
FOOTPRINT_M2 = 0.64
"""Footprint of a rack: 0.6 x 1.07 m, the area for its load on the floor."""
_RACK_KG = 150.0
"""Mass of an empty rack with its power strips; assumed, no source."""
_RACK_UNITS = 42.0
"""For machines, of 48; the rest for switches and power strips. Assumed."""
_RACK_AREA_M2 = 2.6
"""Hall area of a rack with aisles: 25 to 30 square feet (profitableventure.com, data center space)."""
_SLACK_M = 6.0
"""Cable length for the way up to the tray and down again at both ends; assumed."""
_HALL_PUE = (1.1, 1.3, 1.5)
"""Where neither PUE nor cooling is given: from liquid-cooled halls to ordinary air."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCapacity:
    """Limits of a site; None: not given, and no limit."""

    contracted_watts: float | None = None
    """At the meter, cooling included."""
    racks: int | None = None
    rack_watts: float | None = None
    """Power feed of one rack."""
    floor_kg_per_m2: float | None = None
    cooling: Cooling | None = None
    cooling_watts: float | None = None
    """Heat that the plant removes."""
    pue: float | None = None
    cable_metres: float | None = None
    """The longest cable of the network."""
    switch_ports: int | None = None
    switch_tiers: int = 3

    def __post_init__(self) -> None:
        names = (
            "contracted_watts",
            "racks",
            "rack_watts",
            "floor_kg_per_m2",
            "cooling_watts",
            "cable_metres",
            "switch_ports",
        )
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(
                    f"{name.replace('_', ' ')} = {value:g} must be above zero and finite"
                )
        if self.pue is not None and not 1 <= self.pue <= 3:
            raise InputError(f"a PUE of {self.pue:g}: between 1 and 3")
        if not 1 <= self.switch_tiers <= 4:
            raise InputError(f"{self.switch_tiers} tiers of switches: 1 to 4")
        if self.contracted_watts is None and self.racks is None and self.cooling_watts is None:
            raise InputError("a site needs its contracted power, its cooling plant or its racks")

    @property
    def pues(self) -> tuple[float, float, float]:
        if self.pue is not None:
            return self.pue, self.pue, self.pue
        if self.cooling is None:
            return _HALL_PUE
        low, high = self.cooling.pue_low, self.cooling.pue_high
        return low, (low + high) / 2, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    name: str
    doc: str
    gpus: int
    low: int
    """With every unknown at its worse end."""
    high: int
    alone: int | None
    """GPUs of the site without this one limit; None where nothing else limits it."""
    needed: str
    """What the limit would have to be for that many; empty where lifting it alone gains nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedLimit:
    """One more limit lifted, after those before it."""

    lifted: str
    gpus: int
    gained: int
    binding: str
    """The one that binds then; empty where none is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    machine: Machine
    gpus: int
    low: int
    high: int
    limits: tuple[Limit, ...]
    """The tightest first."""
    lifts: tuple[LiftedLimit, ...]
    unknown: tuple[str, ...]
    """Limits that were not given or cannot be computed, and why."""
    assumed: tuple[str, ...]

    @property
    def binding(self) -> str:
        return self.limits[0].name

    @property
    def next(self) -> str | None:
        return self.lifts[0].binding or None if self.lifts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cap:
    """A limit at one corner of what is unknown: whole machines, and what more of them would need."""

    name: str
    doc: str
    machines: float
    need: Callable[[int], str]


def deploy(site: SiteCapacity, machine: Machine) -> Deployment:
    """Planned on rated watts; the high end is on the mean draw, with everything else at its best."""
    planned, worst, best = (_caps(site, machine, corner) for corner in (1, 2, 0))
    least = _machines(planned)
    limits = []
    for name, cap in planned.items():
        alone = _machines(_caps(site, machine, 1, without=frozenset({name})))
        gains = math.isfinite(alone) and alone > least
        limits.append(
            Limit(
                name=name,
                doc=cap.doc,
                gpus=_gpus(machine, cap.machines),
                low=_gpus(machine, worst[name].machines),
                high=_gpus(machine, best[name].machines),
                alone=_gpus(machine, alone) if math.isfinite(alone) else None,
                needed=cap.need(int(alone)) if gains else "",
            )
        )
    return Deployment(
        machine=machine,
        gpus=_gpus(machine, least),
        low=_gpus(machine, _machines(worst)),
        high=_gpus(machine, _machines(best)),
        limits=tuple(sorted(limits, key=lambda limit: limit.gpus)),
        lifts=_lifts(site, machine),
        unknown=_unknown(site, machine),
        assumed=_assumed(site, machine),
    )


def _machines(caps: dict[str, _Cap]) -> float:
    return min(
        (math.floor(cap.machines + 1e-9) for cap in caps.values() if math.isfinite(cap.machines)),
        default=math.inf,
    )


def _gpus(machine: Machine, machines: float) -> int:
    return math.floor(machines + 1e-9) * machine.gpus


def _lifts(site: SiteCapacity, machine: Machine) -> tuple[LiftedLimit, ...]:
    """The binding limit goes, then the one that binds after it, until one is left."""
    lifts: list[LiftedLimit] = []
    gone: frozenset[str] = frozenset()
    caps = _caps(site, machine, 1)
    while len(caps) > 1:
        before = _machines(caps)
        tightest = min(caps.values(), key=lambda cap: cap.machines).name
        if tightest == "rack height" and "rack positions" in caps:
            tightest = "rack positions"  # racks do not grow; more of them stand beside each other
        gone |= {tightest}
        caps = _caps(site, machine, 1, without=gone)
        after = _machines(caps)
        if not math.isfinite(after):
            break
        lifts.append(
            LiftedLimit(
                lifted=tightest,
                gpus=_gpus(machine, after),
                gained=_gpus(machine, after - before),
                binding=min(caps.values(), key=lambda cap: cap.machines).name,
            )
        )
    return tuple(lifts)


def _caps(
    site: SiteCapacity, machine: Machine, corner: int, without: frozenset[str] = frozenset()
) -> dict[str, _Cap]:
    """Corner 0: best, 1: as planned, 2: worst."""
    caps = [*_power_caps(site, machine, corner), *_port_caps(site, machine)]
    fits = {name: fit for name, fit in _rack_fits(site, machine).items() if name not in without}
    in_rack = min((fit.machines for fit in fits.values()), default=math.inf)
    if site.racks is not None and "rack positions" not in without:
        caps += [_in_all_racks(site.racks, fit) for fit in fits.values()]
        caps += [_positions_cap(site.racks, in_rack)] if fits else []
    if site.cable_metres is not None and fits:
        caps.append(_reach_cap(site.cable_metres, in_rack))
    return {cap.name: cap for cap in caps if cap.name not in without}


def _power_caps(site: SiteCapacity, machine: Machine, corner: int) -> list[_Cap]:
    watts = (machine.drawn_watts, machine.rated_watts, machine.rated_watts)[corner]
    watts *= 1 + BESIDE[corner]
    pue = site.pues[corner]
    caps = []
    if site.contracted_watts is not None:
        caps.append(
            _Cap(
                name="contracted power",
                doc=f"{site.contracted_watts / 1e6:g} MW at PUE {pue:.3g}, "
                f"{watts * pue / machine.gpus / 1e3:.3g} kW a GPU at the meter",
                machines=site.contracted_watts / (watts * pue),
                need=lambda count: f"{count * watts * pue / 1e6:,.3g} MW",
            )
        )
    if site.cooling_watts is not None:
        caps.append(
            _Cap(
                name="cooling plant",
                doc=f"{site.cooling_watts / 1e6:g} MW of heat, "
                f"{watts / machine.gpus / 1e3:.3g} kW a GPU",
                machines=site.cooling_watts / watts,
                need=lambda count: f"{count * watts / 1e6:,.3g} MW",
            )
        )
    return caps


def _port_caps(site: SiteCapacity, machine: Machine) -> list[_Cap]:
    if site.switch_ports is None:
        return []
    ends = 2 * (site.switch_ports / 2) ** site.switch_tiers

    def need(count: int) -> str:
        ports = 2 * (count * machine.nics / 2) ** (1 / site.switch_tiers)
        return f"switches of {math.ceil(ports)} ports, or a tier more"

    doc = f"{site.switch_tiers} tiers of {site.switch_ports}-port switches join {ends:,.0f} NICs"
    return [_Cap(name="switch ports", doc=doc, machines=ends / machine.nics, need=need)]


def _rack_fits(site: SiteCapacity, machine: Machine) -> dict[str, _Cap]:
    """Whole machines in one rack, for each thing that it runs out of."""
    watts, mass, height = machine.rated_watts, machine.mass_kg, machine.rack_units
    fits: list[_Cap] = []

    def add(name: str, doc: str, machines: float, need: Callable[[int], str]) -> None:
        fits.append(_Cap(name=name, doc=doc, machines=_whole(machines), need=need))

    if site.rack_watts is not None:
        add(
            "rack feed",
            f"{site.rack_watts / 1e3:g} kW for {watts / 1e3:.3g} kW machines",
            site.rack_watts / watts,
            lambda n: f"{n * watts / 1e3:,.3g} kW a rack",
        )
    if site.cooling is not None and math.isfinite(_cooled(site.cooling, machine)):
        liquid = ", liquid to the chip" if machine.liquid else ""
        add(
            "rack cooling",
            _cooling_doc(site.cooling, machine),
            _cooled(site.cooling, machine),
            lambda n: f"{n * watts / 1e3:,.3g} kW a rack{liquid}",
        )
    if height is not None:
        room = height if machine.with_rack else _RACK_UNITS
        add(
            "rack height",
            f"{room:g} U for machines of {height:g} U",
            room / height,
            lambda n: f"{n * height:g} U a rack",
        )
    if site.floor_kg_per_m2 is not None and mass is not None:
        empty = 0.0 if machine.with_rack else _RACK_KG
        add(
            "floor load",
            f"{site.floor_kg_per_m2:,.0f} kg/m2 on {FOOTPRINT_M2} m2, {mass:,.0f} kg a machine",
            (site.floor_kg_per_m2 * FOOTPRINT_M2 - empty) / mass,
            lambda n: f"{(n * mass + empty) / FOOTPRINT_M2:,.0f} kg/m2",
        )
    return {fit.name: fit for fit in fits}


def _whole(machines: float) -> float:
    return max(math.floor(machines + 1e-9), 0) if math.isfinite(machines) else machines


def _in_all_racks(racks: int, fit: _Cap) -> _Cap:
    return _Cap(
        name=fit.name,
        doc=f"{fit.doc}: {fit.machines:.0f} in a rack",
        machines=racks * fit.machines,
        need=lambda count: fit.need(math.ceil(count / racks)),
    )


def _positions_cap(racks: int, in_rack: float) -> _Cap:
    def need(count: int) -> str:
        return f"{math.ceil(count / in_rack):,} positions" if in_rack else "nothing: none fits"

    return _Cap(
        name="rack positions",
        doc=f"{racks:,} positions of {in_rack:.0f} machines",
        machines=racks * in_rack,
        need=need,
    )


def _cooled(cooling: Cooling, machine: Machine) -> float:
    """Machines that the cooling serves in a rack; one without an air version needs liquid."""
    if machine.liquid and cooling.name not in ("direct-liquid", "immersion"):
        return 0.0
    return math.inf if cooling.rack_watts is None else cooling.rack_watts / machine.rated_watts


def _cooling_doc(cooling: Cooling, machine: Machine) -> str:
    if machine.liquid and cooling.name not in ("direct-liquid", "immersion"):
        return f"{machine.node} has no air-cooled version, the site has {cooling.name}"
    return f"{cooling.name} serves {(cooling.rack_watts or 0) / 1e3:g} kW a rack"


def _reach_cap(metres: float, in_rack: float) -> _Cap:
    """Cables run along aisles: within a square on its corner around the middle of the hall."""
    radius = max(metres - _SLACK_M, 0.0)
    racks = math.floor(2 * radius**2 / _RACK_AREA_M2)

    def need(count: int) -> str:
        area = math.ceil(count / max(in_rack, 1e-9)) * _RACK_AREA_M2
        return f"{math.sqrt(area / 2) + _SLACK_M:,.0f} m of cable"

    return _Cap(
        name="cable reach",
        doc=f"{metres:g} m of cable reach {racks:,} racks",
        machines=racks * in_rack,
        need=need,
    )


def _unknown(site: SiteCapacity, machine: Machine) -> tuple[str, ...]:
    missing = {
        "contracted power": site.contracted_watts,
        "cooling plant": site.cooling_watts,
        "rack positions": site.racks,
        "rack feed": site.rack_watts,
        "rack cooling": site.cooling,
        "floor load": site.floor_kg_per_m2,
        "cable reach": site.cable_metres,
        "switch ports": site.switch_ports,
    }
    reasons = [
        f"{name}: not given, so no limit" for name, value in missing.items() if value is None
    ]
    if site.floor_kg_per_m2 is not None and machine.mass_kg is None:
        reasons.append(f"floor load: the mass of {machine.node} is not published")
    if site.cooling is not None and site.cooling.rack_watts is None:
        reasons.append(f"rack cooling: {site.cooling.name} has no rack density in the catalog")
    return tuple(reasons)


def _assumed(site: SiteCapacity, machine: Machine) -> tuple[str, ...]:
    low, middle, high = BESIDE
    assumptions = [
        f"network, storage and management draw {100 * middle:.0f} % ({100 * low:.0f} to "
        f"{100 * high:.0f}) of the machines' watts"
    ]
    if site.pue is None and site.cooling is None:
        assumptions.append(f"PUE {_HALL_PUE[1]} ({_HALL_PUE[0]} to {_HALL_PUE[2]})")
    if not machine.measured:
        assumptions.append(
            f"{machine.node} draws {100 * DRAWN:.0f} % of its rating, as a DGX H100 does"
        )
    return tuple(assumptions)
