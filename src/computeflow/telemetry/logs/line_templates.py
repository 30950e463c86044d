"""A log line as a template and its values: `split_line`.

Numbers, durations and rates become slots; the rest of the line is the template, which lines of one
`print` share. Units of time are part of a slot and its value is in seconds, so that a line that writes
"950us" and then "1.2ms" keeps its template; "2.5s/it" is read as the rate 0.4 per second for the same
reason. A slot's name is the text before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from computeflow.units import DAY_SECONDS

MAX_SLOTS = 64
"""Most slots of a line that is compared with others; trainers' step lines have up to about 40."""
MAX_CHARACTERS = 4096
"""Longest line that is compared with others."""
_MAX_NAME = 40
ELAPSED = "elapsed"
TOTAL = " total"
"""Ends the name of the number after "/": "3/10"."""
BRACKETS = " in brackets"
"""Ends the name of a number in brackets after another, most often its running mean."""
_SCALES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_DATE = (
    r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\d\d/\d\d(?:/\d{4}|/\d\d)? \d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"|(?<![A-Za-z0-9])[IWEF]\d{4} \d\d:\d\d:\d\d(?:\.\d{1,9})?"
)
_NUMBER = (
    r"(?:\d{1,3}(?:,\d{3}){1,5}(?![\d,])|\d{1,18})(?:\.\d{0,24})?(?:[eE][-+]?\d{1,3})?|\.\d{1,24}"
)
_UNIT = r"(?:ns|us|µs|ms|milliseconds?|s|secs?|seconds?)(?![A-Za-z0-9_])"
_SLOT = re.compile(
    rf"(?=[\d.+|\[━╸╺─NniIWEF?-])(?:(?P<date>{_DATE})"
    r"|(?P<bar>(?<=%)\|[ █▉▊▋▌▍▎▏#1-9░▒]{0,1000}\||(?<=%)\|[ █▉▊▋▌▍▎▏]{1,1000}"
    r"|\[[=>.]{3,1000}\]|[━╸╺─]{3,1000})"
    r"|(?P<clock>(?:\d{1,5} days?, )?(?<![\d.])\d{1,5}(?::\d\d){1,2}(?:\.\d{1,9})?(?![\d:])"
    r"|(?<![\w.])(?:\d{1,5}h ?)?\d{1,2}m ?\d{1,2}(?:\.\d{1,9})?s(?![A-Za-z]))"
    rf"|(?P<number>(?:(?<![\w)\].])[-+])?(?:{_NUMBER})|(?<![\w.])[-+]?(?:nan|NaN|inf)(?!\w))"
    rf"(?:(?P<size>[kKMBGT])(?![A-Za-z])|(?P<gap> ?)(?P<unit>{_UNIT})(?P<each>/[a-z]{{1,12}})?)?"
    r"(?P<rate>(?: ?[A-Za-z]{1,12})?/s(?:ec|econd)?(?![A-Za-z/=:]))?"
    r"|(?P<none>(?<![\w])(?:None|N/A|n/a)(?!\w)|(?<=[<\s])\?))"
)
_CLOCK_PARTS = re.compile(r"[hms: ]+")
_DIGIT = re.compile(r"\d")
_SPACES = re.compile(r"\s+")
_PADDING = re.compile(r"(?<=[\[({=:/|<>\"']) $")
"""The space by which a number is aligned: "[ 5/40]" and "[10/40]" are one template."""
_STEPS = ("it", "iter", "iters", "iteration", "step", "steps", "batch", "batches", "update", "ba")
_BREAK = re.compile(r"[|,;\[\]{}<>•\t@~!]| - |\s{3,}")
_EDGES = " :=\"'#*-_./\\"


class LineSlot(NamedTuple):
    kind: str
    """`number`, `time` (seconds), `clock` (seconds), `rate` (steps per second) or `missing`."""
    value: float
    text: str
    """As the line writes it, with its unit."""
    unit: str
    """What follows the number: "/step" of a time, "tok/s" of a number, "%"."""


class SplitLine(NamedTuple):
    key: str
    """The line with its slots taken out."""
    slots: tuple[LineSlot, ...]
    gaps: tuple[str, ...]
    """The text before each slot; the text after the last one is not in it."""
    ends: tuple[int, ...]
    """Length of `key` up to and with each slot."""
    starts: tuple[int, ...]
    """Where each slot starts in the stripped line."""


