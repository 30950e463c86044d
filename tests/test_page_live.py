"""The page in Chromium: every page with a real recording, on three screens.

tests/test_control_live.py has it beside a run that goes on, with an action that is approved on it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from page_browser import (
    ROOT,
    SCREENS,
    Served,
    addresses,
    check_page,
    opened,
    served,
    settle,
    violations,
    visit,
)

pytestmark = pytest.mark.live
RUNS = ROOT / "tests" / "data" / "run_folders"
TRACE = ROOT / "tests" / "data" / "h200_traces" / "slow-loader-0.03.json.gz"


@pytest.fixture(scope="module")
def recordings() -> Iterator[Served]:
    with served(RUNS) as server:
        yield server


@pytest.mark.parametrize("screen", SCREENS)
def test_every_page_reads_on_every_screen(browser: Any, recordings: Served, screen: str) -> None:
    page = opened(browser, recordings, screen)
    for address in [*addresses("slow"), "/flow?run=slow&account=straggler", "/catalog?search=h100"]:
        visit(page, recordings, address)
        check_page(page)
    assert page.said == []
    page.close()


def test_what_readers_could_not_read_is_found(browser: Any, recordings: Served) -> None:
    page = opened(browser, recordings)
    visit(page, recordings, "/runs")
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert [each.partition(":")[0] for each in violations(page)] == ["button-name"]
    page.close()


def test_figures_of_a_trace_are_drawn_under_the_policy(browser: Any) -> None:
    with served(TRACE) as server:
        page = opened(browser, server)
        visit(page, server, f"/runs/{TRACE.name}")
        page.wait_for_selector(".js-plotly-plot .main-svg")
        assert page.said == [] and violations(page) == []
        page.close()


def test_the_flow_shows_what_was_predicted_beside_what_was_measured(browser: Any) -> None:
    with served(TRACE, "--expect", str(ROOT / "examples" / "lab-0.5b-predicted.json")) as server:
        page = opened(browser, server)
        visit(page, server, "/flow")
        bands = {
            each["account"]: each
            for each in page.request.get(f"{server.base}/flow.json").json()["bands"]
        }
        nodes, outlines = (
            page.locator(f"g[aria-label^='compute.kernel'] rect.{kind}")
            for kind in ("node", "predicted")
        )
        heights = [float(each.get_attribute("height")) for each in (nodes, outlines)]
        kernel = bands["compute.kernel"]
        ratio = kernel["expected_gpu_seconds"] / kernel["gpu_seconds"]
        assert (heights[1] + 1) / heights[0] == pytest.approx(ratio, rel=0.01)
        assert page.locator("g[aria-label='input, design, 64.2 %, predicted 0.0 %']").count() == 1
        check_page(page)
        assert page.said == []
        page.close()


def test_a_band_opens_its_findings_by_mouse_and_by_keyboard(
    browser: Any, recordings: Served
) -> None:
    page = opened(browser, recordings)
    visit(page, recordings, "/flow?run=slow")
    page.click("g[aria-label^='straggler']")
    page.wait_for_selector("aside[aria-label='straggler']")
    assert "account=straggler" in page.url and "host-stall" in page.text_content("aside")
    page.focus("g[aria-label^='host']")
    page.keyboard.press("Enter")
    page.wait_for_selector("aside[aria-label='host']")
    page.reload()  # the address restores it
    page.wait_for_selector("aside[aria-label='host']")
    page.click("nav >> text=Runs")
    page.wait_for_url("**/runs")
    page.click("main >> text=slow")
    page.wait_for_url("**/runs/slow")
    page.click("[aria-label^='Switch between']")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.said == []
    page.close()


def test_script_in_names_stays_text(browser: Any, tmp_path: Path) -> None:
    name = "<img src=x onerror=\"document.title='ran'\">"
    folder = tmp_path / "runs" / name.replace("/", "")
    shutil.copytree(RUNS / "slow", folder)
    (folder / "run.json").write_text('{"name": %s}' % ('"' + name.replace('"', '\\"') + '"'))
    with served(tmp_path / "runs") as server:
        page = opened(browser, server)
        for address in ("/runs", "/flow", "/findings"):
            visit(page, server, address)
            assert name in page.text_content("main") or address == "/findings"
        page.click("nav >> text=Runs")
        page.click(f"main a >> text={name}")
        settle(page)
        assert "ran" not in page.title().replace("ComputeFlow", "") or name in page.title()
        assert page.query_selector("main img") is None and page.said == []
        page.close()
