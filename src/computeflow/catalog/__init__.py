"""Facts: accelerators, nodes, fabrics, storage, models, offers, sites; each row with its source.

Start with `load_catalog()`, which gives a `Catalog` of our rows with the user's files over them.
"""

from computeflow.catalog.loading import Catalog, CatalogTable, load_catalog
from computeflow.catalog.lookup import find_model, find_rows
from computeflow.catalog.models import Model
from computeflow.catalog.rows import (
    PRECISIONS,
    Accelerator,
    CatalogRow,
    Cooling,
    Fabric,
    Grid,
    NodeType,
    Offer,
    Provider,
    PublishedCollective,
    Storage,
    UptimeTier,
)

__all__ = [
    "PRECISIONS",
    "Accelerator",
    "Catalog",
    "CatalogRow",
    "CatalogTable",
    "Cooling",
    "Fabric",
    "Grid",
    "Model",
    "NodeType",
    "Offer",
    "Provider",
    "PublishedCollective",
    "Storage",
    "UptimeTier",
    "find_model",
    "find_rows",
    "load_catalog",
]
