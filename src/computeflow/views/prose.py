"""Markdown prose in lines of one width, for pages that commands and benchmarks write."""

from __future__ import annotations

import re

_WIDTH = 100
_LINE_START = re.compile(r"[^\W\d_]|[(\[$]|`(?!``)|\*\*\w")
"""A word that Markdown reads as plain text at the start of a line."""


def wrap_prose(page: str) -> str:
    """The Markdown page with long lines of prose wrapped; tables and code stay as they are."""
    lines: list[str] = []
    code = False
    for line in page.split("\n"):
        code ^= line.startswith("```")
        prose = not code and not line.startswith(("|", "#", "    ", "```"))
        lines += _wrapped(line) if prose and len(line) > _WIDTH else [line]
    return "\n".join(lines)


def _wrapped(line: str) -> list[str]:
    indent = "  " if line.startswith(("- ", "  ")) else ""
    lines = [""]
    for piece in _pieces(line):
        if lines[-1].strip() and len(lines[-1]) + 1 + len(piece) > _WIDTH:
            lines.append(indent + piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}" if lines[-1] else piece
    return lines


def _pieces(line: str) -> list[str]:
    """Words, each with the following ones that must not begin a line ("-", "#", "1.")."""
    first, *words = line.split(" ")
    pieces = [first]
    for word in words:
        if _LINE_START.match(word):
            pieces.append(word)
        else:
            pieces[-1] += f" {word}"
    return pieces
