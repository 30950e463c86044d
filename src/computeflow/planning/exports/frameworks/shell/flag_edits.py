"""Flags of a launch script or an argument file set or taken out, where they stand."""

from __future__ import annotations

import re

_VALUE = r"(?:[ \t]+|=)(\"[^\"\n]*\"|'[^'\n]*'|[^\s\\\"'()]+)"


def set_flag(
    text: str, flag: str, value: str | None, beside: str, *, in_variables: bool = False
) -> str:
    """The flag with its value (None: it has none); a new one goes behind the flag `beside`.

    `in_variables`: a value that is a variable is set where the script sets that, if at one place only.
    """
    found = _flag(flag, value is not None).search(text)
    if found is not None and value is not None:
        start, end = (in_variables and _assigned(text, found[1])) or found.span(1)
        return text[:start] + value + text[end:]
    if found is not None:
        return text
    anchor = _flag(beside, True).search(text)
    if anchor is None:
        return text
    written = f"--{flag}" if value is None else f"--{flag} {value}"
    line = text.rfind("\n", 0, anchor.start()) + 1
    rest = re.compile(r"[ \t]*(\\?)[ \t]*(?=\n|$)").match(text, anchor.end())
    indent = re.compile(r"[ \t]*").match(text, line)
    assert indent is not None
    if rest is None or indent.end() != anchor.start():
        return f"{text[: anchor.end()]} {written}{text[anchor.end() :]}"
    own = f"\n{indent[0]}{written}{text[anchor.end() : rest.end()]}"
    return text[: rest.end()] + own + text[rest.end() :]


def _assigned(text: str, value: str) -> tuple[int, int] | None:
    """Where a script gives a variable the only literal that it has, as `A=1` or `A=${A:-1}`."""
    variable = re.fullmatch(r"[\"']?\$\{?(\w+)\}?[\"']?", value)
    if variable is None:
        return None
    name = variable[1]
    places = re.findall(rf"(?m)^[ \t]*(?:export[ \t]+)?{name}\+?=", text)
    literal = rf"(?m)^[ \t]*(?:export[ \t]+)?{name}=[\"']?(?:\$\{{{name}:-)?[\"']?([\w.]+)"
    found = re.search(literal, text)
    return found.span(1) if found is not None and len(places) == 1 else None


def has_flag(text: str, flag: str) -> bool:
    return _flag(flag, False).search(text) is not None


def drop_flag(text: str, flag: str, *, has_value: bool) -> str:
    found = _flag(flag, has_value).search(text)
    if found is None:
        return text
    line, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
    end = len(text) if end < 0 else end
    left = text[line : found.start()] + text[found.end() : end]
    if left.strip() in ("", "\\"):
        return text[:line] + text[end + 1 :]
    return text[: found.start()].rstrip(" ") + text[found.end() :]


def set_pair(text: str, key: str, value: str, beside: str) -> str:
    """`key=value` among words or on a line; a new one goes behind `beside`."""
    word = r"(?<!\S)[\"']?{}=([^\s\"'\\]*)[\"']?"
    found = re.search(word.format(re.escape(key)), text)
    if found is not None:
        return text[: found.start(1)] + value + text[found.end(1) :]
    anchor = re.search(word.format(re.escape(beside)), text)
    if anchor is None:
        return text
    line = text.rfind("\n", 0, anchor.start())
    gap = text[line : anchor.start()] if not text[line + 1 : anchor.start()].strip() else " "
    if gap.startswith("\n") and text[anchor.end() :].lstrip(" \t").startswith("\\"):
        gap = f" \\{gap}"
    return f"{text[: anchor.end()]}{gap or ' '}{key}={value}{text[anchor.end() :]}"


def _flag(flag: str, has_value: bool) -> re.Pattern[str]:
    """A flag as a word of its own, with dashes or underscores; its value is the first group."""
    name = "[-_]".join(map(re.escape, flag.split("-")))
    end = _VALUE if has_value else r"(?![\w-])"
    return re.compile(rf"(?<![^\s\"'(=])--{name}{end}")
