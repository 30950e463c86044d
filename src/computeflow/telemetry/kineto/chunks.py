"""A trace file in bounded pieces: `pieces` yields lists of events, whatever the size of the file.

The array of events is cut where one event ends and the next begins. A cut at a wrong place (inside a
string, or between objects of an argument) leaves brackets open, so the decoder refuses it and an
earlier place is tried. What no cut makes readable is read event by event with the standard library's
parser, which takes NaN too; what that cannot read is skipped to the next event and counted.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computeflow.errors import InputError
from computeflow.files.limits import EVENT_BYTES, TRACE_DEPTH, TRACE_HEADER_BYTES
from computeflow.telemetry.kineto.events import (
    UNREADABLE,
    Event,
    decode_events,
    decode_keys,
    event_of,
)
from computeflow.telemetry.opening import Recording, open_recording

PIECE = 1 << 18
"""Of text at a time: what is decoded of it stays in a processor's cache."""
_MOST_UNREADABLE = 100_000
"""Entries that are no events, before a file with more of them than of events is given up."""
_READ = 1 << 18
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*$")
_CUTS_TRIED = 8


@dataclass(slots=True)
class Reading:
    """What became of a file while it was read."""

    path: Path
    header: dict[str, Any] = field(default_factory=dict)
    """The keys beside the events."""
    events: int = 0
    unreadable: int = 0
    """Events that could not be understood."""
    lost: bool = False
    """Whether an event could not be read and no whole one came since."""
    cut_short: str = ""
    """Why the file ends before its events do."""
    raw: Callable[[bytes], None] | None = None
    """Is given the text of the events, as they stand in the file, commas between them."""

    def keep(self, text: bytes) -> None:
        if self.raw is not None and text.strip():
            self.raw(text.strip().rstrip(b","))


def pieces(reading: Reading) -> Iterator[list[Any]]:
    """The file's events, some text at a time; those that are no `Event` say nothing."""
    with open_recording(reading.path) as stream:
        yield from _pieces(stream, reading)


def _pieces(stream: Recording, reading: Reading) -> Iterator[list[Any]]:
    buffer = _after_header(stream, reading)
    while True:
        more = stream.read(max(PIECE, len(buffer)))  # a long event is not tried again and again
        buffer += more
        if not more:
            reading.cut_short = stream.broken
            break
        if buffer.startswith(b"]") and not reading.lost:  # the events are over, further keys follow
            if len(buffer) > TRACE_HEADER_BYTES:
                reading.cut_short = "what follows its events is too long"
                return
            continue
        found, buffer = _cut(buffer, reading)
        if found:
            yield found
    yield from _last(buffer, reading)


def _after_header(stream: Recording, reading: Reading) -> bytes:
    """The text from the first event on; what stood before goes into the header."""
    buffer = stream.read(_READ)
    if buffer.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        return buffer[buffer.index(b"[") + 1 :]
    while (at := _EVENTS.search(buffer)) is None:
        more = stream.read(max(_READ, len(buffer)))
        buffer += more
        if not more or len(buffer) > TRACE_HEADER_BYTES:
            raise InputError(f"{reading.path}: no traceEvents, so no trace of a profiler")
    reading.header |= _keys(buffer[: at.start()].removeprefix(codecs.BOM_UTF8) + b'"":0}')
    return buffer[at.end() :]


def _keys(text: bytes) -> dict[str, Any]:
    """An object's keys; empty where it cannot be read."""
    try:
        return decode_keys(text)
    except UNREADABLE:
        pass
    try:
        found = json.loads(text.decode("utf-8", "replace"))  # takes NaN, too
        found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _cut(buffer: bytes, reading: Reading) -> tuple[list[Any], bytes]:
    """The events of a buffer that are whole, and the rest of it."""
    at = len(buffer)
    for _ in range(_CUTS_TRIED):
        at = buffer.rfind(b"{", 0, at)
        if at <= 0:
            break
        between = _BETWEEN.search(buffer, max(at - 64, 0), at)
        if between is None:
            continue
        try:
            found = decode_events(_array(buffer, between.start() + 1))
        except UNREADABLE:
            continue
        reading.events += len(found)
        reading.lost = False
        if reading.raw is not None:
            reading.keep(buffer[: between.start() + 1])
        return found, buffer[at:]
    return _one_by_one(buffer, reading, last=False)


