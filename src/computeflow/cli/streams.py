"""Standard output and error, also where one is closed or full, or its reader has gone."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO


def prepare_streams() -> bool:
    """Return whether standard output is open. A character that cannot be encoded is shown as "?".

    A closed descriptor is opened on the null device: else the next file that is opened would get
    its number, and with it the text meant for a terminal.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    is_open = sys.stdout is not None
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return is_open


def say(text: str) -> None:
    """Print on standard error; where it cannot be written, say nothing."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def note_new_name(old: str, new: str) -> None:
    say(f"computeflow: {old} is now {new}")


def silence(stream: TextIO) -> None:
    """Drop the text that is still buffered for a reader that has gone."""
    with suppress(OSError, ValueError):  # a stream of a test has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
