"""Rows as plain data for JSON: the fields of a row, its kind, and what is counted from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from computeflow import codec
from computeflow.catalog.models import Model
from computeflow.catalog.parameters import count_parameters
from computeflow.catalog.rows import CatalogRow, Offer, UptimeTier


def rows_to_data(rows: Iterable[CatalogRow]) -> list[dict[str, Any]]:
    return [{"kind": row.kind, **codec.encode(row), **_counted(row)} for row in rows]


def _counted(row: CatalogRow) -> dict[str, Any]:
    """Figures that the tables show beside the fields."""
    if isinstance(row, Model):
        count = count_parameters(row)
        return {"parameters": count.total, "active": count.active, "layers": row.layers}
    if isinstance(row, Offer):
        return {"usd_per_device_hour": row.usd_per_device_hour}
    if isinstance(row, UptimeTier):
        return {"downtime_seconds_per_year": row.downtime_seconds_per_year}
    return {}
