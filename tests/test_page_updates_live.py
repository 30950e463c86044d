"""What changes on the page while somebody reads it: updates wait, tabs out of sight follow nothing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from page_browser import ROOT, Served, opened, operator_file, served, settle, sign_in, visit
from run_folder_maker import Training

pytestmark = pytest.mark.live
CLEAN = ROOT / "tests" / "data" / "run_folders" / "clean"
MANY = 14
"""So many runs that a field filters them."""
_MARK_UPDATES = """
const Stream = EventSource;
window.EventSource = class extends Stream {
  constructor(...words) {
    super(...words);
    this.addEventListener("page", () => { document.documentElement.dataset.updated = "yes"; });
  }
};
"""
_HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path / "runs"
    for number in range(MANY):
        _train(folder / f"run-{number:02}")
    with served(folder) as server:
        yield server, folder


def _train(folder: Path) -> None:
    Training(ranks=2, steps=20).write(folder)


def followed(browser: Any, server: Served, address: str, screen: str = "desk") -> Any:
    """A page that marks that an update has arrived."""
    page = opened(browser, server, screen)
    page.add_init_script(_MARK_UPDATES)
    with page.expect_response(re.compile("/events")):
        visit(page, server, address)
    page.evaluate("document.querySelector('main').firstElementChild.dataset.old = 'yes'")
    return page


def add_run(page: Any, folder: Path, name: str) -> None:
    """Another run, and its update on the page."""
    _train(folder / name)
    page.wait_for_selector("html[data-updated]")


def test_a_tab_out_of_sight_follows_nothing_and_catches_up(
    browser: Any, runs: tuple[Served, Path]
) -> None:
    server, folder = runs
    page = followed(browser, server, "/runs")
    with page.expect_event("requestfailed", lambda request: "/events" in request.url):
        page.evaluate(_HIDE, True)
    _train(folder / "later")
    with page.expect_request(re.compile("/events.*known=")):
        page.evaluate(_HIDE, False)
    page.wait_for_selector("main >> text=later")
    assert page.said == []
    page.close()


def test_an_update_waits_until_a_press_has_ended(browser: Any, runs: tuple[Served, Path]) -> None:
    server, folder = runs
    page = followed(browser, server, "/runs")
    page.hover("th >> text=run")
    page.mouse.down()
    add_run(page, folder, "later")
    assert page.query_selector("[data-old]") is not None
    page.mouse.up()
    page.wait_for_selector("th[aria-sort=ascending]")
    page.wait_for_selector("main >> text=later")
    assert page.query_selector("[data-old]") is None and page.said == []
    page.close()


def test_an_update_keeps_what_is_typed_and_filters_by_it(
    browser: Any, runs: tuple[Served, Path]
) -> None:
    server, folder = runs
    page = followed(browser, server, "/runs")
    page.locator("main input[type=search]").press_sequentially("un-1")
    page.keyboard.press("Home")
    page.keyboard.type("r")
    add_run(page, folder, "run-19")
    page.wait_for_selector("main >> text=run-19")
    assert page.query_selector("[data-old]") is None and "only=run-1" in page.url
    page.keyboard.type("x")  # the caret is where it was
    assert page.locator("main input[type=search]").input_value() == "rxun-1"
    assert page.locator("tbody tr").count() == 0 and page.said == []
    page.close()


def test_a_source_that_cannot_be_read_is_said_until_it_can(
    browser: Any, runs: tuple[Served, Path]
) -> None:
    server, folder = runs
    page = followed(browser, server, "/runs/run-03")
    shutil.move(folder / "run-03", folder.parent / "away")
    page.wait_for_selector("header >> text=the source cannot be read, trying again")
    assert page.inner_text("main h1").startswith("run-03")
    shutil.move(folder.parent / "away", folder / "run-03")
    page.wait_for_selector("header >> text=the source cannot be read", state="detached")
    assert page.said == []
    page.close()


def test_a_first_tap_tells_and_a_second_opens(browser: Any) -> None:
    with served(ROOT / "tests" / "data" / "gpu_store") as server:
        page = opened(browser, server, "phone")
        visit(page, server, "/fleet")
        box = page.locator("canvas[data-key=fleet]").bounding_box()
        where = box["x"] + 8, box["y"] + box["height"] / 2
        page.touchscreen.tap(*where)
        page.wait_for_selector(".cell-facts:has-text('rank')")
        assert page.url.endswith("/fleet")
        page.touchscreen.tap(*where)
        page.wait_for_url("**/runs/*")
        assert page.said == []
        page.close()


def test_a_search_that_is_left_changes_no_other_address(
    browser: Any, runs: tuple[Served, Path]
) -> None:
    page = opened(browser, runs[0])
    visit(page, runs[0], "/catalog")
    page.fill("input[type=search]", "h200")
    page.click("nav >> text=Accuracy")
    page.wait_for_selector("h1:text('Accuracy')")
    page.wait_for_timeout(300)  # longer than a search waits for another letter
    assert page.url.endswith("/accuracy") and page.said == []
    page.close()


def test_another_name_of_a_device_stays_in_the_address(
    browser: Any, runs: tuple[Served, Path]
) -> None:
    page = opened(browser, runs[0])
    page.goto(f"{runs[0].base}/plan?model=llama-3.1-8b&device=h200&gpus=64&batch=256")
    page.wait_for_selector("[data-search]")
    assert "device=h200" in page.url and "device=h200-" not in page.url
    assert page.locator("select[name=device]").input_value() == "h200"
    assert page.said == []
    page.close()


def test_files_are_of_the_plan_that_is_shown(browser: Any, runs: tuple[Served, Path]) -> None:
    page = opened(browser, runs[0])
    page.goto(f"{runs[0].base}/plan?model=llama-3.1-8b&gpus=64&batch=256")
    page.wait_for_selector("[data-search=full]")
    shown = page.locator("tbody tr td").first.inner_text()
    with page.expect_download() as download:
        page.get_by_role("link", name="torchtitan.toml").click()
    assert "search=full" in download.value.url
    written = Path(download.value.path()).read_text()
    tensor = re.search(r"tensor_parallel_degree = (\d+)", written)
    stated = re.search(r"TP ?(\d+)", shown)
    assert tensor is not None and tensor[1] == (stated[1] if stated else "1"), (shown, written)
    assert page.said == []
    page.close()


def test_the_way_back_after_signing_out_shows_nothing(browser: Any, tmp_path: Path) -> None:
    token = "a-token-of-more-than-16"
    with served(CLEAN, "--operator-token-file", str(operator_file(tmp_path, "ada", token))) as it:
        page = opened(browser, it)
        sign_in(page, token)
        page.click("nav >> text=Catalog")
        settle(page)
        page.click("header >> text=ada (operator)")
        page.click("dialog >> text='Sign out'")
        page.wait_for_selector("text=Signed out")
        page.go_back()
        page.wait_for_url("**/flow")
        assert page.inner_text("main h1") == "Signed out" and page.query_selector("nav") is None
        page.close()


def test_an_update_that_cannot_be_drawn_is_said(browser: Any, runs: tuple[Served, Path]) -> None:
    """A page of another version of the server, say."""
    server, folder = runs
    page = opened(browser, server)
    event = {"address": "/runs", "tag": "x", "content": {"title": "Runs", "runs": [None]}}
    page.route(
        "**/events?*",
        lambda route: route.fulfill(
            content_type="text/event-stream", body=f"event: page\ndata: {json.dumps(event)}\n\n"
        ),
    )
    visit(page, server, "/runs")
    page.wait_for_selector("main .error")
    assert page.inner_text("main button") == "Try again" and folder.is_dir()
    page.close()