def _array(buffer: bytes, end: int) -> bytes:
    return b"".join((b"[", memoryview(buffer)[:end], b"]"))


def _last(buffer: bytes, reading: Reading) -> Iterator[list[Any]]:
    """What is left at the end of the file: events, the closing bracket, further keys."""
    end = len(buffer)
    for _ in range(_CUTS_TRIED):
        end = buffer.rfind(b"]", 0, end)
        if end < 0:
            break
        try:
            found = decode_events(_array(buffer, end))
        except UNREADABLE:
            continue
        reading.header = _further(buffer[end:]) | reading.header
        reading.events += len(found)
        reading.keep(buffer[:end])
        yield found
        return
    found, rest = _one_by_one(buffer, reading, last=True)
    yield found
    if rest.startswith(b"]"):
        reading.header = _further(rest) | reading.header
    elif not reading.cut_short:
        reading.cut_short = "the file ends in the middle of its events"


def _further(text: bytes) -> dict[str, Any]:
    """The keys after the events, from their closing bracket on."""
    return _keys(b"{" + text[1:].strip().removeprefix(b","))


_NEXT = re.compile(r'\{\s*(?:"|\Z)')
_SPACE = re.compile(r"[ \t\r\n,]*")
_WORD = re.compile(r"[-+.\w\\]*\Z")
_PARSER = json.JSONDecoder(strict=False)


def _one_by_one(buffer: bytes, reading: Reading, *, last: bool) -> tuple[list[Any], bytes]:
    """Slow and forgiving: NaN, numbers in quotes, an unreadable event between two good ones."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(buffer, last)
    found: list[Any] = []
    at, wasted, most = 0, 0, 4 * len(text)
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if at >= len(text) or _is_end(text, at, reading.lost):
            break
        try:
            data, end = _PARSER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            following = _following(text, at, error)
            if following is None and (last or len(text) - at < EVENT_BYTES):
                break
            reading.unreadable += 1
            _refuse_others(reading)
            reading.lost = True
            wasted += getattr(error, "pos", at) - at
            if following is None or wasted > most:
                following = len(text)
            # an error counts the lines before it, so few shall be before the next one
            text, at = (text[following:], 0) if following > _LINES else (text, following)
            continue
        if not last and _WORD.match(text, end):  # a number may go on
            break
        event = event_of(data)
        reading.keep(text[at:end].encode())
        reading.events += 1
        if event is not None:
            found.append(event)
        elif not isinstance(data, dict) or data.get("ph") == "X" or "ph" not in data:
            reading.unreadable += 1
            _refuse_others(reading)
        reading.lost = reading.lost and not (isinstance(data, dict) and "ph" in data)
        at = end
    return found, text[at:].encode() + decoder.getstate()[0]


_LINES = 1 << 16
_END = re.compile(r"\]\s*+(?:\}\s*+)?\Z")
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
"""A string, to the end where it is not closed; or a bracket."""


def _is_end(text: str, at: int, lost: bool) -> bool:
    """Of the events. Behind an unreadable one, a bracket may be of its arguments."""
    return text[at] == "]" and (not lost or _END.match(text, at) is not None)


def _following(text: str, at: int, error: Exception) -> int | None:
    """Where to go on after an event that cannot be read; None where the text ends in it."""
    if isinstance(error, RecursionError):
        return _closing(text, at)
    if isinstance(error, json.JSONDecodeError) and (
        error.msg.startswith("Unterminated") or _WORD.match(text, error.pos)
    ):
        return None
    found = _NEXT.search(text, at + 1) or _END.search(text, at + 1)
    return len(text) if found is None else found.start()


def _closing(text: str, at: int) -> int | None:
    """Behind the bracket that closes the one here; all of the text, where that many are open that no
    event has them.
    """
    depth = 0
    for token in _TOKEN.finditer(text, at):
        first = text[token.start()]
        depth += (first in "[{") - (first in "]}")
        if depth == 0:
            return token.end()
        if depth > TRACE_DEPTH:
            return len(text)
    return None


def _refuse_others(reading: Reading) -> None:
    if reading.unreadable > max(_MOST_UNREADABLE, reading.events // 2):
        raise InputError(f"{reading.path}: {reading.unreadable:,} entries are no events: no trace")


__all__ = ["Event", "Reading", "pieces"]
