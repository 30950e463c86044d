"""Slurm's way to write many names in one: `node[001-016,020],login1`. Start with `expand`."""

from __future__ import annotations

import itertools
import re

from computeflow.catalog.config import short
from computeflow.errors import InputError
from computeflow.files.limits import HOST_CHARACTERS, NODES

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]*\])+")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand(text: str, most: int = NODES) -> list[str]:
    """All names in order; more than `most` of them are refused before any is made."""
    names: list[str] = []
    position = 0
    while position < len(text):
        item = _ITEM.match(text, position)
        if item is None:
            raise InputError(f"'{short(text)}': not a host list such as node[001-016,020]")
        names += map("".join, itertools.product(*_choices(item[0], text, most - len(names))))
        position = item.end() + text.startswith(",", item.end())
    return names


def _choices(item: str, text: str, most: int) -> list[list[str]]:
    """Texts for each piece of a name, in order; for `most` names of moderate length."""
    choices: list[list[str]] = []
    count, width = 1, 0
    for piece in _PIECE.finditer(item):
        ranges, plain = piece.group(1, 2)
        choices.append([plain] if ranges is None else _numbers(ranges, text, most // count))
        count *= len(choices[-1])
        width += max(map(len, choices[-1]))
        if count > most:
            raise InputError(f"'{short(text)}': more than {NODES:,} names")
        if width > HOST_CHARACTERS:
            raise InputError(f"'{short(text)}': a name of more than {HOST_CHARACTERS} characters")
    return choices


def _numbers(ranges: str, text: str, most: int) -> list[str]:
    """`001-003,7` as 001, 002, 003, 7: a number is as wide as the first of its range."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise InputError(f"'{short(text)}': '{short(part)}' is not a range such as 001-016")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InputError(f"'{short(text)}': the range '{short(part)}' runs backwards")
        if last - first + 1 + len(numbers) > most:
            raise InputError(f"'{short(text)}': more than {NODES:,} names")
        numbers += (f"{number:0{len(match[1])}d}" for number in range(first, last + 1))
    return numbers
