"""Cuts a shell script into statements: words as they stand there, quotes and all."""

from __future__ import annotations

import re
from collections.abc import Iterator

Word = str | tuple[str, str, list[str]]
"""A word as written, or an array that is assigned: its name, a plus, its items."""
_PLAIN = re.compile(r"[^\\'\"$`(){}\s;|&<>]+")
_ARRAY = re.compile(r"^([A-Za-z_]\w*)(\+?)=$")
_HEREDOC = re.compile(r"<<-?[ \t]*['\"]?([A-Za-z_]\w*)['\"]?")
_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "\n")
_OPERATOR_STARTS = frozenset(operator[0] for operator in _OPERATORS)
_BLANKS = " \t\r\v\f"
_CLOSING = {"$(": ")", "${": "}", "(": ")", '"': '"', "`": "`"}


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self._delimiters: list[str] = []
        self._in_array = False

    def statements(self) -> Iterator[tuple[list[Word], str, list[str]]]:
        """Words, the operator that ends them, and the texts that are fed to the command."""
        words: list[Word] = []
        while self.at < len(self.text):
            operator = self._operator()
            if operator is None:
                word = self._next()
                if word is not None:
                    words.append(word)
                continue
            bodies = self._bodies() if operator == "\n" else []
            if words or operator == ";;":
                yield words, operator, bodies
            words = []
        if words:
            yield words, "\n", []

    def _operator(self) -> str | None:
        if self.text[self.at] not in _OPERATOR_STARTS:
            return None
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                return operator
        return None

    def _bodies(self) -> list[str]:
        bodies = []
        for delimiter in self._delimiters:
            end = re.compile(rf"^[ \t]*{delimiter}[ \t]*$", re.MULTILINE).search(self.text, self.at)
            stop = end.start() if end else len(self.text)
            bodies.append(self.text[self.at : stop])
            self.at = end.end() if end else len(self.text)
        self._delimiters = []
        return bodies

    def _next(self) -> Word | None:
        """The word that starts here, if one does."""
        char = self.text[self.at]
        if self.text.startswith("\\\n", self.at):
            self.at += 2
        elif char in _BLANKS:
            self.at += 1
        elif char == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char in "<>":
            self._redirect()
        elif char in "()":
            self.at += 1
            return char
        else:
            return self._word()
        return None

    def _redirect(self) -> None:
        match = _HEREDOC.match(self.text, self.at)
        if match and not self.text.startswith("<<<", self.at):
            self._delimiters.append(match[1])
            self.at = match.end()
            return
        for skipped in ("<>&", _BLANKS):
            while self.at < len(self.text) and self.text[self.at] in skipped:
                self.at += 1
        self.at = _word_end(self.text, self.at)

    def _word(self) -> Word | None:
        start = self.at
        self.at = _word_end(self.text, start)
        if self.at == start:  # a lone character that starts nothing
            self.at += 1
        word = self.text[start : self.at]
        match = _ARRAY.match(word)
        if match and self.text.startswith("(", self.at) and not self._in_array:
            self.at += 1
            return match[1], match[2], self._items()
        redirects = word.isdigit() and self.text.startswith(("<", ">"), self.at)
        return None if redirects else word

    def _items(self) -> list[str]:
        items: list[str] = []
        self._in_array = True  # one holds no other
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] in "\n;|&(":
                self.at += 1
                continue
            word = self._next()
            if isinstance(word, str):
                items.append(word)
        self.at += 1
        self._in_array = False
        return items


def _word_end(text: str, at: int) -> int:
    """Where the word that starts here ends: quotes and brackets of a dollar sign hold it together."""
    open_until: list[str] = []
    while at < len(text):
        top = open_until[-1] if open_until else ""
        if match := _PLAIN.match(text, at):
            at = match.end()
        elif not top and text[at] in " \t\r\n\v\f;|&<>()":
            return at
        else:
            at = _past(text, at, top, open_until)
    return min(at, len(text))


def _past(text: str, at: int, top: str, open_until: list[str]) -> int:
    """Behind one character that means something, with what it opens or closes."""
    char = text[at]
    if char == "\\":
        return at + 2
    if char == "'" and top != '"':
        end = text.find("'", at + 1)
        return len(text) if end < 0 else end + 1
    if char == top:
        open_until.pop()
    elif (opened := text[at : at + 2]) in ("$(", "${"):
        open_until.append(_CLOSING[opened])
        return at + 2
    elif char in '"`' or char + top == "()":
        open_until.append(_CLOSING[char])
    return at + 1
