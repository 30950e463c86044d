"""What a reader has in hand on the page stays: place, focus, what was opened, the way back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from page_browser import BOUND, ROOT, Served, opened, served, settle, violations, visit
from page_client import made_store

pytestmark = pytest.mark.live
RUNS = ROOT / "tests" / "data" / "run_folders"
STORE = ROOT / "tests" / "data" / "gpu_store"
_REFOCUSED = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.tagName"


@pytest.fixture(scope="module")
def recordings() -> Iterator[Served]:
    with served(RUNS) as server:
        yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = Path(shutil.copytree(STORE, tmp_path_factory.mktemp("gpu") / "store"))
    with served(folder) as server:
        yield server, folder


def test_an_update_leaves_place_focus_and_what_was_opened(
    browser: Any, store: tuple[Served, Path]
) -> None:
    page = opened(browser, store[0])
    page.set_viewport_size({"width": 1280, "height": 500})
    page.click("aside summary")
    band = page.locator("g[aria-label^='input']")
    band.focus()
    page.evaluate("scrollTo(0, 200)")
    page.evaluate(
        """async () => {
          const { redraw } = await import("/static/redraw.js");
          const { render } = await import("/static/pages/flow.js");
          const read = async address => (await fetch(address)).json();
          const content = await read("/flow.json"), session = await read("/session");
          const main = document.querySelector("main");
          main.firstElementChild.dataset.old = "yes";
          redraw(main, render(content, { session, query: new URLSearchParams(), state: {} }).flat());
        }"""
    )
    assert page.query_selector("[data-old]") is None
    assert page.evaluate("scrollY") == 200
    assert page.evaluate(_REFOCUSED).startswith("input")
    assert page.get_attribute("aside details", "open") is not None
    assert page.said == []
    page.close()


def test_the_way_back_leads_to_the_same_place(browser: Any, recordings: Served) -> None:
    page = opened(browser, recordings)
    page.set_viewport_size({"width": 1280, "height": 400})
    visit(page, recordings, "/runs/slow")
    page.evaluate("scrollTo(0, 350)")
    page.wait_for_timeout(300)  # the address keeps it a moment later
    page.evaluate(
        "document.querySelector('main a[href^=\"/timeline\"]').click()"
    )  # from where it is
    page.wait_for_url("**/timeline/slow")
    settle(page)
    assert page.evaluate("scrollY") == 0
    page.go_back()
    page.wait_for_url("**/runs/slow")
    page.wait_for_selector("canvas[data-key='heat map']")
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == 350
    assert page.said == []
    page.close()


def test_bands_are_steps_of_the_way_back(browser: Any, recordings: Served) -> None:
    page = opened(browser, recordings)
    visit(page, recordings, "/flow?run=slow")
    page.click("g[aria-label^='straggler']")
    page.wait_for_selector("aside[aria-label='straggler']")
    page.go_back()
    page.wait_for_selector("aside[aria-label='Findings']")
    assert page.url.endswith("/flow?run=slow")
    page.close()


def test_on_a_phone_what_an_account_opens_comes_into_view(browser: Any, recordings: Served) -> None:
    page = opened(browser, recordings, "phone")
    visit(page, recordings, "/flow?run=slow")
    page.click("tbody >> text=straggler")
    page.wait_for_selector("aside[aria-label='straggler']")
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect(page.locator("aside h2").first).to_be_in_viewport(timeout=BOUND)
    assert page.said == []
    page.close()


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("/flow?run=slow", "slow · Flow · ComputeFlow"),
        ("/runs/slow", "slow · Run · ComputeFlow"),
        ("/timeline/slow?step=50", "slow, step 50 · Timeline · ComputeFlow"),
        ("/plan", "Plan · ComputeFlow"),
        ("/accuracy", "Accuracy · ComputeFlow"),
        ("/catalog/accelerators/h200-sxm", "h200-sxm · Catalog · ComputeFlow"),
        ("/runs/none", "Run · ComputeFlow"),
    ],
)
def test_tabs_are_named_after_what_they_show(
    browser: Any, recordings: Served, address: str, title: str
) -> None:
    page = opened(browser, recordings)
    page.goto(recordings.base + address)
    page.wait_for_selector("main h1")
    assert page.title() == title
    page.close()


def test_the_heat_map_opens_a_step_by_keyboard(browser: Any, recordings: Served) -> None:
    page = opened(browser, recordings)
    visit(page, recordings, "/runs/slow")
    page.focus("canvas[data-key='heat map']")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.inner_text(".drawing > .tip:not([hidden])").startswith("rank 1, step 3")
    assert violations(page) == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/timeline/slow?step=3*")
    page.close()


def test_a_timeline_and_curves_are_read_by_keyboard(browser: Any, recordings: Served) -> None:
    page = opened(browser, recordings)
    tip = ".drawing:has(:focus) > .tip:not([hidden])"
    visit(page, recordings, "/timeline/slow?step=50")
    page.focus("svg.timeline")
    page.keyboard.press("Home")
    first = page.inner_text(tip)
    page.keyboard.press("ArrowRight")
    assert first.startswith("rank 0: ") and page.inner_text(tip) != first
    page.keyboard.press("ArrowDown")
    assert page.inner_text(tip).startswith("rank 1: ")
    assert page.locator(".span.at").count() == 1
    assert violations(page) == []
    visit(page, recordings, "/runs/slow")
    page.focus("svg[data-key='step times']")
    page.keyboard.press("End")
    last = page.inner_text(tip)
    page.keyboard.press("ArrowLeft")
    assert last.startswith("step ") and page.inner_text(tip) != last
    assert violations(page) == [] and page.said == []
    page.close()


def test_runs_are_ordered_and_filtered(browser: Any, recordings: Served) -> None:
    page = opened(browser, recordings)
    visit(page, recordings, "/runs")
    page.click("th >> text=run")
    page.wait_for_selector("th[aria-sort=ascending]")
    names = page.locator("tbody td:first-child").all_inner_texts()
    assert names == sorted(names) and "sort=run" in page.url
    page.click("th >> text=steps")
    page.wait_for_selector("th[aria-sort=descending]")
    steps = [
        int(text.replace(",", ""))
        for text in page.locator("tbody td:nth-child(5)").all_inner_texts()
    ]
    assert steps == sorted(steps, reverse=True)
    assert violations(page) == [] and page.said == []
    page.close()


def test_a_click_beside_the_map_opens_nothing(browser: Any, store: tuple[Served, Path]) -> None:
    page = opened(browser, store[0])
    visit(page, store[0], "/fleet")
    box = page.locator("canvas[data-key=fleet]").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] - 8)
    page.mouse.click(box["x"] + box["width"] - 4, box["y"] + 4)
    page.wait_for_timeout(200)
    assert page.url.endswith("/fleet")
    page.close()


def test_what_is_not_there_is_said_on_a_page_with_a_way_on(
    browser: Any, recordings: Served
) -> None:
    page = opened(browser, recordings)
    page.goto(recordings.base + "/nosuch")
    assert "There is no such page." in page.inner_text("body")
    page.click("a")
    page.wait_for_selector("main h1")
    page.goto(recordings.base + "/runs/%")
    page.wait_for_selector("main .error")
    page.close()


def test_a_step_that_is_not_there_leads_to_those_that_are(browser: Any, recordings: Served) -> None:
    page = opened(browser, recordings)
    visit(page, recordings, "/timeline/slow?step=9999")
    assert page.get_by_role("link", name="slow").get_attribute("href") == "/runs/slow"
    page.fill("[data-key=step]", "60")
    page.press("[data-key=step]", "Enter")
    page.wait_for_selector("h1 >> text=Step 60")
    page.go_back()
    page.click("text=Last step")
    page.wait_for_selector("h1 >> text=Step 120")
    assert violations(page) == [] and page.said == []
    page.close()


def test_a_server_that_is_gone_is_said_with_a_way_to_try_again(browser: Any) -> None:
    with served(RUNS) as server:
        page = opened(browser, server)
        settle(page)
    page.click("nav >> text=Runs")
    page.wait_for_selector("text=The server does not answer.")
    assert page.inner_text("main button") == "Try again"
    page.close()


def test_who_signs_out_sees_nothing_more(browser: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "operators"
    tokens.write_text("ada " + "a-token-of-more-than-16\n")
    tokens.chmod(0o600)
    folder = Path(made_store(tmp_path)[0])
    with served(folder, "--operator-token-file", str(tokens)) as server:
        page = opened(browser, server)
        page.click("header >> text=Sign in to act")
        page.fill("#token", "a-token-of-more-than-16")
        page.click("dialog >> text='Sign in'")
        page.click("header >> text=ada (operator)")
        page.click("dialog >> text=Cancel")
        page.click("header >> text=ada (operator)")
        page.click("dialog >> text='Sign out'")
        page.wait_for_selector("text=Signed out")
        assert "ada" not in page.inner_text("body") and page.query_selector("nav") is None
        page.close()


def test_a_page_that_takes_long_says_how_far_it_is(browser: Any, recordings: Served) -> None:
    page, asked = opened(browser, recordings), 0

    def slow(route: Any) -> None:
        nonlocal asked
        asked += 1
        working = {"progress": "reading the recording", "seconds": 7.0}
        if asked < 3:
            route.fulfill(status=202, json={"schema": "computeflow.page/1", "working": working})
        else:
            route.continue_()

    page.route("**/findings.json", slow)
    page.click("nav >> text=Findings")
    page.wait_for_selector("main >> text=reading the recording, 7 s")
    assert page.inner_text("main h1") == "Findings"
    settle(page)
    assert "reading the recording" not in page.inner_text("main") and page.said == []
    page.close()
