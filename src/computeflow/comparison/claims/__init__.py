"""Claims of popular documents, checked with the project's own models: start with `check_claims`."""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.catalog import Catalog
from computeflow.comparison.claims import (
    hardware,
    money,
    placement,
    power,
    sites,
    sizing,
    training,
)
from computeflow.comparison.claims.claim import (
    CHECKS,
    Bench,
    CheckedClaim,
    Claim,
    Outcome,
    load_claims,
)
from computeflow.comparison.claims.path import PathStep, mfu_path
from computeflow.errors import UnknownNameError

__all__ = [
    "Bench",
    "CheckedClaim",
    "Claim",
    "Outcome",
    "PathStep",
    "check_claims",
    "load_claims",
    "mfu_path",
]  # fmt: skip

_AREAS = (hardware, money, placement, power, sites, sizing, training)
"""Imported for the checks they register."""


def check_claims(
    catalog: Catalog, names: Sequence[str] = (), *, seed: int = 0
) -> list[CheckedClaim]:
    """The named claims, or all of them, in the order of their rows."""
    claims = load_claims()
    for name in names:
        if name not in claims:
            raise UnknownNameError("claim", name, claims)
    bench = Bench(catalog, seed)
    return [
        CheckedClaim(claim=claim, outcome=CHECKS[name](bench))
        for name, claim in claims.items()
        if not names or name in names
    ]
