"""The page at the size of a fleet; benchmarks/reports/page.md.

    python -m benchmarks.prove_page                    all parts, about twenty minutes
    python -m benchmarks.prove_page --part viewers     one part: first-view, map, viewers, memory

- first-view: a store of 1,024 ranks x 10,000 steps; milliseconds in Chromium from asking for a page to
  its content on the screen, from a server and a browser that have just started, five times, and again.
- map: 16,384 GPUs in a store; milliseconds of a frame in which the whole map is drawn again.
- viewers: 200 viewers for two minutes while a collector on the same machine takes 1,024 ranks with a
  step a second, after 5,000 steps that it has taken before: seconds from the collector's newest news
  to the viewer.
- memory: the same for eleven minutes. The steps of the last five are in the server's memory until the
  collector seals them: the largest size in five minutes is compared with that in the five before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.collector_process import CollectorProcess, seal_all
from benchmarks.fleet_load import Load, running_load
from benchmarks.page_viewers import Viewing, run_viewers
from computeflow import codec

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "page.md"
DATA = REPORT.with_suffix(".json")
"""The last result of each part."""
RANKS, STEPS = 1_024, 10_000
MAP_GPUS = 16_384
VIEWERS, VIEW_SECONDS = 200, 120
PAST_STEPS = 5_000
MEMORY_SECONDS = 660
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_FIRST_VIEW_MS, _FRAME_MS, _P95_SECONDS = 1_000.0, 50.0, 2.0
_FLAT = 0.02
"""Growth from one period of sealing to the next that still is noise of an allocator."""
_PERIOD_SECONDS = 300.0
_STARTS = 5
"""How often the server and the browser are started for the first view of each page."""
_DRAWN = (
    "() => !document.querySelector('[aria-busy]') && Boolean(document.querySelector('main h1'))"
)
_MAP_DRAWN = "() => Boolean(document.querySelector('main canvas')?.dataset.milliseconds)"
_WAIT_SECONDS = 300.0

_TIMES = 6
_REDRAW = """async times => {
  const frames = [], tabs = document.querySelectorAll('main .tabs button').length;
  for (let turn = 0; turn < times * tabs; turn += 1) {
    const before = document.querySelector('main canvas');
    document.querySelectorAll('main .tabs button')[(turn + 1) % tabs].click();
    const drawn = () => {
      const canvas = document.querySelector('main canvas');
      return canvas !== before && canvas?.dataset.milliseconds ? canvas : null;
    };
    while (!drawn()) await new Promise(requestAnimationFrame);
    const began = performance.now();
    drawn().getContext('2d').getImageData(0, 0, 1, 1);  // until it is on the canvas
    frames.push(Number(drawn().dataset.milliseconds) + performance.now() - began);
  }
  return frames;
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    name: str
    figures: dict[str, str]
    problems: tuple[str, ...] = ()


class PageProcess:
    """A real `computeflow serve` in a process of its own; use it in a `with`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = self.token = ""

    def __enter__(self) -> PageProcess:
        command = [sys.executable, "-m", "computeflow", "serve", str(self._directory)]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        opened = self.process.stdout.readline().split()[-1]
        self.address, _, self.token = opened.partition("/open?token=")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(60)

    @property
    def opening(self) -> str:
        return f"{self.address}/open?token={self.token}"

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE_SIZE

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def fill_store(store: Path, ranks: int, steps: int) -> str:
    """A collector takes so many steps as fast as it can; return the id of their run."""
    with CollectorProcess(store, "--price", "2.5") as collector:
        load = Load(
            port=collector.port, ranks=ranks, steps=steps, real_time=False, steps_per_body=50
        )
        with running_load(load) as sending:
            result = sending.result()
    seal_all(store, result.rank_steps)
    return load.run


@contextmanager
def browser_page() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.set_default_timeout(300_000)
        yield page
        browser.close()


def milliseconds_to(page: Any, address: str) -> float:
    """From asking for an address to its content on the screen."""
    began = time.perf_counter()
    page.goto(address)
    wait_until(page, _DRAWN)
    return (time.perf_counter() - began) * 1e3


def wait_until(page: Any, condition: str) -> None:
    """Playwright's own way evaluates text in the page, which its policy forbids."""
    ends = time.monotonic() + _WAIT_SECONDS
    while not page.evaluate(condition):
        if time.monotonic() > ends:
            raise TimeoutError(condition)
        time.sleep(0.005)


def _views(store: Path, path: str) -> tuple[float, float]:
    """Milliseconds of the first view after a start of server and browser, and of the next ones."""
    with PageProcess(store) as server, browser_page() as page:
        page.request.get(server.opening)  # the session alone
        first, *again = (milliseconds_to(page, server.address + path) for _ in range(4))
    return first, statistics.median(again)


def first_view(folder: Path) -> PartResult:
    store = folder / "first-view"
    run = fill_store(store, RANKS, STEPS)
    figures, slow = {}, []
    for path in ("/flow", f"/runs/{run}", "/findings"):
        firsts, agains = zip(*(_views(store, path) for _ in range(_STARTS)), strict=True)
        longest = max(firsts)
        figures[f"{path}, first (median / longest) / again, ms"] = (
            f"{statistics.median(firsts):,.0f} / {longest:,.0f} / {statistics.median(agains):,.0f}"
        )
        if longest > _FIRST_VIEW_MS:
            slow.append(f"{path} {longest:,.0f} ms")
    problems = (f"first views over a second: {', '.join(slow)}",) if slow else ()
    return PartResult(
        name=f"first view, {RANKS:,} ranks x {STEPS:,} steps", figures=figures, problems=problems
    )


def fleet_map(folder: Path) -> PartResult:
    """The map is coloured by one measure after the other, which draws all of it again."""
    store = folder / "map"
    with CollectorProcess(store) as collector:
        load = Load(port=collector.port, ranks=MAP_GPUS, steps=5)
        with running_load(load) as sending:
            sending.result()
        time.sleep(5.0)  # until the watch has told of it
        with PageProcess(store) as server, browser_page() as page:
            page.request.get(server.opening)
            page.goto(f"{server.address}/fleet")
            wait_until(page, _MAP_DRAWN)
            label = page.eval_on_selector("main canvas", "canvas => canvas.ariaLabel")
            frames = page.evaluate(_REDRAW, _TIMES)
    problems = [] if f"{MAP_GPUS:,}" in label else [f"on the map: {label}"]
    if max(frames) > _FRAME_MS:
        problems.append(f"a frame took {max(frames):.0f} ms, asked for {_FRAME_MS:g}")
    return PartResult(
        name=f"map of {MAP_GPUS:,} GPUs",
        figures={
            "drawn again": f"{len(frames)} times",
            "a frame, median / longest, ms": f"{statistics.median(frames):.1f} / {max(frames):.1f}",
        },
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    seen: Viewing
    sizes: list[tuple[float, int]]
    """Moments, and bytes of the server."""
    cores: float
    lost: int


def viewers(folder: Path) -> PartResult:
    return _viewers_part(_watched(folder / "viewers", VIEW_SECONDS))


def memory(folder: Path) -> PartResult:
    return _memory_part(_watched(folder / "memory", MEMORY_SECONDS))


def _watched(store: Path, seconds: int) -> _Watched:
    sizes: list[tuple[float, int]] = []
    with CollectorProcess(store, "--price", "2.5") as collector:
        load = Load(port=collector.port, ranks=RANKS, steps=seconds + 30, past_steps=PAST_STEPS)
        with running_load(load) as sending, PageProcess(store) as server:
            while not _has_caught_up(collector):
                time.sleep(1.0)
            cpu, began = server.cpu_seconds(), time.monotonic()

            def sample() -> None:
                sizes.append((time.monotonic(), server.rss_bytes()))

            seen = run_viewers(server.address, server.token, VIEWERS, seconds, sample)
            cores = (server.cpu_seconds() - cpu) / (time.monotonic() - began)
            result = sending.result()
        known = collector.ask(f"/v1/positions?run={load.run}")["next"]
    lost = sum(count != result.records_per_rank for count in known.values())
    return _Watched(seen=seen, sizes=sizes, cores=cores, lost=lost)


def _has_caught_up(collector: CollectorProcess) -> bool:
    """Whether the collector's watch has come from the past steps to those of this moment."""
    runs = collector.ask("/v1/runs")["runs"]
    return (
        bool(runs)
        and runs[0]["step"] >= PAST_STEPS
        and time.time() - runs[0]["updated"] <= _P95_SECONDS
    )


def _memory_part(watched: _Watched) -> PartResult:
    end = watched.sizes[-1][0]
    periods = [
        [size / 1e6 for at, size in watched.sizes if begin < end - at <= begin + _PERIOD_SECONDS]
        for begin in (_PERIOD_SECONDS, 0.0)
    ]
    before, last = (max(sizes) for sizes in periods)
    growth = last / before - 1
    lost = watched.seen.ended or watched.lost
    problems = ["viewers were dropped, or records lost"] if lost else []
    if growth > _FLAT:
        problems.append(f"the server's memory grew by {growth:.1%} in five minutes")
    return PartResult(
        name=f"memory of the server, {VIEWERS} viewers for {MEMORY_SECONDS // 60} minutes",
        figures={
            "largest in five minutes, and in the five after, MB": f"{before:,.0f}, {last:,.0f}",
            "growth": f"{growth:+.1%}",
            "smallest, MB": ", ".join(f"{min(sizes):,.0f}" for sizes in periods),
            "events": f"{len(watched.seen.late_seconds):,}",
        },
        problems=tuple(problems),
    )


def _viewers_part(watched: _Watched) -> PartResult:
    seen, lost = watched.seen, watched.lost
    late = sorted(seen.late_seconds)
    p95 = late[int(0.95 * (len(late) - 1))] if late else float("inf")
    problems = []
    if seen.ended or lost:
        problems.append(f"{seen.ended} viewers were dropped, {lost} ranks lost records")
    if p95 > _P95_SECONDS:
        problems.append(f"p95 is {p95:.2f} s, asked for {_P95_SECONDS:g}")
    return PartResult(
        name=f"{VIEWERS} viewers for {VIEW_SECONDS} s, {RANKS:,} ranks collected meanwhile",
        figures={
            "events": f"{len(late):,}, {seen.least:,} to {seen.most:,} a viewer",
            "seconds from the news to the viewer, median / 95 % / longest": " / ".join(
                f"{late[int(share * (len(late) - 1))]:.2f}" for share in (0.5, 0.95, 1.0)
            )
            if late
            else "none came",
            "viewers that were dropped": str(seen.ended),
            "ranks with other records than were sent": str(lost),
            "cores of the server": f"{watched.cores:.2f}",
        },
        problems=tuple(problems),
    )


def report(results: Sequence[PartResult]) -> str:
    lines = [
        "# The page at the size of a fleet",
        "",
        f"Written by `python -m benchmarks.prove_page` on {os.cpu_count()} cores, which server, "
        "collector, fleet, viewers and Chromium share.",
    ]
    for part in results:
        lines += ["", f"## {part.name}", ""]
        lines += [f"- {name}: {value}" for name, value in part.figures.items()]
        lines.append(f"- not as it must be: {'; '.join(part.problems) or 'nothing'}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parts = {"first-view": first_view, "map": fleet_map, "viewers": viewers, "memory": memory}
    parser.add_argument("--part", choices=parts)
    options = parser.parse_args()
    asked, new = [options.part] if options.part else [*parts], {}
    with tempfile.TemporaryDirectory(prefix="computeflow-page-") as name:
        for part in asked:
            result = parts[part](Path(name))
            new[part] = asdict(result)
            print(report([result]), file=sys.stderr)
    known = (json.loads(DATA.read_text()) if DATA.exists() else {}) | new
    results = [codec.decode(PartResult, known[part], part) for part in parts if part in known]
    DATA.write_text(json.dumps(known, indent=1) + "\n")
    REPORT.write_text(report(results))
    if any(known[part]["problems"] for part in asked):
        sys.exit("not everything is as it must be")


if __name__ == "__main__":
    main()
