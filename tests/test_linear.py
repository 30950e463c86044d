"""Readers of recordings take time in proportion to what they read, whatever stands there.

Every regular expression of `computeflow.telemetry` is found by walking its modules, and timed on lines
made from the expression itself: each of its characters, each of its beginnings, over and over. One that
is slow for a short line is timed at growing sizes, to that of the longest line that readers give it.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from computeflow import telemetry
from computeflow.files.limits import LINE_BYTES
from computeflow.telemetry.kernel_logs.messages import _tables

SIZES = tuple(512 * 4**power for power in range(12) if 512 * 4**power <= LINE_BYTES)
QUICK = 40e-9
"""Seconds per character; an expression that takes less at the second size is not timed further."""
TOO_LONG_SECONDS = 2.0
"""CPU time of one line that no expression may take while its cost per character grows."""
ROOM = 2.5
"""Allowed ratio of the cost per character to that in a line a quarter as long; it is 4 for a
quadratic expression."""


def modules() -> list[Any]:
    found = pkgutil.walk_packages(telemetry.__path__, "computeflow.telemetry.")
    return [importlib.import_module(module.name) for module in found]


def patterns_in(value: object, depth: int = 8) -> Iterator[re.Pattern[Any]]:
    """Expressions in containers and in the fields of values."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from patterns_in(part, depth - 1)
    elif depth and isinstance(value, dict):
        yield from patterns_in([*value, *value.values()], depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = [getattr(value, name) for name in value.__dataclass_fields__]
        yield from patterns_in(fields, depth - 1)


def all_patterns() -> dict[re.Pattern[Any], set[str]]:
    """Every expression with the methods used on it: one that is only matched need not be quick to
    search for.
    """
    found: dict[re.Pattern[Any], set[str]] = {}
    for module in modules():
        source = Path(module.__file__).read_text()
        for name, value in vars(module).items():
            asked = set(re.findall(rf"\b{name}\.(\w+)\(", source))
            known = asked if isinstance(value, re.Pattern) and asked else {"search"}
            for pattern in patterns_in(value):
                found.setdefault(pattern, set()).update(known)
    for pattern in patterns_in(_tables()):
        found[pattern] = {"search"}
    return found


def sample(item: tuple[Any, Any]) -> str:
    """A text that one item of an expression matches."""
    code, value = item
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.NOT_LITERAL:
        return "x" if value != ord("x") else "y"
    if code is codes.ANY:
        return "x"
    if code is codes.IN:
        return str(members(value)[:1])
    if code is codes.BRANCH:
        return text_of(value[1][0])
    if code is codes.SUBPATTERN:
        return text_of(value[3])
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return text_of(value[2]) * int(max(value[0], 1))
    if code is codes.ATOMIC_GROUP:
        return text_of(value)
    return ""


def text_of(items: Any) -> str:
    return "".join(sample(item) for item in items)


def members(choices: Any) -> str:
    """Some characters that a class matches."""
    found, excluded = "", choices[0][0] is codes.NEGATE
    kinds = {codes.CATEGORY_DIGIT: "0", codes.CATEGORY_WORD: "a0_", codes.CATEGORY_SPACE: " \t"}
    for code, value in choices:
        if code is codes.LITERAL:
            found += chr(value)
        elif code is codes.RANGE:
            found += chr(value[0]) + chr(value[1])
        elif code is codes.CATEGORY:
            found += kinds.get(value, "x")
    return "".join(c for c in "x0 .-" if c not in found) if excluded else found


def inside(code: Any, value: Any) -> list[Any]:
    if code is codes.BRANCH:
        return list(value[1])
    if code is codes.ATOMIC_GROUP:
        return [value]
    repeats = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
    return [value[2]] if code in repeats else [value[3]] if code is codes.SUBPATTERN else []


def beginnings(items: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Text matched before each item, and the item; inside groups and repeats, too."""
    for item, following in pairwise([*items, (None, None)]):
        code, value = item
        if code is not codes.LITERAL or following[0] is not codes.LITERAL:  # a word is one thing
            yield before, sample(item)
        if code is codes.IN:
            for member in members(value):
                yield before, member
        for part in inside(code, value):
            yield from beginnings(part, before)
        before += sample(item)


Attack = tuple[Any, Any, Any]


def attacks(pattern: re.Pattern[Any]) -> list[Attack]:
    """Lines of a beginning, a repeated text and an end that matches nothing."""
    text = (
        pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    )
    starts = list(dict.fromkeys(beginnings(parser.parse(text, pattern.flags & ~re.DEBUG))))
    pumps = [(before, over) for before, over in starts if over]
    pumps += [("", before + over) for before, over in starts if before + over]
    pumps += [
        ("", each) for each in ("0", " ", "a", ".", "-", "0.", "a ", "0 ", "{", '"', "[", "0:")
    ]
    found: Any = [(*pump, end) for pump in dict.fromkeys(pumps) for end in ("", "\x01")]
    if isinstance(pattern.pattern, bytes):
        found = [[part.encode("latin-1", "replace") for part in attack] for attack in found]
    return [tuple(attack) for attack in found]


def seconds_each(ask: Callable[[Any], object], attack: Attack, size: int) -> float:
    """Seconds per character."""
    before, over, end = attack
    text = before + over * max((size - len(before)) // len(over), 1) + end
    begin = time.process_time()
    ask(text)
    return (time.process_time() - begin) / len(text)


def is_slow(ask: Callable[[Any], object], attack: Attack) -> bool:
    """Whether an expression is slow. In short lines the cost per character may grow, up to its own
    limits; one that is still quick, or no slower at four times the size, is not timed further.
    """
    first, second = (seconds_each(ask, attack, size) for size in SIZES[:2])
    if second < max(QUICK, 1.5 * first):
        return False
    if second > 12 * max(first, QUICK):  # cubic
        return True
    short = min(seconds_each(ask, attack, SIZES[1]) for _ in range(3))
    for size in SIZES[2:]:
        long = seconds_each(ask, attack, size)
        if long * size > TOO_LONG_SECONDS:
            return long > 1.5 * short
        long = min(long, seconds_each(ask, attack, size))
        if long < 1.5 * short or long > ROOM * max(short, QUICK / 4):
            return long > ROOM * max(short, QUICK / 4)
        short = long
    return False


def slow(pattern: re.Pattern[Any], asked: set[str]) -> Attack | None:
    """A line on which an expression takes more than its share."""

    def every(text: Any) -> None:
        deque(pattern.finditer(text), maxlen=0)

    ways: list[Callable[[Any], object]] = [every]
    if asked <= {"match", "fullmatch", "search"}:
        ways = [getattr(pattern, way) for way in asked]
    for ask in ways:
        for attack in attacks(pattern):
            if all(is_slow(ask, attack) for _ in range(3)):  # a busy machine is slow at times
                return attack
    return None


def test_every_expression_of_the_readers_is_linear() -> None:
    found = all_patterns()
    assert len(found) > 150
    assert {
        one.pattern: attack for one, asked in found.items() if (attack := slow(one, asked))
    } == {}


@pytest.mark.parametrize(
    ("pattern", "asked"),
    [
        (r"\d+%", "search"),
        (r"a(.*?)b", "search"),
        (r"(\w+)\s*\s*$", "match"),
        (r"<[^>]*>", "findall"),
    ],
)
def test_a_quadratic_expression_is_found(pattern: str, asked: str) -> None:
    assert slow(re.compile(pattern), {asked}) is not None


def test_expressions_stand_where_they_are_found() -> None:
    """Expressions stand at the top of a module: one inside a function would not be timed."""
    inside = []
    for module in modules():
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                named = ast.unparse(node.func) != "re.compile"
                constant = isinstance(node.args[0], ast.Constant)
                inside += [f"{module.__name__}: {ast.unparse(node)}"] if named and constant else []
    assert inside == []
