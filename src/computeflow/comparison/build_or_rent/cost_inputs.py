"""Inputs of owning and renting: numbers with their ends, and draws of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import CatalogRow
from computeflow.comparison import DATA
from computeflow.comparison.rents import Rent, Rents
from computeflow.errors import InputError, UnknownNameError
from computeflow.simulation.conditions import Basis
from computeflow.simulation.uncertainty import latin_of

Floats = NDArray[np.float64]
InputDraws = Mapping[str, Floats]
"""One number for each draw, by name of the input."""
R = TypeVar("R", bound=CatalogRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInput(CatalogRow):
    kind: ClassVar[str] = "input"
    unit: str
    value: float
    low: float
    high: float
    basis: Basis
    doc: str
    dates: tuple[str, ...] = ()
    """For a price, the date of each offer behind it; empty: `as_of` is the only date."""

    def __post_init__(self) -> None:
        super(CostInput, self).__post_init__()
        if not -1 < self.low <= self.value <= self.high < math.inf:
            raise InputError(f"{self.name}: {self.low:g} <= {self.value:g} <= {self.high:g} fails")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPrice(CatalogRow):
    kind: ClassVar[str] = "server"
    gpus: int
    value: float
    low: float
    high: float
    all_in: bool
    """Network and storage are in the price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShare(CatalogRow):
    kind: ClassVar[str] = "network"
    gpus: int
    share: float


def load_rows(kind: type[R], file: str) -> list[R]:
    return packaged_rows(DATA / file, kind.kind, kind)


@cache
def cost_inputs() -> dict[str, CostInput]:
    return {row.name: row for row in load_rows(CostInput, "building.toml")}


@cache
def servers() -> dict[str, ServerPrice]:
    return {row.name: row for row in load_rows(ServerPrice, "servers.toml")}


@cache
def _network_shares() -> list[NetworkShare]:
    return load_rows(NetworkShare, "network.toml")


def network_share(gpus: int) -> float:
    """Share of a cluster's cost, interpolated between published sizes in the logarithm of the size."""
    rows = _network_shares()
    sizes = np.log([row.gpus for row in rows])
    return float(np.interp(math.log(gpus), sizes, [row.share for row in rows]))


def inputs_for(
    accelerator: str, rents: Rents, given: Mapping[str, float], *, liquid: bool = False
) -> dict[str, CostInput]:
    """All inputs of a decision: the packaged ones, the server's price and the rents.

    What is given has no range. `liquid`: of machines that have no air-cooled version.
    """
    rows = dict(cost_inputs())
    if liquid:
        rows["pue"] = liquid_pue(rows["pue"])
    server = servers().get(accelerator)
    if server is not None:
        rows["server_usd_per_gpu"] = CostInput(
            name="server_usd_per_gpu",
            unit="USD",
            value=server.value / server.gpus,
            low=server.low / server.gpus,
            high=server.high / server.gpus,
            basis="published",
            doc="a machine, NICs included, over its GPUs",
            source=server.source,
            as_of=server.as_of,
        )
    for name, rent in (("on_demand_usd", rents.on_demand), ("contract_usd", rents.contract)):
        if rent is not None:
            rows[name] = _rent_input(name, rent)
    for name, value in given.items():
        if name not in rows and name not in _GIVEN:
            raise UnknownNameError("input", name, [*rows, *_GIVEN])
        rows[name] = _stated(name, value, rows.get(name))
    missing = [name for name in _GIVEN if name not in rows]
    if missing:
        raise InputError(
            f"{missing[0]} of {accelerator} is not published: state it with "
            f"--set {missing[0]}=VALUE"
        )
    return rows


_GIVEN = ("server_usd_per_gpu", "on_demand_usd", "contract_usd")
"""Inputs that come from the accelerator's rows, or from the user."""


BOUNDS = {
    "server_usd_per_gpu": (1.0, 1e7),
    "on_demand_usd": (0.01, 1e4),
    "contract_usd": (0.01, 1e4),
    "network_factor": (0.0, 10.0),
    "support_share": (0.0, 1.0),
    "hall_years": (1.0, 100.0),
    "hall_upkeep_share": (0.0, 1.0),
    "usd_per_kwh": (0.0, 10.0),
    "pue": (1.0, 3.0),
    "nodes_per_engineer": (1.0, 1e6),
    "capital_rate": (0.0, 1.0),
    "resale_36_months": (0.0, 1.0),
    "resale_haircut": (0.0, 1.0),
    "bringup_months": (0.0, 60.0),
    "busy": (0.01, 1.0),
    "life_years": (0.25, 20.0),
    "rent_trend": (-0.9, 2.0),
    "rent_extras": (0.0, 10.0),
    "wait_months": (0.0, 120.0),
}
"""Bounds of stated inputs: wide enough for any case, narrow enough that every figure stays finite.
Others lie between 0 and a million."""


def liquid_pue(row: CostInput) -> CostInput:
    """The catalog's range for direct liquid cooling, 1.1 to 1.2."""
    return replace(row, low=1.1, value=1.15, high=1.2)


def _rent_input(name: str, rent: Rent) -> CostInput:
    doc = (
        "a GPU-hour as it is used"
        if name == "on_demand_usd"
        else "a GPU-hour for a year, used or not"
    )
    return CostInput(
        name=name,
        unit="USD/h",
        value=rent.middle,
        low=rent.low,
        high=rent.high,
        basis="published",
        doc=doc,
        source=rent.source,
        as_of=rent.oldest,
        dates=rent.dates,
    )


def _stated(name: str, value: float, row: CostInput | None) -> CostInput:
    least, most = BOUNDS.get(name, (0.0, 1e6))
    if not least <= value <= most:
        raise InputError(f"{name} = {value:g}: between {least:g} and {most:g}")
    return CostInput(
        name=name,
        unit=row.unit if row else "USD",
        value=value,
        low=value,
        high=value,
        basis="stated",
        doc=row.doc if row else "",
        source="stated",
        as_of="2026",
    )


def middle_inputs(rows: Mapping[str, CostInput], **moved: float) -> dict[str, Floats]:
    """One draw with everything in its middle, but for what is moved."""
    values = {name: row.value for name, row in rows.items()} | moved
    return {name: np.array([value]) for name, value in values.items()}


def draw_inputs(rows: Mapping[str, CostInput], count: int, seed: int) -> dict[str, Floats]:
    """Half of the draws under the middle and half above, evenly; a Latin hypercube.

    Each input has random numbers of its own, so leaving one out does not move the others.
    """
    if not 8 <= count <= 100_000:
        raise InputError(f"{count} draws: 8 to 100,000")
    return {name: _at(row, latin_of(name, count, seed)) for name, row in rows.items()}


def _at(row: CostInput, quantiles: Floats) -> Floats:
    under = row.low + 2 * quantiles * (row.value - row.low)
    above = row.value + (2 * quantiles - 1) * (row.high - row.value)
    return np.where(quantiles < 0.5, under, above)
