"""`computeflow serve` as a process and Chromium before it, for the live tests of the page."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.live_training import environment

from computeflow.web.page_list import PAGES
from page_client import example_address

ROOT = Path(__file__).parents[1]
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
        self.base, _, self.token = self.opened.partition("/open?token=")

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


def opened(browser: Any, server: Served, screen: str = "desk") -> Any:
    """A page that has opened its session; what it says and whom else it asks is in `page.said`."""
    width, colours = SCREENS[screen]
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme=colours,
        has_touch=screen == "phone",
        ignore_https_errors=True,  # the test's own certificate
    )
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
    """An address of every page; those of one run are of this one."""
    return [example_address(page.address, run) for page in PAGES]


def pixels_too_wide(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def check_page(page: Any) -> None:
    """No error, not wider than the screen, nothing that axe-core objects to."""
    assert page.query_selector(".error") is None, page.url
    wide = pixels_too_wide(page)
    assert wide <= 0, f"{page.url} is {wide} pixels too wide"
    assert violations(page) == [], page.url


def operator_file(folder: Path, name: str, token: str) -> Path:
    path = folder / "operators"
    path.write_text(f"{name} {token}\n")
    path.chmod(0o600)
    return path


def sign_in(page: Any, token: str) -> None:
    """As somebody who may act, by the button in the head."""
    page.click("header >> text=Sign in to act")
    page.fill("#token", token)
    page.click("dialog >> text='Sign in'")
    page.wait_for_selector("text=(operator)")
