"""`computeflow top` on a real terminal (tmux, 80 x 24): what it shows, what keys do, how it ends."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from live_value_maker import busy_fleet, hostile_values, live_finding, live_run, write_store
from metrics_servers import needed

pytestmark = pytest.mark.live
WAIT_SECONDS = 300.0


class Terminal:
    def __init__(self, socket: Path) -> None:
        self.base = [needed("tmux"), "-S", str(socket), "-f", "/dev/null"]

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            [*self.base, *words], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def screen(self, *, colours: bool = False) -> str:
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def wait(self, there: Callable[[str], bool]) -> str:
        until = time.monotonic() + WAIT_SECONDS
        while not there(text := self.screen()):
            assert time.monotonic() < until, text
            time.sleep(0.1)
        return text


@contextmanager
def terminal(folder: Path, command: str, **environment: str) -> Iterator[Terminal]:
    found = Terminal(folder / "tmux")
    paths = os.pathsep.join(path for path in sys.path if path)
    words = " ".join(f"{k}={shlex.quote(v)}" for k, v in environment.items())
    script = f"PYTHONPATH={shlex.quote(paths)} {words} {command}; echo left with $?; exec cat"
    found.tmux("new-session", "-d", "-x", "80", "-y", "24", script)
    try:
        yield found
    finally:
        found.tmux("kill-server")


def top(store: Path, more: str = "") -> str:
    return (
        f"{shlex.quote(sys.executable)} -m computeflow top --store {shlex.quote(str(store))} {more}"
    )


def test_a_person_looks_selects_opens_sorts_and_quits(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", *busy_fleet(time.time()))
    with terminal(tmp_path, top(store)) as shown:
        first = shown.wait(lambda text: "4 findings" in text)
        lines = first.splitlines()
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        assert "hang rank 511, llama-70b-sft" in first
        assert "\x1b[38" in shown.screen(colours=True)
        shown.type("j")
        shown.wait(lambda text: ">    128.00" in text)
        shown.type("Enter")
        opened = shown.wait(lambda text: "remedy" in text)
        assert "scontrol update nodename=node-00 state=drain reason=computeflow" in opened
        shown.type("Escape")
        shown.wait(lambda text: "sort by cost" in text)
        shown.type("s")
        shown.wait(lambda text: "sort by age" in text)
        shown.type("Down", "Up", "Up")
        shown.type("?")
        shown.wait(lambda text: "Letters of a flow" in text)
        shown.type("x", "q")
        left = shown.wait(lambda text: "left with 0" in text)
        assert "findings" not in left, "the screen of before is back"


def test_what_changes_is_seen_and_a_store_that_goes_away_is_said(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [live_run()], [], [])
    with terminal(tmp_path, top(store)) as shown:
        shown.wait(lambda text: "0 findings" in text)
        write_store(store, [live_run()], [live_finding()], [])
        shown.wait(lambda text: "straggler-rank rank 3" in text)
        (store / "state.sqlite").rename(store / "gone")
        shown.wait(lambda text: "no state.sqlite" in " ".join(text.split()))
        (store / "gone").rename(store / "state.sqlite")
        shown.wait(lambda text: "ComputeFlow  1 run" in text)
        shown.type("C-c")
        shown.wait(lambda text: "left with 0" in text)


def test_no_colour_where_none_is_wanted_and_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", *hostile_values())
    with terminal(tmp_path, top(store), NO_COLOR="1") as shown:
        shown.wait(lambda text: "1 finding" in text)
        coloured = shown.screen(colours=True)
        assert "\x1b[3" not in coloured.replace("\x1b[39m", "")
        shown.type("Enter")
        shown.wait(lambda text: r"\x1b[31mred" in text)
        shown.type("q")
        shown.wait(lambda text: "left with 0" in text)


def test_once_prints_tables_also_on_a_terminal(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [live_run()], [live_finding()], [])
    with terminal(tmp_path, top(store, "--once")) as shown:
        text = shown.wait(lambda text: "left with 0" in text)
    assert "1 open finding" in text
