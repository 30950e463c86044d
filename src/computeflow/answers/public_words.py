"""Words that a redacted answer may show: `is_public`.

A list of what to hide has holes, so this is a list of what may stay: ComputeFlow's own texts (all texts
of the packages that contribute to an audit, read from their source, so that the list is never out of
date), devices and models of the catalog, words of public programs (`public_words.toml`), and numbers.
Everything else in a recording is private.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import groupby
from typing import Any

from computeflow.catalog import load_catalog
from computeflow.files.limits import PATH_CHARACTERS

_SPEAKERS = (
    "units.py", "ledger", "workload", "prediction", "telemetry", "economics", "diagnosis", "auditing",
    "views",
)  # fmt: skip
"""Packages whose texts appear in an audit."""
_TABLES = ("xids.toml", "sxids.toml", "messages.toml")
"""Tables of kernel-log faults: what they are and what to do about them."""

UNIT = re.compile(r"""[^\s,;|+=()\[\]{}<>"'`*&!?#]+""")
"""A unit, kept or hidden as a whole: a word, a number, a path, an identifier."""
_EDGES = ".:-_/…"

_NUMBER = r"[-−~≈±×]?\d{1,7}(?:\.\d{1,9})?(?:e-?\d{1,3})?"
_NUMBERS = re.compile(
    rf"""{_NUMBER}%?
    |\${_NUMBER}(?:/h)?|{_NUMBER}/h                  # dollars, by the hour
    |{_NUMBER}(?:[-–/:x×]|\.\.){_NUMBER}%?            # a range, a ratio
    |v?\d{{1,4}}\.\d{{1,4}}(?:\.\d{{1,4}})?             # a version
    |\d{{1,5}}(?:x\d{{1,5}})+                          # a shape
    |(?:\d{{4}}-)?\d\d-\d\d(?:t\d\d:\d\d(?::\d\d)?(?:\.\d{{1,9}})?z?)?
    |\d{{1,3}}:\d\d(?::\d\d(?:\.\d{{1,9}})?)?z?
    |(?:pci:)?[0-9a-f]{{4,8}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}(?:\.[0-7])?  # a device on a bus
    |[nµmkgtpe]?(?:b|s|w|wh|j|hz|flops?|tokens)(?:/(?:s|b|j|w|step))?       # a unit
    |(?:rank-?|step-?|gpu:|cuda:|mlx5_|sm_)\d{{1,6}}
    """,
    re.VERBOSE | re.ASCII,
)
_WITH_UNIT = re.compile(rf"{_NUMBER}([a-zµ°/]{{1,5}})", re.ASCII)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^A-Za-z0-9]+")
_SHAPES = re.compile(
    r"\d{1,6}|\d{1,5}(?:x\d{1,5})+|[a-z]{1,2}\d{1,5}|(?:\d{1,2}d){1,64}|[a-z]", re.I | re.A
)
"""Parts of a kernel's name that are numbers: tiles, types, arguments."""
_SEPARATORS = re.compile(r"(:{1,2}|_+|-|\.(?=[0-9]{1,6}$))")
_TIMES = re.compile(r"(?<=[0-9])x(?=[0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    texts: frozenset[str]
    """ComputeFlow's own texts, word for word."""
    words: frozenset[str]
    """Units of these texts, in lower case."""
    fields: frozenset[str]
    """Fields of ComputeFlow's own values: keys of the JSON."""


@cache
def vocabulary() -> Vocabulary:
    root = files("computeflow")
    collected = _Said(texts=set(), pieces=set(), fields=set())
    for name in _SPEAKERS:
        for module in _modules(root / name):
            collected.read(ast.parse(module.read_text("utf-8")))
    for name in _TABLES:
        table = (root / "telemetry" / "kernel_logs" / name).read_text("utf-8")
        collected.texts.update(_strings(tomllib.loads(table)))
    catalog = load_catalog()
    collected.texts.update(
        row.name for rows in (catalog.accelerators, catalog.models) for row in rows
    )
    return Vocabulary(
        texts=frozenset(collected.texts),
        words=frozenset(
            word for text in collected.texts | collected.pieces for word in _words(text)
        )
        | _listed("errors", "states", "torch", "endings", "devices", "marks"),
        fields=frozenset(collected.fields),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """Texts of the modules read so far."""

    texts: set[str]
    pieces: set[str]
    """Units of f-strings; of a unit that contains a value, its words."""
    fields: set[str]

    def read(self, tree: ast.Module) -> None:
        unsaid: set[ast.AST] = set()  # documentation, and parts of texts with values inside
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                if isinstance(node.value, str) and node not in unsaid:
                    self.texts.add(node.value)
            elif isinstance(node, ast.Expr):
                unsaid.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                unsaid.update(node.values)
                self.pieces.update(_pieces(node))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.fields.add(node.target.id)


def _modules(place: Traversable) -> Iterator[Traversable]:
    if place.is_file():
        if place.name.endswith(".py"):
            yield place
        return
    for inner in sorted(place.iterdir(), key=lambda each: each.name):
        yield from _modules(inner)


def _pieces(node: ast.JoinedStr) -> Iterator[str]:
    parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    for unit in UNIT.findall("".join(map(str, parts))):
        yield from re.findall(r"[^\W\d_]+", unit) if "\0" in unit else [unit]


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _strings(value)


def _words(text: str) -> Iterable[str]:
    return (unit.strip(_EDGES).lower() for unit in UNIT.findall(text) if "\\" not in unit)


def is_public(unit: str) -> bool:
    """Whether a redacted answer may show this unit of a text; a unit longer than a path is hidden."""
    if len(unit) > PATH_CHARACTERS:
        return False
    low = unit.lower()
    known = vocabulary().words
    if low in known or (low.endswith("s") and low[:-1] in known) or _NUMBERS.fullmatch(low):
        return True
    sized = _WITH_UNIT.fullmatch(low)
    return (sized is not None and sized[1] in known) or _is_device(low)


def _is_device(low: str) -> bool:
    """Whether it is a device's name (A100-SXM4-80GB), made of the catalog's words."""
    parts = low.split("-")
    return (
        len(parts) > 1
        and any(part in _device_words() for part in parts)
        and all(
            part in _device_words() or re.fullmatch(r"sxm\d?|pcie|nvl|oam|hbm\d?e?|\d{1,3}gb", part)
            for part in parts
        )
    )


@cache
def _device_words() -> frozenset[str]:
    """Names of device models: a100, h200, mi300x."""
    names = (row.name for row in load_catalog().accelerators)
    return frozenset(name.partition("-")[0] for name in names if re.search(r"\d", name))


@cache
def _listed(*names: str) -> frozenset[str]:
    """Words of the named lists of `public_words.toml`."""
    text = (files("computeflow") / "answers" / "public_words.toml").read_text("utf-8")
    lists = tomllib.loads(text)
    return frozenset(word for name in names for word in lists[name].split())


@cache
def _library_words() -> frozenset[str]:
    words = _listed("kernels") - _listed("everyday")
    return frozenset(word for word in words if len(word) > 2)


def identifier_parts(unit: str) -> list[tuple[str, bool]] | None:
    """The parts of a name of a kernel, an operator or a group, each with whether it may be shown; None
    where nothing shows that a public library has such names, or it is longer than a path: the list
    takes up to seventy bytes for each character.
    """
    if len(unit) > PATH_CHARACTERS:
        return None
    parts = [part for part in _SEPARATORS.split(unit) if part]
    if not any(piece in _library_words() for part in parts for piece in _pieces_of(part)):
        return None
    shown = [bool(_SEPARATORS.fullmatch(part)) or _is_kernel_part(part) for part in parts]
    for index in range(1, len(parts) - 1):  # what is hidden side by side is one
        if _SEPARATORS.fullmatch(parts[index]) and not shown[index - 1] and not shown[index + 1]:
            shown[index] = False
    runs = groupby(zip(parts, shown, strict=True), key=lambda pair: pair[1])
    return [("".join(part for part, _ in run), public) for public, run in runs]


def _pieces_of(part: str) -> list[str]:
    """The part in lower case, then its words and numbers (ReduceOp256x64)."""
    return [part.lower(), *(piece.lower() for piece in _PARTS.findall(_TIMES.sub(" ", part)))]


def _is_kernel_part(part: str) -> bool:
    known = _listed("kernels")
    whole, *pieces = _pieces_of(part)
    if whole in known or whole in vocabulary().words or _SHAPES.fullmatch(part):
        return True
    if re.fullmatch("[a-z] [0-9]{1,5}", " ".join(pieces[:2])):  # s1688gemm
        del pieces[:2]
    if re.fullmatch("[a-z]{2,} [a-z]", " ".join(pieces[-2:])):  # coopA
        del pieces[-1]
    some = any(piece in known and len(piece) > 2 for piece in pieces)
    return some and all(piece in known or re.fullmatch(" |[0-9]{1,5}", piece) for piece in pieces)
