"""Facts: accelerators, nodes, fabrics, storage, models, offers, sites; each row with its source.

Start with `load_catalog()`, which gives a `Catalog` of our rows with the user's files over them.
"""

from computeflow.catalog.loading import Catalog, Rows, load_catalog
from computeflow.catalog.lookup import find_model, find_rows
from computeflow.catalog.models import Model
from computeflow.catalog.rows import (
    PRECISIONS,
    Accelerator,
    Collective,
    Cooling,
    Fabric,
    Grid,
    Node,
    Offer,
    Provider,
    Row,
    Storage,
    Tier,
)

__all__ = [
    "PRECISIONS",
    "Accelerator",
    "Catalog",
    "Collective",
    "Cooling",
    "Fabric",
    "Grid",
    "Model",
    "Node",
    "Offer",
    "Provider",
    "Row",
    "Rows",
    "Storage",
    "Tier",
    "find_model",
    "find_rows",
    "load_catalog",
]
