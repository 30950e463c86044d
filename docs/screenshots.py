"""Screenshots of every page in docs/images, light, dark and on a phone: `python docs/screenshots.py`.

The recordings are real and in the repository: a collector's store of trainings on an H200, and run
folders of two ranks. Made, and said to be in docs/serve.md, are the fleet of 16,384 GPUs and the
action that waits for an approval: no recording has either. The store is shown as of the end of its
recording: by today's clock its runs are silent.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from small_png import small_png

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
MODES: dict[str, tuple[str, int, int, int]] = {
    "light": ("light", 1280, 860, 1500),
    "dark": ("dark", 1280, 860, 1500),
    "phone": ("light", 390, 844, 2200),
}
"""Colours, width and height of the screen, and how long a picture may be: pixels."""
OPERATOR = "ada", "screenshots-take-this-token-0123456789"
_WAIT_SECONDS = 300.0
_DRAWN = """() => {
  const plan = location.pathname === "/plan", done = document.querySelector("[data-search=full]");
  const busy = document.querySelector("[aria-busy=true], .working");
  return Boolean(document.querySelector("main h1")) && !busy && (!plan || done);
}"""
"""Nothing is being drawn or computed; of a plan all layouts have been searched."""
_END = """longest => {
  const parts = "h1, h2, p, dl, form, details, section, .legend, .table, .drawing, .finding, .part";
  const boxes = [...document.querySelector("main").querySelectorAll(parts)]
    .filter(node => node.checkVisibility()).map(node => node.getBoundingClientRect())
    .map(box => [box.top + scrollY, box.bottom + scrollY]);
  const ends = boxes.map(([, end]) => end).sort((a, b) => b - a);
  const cuts = end => boxes.some(([top, bottom]) => top < end - 1 && bottom > end + 1);
  const last = ends[0] <= longest ? ends[0] : ends.find(end => end <= longest && !cuts(end)) ?? longest;
  return Math.min(last + 24, ...boxes.map(([top]) => top).filter(top => top > last));
}"""
"""Where a picture ends: with the page, or after the last of its sections that is all in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is served, and what is taken of its pages: addresses by the image's name."""

    make: Callable[[Path], Path]
    """The folder to serve; it may be written into the folder that is given."""
    pages: dict[str, str]
    """{run} is the latest run."""
    options: Callable[[Path], list[str]] = field(default=lambda _: [])
    moment: Callable[[Path], float] = field(default=lambda _: time.time())
    """What the clocks of server and browser say, Unix seconds."""
    signed_in: bool = False


def recorded_store(folder: Path) -> Path:
    """A copy: SQLite writes beside a database that it reads."""
    return Path(shutil.copytree(ROOT / "tests" / "data" / "gpu_store", folder / "store"))


def last_heard(store: Path) -> float:
    with closing(sqlite3.connect(store / "state.sqlite")) as state:
        runs = [json.loads(row[0]) for row in state.execute("SELECT data FROM runs")]
    return float(max(run["updated"] for run in runs))


def made_fleet(folder: Path) -> Path:
    from benchmarks.made_fleet import write_fleet

    return write_fleet(folder / "fleet")


def made_action(folder: Path) -> Path:
    from page_client import made_store

    tokens = folder / "operators"
    tokens.write_text(" ".join(OPERATOR) + "\n")
    tokens.chmod(0o600)
    return Path(made_store(folder)[0])


