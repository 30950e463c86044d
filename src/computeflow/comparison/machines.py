"""Machines as they are racked: watts, mass, height, cooling of one piece. Start with `machine_of`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from computeflow.catalog import Catalog
from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import CatalogRow
from computeflow.comparison import DATA
from computeflow.errors import UnknownNameError

DRAWN = 0.76
"""Mean draw over rated watts of a node of eight H100 under heavy training (arXiv:2506.14551), 7.75 of
10.2 kW; taken where the catalog has no measured figure of the node. The most that such a node drew, 8.4
kW, is of arXiv:2412.08602."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RackRow(CatalogRow):
    kind: ClassVar[str] = "racked"
    machines: int = 1
    """Catalog nodes that make one piece: 18 trays of an NVL72."""
    rack_units: float | None = None
    """Rack units of the piece, where the catalog's figure is of a part."""
    mass_kg: float | None = None
    with_rack: bool = False
    """The mass is that of a whole rack."""
    liquid: bool = False
    """There is no air-cooled version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that is racked as one piece."""

    accelerator: str
    node: str
    gpus: int
    nics: int
    rated_watts: float
    drawn_watts: float
    """Mean under training."""
    measured: bool
    """Whether that was measured on this node."""
    rack_units: float | None
    mass_kg: float | None
    with_rack: bool
    liquid: bool


@cache
def rack_rows() -> dict[str, RackRow]:
    return {row.name: row for row in packaged_rows(DATA / "racked.toml", "racked", RackRow)}


def machine_of(accelerator: str, catalog: Catalog) -> Machine:
    """The machine of the catalog's usual node; one without published watts cannot be placed."""
    device = catalog.accelerators[accelerator]
    rows = rack_rows()
    if device.node not in rows:
        known = [catalog.nodes[name].accelerator for name in rows]
        raise UnknownNameError(
            "accelerator with a rated node",
            device.name,
            known,
            hint=f"there are {', '.join(known)}",
        )
    node, row = catalog.nodes[device.node], rows[device.node]
    assert node.rated_watts is not None
    drawn = node.measured_watts or DRAWN * node.rated_watts
    return Machine(
        accelerator=device.name,
        node=node.name,
        gpus=row.machines * node.count,
        nics=row.machines * (node.nics or node.count),
        rated_watts=row.machines * node.rated_watts,
        drawn_watts=row.machines * drawn,
        measured=node.measured_watts is not None,
        rack_units=row.rack_units or node.rack_units,
        mass_kg=row.mass_kg,
        with_rack=row.with_rack,
        liquid=row.liquid,
    )
