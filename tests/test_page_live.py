"""The page in Chromium: every page with a real recording, on three screens; live, with an action."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.live_training import collecting, environment, training, wait_for

from computeflow.actions.journal import ActionJournal, ActionOutcome, ActionRecord
from computeflow.collection.store.state_database import StateDatabase
from computeflow.web.page_list import PAGES
from page_client import example_address

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[1]
RUNS = ROOT / "tests" / "data" / "run_folders"
TRACE = ROOT / "tests" / "data" / "h200_traces" / "slow-loader-0.03.json.gz"
TOKEN = "operator-token-0123456789"
BOUND = 300_000
"""Milliseconds: a bound on a busy machine, not a speed."""
SCREENS = {"desk": (1280, "light"), "night": (1280, "dark"), "phone": (390, "light")}


class Served:
    """`computeflow serve` as a process, and where it listens."""

    def __init__(self, directory: Path, *options: str) -> None:
        words = [sys.executable, "-m", "computeflow", "serve", str(directory)]
        self.process = subprocess.Popen(
            [*words, "--listen", "127.0.0.1:0", "--price", "2.5", *options],
            stdout=subprocess.PIPE,
            env=environment() | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            text=True,
        )
        assert self.process.stdout is not None
        self.opened = self.process.stdout.readline().split()[-1]
        self.base = self.opened.partition("/open")[0]

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0


@contextmanager
def served(directory: Path, *options: str) -> Iterator[Served]:
    server = Served(directory, *options)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright: pip install playwright"
    )
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: apt-get install -y chromium")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def recordings() -> Iterator[Served]:
    with served(RUNS) as server:
        yield server


def opened(browser: Any, server: Served, screen: str = "desk") -> Any:
    """A page that has opened its session; what it says and whom else it asks is in `page.said`."""
    width, colours = SCREENS[screen]
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
    page.set_default_timeout(BOUND)
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("dialog", lambda dialog: page.said.append(dialog.message))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(server.base) else page.said.append(asked.url),
    )
    page.goto(server.opened)
    page.wait_for_url("**/flow")
    return page


def settle(page: Any) -> None:
    page.wait_for_selector("main h1")
    page.wait_for_selector("[aria-busy]", state="detached")


def visit(page: Any, server: Served, address: str) -> None:
    page.goto(server.base + address)
    settle(page)


def violations(page: Any) -> list[str]:
    """What axe-core objects to, of the levels A and AA."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    found = axe.Axe().run(page, options=options).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


def addresses(run: str) -> list[str]:
    return [example_address(page.address).replace("slow", run) for page in PAGES]


@pytest.mark.parametrize("screen", SCREENS)
def test_every_page_reads_on_every_screen(browser: Any, recordings: Served, screen: str) -> None:
    page = opened(browser, recordings, screen)
    for address in [*addresses("slow"), "/flow?run=slow&account=straggler", "/catalog?search=h100"]:
        visit(page, recordings, address)
        assert page.query_selector(".error") is None, address
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{address} is {wide} pixels too wide"
        assert violations(page) == [], address
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


def test_a_live_finding_appears_is_approved_and_its_outcome_shows(
    browser: Any, tmp_path: Path
) -> None:
    tokens = tmp_path / "operators"
    tokens.write_text(f"ada {TOKEN}\n")
    tokens.chmod(0o600)
    follow = ("--follow", str(tmp_path / "runs"))
    with (
        collecting(tmp_path, *follow) as collector,
        training(tmp_path, 2) as (command, _),
        served(collector.store, "--operator-token-file", str(tokens)) as server,
    ):
        wait_for(lambda: collector.steps() > 40, "the first steps")
        page = opened(browser, server)
        visit(page, server, "/findings")
        command.write_text("loader")
        page.wait_for_selector("article.finding >> text=input-stall")
        finding = wait_for(lambda: collector.named("input-stall", [1]), "the finding")
        number = propose(collector.store, finding)
        page.click("article.finding >> text=Sign in to act")
        page.fill("#token", TOKEN)
        page.click("dialog >> text='Sign in'")
        page.click("article.finding >> text='Approve'")
        page.wait_for_selector("text=approved by ada")
        assert violations(page) == []
        record_outcome(collector.store, number)
        page.wait_for_selector("td >> text='29.4 min'")
        visit(page, server, f"/runs/{finding['run']}")
        first = page.text_content(".stats")
        wait_for(lambda: page.text_content(".stats") != first, "the next steps")
        assert page.said == []
        page.close()


def propose(store: Path, finding: dict[str, Any]) -> int:
    """What a controller in mode ask writes down."""
    state = StateDatabase(store / "state.sqlite")
    record = ActionJournal(state).add(
        ActionRecord(
            at=time.time(),
            kind="restart",
            state="proposed",
            mode="ask",
            run=finding["run"],
            job="8",
            findings=(finding["key"],),
            title="restart job 8 elsewhere",
            predicted_gain_seconds=1920.0,
        )
    )
    state.close()
    return record.id


def record_outcome(store: Path, number: int) -> None:
    """What the controller writes once it has acted and measured."""
    state = StateDatabase(store / "state.sqlite")
    outcome = ActionOutcome(at=time.time(), measured_gain_seconds=1764.0)
    ActionJournal(state).move(number, ("approved",), "done", outcome=outcome)
    state.close()
