"""One key of a TOML, YAML, JSON or Python text set or taken out; every other character stays.

Keys have dots between their levels. What cannot be edited so (a table written inline, a key in a form
that is not expected) is left as it is: who edits reads the text again and compares.
"""

from __future__ import annotations

import json
import re
from typing import Any

from computeflow.files.languages import to_python, to_toml, to_yaml

_TABLE = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def set_toml(text: str, key: str, value: Any) -> str:
    table, _, name = key.rpartition(".")
    lines = text.split("\n")
    line = to_toml({name: value}).rstrip("\n")
    begin, end = _toml_table(lines, table)
    if begin is None:
        header = to_toml({"t": {}}).rstrip("\n").replace("t", table)
        return "\n".join([text.rstrip("\n"), "", header, line, ""])
    found = _toml_value(lines, name, begin, end)
    if found is None:
        last = max((n for n in range(begin, end) if lines[n].strip()), default=begin - 1)
        lines.insert(last + 1, line)
    else:
        comment = re.search(r"\s+#[^\"']*$", lines[found[1] - 1])
        lines[slice(*found)] = [line + (comment[0] if comment else "")]
    return "\n".join(lines)


def drop_toml(text: str, key: str) -> str:
    table, _, name = key.rpartition(".")
    lines = text.split("\n")
    begin, end = _toml_table(lines, table)
    found = None if begin is None else _toml_value(lines, name, begin, end)
    if found is not None:
        del lines[slice(*found)]
    return "\n".join(lines)


def _toml_table(lines: list[str], table: str) -> tuple[int | None, int]:
    """Lines of a table, without its header; None where it is not there."""
    headers = [
        (n, match[1].strip()) for n, line in enumerate(lines) if (match := _TABLE.match(line))
    ]
    ends = [n for n, _ in headers[1:]] + [len(lines)]
    if not table:
        return 0, headers[0][0] if headers else len(lines)
    for (start, name), end in zip(headers, ends, strict=True):
        if name == table:
            return start + 1, end
    return None, 0


def _toml_value(lines: list[str], name: str, begin: int, end: int) -> tuple[int, int] | None:
    """The lines of a key with its value; a list may have several."""
    key = re.compile(rf"^\s*{re.escape(name)}\s*=")
    for start in range(begin, end):
        if key.match(lines[start]):
            stop = start + 1
            while _depth("\n".join(lines[start:stop])) > 0 and stop < end:
                stop += 1
            return start, stop
    return None


def _depth(text: str) -> int:
    plain = re.sub(r"#.*", "", _STRING.sub("", text))
    return plain.count("[") - plain.count("]")


def set_python(text: str, key: str, value: Any) -> str:
    """The value of a quoted key that has a line of its own in a dictionary."""
    line = re.compile(rf"(?m)^(\s*[\"']{re.escape(key)}[\"']\s*:\s*)[^,#\n]+")
    return line.sub(lambda found: found[1] + to_python(value), text, count=1)


def set_yaml(text: str, key: str, value: Any) -> str:
    """Keys of one or two levels, written as blocks."""
    lines = text.split("\n")
    above, _, name = key.rpartition(".")
    begin, end, indent = _yaml_block(lines, above)
    if begin is None:
        return f"{text.rstrip()}\n{to_yaml({above: {name: value}})}"
    written = to_yaml({name: value}, indent).rstrip("\n")
    start, stop = _yaml_value(lines, name, begin, end, indent)
    if start == stop:
        last = max((n for n in range(begin, end) if lines[n].strip()), default=begin - 1)
        lines[last + 1 : last + 1] = written.split("\n")
    else:
        comment = re.search(r"\s+#[^\"']*$", lines[start])
        lines[start:stop] = (written + (comment[0] if comment else "")).split("\n")
    return "\n".join(lines)


def drop_yaml(text: str, key: str) -> str:
    lines = text.split("\n")
    above, _, name = key.rpartition(".")
    begin, end, indent = _yaml_block(lines, above)
    if begin is not None:
        start, stop = _yaml_value(lines, name, begin, end, indent)
        del lines[start:stop]
    return "\n".join(lines)


