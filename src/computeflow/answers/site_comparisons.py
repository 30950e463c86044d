"""`compare_sites`: the same job at two sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, NewFile, open_catalog
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file
from computeflow.simulation.budget import one_budget
from computeflow.simulation.site_scenarios import load_sites
from computeflow.simulation.two_sites import SiteComparison
from computeflow.simulation.two_sites import compare_sites as compare_two_sites
from computeflow.views import run_pages as views
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.views.html_report import Part

_FIELDS = ("results", "lines", "total", "premium", "assumed_share", "draws", "inputs")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompareSitesAnswer(Answer):
    comparison: SiteComparison

    @property
    def headline(self) -> str:
        return views.sites_headline(self.comparison)

    def _data(self) -> dict[str, Any]:
        data = {name: codec.encode(getattr(self.comparison, name)) for name in _FIELDS}
        return {"schema": "computeflow.sites/1", **data}

    def tables(self) -> list[Table]:
        return [views.sites_table(self.comparison), views.lines_table(self.comparison)]

    def parts(self) -> Sequence[Part]:
        return [
            views.sites_table(self.comparison),
            views.difference_figure(self.comparison),
            views.site_inputs_table(self.comparison),
        ]


@checked
@one_budget()
def compare_sites(
    *,
    sites: File | None = None,
    draws: int = 100,
    seed: int = 0,
    page: NewFile | None = None,
    force: bool = False,
    catalog: CatalogFiles = (),
) -> CompareSitesAnswer:
    """Compare the same job at two sites: days and dollars to its end, and where they differ.

    `sites` is a file in the form of the packaged one; `page` is written as Markdown.
    """
    known = load_sites() if sites is None else load_sites(read_text(Path(sites)), str(sites))
    comparison = compare_two_sites(known, open_catalog(catalog), draws=draws, seed=seed)
    if page is not None:
        write_file(page, views.sites_page(comparison), "--page", force=force)
    return CompareSitesAnswer(comparison=comparison)
