"""How fast a slider is answered, and how long the map of 16,384 GPUs takes to draw, in Chromium.

    python -m benchmarks.measure_page_plans

Starts `computeflow serve` over a made store. A slider's time is from the key to the new number on the
screen. A frame's is what the page's thread computes for it (`Performance.getMetrics`, in its own CPU
time): the drawing alone, and all of it, from the JSON to the picture, as when an event comes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.made_fleet import write_fleet

MOVES = 8
FRAMES = 30
_MOVED = """
async keys => {
  const range = document.querySelector('input[type=range]'), took = [];
  for (let at = 0; at < keys; at += 1) {
    const place = document.querySelector('.answered');
    const shown = new Promise(resolve => {
      const watch = new MutationObserver(() => { watch.disconnect(); resolve(); });
      watch.observe(place, { childList: true });
    });
    const began = performance.now();
    range.value = Number(range.value) + 1;
    range.dispatchEvent(new Event('input', { bubbles: true }));
    await shown;
    took.push(performance.now() - began);
    await new Promise(resolve => setTimeout(resolve, 1500));
  }
  return took;
}
"""
_DRAWN = """
async frames => {
  const { render } = await import('/static/pages/fleet.js');
  const text = await (await fetch('/fleet.json')).text();
  const place = document.getElementById('content'), drawn = [];
  for (let at = 0; at < frames; at += 1) {
    place.replaceChildren(...render(JSON.parse(text), { state: {} }));
    await new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const canvas = place.querySelector('canvas');
    canvas.getContext('2d').getImageData(0, 0, 1, 1);
    drawn.push(Number(canvas.dataset.milliseconds));
  }
  return [drawn, text.length];
}
"""


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = write_fleet(Path(folder) / "store")
        server = subprocess.Popen(
            [sys.executable, "-m", "computeflow", "serve", str(store), "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ.copy(),
        )
        try:
            assert server.stdout is not None
            return _measure_in_browser(server.stdout.readline().split()[-1])
        finally:
            server.terminate()
            server.wait(30)


def _measure_in_browser(address: str) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    base = address.partition("/open")[0]
    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(300_000)
        page.goto(address)
        page.wait_for_url("**/flow")
        moved: list[float] = []
        for price in (1, 2, 3):  # another price each time: no answer is known from before
            page.goto(f"{base}/plan?tokens=1T&gpus=32&price={price}")
            page.wait_for_selector("[data-search=full]")
            moved += page.evaluate(_MOVED, MOVES)
        page.goto(f"{base}/fleet?by=power")
        page.wait_for_selector("canvas[data-milliseconds]")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate(_DRAWN, 3)
        before = _task_seconds(session)
        drawn, size = page.evaluate(_DRAWN, FRAMES)
        whole = (_task_seconds(session) - before) / FRAMES
        browser.close()
    return {
        "slider_ms": {"median": statistics.median(moved), "largest": max(moved), "all": moved},
        "draw_ms": {"median": statistics.median(drawn), "largest": max(drawn)},
        "frame_cpu_ms": 1e3 * whole,
        "json_bytes": size,
        "load": os.getloadavg()[0],
    }


def _task_seconds(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
