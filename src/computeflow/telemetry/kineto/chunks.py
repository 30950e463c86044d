"""Trace files in bounded pieces: `pieces` yields lists of events, whatever the size of the file.

The array of events is cut where one event ends and the next begins. A cut at a wrong place (inside
a string, or between objects of an argument) leaves brackets open, so the decoder refuses it and an
earlier place is tried. What no cut makes readable is read event by event with the standard
library's parser, which accepts NaN too; what that cannot read is skipped to the next event and
counted.
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
from computeflow.telemetry.kineto.kineto_events import (
    UNREADABLE,
    KinetoEvent,
    decode_events,
    decode_keys,
    event_of,
    is_truncated,
)
from computeflow.telemetry.opening import Recording, open_recording

PIECE = 1 << 18
"""Bytes of text decoded at a time, so that the events stay in a processor's cache."""
_MAX_UNREADABLE = 100_000
"""Most entries that are no events; a file with more is refused unless it has twice as many events."""
_READ = 1 << 18
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*$")
_CUTS_TRIED = 8


@dataclass(slots=True)
class FileReading:
    """The state of a file while it is read."""

    path: Path
    header: dict[str, Any] = field(default_factory=dict)
    """The keys beside the events."""
    events: int = 0
    unreadable: int = 0
    """Events that could not be decoded."""
    lost: bool = False
    """Whether an event could not be read and no whole one has followed yet."""
    cut_short: str = ""
    """Why the file ends before its events do."""
    raw: Callable[[bytes], None] | None = None
    """Called with the text of the events, as in the file, with commas between them."""

    def keep(self, text: bytes) -> None:
        if self.raw is not None and text.strip():
            self.raw(text.strip().rstrip(b","))


def pieces(reading: FileReading) -> Iterator[list[Any]]:
    """The file's events, some text at a time; entries that are no `KinetoEvent` carry no data."""
    with open_recording(reading.path) as stream:
        yield from _pieces(stream, reading)


def _pieces(stream: Recording, reading: FileReading) -> Iterator[list[Any]]:
    buffer = _after_header(stream, reading)
    while True:
        more = stream.read(
            max(PIECE, len(buffer))
        )  # so that a long event is not tried again and again
        buffer += more
        if not more:
            reading.cut_short = stream.broken
            break
        if (
            buffer.startswith(b"]") and not reading.lost
        ):  # the events have ended, further keys follow
            if len(buffer) > TRACE_HEADER_BYTES:
                reading.cut_short = "what follows its events is too long"
                return
            continue
        events, buffer = _cut(buffer, reading)
        if events:
            yield events
    yield from _last(buffer, reading)


def _after_header(stream: Recording, reading: FileReading) -> bytes:
    """The text from the first event on; the keys before it go into the header."""
    buffer = stream.read(_READ)
    if buffer.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        return buffer[buffer.index(b"[") + 1 :]
    while (at := _EVENTS.search(buffer)) is None:
        more = stream.read(max(_READ, len(buffer)))
        buffer += more
        if not more or len(buffer) > TRACE_HEADER_BYTES:
            raise InputError(f"{reading.path}: no traceEvents: not a profiler's trace")
    reading.header |= _keys(buffer[: at.start()].removeprefix(codecs.BOM_UTF8) + b'"":0}')
    return buffer[at.end() :]


def _keys(text: bytes) -> dict[str, Any]:
    """An object's keys; empty where it cannot be read."""
    try:
        return decode_keys(text)
    except UNREADABLE:
        pass
    try:
        keys = json.loads(text.decode("utf-8", "replace"))  # accepts NaN, too
        keys = json.loads(json.dumps(keys, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return keys if isinstance(keys, dict) else {}


def _cut(buffer: bytes, reading: FileReading) -> tuple[list[Any], bytes]:
    """The whole events of a buffer, and the rest of it."""
    at = len(buffer)
    for _ in range(_CUTS_TRIED):
        at = buffer.rfind(b"{", 0, at)
        if at <= 0:
            break
        between = _BETWEEN.search(buffer, max(at - 64, 0), at)
        if between is None:
            continue
        try:
            events = decode_events(_array(buffer, between.start() + 1))
        except UNREADABLE:
            continue
        reading.events += len(events)
        reading.lost = False
        if reading.raw is not None:
            reading.keep(buffer[: between.start() + 1])
        return events, buffer[at:]
    if 2 * PIECE <= len(buffer) < EVENT_BYTES and is_truncated(b"[" + buffer):
        return [], buffer  # an event longer than a piece: parsed once, when all of it is there
    return _one_by_one(buffer, reading, last=False)


def _array(buffer: bytes, end: int) -> bytes:
    return b"".join((b"[", memoryview(buffer)[:end], b"]"))


def _last(buffer: bytes, reading: FileReading) -> Iterator[list[Any]]:
    """The events at the end of the file, up to the closing bracket and further keys."""
    end = len(buffer)
    for _ in range(_CUTS_TRIED):
        end = buffer.rfind(b"]", 0, end)
        if end < 0:
            break
        try:
            events = decode_events(_array(buffer, end))
        except UNREADABLE:
            continue
        reading.header = _further(buffer[end:]) | reading.header
        reading.events += len(events)
        reading.keep(buffer[:end])
        yield events
        return
    events, rest = _one_by_one(buffer, reading, last=True)
    yield events
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


def _one_by_one(buffer: bytes, reading: FileReading, *, last: bool) -> tuple[list[Any], bytes]:
    """Read events one by one, slowly: accepts NaN, numbers in quotes, and an unreadable event
    between two good ones.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(buffer, last)
    events: list[Any] = []
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
            # an error counts the lines before it: keep few before the next one
            text, at = (text[following:], 0) if following > _LINES else (text, following)
            continue
        if not last and _WORD.match(text, end):  # a number may go on
            break
        event = event_of(data)
        reading.keep(text[at:end].encode())
        reading.events += 1
        if event is not None:
            events.append(event)
        elif not isinstance(data, dict) or data.get("ph") == "X" or "ph" not in data:
            reading.unreadable += 1
            _refuse_others(reading)
        reading.lost = reading.lost and not (isinstance(data, dict) and "ph" in data)
        at = end
    return events, text[at:].encode() + decoder.getstate()[0]


_LINES = 1 << 16
_END = re.compile(r"\]\s*+(?:\}\s*+)?\Z")
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
"""A string, to the end where it is not closed; or a bracket."""


def _is_end(text: str, at: int, lost: bool) -> bool:
    """Whether the events end here. After an unreadable one, the bracket may close its arguments."""
    return text[at] == "]" and (not lost or _END.match(text, at) is not None)


def _following(text: str, at: int, error: Exception) -> int | None:
    """The position after an event that cannot be read; None where the text ends in it."""
    if isinstance(error, RecursionError):
        return _closing(text, at)
    if isinstance(error, json.JSONDecodeError) and (
        error.msg.startswith("Unterminated") or _WORD.match(text, error.pos)
    ):
        return None
    match = _NEXT.search(text, at + 1) or _END.search(text, at + 1)
    return len(text) if match is None else match.start()


def _closing(text: str, at: int) -> int | None:
    """The position after the bracket that closes the one here; the end of the text where more
    brackets are open than any event has.
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


def _refuse_others(reading: FileReading) -> None:
    if reading.unreadable > max(_MAX_UNREADABLE, reading.events // 2):
        raise InputError(
            f"{reading.path}: {reading.unreadable:,} entries are no events: not a trace"
        )


__all__ = ["FileReading", "KinetoEvent", "pieces"]
