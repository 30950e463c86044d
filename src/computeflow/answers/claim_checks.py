"""`claims`: what people repeat about training, checked with the project's own models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, NewFile, open_catalog
from computeflow.comparison.claims import CheckedClaim, PathStep, check_claims, mfu_path
from computeflow.errors import InputError
from computeflow.files.writing import write_file
from computeflow.views import claims as views
from computeflow.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClaimsAnswer(Answer):
    claims: tuple[CheckedClaim, ...]
    mfu_path: tuple[PathStep, ...]
    """Configurations behind the claim on MFU; empty where it was not requested."""
    named: bool
    """Claims were requested by name, and are shown with their reasons."""

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.claims/1",
            "claims": [_claim_data(c) for c in self.claims],
            "mfu_path": codec.encode(self.mfu_path),
        }

    @property
    def headline(self) -> str:
        return views.claims_headline(self.claims)

    def tables(self) -> list[Table]:
        return [
            views.claims_table(self.claims),
            *([views.reasons_table(self.claims)] if self.named else []),
            *([views.path_table(self.mfu_path)] if self.mfu_path else []),
        ]


def _claim_data(checked: CheckedClaim) -> dict[str, Any]:
    claim: dict[str, Any] = codec.encode(checked.claim)
    outcome: dict[str, Any] = codec.encode(checked.outcome)
    return claim | {"citation": checked.claim.citation} | outcome


@checked
def claims(
    names: Sequence[str] = (),
    *,
    page: NewFile | None = None,
    force: bool = False,
    seed: int = 0,
    catalog: CatalogFiles = (),
    progress: Callable[[str], None] | None = None,
) -> ClaimsAnswer:
    """Check the named claims, or all of them; `page` gets all of them as Markdown."""
    if page is not None and names:
        raise InputError("--page cannot be combined with names: it lists every claim")
    facts = open_catalog(catalog)
    answer = ClaimsAnswer(
        claims=tuple(check_claims(facts, names, seed=seed, progress=progress)),
        mfu_path=tuple(mfu_path(facts)) if not names or "mfu-path" in names else (),
        named=bool(names),
    )
    if page is not None:
        text = views.claims_page(answer.claims, answer.mfu_path)
        write_file(page, text, "--page", force=force)
    return answer