SOURCES = (
    Source(
        make=recorded_store,
        moment=last_heard,
        pages={
            "flow": "/flow",
            "findings": "/findings",
            "runs": "/runs",
            "run": "/runs/{run}",
            "timeline": "/timeline/{run}?step=300",
            "fleet": "/fleet",
            "plan": "/plan?tokens=1T&deadline=60&price=2.5",
            "decide": "/decide",
            "offers": "/decide?show=offers",
            "simulate": "/simulate",
            "catalog": "/catalog",
            "catalog-row": "/catalog/accelerators/h200-sxm",
            "accuracy": "/accuracy",
        },
    ),
    Source(
        make=lambda _: ROOT / "tests" / "data" / "h200_traces" / "slow-loader-0.03.json.gz",
        pages={"expected": "/flow?account=input"},
        options=lambda _: ["--expect", "examples/lab-0.5b-predicted.json"],
    ),
    Source(
        make=lambda _: ROOT / "tests" / "data" / "run_folders",
        pages={"ranks": "/runs/slow"},
    ),
    Source(
        make=made_fleet,
        pages={"fleet-16384": "/fleet?by=wait"},
        options=lambda store: ["--topology", str(store / "topology.conf")],
    ),
    Source(
        make=made_action,
        pages={"approve": "/findings"},
        options=lambda store: ["--operator-token-file", str(store.parent / "operators")],
        signed_in=True,
    ),
)


_SERVE_AS_OF = """
import sys, time
moment = float(sys.argv.pop(1))
time.time = lambda: moment
from computeflow.cli import main
main()
"""


@contextmanager
def served(path: Path, moment: float, options: list[str]) -> Iterator[str]:
    """The address to open of a server on a recording."""
    command = [sys.executable, "-c", _SERVE_AS_OF, str(moment), "serve", str(path)]
    with subprocess.Popen(
        [*command, "--price", "2.5", "--listen", "127.0.0.1:0", "--quiet", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def take(page: Any, address: str, target: Path, longest: int) -> None:
    """A picture of the page down to its end, or to the end of a section within `longest` pixels."""
    page.goto(address)
    page.evaluate("() => document.documentElement.style.setProperty('scrollbar-gutter', 'auto')")
    ends = time.monotonic() + _WAIT_SECONDS
    while not page.evaluate(_DRAWN):
        if time.monotonic() > ends:
            raise TimeoutError(f"{address}: not drawn after {_WAIT_SECONDS:.0f} s")
        time.sleep(0.1)
    page.wait_for_timeout(700)  # for Plotly's last frame
    if (refused := page.query_selector(".error, .problem:not(:empty)")) is not None:
        raise RuntimeError(f"{address}: {refused.inner_text()}")
    end = math.floor(page.evaluate(_END, longest))
    box = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": end}
    picture = page.screenshot(full_page=True, clip=box)
    target.write_bytes(small_png(page.context.browser, picture))
    print(target.relative_to(ROOT), f"{target.stat().st_size / 1e3:.0f} kB", flush=True)


def sign_in(context: Any, base: str) -> None:
    headers = {"x-computeflow": "1", "origin": base}
    context.request.post(f"{base}/session", data={"token": OPERATOR[1]}, headers=headers)


def take_all(browser: Any, source: Source, moment: float, opened: str, names: set[str]) -> None:
    base = opened.partition("/open")[0]
    for mode, (scheme, width, height, longest) in MODES.items():
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        context.clock.set_fixed_time(moment)
        context.request.get(opened)
        if source.signed_in:
            sign_in(context, base)
        run = context.request.get(f"{base}/runs.json").json()["runs"][0]["id"]
        page = context.new_page()
        page.set_default_timeout(_WAIT_SECONDS * 1e3)
        for name, path in source.pages.items():
            if not names or name in names:
                target = IMAGES / f"{name}-{mode}.png"
                take(page, base + path.format(run=run), target, longest)
        context.close()


def main(names: set[str]) -> None:
    """All images, or those named."""
    from playwright.sync_api import sync_playwright

    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        for number, source in enumerate(SOURCES):
            if names and not names & set(source.pages):
                continue
            (mine := Path(folder) / str(number)).mkdir()
            path = source.make(mine)
            moment = source.moment(path)
            with served(path, moment, source.options(path)) as opened:
                take_all(browser, source, moment, opened, names)
        browser.close()


if __name__ == "__main__":
    main(set(sys.argv[1:]))
