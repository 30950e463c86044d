"""`watch`: the view of `top` on a terminal, drawn again every second and after every key.

What is shown is made by `views.live_screen`; here are the terminal, its keys and its colours. Snapshots
are read by a thread of its own, so that a collector that does not answer does not hold up the keys.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from computeflow.errors import ComputeFlowError, UnavailableError
from computeflow.views.figures import OWNERS
from computeflow.views.live_screen import Key, ScreenState, draw_screen, press

if TYPE_CHECKING:
    from rich.text import Text

    from computeflow.answers.live_tops import TopAnswer
    from computeflow.views.live_screen import ScreenLine

_REFRESH_SECONDS = 1.0
_POLL_SECONDS = 0.1
_KEY_BYTES = 64
_KEYS: dict[str, Key] = {
    "\x1b[A": "up", "\x1bOA": "up", "k": "up",
    "\x1b[B": "down", "\x1bOB": "down", "j": "down",
    "\r": "enter", "\n": "enter",
    "\x1b": "back", "\x7f": "back",
    "s": "sort", "?": "help", "q": "quit", "\x03": "quit",
}  # fmt: skip
_STYLES = {"": "", "bold": "bold", "dim": "dim", "warning": "bold red", "selected": "reverse"}


class _Reader(threading.Thread):
    """Takes a new answer every second; keeps the last good one, and why there is no newer."""

    def __init__(self, look: Callable[[], TopAnswer], first: TopAnswer) -> None:
        super().__init__(name="computeflow-top", daemon=True)
        self.answer = first
        self.trouble = ""
        self.stop = threading.Event()
        self._look = look

    def run(self) -> None:
        while not self.stop.wait(_REFRESH_SECONDS):
            try:
                self.answer, self.trouble = self._look(), ""
            except ComputeFlowError as error:
                self.trouble = str(error)


def watch(function: Callable[..., Any], options: Mapping[str, Any]) -> int:
    """Show the view until somebody quits; a source that cannot be read at first is an error."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    if console.is_dumb_terminal:
        raise UnavailableError("this terminal cannot be drawn on: use --once")
    reader = _Reader(lambda: function(**options), function(**options))
    state: ScreenState | None = ScreenState(sort=reader.answer.sort)
    reader.start()
    try:
        with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while state is not None:
                snapshot = reader.answer.snapshot
                width, height = console.size
                lines = draw_screen(snapshot, state, width, height, reader.trouble)
                live.update(_styled(lines), refresh=True)
                for key in _typed(reader):
                    state = None if state is None else press(state, key, snapshot)
    except KeyboardInterrupt:
        pass
    finally:
        reader.stop.set()
    return 0


def _typed(reader: _Reader) -> list[Key]:
    """Keys that were typed, or nothing as soon as there is something new to show."""
    shown = reader.answer, reader.trouble
    while (reader.answer, reader.trouble) == shown:
        ready, _, _ = select.select([sys.stdin], [], [], _POLL_SECONDS)
        if ready:
            return _keys(os.read(sys.stdin.fileno(), _KEY_BYTES).decode("utf-8", "replace"))
    return []


def _keys(text: str) -> list[Key]:
    """The keys in what a terminal sent; several may come at once, unknown ones are skipped."""
    if not text:  # the terminal has gone
        return ["quit"]
    found: list[Key] = []
    while text:
        word = next((word for word in _KEYS if text.startswith(word)), text[:1])
        if word in _KEYS:
            found.append(_KEYS[word])
        text = text[len(word) :]
    return found


def _styled(lines: tuple[ScreenLine, ...]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for words, style in line:
            text.append(words, style=_STYLES.get(style, OWNERS.get(style, "")))
    return text


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come one by one, without an echo; afterwards, also after TERM, all is as before."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    handlers = {sign: signal.signal(sign, end) for sign in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setcbreak(number)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
