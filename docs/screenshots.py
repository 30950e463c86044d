"""Screenshots of every page in docs/images, light, dark and on a phone: `python docs/screenshots.py`.

The recordings are real and in the repository: a trace of an H200, and run folders of two ranks.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TRACE = "tests/data/h200_traces/slow-loader-0.03.json.gz"
RUNS = "tests/data/run_folders"
PAGES = {
    TRACE: {"flow": "/flow", "findings": "/findings"},
    RUNS: {
        "runs": "/runs",
        "run": "/runs/slow",
        "timeline": "/timeline/slow",
        "fleet": "/fleet?run=slow&by=wait",
        "plan": "/plan?gpus=64",
        "decide": "/decide",
        "simulate": "/simulate",
        "catalog": "/catalog",
        "accuracy": "/accuracy",
    },
}
"""Recording, and what is taken of its pages."""
MODES: dict[str, tuple[str, int, int]] = {
    "light": ("light", 1280, 860),
    "dark": ("dark", 1280, 860),
    "phone": ("light", 390, 844),
}
_WAIT_SECONDS = 300.0
_DRAWN = (
    "() => !document.querySelector('[aria-busy], .working') "
    "&& Boolean(document.querySelector('main h1'))"
)


@contextmanager
def served(recording: str) -> Iterator[str]:
    """The address to open of a server on a recording."""
    command = [sys.executable, "-m", "computeflow", "serve", recording, "--price", "2.5"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--quiet"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def take(page: Any, address: str, target: Path) -> None:
    page.goto(address)
    ends = time.monotonic() + _WAIT_SECONDS
    while not page.evaluate(_DRAWN) and time.monotonic() < ends:
        time.sleep(0.1)
    page.wait_for_timeout(500)  # for Plotly's last frame
    page.screenshot(path=target)
    print(target.relative_to(ROOT), f"{target.stat().st_size / 1e3:.0f} kB", flush=True)


def main() -> None:
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        for recording, pages in PAGES.items():
            with served(recording) as opened:
                base = opened.partition("/open")[0]
                for mode, (scheme, width, height) in MODES.items():
                    context = browser.new_context(
                        viewport={"width": width, "height": height},
                        color_scheme=scheme,
                        reduced_motion="reduce",
                    )
                    page = context.new_page()
                    page.set_default_timeout(_WAIT_SECONDS * 1e3)
                    context.request.get(opened)
                    for name, path in pages.items():
                        take(page, base + path, IMAGES / f"{name}-{mode}.png")
                    context.close()
        browser.close()


if __name__ == "__main__":
    main()
