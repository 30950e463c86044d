"""Standard output and error where one of them is closed, full, or has no reader any more."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO


def prepare_streams() -> bool:
    """Whether standard output is there. What cannot be encoded is shown as "?".

    A descriptor that is closed goes to the null device: else the next file that is opened would
    take its number, and with it what is meant for a terminal.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    there = sys.stdout is not None
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return there


def say(text: str) -> None:
    """On standard error, as far as it takes anything."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """What is still buffered for a reader that cannot take it goes nowhere."""
    with suppress(OSError, ValueError):  # a stream of a test has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
