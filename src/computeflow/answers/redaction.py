"""Removes names from an answer, for a ticket to a vendor: the last pass over all of its texts.

A text stays if ComputeFlow wrote it word for word. In any other text, public words and numbers stay
(`public_words`). All else gets a stand-in: what a field says is a host, a user, a job or a file, what
looks like a path, an address or a secret, and every word that is not known to be public (`node-2`,
`file-1`, `name-7`). Stand-ins are numbered in the order of the answer's data: the same name has the
same one in JSON, tables and HTML, and in the next answer from the same data, and nothing of the name is
in it. A name that is also a word of ComputeFlow's (a job `train`) or a number is replaced where a field
or a column is for names, and stays in a sentence, where it reveals nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import PurePath
from typing import Any

from computeflow.answers.public_words import UNIT, identifier_parts, is_public, vocabulary
from computeflow.files.limits import PATH_CHARACTERS
from computeflow.views.tables import Table

_FIELDS = {
    "node": "node", "nodes": "node", "nodes_out": "node", "by_node": "node",
    "user": "user", "by_user": "user", "team": "team", "by_team": "team",
    "job": "job", "by_job": "job", "holders": "job", "workloads": "job",
    "path": "file", "file": "file", "files": "file", "sources": "file",
}  # fmt: skip
"""Fields whose texts are always names; in values inside them, the field `name`."""
_NAME_COLUMNS = ("node", "node or file", "job", "name")
_MAX_PHRASES = 500
"""Most names of several words that are looked for inside other texts; those longer than a path are not:
a pattern takes 140 bytes for each character. Where such a name is a text of its own it is replaced, and
inside others its words are hidden as all words are."""

_SECRET = (
    r"passw(?:or)?d|passphrase|pwd|secret|credential|authorization|(?:private|api|access)[_-]?key"
)
_TOKEN = re.compile(
    rf"""(?P<block>-----BEGIN\ [A-Z\ ]{{0,40}}KEY-----.*?(?:-----END\ [A-Z\ ]{{0,40}}KEY-----|\Z))
    |(?P<url>[A-Za-z][A-Za-z0-9+.-]{{0,20}}://[^\s"'<>]+|\bgit@[^\s"'<>]+)
    |(?P<assigned>(?i:[\w-]{{0,40}}(?:(?:{_SECRET})["']?\s{{0,3}}[=:]|token["']?\s?=)|\bbearer\s)
        \s{{0,3}}(?i:bearer\s|basic\s)?["']?)(?P<value>[^\s"',;]+)
    |(?P<path>(?<![\w.)])(?:[A-Za-z]:[\\/]|\\\\|~[\w.-]{{0,64}}[\\/]|\.{{0,2}}/)[^\s"'<>|;,()]+)
    |(?P<unit>{UNIT.pattern})""",
    re.VERBOSE | re.DOTALL,
)
_EDGES = ".:…-"
_LINE = re.compile(r"(.+?)(:[0-9]{1,7})")
_SECRET_SHAPE = re.compile(
    r"(?:hf_|sk-|sk_|rk_|pk_|ghp_|gho_|ghs_|ghu_|github_pat_|glpat-|xox[a-z]-|npm_|pypi-|AIza|ya29\.|eyJ)[\w.=-]{8,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|[0-9a-fA-F]{32,128}"
)
_HARDWARE = re.compile(
    r"0x[0-9a-f]{12,16}|[0-9a-f]{16}|(?:[0-9a-f]{2}[:-]){5,19}[0-9a-f]{2}|(?:[0-9a-f]{4}[:.]){2,7}[0-9a-f]{4}",
    re.IGNORECASE,
)
"""MAC, InfiniBand GUID and GID."""
_MAX_ADDRESS = 64
"""Characters of an address without its zone: one of InfiniBand's hardware has 59."""


class Redaction:
    """`data`: the answer's JSON; `typed`: what the user wrote, with its kind."""

    def __init__(self, data: Any, typed: Mapping[str, str] | None = None) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._seen: dict[str, str] = {}
        for name, kind in (typed or {}).items():
            self._name(name, kind)
        self._collect(data)
        self._phrases = self._find_phrases()
        self.value(data)

    def value(self, value: Any, kind: str = "") -> Any:
        """The value with all names replaced: data, a table, a figure. `kind`: of names in it."""
        if isinstance(value, str):
            return self._name(value, kind) if kind else self.text(value)
        if isinstance(value, dict):
            return {self._key(k, kind): self.value(v, _kind_in(k, kind)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.value(each, kind) for each in value)
        if isinstance(value, Table):
            return self._table(value)
        if is_dataclass(value) and not isinstance(value, type):
            changed = {f.name: self.value(getattr(value, f.name)) for f in fields(value)}
            return replace(value, **changed)
        return value

    def text(self, text: str) -> str:
        if text not in self._seen:
            self._seen[text] = text if text in vocabulary().texts else self._hidden(text)
        return self._seen[text]

    def _hidden(self, text: str) -> str:
        if text in self._names and not self._may_stay(text):
            return self._names[text]
        if self._phrases is None:
            return _TOKEN.sub(self._token, text)
        pieces = self._phrases.split(text)
        pieces[::2] = [_TOKEN.sub(self._token, piece) for piece in pieces[::2]]
        pieces[1::2] = [self._names[name] for name in pieces[1::2]]
        return "".join(pieces)

    def _token(self, found: re.Match[str]) -> str:
        if found["unit"] or found["path"]:
            return self._edged(found[0])
        if found["assigned"]:
            return _TOKEN.sub(self._token, found["assigned"]) + self._name(found["value"], "secret")
        return self._name(found[0], "url" if found["url"] else "secret")

    def _edged(self, unit: str) -> str:
        """Punctuation around a unit is kept."""
        if self._may_stay(unit):
            return unit
        core = unit.strip(_EDGES)
        before, core, after = unit.partition(core) if core else (unit, "", "")
        return before + self._unit(core) + after

    def _unit(self, unit: str) -> str:
        if not unit or self._may_stay(unit):
            return unit
        line = _LINE.fullmatch(unit)
        if line is None or unit in self._names or _address(unit):
            return self._stand_in(unit)
        place, number = line.groups()
        return (place if self._may_stay(place) else self._stand_in(place)) + number

    def _may_stay(self, unit: str) -> bool:
        """A public word; if it is also somebody's name, only a plain word or number."""
        mere = unit.isalpha() or not any(map(str.isalpha, unit))
        return is_public(unit) and (mere or unit not in self._names)

    def _stand_in(self, unit: str) -> str:
        if unit in self._names:
            return self._names[unit]
        kind = _kind_of(unit)
        parts = identifier_parts(unit) if kind == "name" else None
        if parts is None:
            return self._name(unit, kind)
        return "".join(part if public else self._name(part, kind) for part, public in parts)

    def _table(self, table: Table) -> Table:
        named = [column.header in _NAME_COLUMNS for column in table.columns]
        rows = tuple(
            tuple(
                self._names[cell] if name and cell in self._names else self.text(cell)
                for name, cell in zip(named, row, strict=True)
            )
            for row in table.rows
        )
        return replace(
            table,
            title=self.text(table.title),
            columns=tuple(replace(c, header=self.text(c.header)) for c in table.columns),
            rows=rows,
            notes=tuple(map(self.text, table.notes)),
        )

    def _key(self, key: Any, kind: str) -> Any:
        if not isinstance(key, str) or _is_own_key(key):
            return key
        return self._name(key, kind) if kind else self.text(key)

    def _collect(self, data: Any, kind: str = "") -> None:
        """Collects the names in fields, before any text is read that may contain them."""
        if isinstance(data, dict):
            for key, value in data.items():
                if kind and isinstance(key, str) and not _is_own_key(key):
                    self._name(key, kind)
                self._collect(value, _kind_in(key, kind))
        elif isinstance(data, list | tuple):
            for value in data:
                self._collect(value, kind)
        elif kind and isinstance(data, str):
            self._name(data, kind)

    def _name(self, name: str, kind: str) -> str:
        if not name:
            return ""
        if name not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[name] = f"{kind}-{self._counts[kind]}"
            if kind == "file" and PurePath(name).name:
                self._names.setdefault(PurePath(name).name, self._names[name])
        return self._names[name]

    def _find_phrases(self) -> re.Pattern[str] | None:
        """Names of more than one unit, matched as a whole, the longest first."""
        several = [name for name in self._names if _is_phrase(name)]
        several = sorted(several, key=len, reverse=True)[:_MAX_PHRASES]
        if not several:
            return None
        return re.compile(r"(?<!\w)(" + "|".join(map(re.escape, several)) + r")(?!\w)")


def _is_phrase(name: str) -> bool:
    if len(name) > PATH_CHARACTERS:
        return False
    units = UNIT.findall(name)
    return units != [name] and (len(units) > 1 or not all(map(is_public, units)))


def _is_own_key(key: str) -> bool:
    return key in vocabulary().fields or is_public(key)


def _kind_in(key: Any, kind: str) -> str:
    """The kind of names in a field, inside a value of names of this kind."""
    return _FIELDS.get(key, "") or (kind if key == "name" else "")


def _kind_of(unit: str) -> str:
    """The kind of a unit by its form. Only the stand-in depends on it: what is not public is hidden
    anyway.
    """
    if _SECRET_SHAPE.fullmatch(unit):
        return "secret"
    if "@" in unit or _address(unit):
        return "address"
    if re.match(r"(?:GPU|MIG)-[0-9a-f-]{8,}", unit):
        return "gpu"
    return "path" if re.search(r"[\\/]|^~|\.[A-Za-z]\w{0,5}$", unit) else "name"


def _address(unit: str) -> bool:
    plain = unit.partition("%")[0]
    if len(plain) > _MAX_ADDRESS:
        return False
    try:
        ipaddress.ip_interface(plain)
    except ValueError:
        return _HARDWARE.fullmatch(unit) is not None
    return True
