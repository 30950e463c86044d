"""Plan and fleet in Chromium: sliders change the plan, a link restores it, 16,384 GPUs are one map."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.made_fleet import write_fleet

from page_browser import BOUND, Served, opened, served, visit

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = write_fleet(tmp_path_factory.mktemp("fleet"))
    with served(store, "--topology", str(store / "topology.conf")) as server:
        yield server


def number_of(page: Any, label: str) -> str:
    """The number below a label."""
    found: str = page.locator(".stats > div", has_text=label).locator("dd").first.inner_text()
    return found


def test_sliders_change_the_plan_and_a_link_restores_it(browser: Any, fleet: Served) -> None:
    page = opened(browser, fleet)
    page.goto(f"{fleet.base}/plan?model=llama-3.1-8b&gpus=64&batch=256&tokens=1T&price=2")
    page.wait_for_selector("[data-search=full]")
    before = number_of(page, "Step"), number_of(page, "Training"), number_of(page, "Cost")
    slider = page.get_by_label("Devices, slider")
    assert slider.get_attribute("aria-valuetext") == "64"
    slider.press("ArrowRight")
    page.wait_for_url(re.compile("gpus=128"))
    changed = page.locator(".stats > div", has_text="Step").filter(has_not_text=before[0])
    changed.wait_for()
    page.wait_for_selector("[data-search=full]")
    after = number_of(page, "Step"), number_of(page, "Training"), number_of(page, "Cost")
    assert all(one != other for one, other in zip(before, after, strict=True))
    page.wait_for_selector("text=Time against cost by number of devices")
    with page.expect_download() as download:
        page.get_by_role("link", name="torchtitan.toml").click()
    assert "tensor_parallel_degree" in Path(download.value.path()).read_text()

    other = opened(browser, fleet)
    other.goto(page.url)
    other.wait_for_selector("[data-search=full]")
    assert other.locator("input[name=gpus]").input_value() == "128"
    assert (number_of(other, "Step"), number_of(other, "Cost")) == (after[0], after[2])
    other.get_by_label("Precision, slider").press("ArrowRight")
    other.wait_for_url(re.compile("precision=fp8"))
    assert other.get_by_label("Deadline, slider").get_attribute("aria-valuetext") == "any"
    other.get_by_label("Deadline, slider").press("End")
    other.wait_for_url(re.compile("deadline=365"))
    other.locator("p.lead", has_text="layouts").wait_for()
    assert page.said == other.said == []


def test_a_wrong_value_is_told_beside_its_field(browser: Any, fleet: Served) -> None:
    page = opened(browser, fleet)
    page.goto(f"{fleet.base}/plan?model=llama-9")
    field = page.locator(".field", has=page.locator("input[name=model]"))
    field.locator(".problem", has_text="unknown model 'llama-9'").wait_for(timeout=BOUND)
    field.locator("input").fill("llama-3.1-8b")
    field.locator("input").press("Enter")
    page.wait_for_selector(".stats")
    assert field.locator(".problem").inner_text() == ""


def test_tokens_that_are_no_number_are_told_beside_their_field(browser: Any, fleet: Served) -> None:
    page = opened(browser, fleet)
    page.goto(f"{fleet.base}/plan?tokens=2,5T")
    problem = page.locator(".field", has_text="Tokens to train on").locator(".problem")
    problem.filter(has_text="is not a number with a unit of tokens").wait_for()
    page.wait_for_selector("text=A field needs another value.")
    assert page.get_by_text("There is no plan").count() == 0
    page.close()


def test_who_leaves_a_page_asks_its_question_no_more(browser: Any, fleet: Served) -> None:
    page, asked = opened(browser, fleet), list[str]()
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.goto(f"{fleet.base}/decide")  # all offers: it takes longer than this test
    page.wait_for_selector(".working")
    page.click("nav >> text=Catalog")
    page.wait_for_selector("h1:text('Catalog')")
    before = len([name for name in asked if name.startswith("decide.json")])
    page.wait_for_timeout(1500)  # it asks every half second
    assert len([name for name in asked if name.startswith("decide.json")]) == before > 0
    assert page.said == []


def test_16384_gpus_are_one_map_that_tells_of_each(browser: Any, fleet: Served) -> None:
    page = opened(browser, fleet)
    visit(page, fleet, "/fleet?by=power")
    canvas = page.locator("canvas[data-milliseconds]")
    assert "16,384 GPUs" in canvas.get_attribute("aria-label")
    colours = canvas.evaluate(
        "node => new Set(new Uint32Array(node.getContext('2d')"
        ".getImageData(0, 0, node.width, node.height).data.buffer)).size"
    )
    assert colours > 20
    canvas.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    facts = page.locator(".cell-facts")
    assert facts.inner_text().startswith("rank 1 on node-0000: MFU 41.0 %")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 35)
    assert facts.inner_text().startswith("rank ")
    page.get_by_role("button", name="Health").click()
    page.wait_for_selector("text=Worst nodes by health")
    page.locator("canvas").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/405b-pretrain")
    assert page.said == []
