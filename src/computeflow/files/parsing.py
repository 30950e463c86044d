"""The one way to read each language of a user's file: TOML, JSON, YAML, CSV.

All give plain data, or one `InputError` that names the file and the place: nothing nests deeper or
holds more than `limits` allow, every number is finite, and a key appears once. Time and memory
grow with the size of the text and no faster.
"""

from __future__ import annotations

import csv
import gc
import io
import json
import math
import re
import tomllib
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

from computeflow.errors import InputError, UnavailableError
from computeflow.files.limits import (
    DEPTH,
    DIGITS,
    KEY_CHARACTERS,
    NAMED_VALUES,
    VALUES,
    WHOLE,
)
from computeflow.files.names import shown

Record = tuple[int, dict[str, str]]
"""The line of a CSV on which a record ends, and its cells by column."""

_HALF = re.compile("[\ud800-\udfff]")
_TOML = re.compile(
    r'#[^\n]*|"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?|\'\'\'(?:[^\']|\'(?!\'\'))*+(?:\'\'\')?'
    r'|(?P<name>(?P<part>[^\s"\'#=\[\]{},.]++|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?)'
    r'(?:[ \t]*+\.[ \t]*+(?:[^\s"\'#=\[\]{},.]++|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?))*+)'
    r"|(?P<opens>[\[{])",
    re.DOTALL,
)
"""Comments, long strings, names and values with their dots, brackets: no two ways to read a text."""
_SEPARATORS = (("semicolons", ";"), ("tabs", "\t"))

Path = tuple[Any, ...]
"""Where a value is: the path of what holds it, and its key."""


def parse_toml(text: str, where: str, *, finite: bool = True) -> dict[str, Any]:
    """`finite`: false where the values themselves say which number may be endless."""
    _scan_toml(text, where)
    with _parser_errors(where, "TOML", tomllib.TOMLDecodeError):
        data = tomllib.loads(text)
    _check(data, where, finite=finite)
    return data


def parse_json(text: str, where: str, *, finite: bool = True) -> Any:
    """`finite`: false where NaN and Infinity may appear in values that are not used."""
    if sum(map(text.count, ",[{")) > VALUES:
        raise _too_many(where, VALUES)

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            raise InputError(f"{where}: {_twice(key for key, _ in pairs)}")
        return values

    with _parser_errors(where, "JSON", json.JSONDecodeError):
        data = json.loads(text, object_pairs_hook=table)
    _check(data, where, finite=finite)
    return data


