"""The catalog that all tasks of a worker share, read once; and the model by name alone.

A page names rows of the catalog: what could be the name of a file is refused, so that none is read.
"""

from __future__ import annotations

from functools import cache

from computeflow.catalog import Catalog, load_catalog
from computeflow.catalog.lookup import is_file_name
from computeflow.errors import UnknownNameError


@cache
def shared_catalog() -> Catalog:
    return load_catalog([])


def model_name(name: str) -> str:
    if is_file_name(name):
        raise UnknownNameError("model", name, shared_catalog().models.names)
    return name