def split_line(text: str) -> SplitLine | None:
    """The template and values of a line; None where it has no number, or too many."""
    if len(text) > MAX_CHARACTERS:
        return None
    text = text.strip()
    if not _DIGIT.search(text):
        return None
    slots: list[LineSlot] = []
    gaps: list[str] = []
    ends: list[int] = []
    starts: list[int] = []
    parts: list[str] = []
    length = done = 0
    gap = ""
    for match in _SLOT.finditer(text):
        between = _PADDING.sub("", _SPACES.sub(" ", text[done : match.start()]))
        done = match.end()
        gap += between
        slot, mark = _slot(match, text)
        parts.append(between + mark)
        length += len(between) + len(mark)
        if slot is None:
            gap += mark
            continue
        if len(slots) >= MAX_SLOTS:
            return None
        slots.append(slot)
        gaps.append(gap)
        ends.append(length)
        starts.append(match.start())
        gap = ""
    if not slots:
        return None
    key = "".join(parts) + _SPACES.sub(" ", text[done:]).rstrip()
    return SplitLine(key, tuple(slots), tuple(gaps), tuple(ends), tuple(starts))


def _slot(match: re.Match[str], text: str) -> tuple[LineSlot | None, str]:
    """The slot, or None for a date or a drawn bar, and its mark in the template."""
    if match["date"]:
        return None, "@"
    if match["bar"]:
        return None, "~"
    if match["clock"]:
        return LineSlot("clock", _clock(match["clock"]), match[0], ""), "\x01"
    if match["none"]:
        return LineSlot("missing", math.nan, match[0], ""), "\x01"
    value = float(match["number"].replace(",", ""))
    if match["unit"]:
        seconds = value * _scale(match["unit"])
        each = match["each"] or ""
        if each[1:] in ("it", "iter", "ba") and each:
            rate = 1 / seconds if seconds else math.nan
            return LineSlot("rate", rate, match[0], "/s"), "\x02"
        return LineSlot("time", seconds, match[0], each), "\x01" + each
    value *= _SIZES[match["size"] or ""]
    if match["rate"]:
        word = match["rate"].strip().partition("/")[0]
        if word in _STEPS:
            return LineSlot("rate", value, match[0], "/s"), "\x02"
        return LineSlot("number", value, match[0], f"{word}/s"), "\x01" + match["rate"]
    unit = "%" if text[match.end() : match.end() + 1] == "%" else ""
    return LineSlot("number", value, match[0], unit), "\x01"


def _scale(unit: str) -> float:
    return 1e-3 if unit.startswith("mil") else _SCALES.get(unit, 1.0)


def _clock(text: str) -> float:
    """Seconds in "1 day, 2:03:04", "02:03" or "1h02m03s"."""
    days, comma, rest = text.partition(", ")
    seconds = float(days.split()[0]) * DAY_SECONDS if comma else 0.0
    total = 0.0
    for part in _CLOCK_PARTS.split((rest if comma else text).strip("s ")):
        total = total * 60 + float(part or 0)
    return seconds + total


def slot_names(line: SplitLine) -> tuple[str, ...]:
    """A name for every slot, no two alike; "" stands for none, with a number from the second on."""
    names: list[str] = []
    seen: dict[str, int] = {}
    last = ""
    following = (*line.gaps[1:], "")
    for slot, gap, after in zip(line.slots, line.gaps, following, strict=True):
        name = _name(gap, last, slot)
        if slot.kind == "clock" and after.strip() == "<":  # "[00:12<20:33" of a bar
            name = ELAPSED
        last = name.removesuffix(TOTAL).removesuffix(BRACKETS)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return tuple(names)


def _name(gap: str, last: str, slot: LineSlot) -> str:
    bare = gap.strip()
    if slot.kind in ("clock", "missing") and bare == "<":
        return "remaining"
    if bare in ("/", "of", "out of"):
        return last + TOTAL
    if bare.endswith("(") and bare.count("(") > bare.count(")"):
        head = bare[:-1].strip(_EDGES + "%)")
        return _last_words(head) if head else last + BRACKETS
    return _last_words(bare)


def _last_words(text: str) -> str:
    """The last piece of a text, without quotes and signs at its edges."""
    text = text.rstrip(_EDGES + "[({<~|,\x01\x02%")
    piece = _BREAK.split(text)[-1]
    piece = piece.rsplit(": ", 1)[-1]
    if piece.count("(") < piece.count(")"):
        piece = piece.split(")", 1)[-1]
    if piece.count("(") > piece.count(")"):
        piece += ")"
    return piece.strip(_EDGES)[-_MAX_NAME:].lower()


def header_names(header: str, line: str, starts: Sequence[int]) -> tuple[str, ...] | None:
    """Names of slots by a table's header: one word over each field; None where they do not match."""
    line = line.strip()
    words, fields = header.split(), line.split()
    if not 2 <= len(words) <= len(fields):
        return None
    names, seen = [], set()
    for start in starts:
        index = len(line[:start].split())
        index -= bool(start and not line[start - 1].isspace())
        name = words[index].lower() if index < len(words) else ""
        name = name if name not in seen else f"{name} total" if name else ""
        seen.add(name)
        names.append(name)
    return tuple(names)
