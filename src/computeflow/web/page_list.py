"""The pages, each with its one address: a page that is added is a line here.

Beside the line it is a function in `pages/`, whose parameters are those of its address, and an ES
module in `static/pages/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from computeflow.errors import InputError, UnknownNameError
from computeflow.web.page_answers import queries_of
from computeflow.web.pages.accuracy import accuracy_page
from computeflow.web.pages.catalog import catalog_page, kind_page, row_page
from computeflow.web.pages.decide import decide_page
from computeflow.web.pages.findings import findings_page
from computeflow.web.pages.fleet import fleet_page
from computeflow.web.pages.flow import flow_page
from computeflow.web.pages.plan import plan_page
from computeflow.web.pages.simulate import simulate_page
from computeflow.web.pages.single_run import run_page, runs_page
from computeflow.web.pages.timeline import timeline_page

_PART = re.compile(r"\{(\w+)(:path)?\}")


@dataclass(frozen=True, kw_only=True)
class Page:
    address: str
    """As FastAPI writes it; a run's id may have slashes: {run:path}."""
    title: str
    script: str
    """Its module below `static/pages`, without `.js`."""
    function: Callable[..., Any]
    menu: bool = True
    """Whether it is in the menu: pages of one thing are not."""
    under: str = ""
    """The page of the menu that it belongs to."""
    live: bool = False
    """Whether it follows the source, so that its address can be subscribed to."""

    @property
    def pattern(self) -> str:
        """A regular expression of its addresses, for Python and for JavaScript."""
        return f"^{_PART.sub(_group, self.address)}$"

    @cached_property
    def queries(self) -> frozenset[str]:
        """What its addresses can ask for behind the question mark."""
        taken = {match[1] for match in _PART.finditer(self.address)}
        return frozenset(queries_of(self.function)) - taken


def _group(match: re.Match[str]) -> str:
    return "(.+)" if match[2] else "([^/]+)"


PAGES = (
    Page(address="/flow", title="Flow", script="flow", function=flow_page, live=True),
    Page(
        address="/findings", title="Findings", script="findings", function=findings_page, live=True
    ),
    Page(address="/runs", title="Runs", script="runs", function=runs_page, live=True),
    Page(
        address="/runs/{run:path}",
        title="Run",
        script="run",
        function=run_page,
        live=True,
        menu=False,
        under="/runs",
    ),
    Page(
        address="/timeline/{run:path}",
        title="Timeline",
        script="timeline",
        function=timeline_page,
        live=True,
        menu=False,
        under="/runs",
    ),
    Page(address="/fleet", title="Fleet", script="fleet", function=fleet_page, live=True),
    Page(address="/plan", title="Plan", script="plan", function=plan_page),
    Page(address="/decide", title="Decide", script="decide", function=decide_page),
    Page(address="/simulate", title="Simulate", script="simulate", function=simulate_page),
    Page(address="/catalog", title="Catalog", script="catalog", function=catalog_page),
    Page(
        address="/catalog/{kind}",
        title="Catalog",
        script="catalog",
        function=kind_page,
        menu=False,
        under="/catalog",
    ),
    Page(
        address="/catalog/{kind}/{name:path}",
        title="Catalog",
        script="catalog",
        function=row_page,
        menu=False,
        under="/catalog",
    ),
    Page(address="/accuracy", title="Accuracy", script="accuracy", function=accuracy_page),
)


def live_address(address: str) -> str:
    """The address of a page that follows the source, in its one spelling, without what no page asks."""
    if not address.isprintable():
        raise InputError("an address with characters that cannot be printed")
    path, _, query = address.partition("?")
    page = next((each for each in PAGES if each.live and re.fullmatch(each.pattern, path)), None)
    if page is None:
        raise UnknownNameError("live page", path, [each.address for each in PAGES if each.live])
    asked = {name: value for name, value in parse_qsl(query) if name in page.queries}
    spelled = quote(unquote(path), safe="/")
    return f"{spelled}?{urlencode(sorted(asked.items()))}" if asked else spelled


def is_page(path: str) -> bool:
    return path == "/" or any(re.fullmatch(page.pattern, path) for page in PAGES)
