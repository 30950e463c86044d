"""Damage to contents, as files get it and as an attacker who knows the format would do it: `damaged`."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.-]{2,40}")
_STRANGE = (
    b"NaN", b"-Infinity", b"inf", b"1e400", b"-1", b"0", b"-0.0", b"1e308", b"9223372036854775808",
    b"1180591620717411303424", b'"7"', b'"x"', b"null", b"[]", b"{}", b"[[[]]]", b"true", b"1e-300",
    b"9" * 500, b'"\\ud800"', b'"\xff"', b'"\x00"', b"", b"\xef\xbb\xbf", b"\xd9\xa3", b"1_0", b"0x10",
    b"2147483648", b"4294967295", b"0.1", b"..", b"=", b"-9223372036854775808", b"\x1b[31m", b"1:1",
)  # fmt: skip
_STRANGE_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    2**64,
    10**30,
    1e308,
    -1e308,
    1e-308,
    0.5,
    -0.0,
    "",
    "x",
    "0",
    "1e400",
    "nan",
    "\u0663",
    "\x00",
    "é" * 9,
    [],
    {},
    [[]],
    [None],
    {"": None},
    "x" * 3000,
    1_700_000_000,
    1.7e18,
)
_MAX_TREE = 20_000
"""Bytes of JSON that are damaged as a tree."""


def damaged(
    content: bytes, chance: random.Random, others: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    """Damage a content once or several times; compressed contents as often inside as outside."""
    if content[:2] == b"\x1f\x8b" and chance.random() < 0.7:
        with suppress(OSError, EOFError, zlib.error):
            plain = zlib.decompressobj(31).decompress(content, 1 << 20)
            return gzip.compress(damaged(plain, chance, (), words), 1)
    some = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 6])):
        if not some:
            break
        kind = chance.random()
        if kind < 0.4 and bytes(some[:1]) in (b"{", b"[") and len(some) < _MAX_TREE:
            some = _tree(chance, some)
        elif kind < 0.5 and words:
            _word(chance, some, words)
        elif kind < 0.55 and others:
            _splice(chance, some, chance.choice(others))
        else:
            chance.choice(_DAMAGES)(chance, some)
    return bytes(some)


def words_of(contents: Sequence[bytes], most: int = 400) -> list[bytes]:
    """Words that seeds are made of: keys, options, names."""
    counted: dict[bytes, int] = {}
    for content in contents:
        for word in _WORD.findall(content[:8000]):
            counted[word] = counted.get(word, 0) + 1
    return sorted(counted, key=lambda word: -counted[word])[:most]


def _flip(chance: random.Random, some: bytearray) -> None:
    some[chance.randrange(len(some))] ^= 1 << chance.randrange(8)


def _overwrite(chance: random.Random, some: bytearray) -> None:
    """Overwrite bytes in place: lengths stay true, so that a profile or a pickle is read further."""
    at = chance.randrange(len(some))
    size = min(chance.choice([1, 2, 4, 8]), len(some) - at)
    some[at : at + size] = chance.choice(
        [b"\x00" * 8, b"\xff" * 8, b"\x7f" * 8, b"\x80" * 8, chance.randbytes(8)]
    )[:size]


def _lose(chance: random.Random, some: bytearray) -> None:
    at = chance.randrange(len(some))
    del some[at : at + chance.choice([1, 1, 10, 500])]


def _double(chance: random.Random, some: bytearray) -> None:
    at, other = chance.randrange(len(some)), chance.randrange(len(some))
    some[other:other] = some[at : at + chance.choice([1, 10, 500, 5000])]


def _end(chance: random.Random, some: bytearray) -> None:
    del some[chance.randrange(len(some)) :]


def _replace_number(chance: random.Random, some: bytearray) -> None:
    match = _NUMBER.search(some, chance.randrange(len(some)))
    if match:
        some[match.start() : match.end()] = chance.choice(_STRANGE)


def _shift_number(chance: random.Random, some: bytearray) -> None:
    """Change a number to another of as many digits, so that it stays plausible."""
    match = _NUMBER.search(some, chance.randrange(len(some)))
    if match:
        text = re.sub(rb"\d", lambda _: b"%d" % chance.randrange(10), match[0])
        some[match.start() : match.end()] = text


def _lines(chance: random.Random, some: bytearray) -> None:
    lines = bytes(some).split(b"\n")
    if len(lines) < 2:
        return
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    act = chance.randrange(4)
    if act == 0:
        del lines[at]
    elif act == 1:
        lines.insert(other, lines[at])
    elif act == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines.sort()
    some[:] = b"\n".join(lines)


def _word(chance: random.Random, some: bytearray, words: Sequence[bytes]) -> None:
    match = _WORD.search(some, chance.randrange(len(some)))
    if match:
        some[match.start() : match.end()] = chance.choice(
            [chance.choice(words), chance.choice(_STRANGE)]
        )


def _splice(chance: random.Random, some: bytearray, other: bytes) -> None:
    if other:
        at = chance.randrange(len(some))
        start = chance.randrange(len(other))
        some[at : at + chance.choice([0, 0, 100])] = other[
            start : start + chance.choice([20, 200, 2000])
        ]


def _tree(chance: random.Random, some: bytearray) -> bytearray:
    """Replace, drop or double a value of the JSON."""
    try:
        whole = json.loads(bytes(some))
    except (ValueError, RecursionError):
        chance.choice(_DAMAGES)(chance, some)
        return some
    places: list[tuple[Any, Any]] = []
    left = [whole]
    while left:
        part = left.pop()
        keys = (
            list(part)
            if isinstance(part, dict)
            else range(len(part))
            if isinstance(part, list)
            else []
        )
        for key in keys:
            places.append((part, key))
            left.append(part[key])
    if places:
        part, key = chance.choice(places)
        act = chance.randrange(6)
        if act == 0:
            del part[key]
        elif act == 1:
            other, name = chance.choice(places)
            with suppress(IndexError, KeyError):
                part[key] = json.loads(json.dumps(other[name]))
        elif act == 2 and isinstance(part, list):
            part.insert(key, part[key])
        elif act == 3 and isinstance(part, dict):
            part[chance.choice(["", "x", "0", "\x00", str(key).upper()])] = part.pop(key)
        else:
            part[key] = chance.choice(_STRANGE_VALUES)
    with suppress(ValueError, RecursionError):
        return bytearray(json.dumps(whole).encode("utf-8", "surrogatepass"))
    return some


_DAMAGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _overwrite, _overwrite, _lose, _double, _end, _replace_number, _replace_number, _shift_number,
    _lines, _lines,
)  # fmt: skip
