"""Values in the languages of the files that we write: Python, TOML, YAML, Markdown, comments.

A parser of the language gives the same values back, whatever is in them; what a language cannot say
(half of a surrogate pair) is refused. Words of a shell are `shlex`'s, JSON is `codec`'s.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from computeflow.errors import InputError
from computeflow.files.names import shown

PYTHON_OPENING = "# -*- coding: utf-8 -*-\n"
"""First line of every Python file: else a comment below may name another encoding, and end in that."""

_BARE_TOML = re.compile(r"[A-Za-z0-9_-]+")
_BARE_YAML = re.compile(r"(?!(?i:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z_][A-Za-z0-9_]*")
_BEYOND_ASCII = re.compile(r"[\x7f-\uffff]")


def text_line(text: str) -> str:
    """The whole text; what would end a line or be obeyed by a terminal, as escapes."""
    return shown(text, len(text))


def comment(lines: Iterable[str]) -> str:
    """A comment line for each; nothing in a line ends it."""
    return "".join(f"# {text_line(line)}\n" for line in lines)


def to_markdown(text: str) -> str:
    """Text for a paragraph or a cell of a table: no HTML, no further cell."""
    return text_line(text).replace("<", "&lt;").replace("|", "\\|")


def to_python(value: Any) -> str:
    """A literal, in ASCII, so that no encoding changes it."""
    return ascii(value)


def to_toml(tree: Mapping[str, Any]) -> str:
    """Tables of strings, numbers, lists and further tables; a list of tables has a line for each."""
    return "\n".join(_toml_lines(tree, ())).lstrip("\n") + "\n"


def _toml_lines(tree: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    values = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    lines = ["", f"[{'.'.join(map(_toml_key, path))}]"] if path and (values or not tree) else []
    for key, value in values.items():
        if isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
            rows = [f"  {_toml_value(item)}," for item in value]
            lines += [f"{_toml_key(key)} = [", *rows, "]"]
        else:
            lines.append(f"{_toml_key(key)} = {_toml_value(value)}")
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += _toml_lines(value, (*path, key))
    return lines


def _toml_key(key: str) -> str:
    return key if _BARE_TOML.fullmatch(key) else _quoted(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)


def to_yaml(tree: Mapping[str, Any], indent: str = "") -> str:
    """A line for each key; tables are indented, lists stand in brackets."""
    text = ""
    for key, value in tree.items():
        bare = key if _BARE_YAML.fullmatch(key) else _quoted(key)
        if isinstance(value, dict) and value:
            text += f"{indent}{bare}:\n{to_yaml(value, indent + '  ')}"
        else:
            text += f"{indent}{bare}: {_flow(value)}\n"
    return text


def to_yaml_and_json(value: Any) -> str:
    """Indented text that parsers of either language read as the same value."""
    return _flow(value, "\n") + "\n"


def _flow(value: Any, end: str = "") -> str:
    """YAML in brackets; with `end` (a line end and the indent so far) on several lines."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return _yaml_float(value)
    deeper = f"{end}  " if end else ""
    if isinstance(value, dict):
        items = [f"{_quoted(key)}: {_flow(part, deeper)}" for key, part in value.items()]
    elif isinstance(value, list | tuple):
        items = [_flow(part, deeper) for part in value]
    else:
        return json.dumps(value)
    inner = (f",{deeper}" if end else ", ").join(items)
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}{deeper}{inner}{end}{last}" if items else first + last


def _yaml_float(value: float) -> str:
    """YAML 1.1 takes 1e-05, without a point, for text."""
    if not math.isfinite(value):
        raise InputError(f"{value}: not a number that a file can hold")
    digits, exponent, power = repr(value).partition("e")
    return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"


def _quoted(text: str) -> str:
    """Text in double quotes, as JSON, TOML and YAML have it: none takes every raw character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{shown(text)}: not text that a file can hold") from None
    return _BEYOND_ASCII.sub(_printed, json.dumps(text, ensure_ascii=False))


def _printed(match: re.Match[str]) -> str:
    """Characters beyond the basic plane stand raw: JSON would need two escapes, the others know one."""
    return match[0] if match[0].isprintable() else f"\\u{ord(match[0]):04x}"
