"""The page of a store while its run goes on: pages that follow it, and every page beside it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from benchmarks.live_training import wait_for

from computeflow.actions.journal import ActionRecord
from page_browser import SCREENS, Served, addresses, check_page, pixels_too_wide, visit

_SHOWN = """() => document.querySelector('main').innerText
  + [...document.querySelectorAll('main canvas')].map(each => each.toDataURL()).join()"""
_COMPUTED = ("/plan", "/decide", "/simulate", "/accuracy")
_ABOUT_RUNS = ("/flow", "/findings", "/runs", "/timeline", "/fleet")


def watch_run(page: Any, server: Served, run: str) -> None:
    """Each page that follows a run shows something else after a while, without being loaded again."""
    for address in ("/flow", "/runs", f"/runs/{quote(run, safe='')}", "/fleet", "/findings"):
        visit(page, server, address)
        page.evaluate("window.stays = true")
        page.wait_for_selector("header .live.on")
        before = page.evaluate(_SHOWN)
        wait_for(lambda before=before: page.evaluate(_SHOWN) != before, f"{address} changes")  # type: ignore[misc]
        assert page.evaluate("window.stays") is True


def read_every_page(page: Any, server: Served, run: str) -> None:
    """Every page, those about runs on a phone too, and the step for Perfetto.

    What some of them compute has nothing of the store: it is not waited for here.
    """
    for address in addresses(run):
        if address in _COMPUTED:
            page.goto(server.base + address)
            page.wait_for_selector("main h1")
        else:
            visit(page, server, address)
        check_page(page)
        if address.startswith(_ABOUT_RUNS):
            page.set_viewport_size({"width": SCREENS["phone"][0], "height": 900})
            wait_for(lambda: pixels_too_wide(page) <= 0, f"{address} fits a phone")
            check_page(page)
            page.set_viewport_size({"width": SCREENS["desk"][0], "height": 900})
    trace = page.request.get(f"{server.base}/trace/{quote(run, safe='')}")
    assert trace.ok and {each["ph"] for each in json.loads(trace.body())["traceEvents"]} >= {"X"}


def gains(page: Any, action: ActionRecord) -> tuple[str, str]:
    """The predicted and the measured gain of an action as the page writes them."""
    write = "async value => (await import('/static/format.js')).seconds(value)"
    assert action.outcome is not None
    predicted, measured = action.predicted_gain_seconds, action.outcome.measured_gain_seconds
    return page.evaluate(write, predicted), page.evaluate(write, measured)


def gains_shown(page: Any, action: ActionRecord) -> tuple[str, str]:
    """The same two of the table of actions; a dash where one is not known yet."""
    table = page.locator("[aria-label=Actions]")
    heads = [text.split(",")[0] for text in table.locator("th").all_inner_texts()]
    row = table.locator("tbody tr").filter(
        has=page.locator(f"td:first-child:text-is('{action.id}')")
    )
    cells = row.locator("td").all_inner_texts()
    return cells[heads.index("predicted gain")], cells[heads.index("measured gain")]
