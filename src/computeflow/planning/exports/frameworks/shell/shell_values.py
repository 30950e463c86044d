"""Values of a shell script's words: variables, defaults, sums and tests, without a shell.

A value that the script does not settle keeps its dollar sign, and a test of it is neither true nor
false. Nothing is run: `$(...)` stays open.
"""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from computeflow.errors import InputError
from computeflow.files.limits import PATTERN_CHARACTERS, SCRIPT_CHARACTERS

_DEPTH = 20
"""Defaults inside defaults; what lies deeper stays open."""
_NAME = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_BRACED = re.compile(r"^([A-Za-z_]\w*|[0-9]+|[@*#])(\[[@*]\])?(?:(:?[-=+?])(.*))?$", re.DOTALL)
_SPECIAL = re.compile(r"[$\\`\"']")
_SUM = re.compile(r"^[\d\s+\-*/%()]{1,200}$")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_NUMBERS = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-lt": operator.lt,
    "-ge": operator.ge,
    "-le": operator.le,
}


@dataclass(slots=True)
class Values:
    where: str
    known: dict[str, str] = field(default_factory=dict)
    _spent: int = 0

    def filled(self, word: str, quotes: bool = True, empty: bool = False, depth: int = 0) -> str:
        """A word with values for its variables; `empty`: one that is not set is nothing."""
        if depth > _DEPTH:
            return "$"
        parts: list[str] = []
        at, quoted = 0, False
        while at < len(word):
            char = word[at]
            if quotes and char == '"':
                quoted, at = not quoted, at + 1
                continue
            if char == "$":
                text, at = self._dollar(word, at, empty, depth)
            elif quotes and char == "'" and not quoted:
                text, at = _quoted(word, at)
            else:
                text, at = _literal(word, at)
            parts.append(self.counted(text))
        return "".join(parts)

    def matched(self, subject: str, patterns: list[str]) -> bool | None:
        if "$" in subject or any("$" in pattern for pattern in patterns):
            return True if patterns == ["*"] else None
        return _fits(subject, patterns)

    def counted(self, text: str) -> str:
        self._spent += len(text)
        if self._spent > SCRIPT_CHARACTERS:
            raise InputError(
                f"{self.where}: its variables fill more than {SCRIPT_CHARACTERS:,} bytes"
            )
        return text

    def _dollar(self, word: str, at: int, empty: bool, depth: int) -> tuple[str, int]:
        """The value of the expression after a dollar sign, and where it ends."""
        if word.startswith("$((", at):
            end = _closed(word, at + 2, "(", ")")
            return self._sum(word[at + 3 : end - 2], depth), end
        if word.startswith("$(", at):
            return "$()", _closed(word, at + 2, "(", ")")
        if word.startswith("${", at):
            end = _closed(word, at + 2, "{", "}")
            return self._braced(word[at:end], empty, depth), end
        match = _NAME.match(word, at)
        if match is None:
            return "$", at + 1
        return self._value(match[1], match[0], empty), match.end()

    def _value(self, name: str, written: str, empty: bool) -> str:
        if name in self.known:
            return self.known[name]
        if name in "@*":
            return ""
        if name == "#":
            return "0"
        return "" if empty and not name.isdigit() else written

    def _braced(self, written: str, empty: bool, depth: int) -> str:
        match = _BRACED.match(written[2:-1])
        if match is None:
            return "$" + re.sub(r"\s", "", written[1:]) if len(written) < 100 else "$"
        name, how, other = match[1], match[3], match[4]
        if how is None:
            return self._value(name, written, empty)
        value = self.known.get(name)
        if value == "" and how.startswith(":"):
            value = None
        if how.endswith("+"):
            return "" if value is None else self.filled(other, depth=depth + 1)
        if value is not None:
            return value
        if how.endswith("?"):
            return written.split(":")[0].split("?")[0] + "}"
        filled = self.filled(other, empty=empty, depth=depth + 1)
        if how.endswith("="):
            self.known[name] = filled
        return filled

    def forget(self, names: list[str]) -> None:
        for name in names:
            self.known.pop(name, None)

    def _sum(self, text: str, depth: int) -> str:
        """A whole number; `$()` where it is not one of known numbers."""
        filled = self.filled(text, depth=depth + 1)
        filled = re.sub(r"[A-Za-z_]\w*", lambda m: self.counted(self.known.get(m[0], "$")), filled)
        if not _SUM.match(filled):
            return "$()"
        try:
            return str(_computed(ast.parse(filled.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return "$()"


def _fits(subject: str, patterns: list[str]) -> bool | None:
    """Whether it fits any; None where comparing would take long."""
    if len(subject) + sum(map(len, patterns)) > PATTERN_CHARACTERS:
        return True if subject in patterns else None
    return any(fnmatchcase(subject, pattern) for pattern in patterns)


def _quoted(word: str, at: int) -> tuple[str, int]:
    """The text in single quotes, and where they end."""
    end = word.find("'", at + 1)
    return (word[at + 1 :], len(word)) if end < 0 else (word[at + 1 : end], end + 1)


def _literal(word: str, at: int) -> tuple[str, int]:
    """Text without a variable: an escape, an open command, or plain text."""
    if word[at] == "\\":
        return "" if word[at : at + 2] == "\\\n" else word[at + 1 : at + 2], at + 2
    if word[at] == "`":
        end = word.find("`", at + 1)
        return "$()", len(word) if end < 0 else end + 1
    stop = _special(word, at)
    return word[at:stop], stop


def tested(words: list[str], values: Values) -> bool | None:
    """The result of `[ ... ]`; None where the script does not settle it."""
    words = [w for w in words if w not in ("[", "[[", "]", "]]", "test", "(", ")")]
    turned = next((index for index, word in enumerate(words) if word != "!"), len(words))
    if turned:
        result = tested(words[turned:], values)
        return None if result is None else result is (turned % 2 == 0)
    if words in (["true"], ["false"]):
        return words == ["true"]
    texts = [values.filled(word, empty=True).strip() for word in words]
    if "$" in "".join(texts):
        return None
    if len(texts) == 1 and not words[0].startswith(("$", '"')):
        return None
    return _settled(texts)


def _settled(texts: list[str]) -> bool | None:
    if len(texts) == 1:
        return bool(texts[0])
    if len(texts) == 2:
        return {"-z": texts[1] == "", "-n": texts[1] != ""}.get(texts[0])
    return _compared(*texts) if len(texts) == 3 else None


def _compared(first: str, how: str, second: str) -> bool | None:
    if how in ("=", "==", "!="):
        same = _fits(first, [second])
        return None if same is None else same is (how != "!=")
    if (
        how in _NUMBERS
        and re.fullmatch(r"-?\d{1,18}", first)
        and re.fullmatch(r"-?\d{1,18}", second)
    ):
        return bool(_NUMBERS[how](int(first), int(second)))
    return None


def _computed(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return (
            -_computed(node.operand) if isinstance(node.op, ast.USub) else _computed(node.operand)
        )
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return int(_OPERATORS[type(node.op)](_computed(node.left), _computed(node.right)))
    raise ValueError


def _special(word: str, at: int) -> int:
    match = _SPECIAL.search(word, at + 1)
    return match.start() if match else len(word)


def _closed(word: str, at: int, opening: str, closing: str) -> int:
    """Behind the bracket that closes the one before `at`."""
    depth = 1
    while at < len(word) and depth:
        depth += (word[at] == opening) - (word[at] == closing)
        at += 1
    return at
