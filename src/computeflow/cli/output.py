"""Print an answer: one JSON object, or tables (with rich on a terminal)."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from computeflow import codec
from computeflow.cli.streams import silence
from computeflow.errors import OutputError
from computeflow.files.names import shown
from computeflow.views.tables import WIDTH, lead_text, to_rich, to_text

if TYPE_CHECKING:
    from computeflow.answers import Answer

_QUIET_SECONDS = 2.0


class Progress:
    """One line on stderr, on a terminal, once a command takes longer than two seconds."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._began = time.monotonic()
        self._quiet = quiet
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def say(self, text: str) -> None:
        if self._quiet or not sys.stderr.isatty():
            return
        if time.monotonic() - self._began > _QUIET_SECONDS:
            self._shown = True
            self._write(f"\r{shown(text)}\x1b[K")

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a terminal that has gone takes no progress
            sys.stderr.write(text)
            sys.stderr.flush()


def show(answer: Answer, output: str) -> None:
    """Print the answer as JSON or as tables.

    A reader that has gone (`| head`) is no failure: the exit code stays that of the answer.
    """
    try:
        if output == "json":
            print(codec.to_json(answer.to_dict(), ascii_only=not _encodes_all()))
        elif sys.stdout.isatty():
            _emit_rich(answer)
        else:
            lead = [lead_text(answer.headline, _width())] if answer.headline else []
            print("\n\n".join([*lead, *(to_text(table, _width()) for table in answer.tables())]))
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        raise OutputError(f"cannot write the answer: {error.strerror or error}") from None


def _encodes_all() -> bool:
    """Whether standard output can encode every character."""
    return (sys.stdout.encoding or "utf-8").lower().replace("-", "").startswith("utf")


def _emit_rich(answer: Answer) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, width=_width())
    if answer.headline:
        console.print(Text(lead_text(answer.headline, _width()), style="bold"))
        console.print()
    for table in answer.tables():
        console.print(to_rich(table, _width()), soft_wrap=False)
        console.print()


def _width() -> int:
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, 20)