def parse_yaml(text: str, where: str) -> Any:
    """One document of plain data, its scalars as PyYAML has them (`on` is true, `010` is 8), since
    the frameworks read their files with it; but `1:30` is no number in base 60, and a date is text.

    Aliases are refused: nine lines of them make a billion items. So are tags.
    """
    try:
        import yaml
    except ImportError:
        raise UnavailableError(
            "reading YAML needs PyYAML: pip install 'computeflow[exports]'"
        ) from None
    try:
        _scan_yaml(yaml.parse(text, Loader=_yaml_loader()), where)
        with without_collector():
            data = yaml.load(text, Loader=_yaml_loader())
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise _no(where, "YAML", f"{line}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise _no(where, "YAML", error) from None
    except _WrongValueError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise _too_deep(where, "YAML") from None
    _check(data, where)
    return data


def parse_csv(text: str, where: str) -> list[Record]:
    """Records of a CSV with a header; at least one, all of the same width."""
    reader = csv.reader(io.StringIO(text), strict=True)
    records: list[Record] = []
    try:
        header = next(reader, None)
        if not header:
            raise InputError(f"{where}: empty")
        _check_header(header, where)
        most = VALUES // len(header)
        for values in filter(None, reader):  # a blank line is no record
            if len(values) != len(header):
                raise InputError(
                    f"{where}: line {reader.line_num} has {len(values)} of {len(header)} columns: "
                    "the file is truncated or not a CSV"
                )
            records.append((reader.line_num, dict(zip(header, values, strict=True))))
            if len(records) > most:
                raise _too_many(where, VALUES)
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: {error}") from None
    if not records:
        raise InputError(f"{where}: a header and no rows")
    return records


def parse_number(text: str, what: str) -> float:
    """A finite number of a cell; `what` opens the message where it is none."""
    try:
        number = float(text) if len(text) <= DIGITS else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{what} '{shown(text, 40)}' is not a finite number")
    return number


@contextmanager
def _parser_errors(where: str, language: str, broken: type[ValueError]) -> Iterator[None]:
    """Errors of a language's parser, as one line."""
    try:
        with without_collector():
            yield
    except broken as error:
        raise _no(where, language, error) from None
    except RecursionError:
        raise _too_deep(where, language) from None
    except ValueError:  # of an integer that Python does not convert
        raise InputError(f"{where}: {_TOO_LARGE}") from None


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause garbage collection: it would scan all that is built, and plain data has no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_TOO_LARGE = "too large a number: whole ones have 64 bits"


def _check(data: Any, where: str, *, finite: bool = True) -> None:
    """Check that all of it is within the limits."""
    ready: list[tuple[Any, Path, int]] = [(data, (), 0)]
    while ready:
        holder, path, depth = ready.pop()
        if depth > DEPTH:
            raise _too_deep(where, "a document")
        parts = holder.items() if isinstance(holder, dict) else enumerate(_items(holder))
        for key, part in parts:
            if isinstance(key, str) and len(key) > KEY_CHARACTERS:
                raise InputError(
                    f"{where}: the key {shown(key, 40)} has {len(key):,} characters; "
                    f"at most {KEY_CHARACTERS}"
                )
            if isinstance(part, dict | list | tuple | set):
                ready.append((part, (path, key), depth + 1))
            elif wrong := _wrong(part, finite) or _wrong(key, finite):
                raise InputError(f"{where}: {_called((path, key))}{wrong}")


def _items(holder: Any) -> Iterable[Any]:
    """Items of a list; a document that is a single value is its own item."""
    return holder if isinstance(holder, list | tuple | set) else (holder,)


def _wrong(value: Any, finite: bool = True) -> str:
    """The fault of a value; nothing where it can be used."""
    if isinstance(value, float):
        return "" if math.isfinite(value) or not finite else f"{value} is not a finite number"
    if isinstance(value, int):
        return "" if -WHOLE < value < WHOLE else _TOO_LARGE
    if isinstance(value, str) and not value.isascii() and _HALF.search(value):
        return "a text with half a character (a lone surrogate)"
    return ""


def _called(path: Path) -> str:
    """`prices[3].usd: `, as far as a message has room for it."""
    names: list[str] = []
    while path:
        path, key = path
        names.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    text = "".join(reversed(names)).removeprefix(".")
    return f"{shown(text)}: " if text not in ("", "[0]") else ""


def _scan_toml(text: str, where: str) -> None:
    """Check before anything is built: tomllib takes memory by the square of the dots of a key, and
    120 bytes for each digit of a number.
    """
    if len(text) <= NAMED_VALUES and all(line.count(".") <= DEPTH for line in text.split("\n")):
        return
    count = 0
    for token in _TOML.finditer(text):
        name = token["name"]
        dots = name.count(".") if name is not None and len(name) > len(token["part"]) else 0
        if dots > DEPTH:
            raise InputError(f"{where}: the key {shown(name, 40)} has more than {DEPTH} dots")
        if name is not None and len(name) > DIGITS and name[0] not in "\"'":
            raise InputError(
                f"{where}: {shown(name, 40)} has {len(name):,} characters: a number or a key has at "
                f"most {DIGITS}"
            )
        count += dots + (name is not None or token["opens"] is not None)
        if count > NAMED_VALUES:
            raise _too_many(where, NAMED_VALUES)


def _scan_yaml(events: Iterable[Any], where: str) -> None:
    """Check before anything is built: an event is dropped when the next one comes."""
    depth = 0
    for number, event in enumerate(events):
        kind = type(event).__name__
        if kind == "AliasEvent":
            raise InputError(
                f"{where}: YAML aliases (*{shown(event.anchor, 40)}) are not read: write values out"
            )
        if getattr(event, "tag", None) not in (None, "tag:yaml.org,2002:str"):
            raise InputError(f"{where}: YAML tags ({shown(event.tag, 40)}) are not read")
        depth += kind.endswith(("MappingStartEvent", "SequenceStartEvent"))
        depth -= kind.endswith(("MappingEndEvent", "SequenceEndEvent"))
        if depth > DEPTH:
            raise _too_deep(where, "YAML")
        if number > NAMED_VALUES:
            raise _too_many(where, NAMED_VALUES)


@cache
def _yaml_loader() -> Any:
    """PyYAML's own, but for what would take long or be taken for something else."""
    import yaml

    plain: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    kept = {f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null")}

    class Loader(plain):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar = {
            first: [(tag, sign) for tag, sign in signs if tag in kept]
            for first, signs in plain.yaml_implicit_resolvers.items()
        }

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            """Scalars without base 60, where adding up takes time by the square of the length."""
            if kind is yaml.ScalarNode and (":" in value or len(value) > DIGITS):
                return self.DEFAULT_SCALAR_TAG
            return super().resolve(kind, value, implicit)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            values: dict[Hashable, Any] = super().construct_mapping(node, deep)
            if len(values) < len(node.value):
                raise _WrongValueError(_twice(self.construct_object(key) for key, _ in node.value))
            return values

        def construct_yaml_int(self, node: Any) -> int:
            """Checked before it is a key: wider ones can be made to have one hash."""
            value: int = super().construct_yaml_int(node)
            if wrong := _wrong(value):
                raise _WrongValueError(wrong)
            return value

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    return Loader


class _WrongValueError(Exception):
    """A wrong value found inside PyYAML, which does not know the file."""


def _check_header(header: list[str], where: str) -> None:
    for name, mark in _SEPARATORS:
        if len(header) == 1 and mark in header[0]:
            raise InputError(
                f"{where}: its columns are separated by {name}: save it with commas, and with a "
                "point before decimals"
            )
    for column in header:
        if len(column) > KEY_CHARACTERS:
            raise InputError(
                f"{where}: the column '{shown(column, 40)}' has {len(column):,} characters; "
                f"at most {KEY_CHARACTERS}"
            )
    if len(set(header)) < len(header):
        raise InputError(f"{where}: two columns are called '{shown(_repeated(header), 40)}'")


def _repeated(keys: Iterable[Any]) -> str:
    """The first key that appears a second time."""
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            return str(key)
        seen.add(key)
    return ""


def _twice(keys: Iterable[Any]) -> str:
    return f"the key {shown(_repeated(keys), 40)} appears twice"


def _no(where: str, language: str, why: object) -> InputError:
    return InputError(f"{where}: not {language}: {shown(' '.join(str(why).split()), 200)}")


def _too_deep(where: str, language: str) -> InputError:
    return InputError(f"{where}: {language} nested too deeply: more than {DEPTH} levels")


def _too_many(where: str, most: int) -> InputError:
    return InputError(f"{where}: more than {most:,} values, which no input needs")
