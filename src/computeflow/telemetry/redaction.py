"""Names out of an answer, for a ticket to a vendor: hosts, users, jobs' names, paths, addresses.

The same name gets the same stand-in everywhere in one answer, so that what belongs together still
does. Numbers, devices and error texts stay.
"""

from __future__ import annotations

import re
from typing import Any

_FIELDS = {
    "node": "node", "nodes": "node", "host": "node", "hostname": "node", "hosts": "node",
    "user": "user", "users": "user", "team": "team", "pod": "pod", "namespace": "pod",
    "job_name": "job",
}  # fmt: skip
"""Fields whose values are names, and what stands for them."""
_PATH = re.compile(r"(?<![\w/])~?(?:/[^\s/:,;'\"()\[\]]+){2,}")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_SHORTEST = 3
"""Shorter names would be found inside other words."""


class Redaction:
    def __init__(self, data: Any) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._collect(data)
        known = sorted((n for n in self._names if len(n) >= _SHORTEST), key=len, reverse=True)
        self._known = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, known)) + r")(?!\w)")
        self._any = bool(known)

    def _collect(self, data: Any, kind: str = "") -> None:
        if isinstance(data, dict):
            for key, value in data.items():
                inner = _FIELDS.get(str(key), "")
                self._collect(value, inner)
                # a table by node or by user, and not one of figures
                if kind and isinstance(key, str) and not isinstance(value, float):
                    self._name(kind, key)
        elif isinstance(data, list | tuple):
            for value in data:
                self._collect(value, kind)
        elif kind and isinstance(data, str):
            self._name(kind, data)

    def _name(self, kind: str, name: str) -> str:
        if name and name not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[name] = f"{kind}-{self._counts[kind]}"
        return self._names.get(name, "")

    def text(self, text: str) -> str:
        if text in self._names:
            return self._names[text]
        if self._any:
            text = self._known.sub(lambda found: self._names[found[1]], text)
        text = _PATH.sub(lambda found: self._name("path", found[0]), text)
        return _ADDRESS.sub(lambda found: self._name("address", found[0]), text)

    def data(self, data: Any) -> Any:
        """The same structure with other names."""
        if isinstance(data, dict):
            return {
                self.text(key) if isinstance(key, str) else key: self.data(value)
                for key, value in data.items()
            }
        if isinstance(data, list | tuple):
            return [self.data(value) for value in data]
        return self.text(data) if isinstance(data, str) else data
