"""Claims of popular documents, checked with the project's own models: start with `check_claims`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from computeflow.catalog import Catalog
from computeflow.comparison.claims import (
    hardware,
    market,
    money,
    placement,
    power,
    recommendations,
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

_AREAS = (hardware, market, money, placement, power, recommendations, sites, sizing, training)
"""Imported for the checks they register."""


def check_claims(
    catalog: Catalog,
    names: Sequence[str] = (),
    *,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[CheckedClaim]:
    """The named claims, or all of them, in the order of their rows."""
    claims = load_claims()
    for name in names:
        if name not in claims:
            raise UnknownNameError("claim", name, claims)
    bench = Bench(catalog, seed)
    wanted = [claim for name, claim in claims.items() if not names or name in names]
    checked = []
    for number, claim in enumerate(wanted, start=1):
        if progress is not None:
            progress(f"claim {number} of {len(wanted)}: {claim.name}")
        checked.append(CheckedClaim(claim=claim, outcome=CHECKS[claim.name](bench)))
    return checked