def _yaml_block(lines: list[str], above: str) -> tuple[int | None, int, str]:
    """The lines below a top-level key, and their indent; all lines for no key."""
    if not above:
        return 0, len(lines), ""
    for start, line in enumerate(lines):
        if re.match(rf"^{re.escape(above)}\s*:\s*(?:#.*)?$", line):
            end = start + 1
            while end < len(lines) and (not lines[end].strip() or lines[end][0] in " #"):
                end += 1
            first = next((x for x in lines[start + 1 : end] if x.strip(" ").strip("#")), "  ")
            return start + 1, end, first[: len(first) - len(first.lstrip(" "))] or "  "
    return None, 0, ""


def _yaml_value(lines: list[str], name: str, begin: int, end: int, indent: str) -> tuple[int, int]:
    """The lines of a key with what is indented below it; none where it is not there."""
    key = re.compile(rf"^{indent}[\"']?{re.escape(name)}[\"']?\s*:")
    for start in range(begin, end):
        if key.match(lines[start]):
            stop = start + 1
            while stop < end and re.match(rf"^{indent}(?:\s+\S|- )", lines[stop]):
                stop += 1
            return start, stop
    return begin, begin


def set_json(text: str, key: str, value: Any) -> str:
    """Objects on the way that are not there are made."""
    *path, name = key.split(".")
    for depth in range(len(path)):
        if _json_members(text, path[: depth + 1]) is None:
            rest: Any = {name: value}
            for part in reversed(path[depth + 1 :]):
                rest = {part: rest}
            return _json_insert(text, path[:depth], path[depth], rest)
    members = _json_members(text, path)
    if members is None or name not in members:
        return _json_insert(text, path, name, value)
    _, start, end = members[name]
    return text[:start] + _json_text(value, text, start) + text[end:]


def drop_json(text: str, key: str) -> str:
    *path, name = key.split(".")
    members = _json_members(text, path)
    if not members or name not in members:
        return text
    start, _, end = members[name]
    if comma := re.match(r"\s*,[ \t]*\n?", text[end:]):
        line = text.rfind("\n", 0, start) + 1
        return (text[:line] if not text[line:start].strip() else text[:start]) + text[
            end + comma.end() :
        ]
    before = text[:start].rstrip()
    return (before[:-1] if before.endswith(",") else before) + text[end:]


def _json_insert(text: str, path: list[str], name: str, value: Any) -> str:
    """A member at the end of an object, on a line of its own where the others have one."""
    members = _json_members(text, path) or {}
    if not members:
        return text
    first, last = next(iter(members.values())), [*members.values()][-1]
    gap = text[text.rfind("\n", 0, first[0]) : first[0]] if "\n" in text[: first[0]] else " "
    gap = gap if not gap.strip() else " "
    written = f"{json.dumps(name)}: {_json_text(value, text, first[0])}"
    return f"{text[: last[2]]},{gap}{written}{text[last[2] :]}"


def _json_text(value: Any, text: str, at: int) -> str:
    if not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    indent = at - text.rfind("\n", 0, at) - 1
    unit = min((len(m[1]) for m in re.finditer(r"\n( +)\S", text)), default=2)
    return json.dumps(value, indent=unit).replace("\n", "\n" + " " * indent)


def _json_members(text: str, path: list[str]) -> dict[str, tuple[int, int, int]] | None:
    """Where each member of an object begins, and its value begins and ends; None: no such object."""
    at = text.find("{")
    for name in path:
        members = _members_at(text, at)
        if name not in members or text[members[name][1]] != "{":
            return None
        at = members[name][1]
    return _members_at(text, at)


def _members_at(text: str, at: int) -> dict[str, tuple[int, int, int]]:
    decoder, members = json.JSONDecoder(), {}
    at += 1
    while match := re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*').match(text, at):
        _, end = decoder.raw_decode(text, match.end())
        members[json.loads(match[1])] = (match.start(1), match.end(), end)
        at = end
    return members
