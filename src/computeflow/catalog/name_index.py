"""Every name in the packaged catalog, and the text of one row, without reading the others.

Looking a name up in all kinds, and completing it in a shell, must not cost the reading of two
thousand rows. Our own files keep `[[kind]]`, `name`, `aliases` and `like` at the start of a line,
so a scan of the text finds them; a test compares it with the rows themselves.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from computeflow.catalog.rows import normalise
from computeflow.files.parsing import parse_csv
from computeflow.files.reading import read_text

Spelled = tuple[str, tuple[str, ...]]
"""A row's name and its aliases."""

_DATA = Path(__file__).parent / "data"
_PACKAGED = {
    "accelerator": "accelerators.toml",
    "node": "nodes.toml",
    "fabric": "fabrics.toml",
    "collective": "collectives.toml",
    "storage": "storage.toml",
    "model": "models.toml",
    "offer": "offers.csv",
    "provider": "providers.toml",
    "tier": "sites.toml",
    "cooling": "sites.toml",
    "facility": "sites.toml",
    "grid": "grids.csv",
}
_ROW = re.compile(r"^(?=\[\[)", re.MULTILINE)
_NAME = re.compile(r'^name = "([^"]*)"', re.MULTILINE)
_ALIASES = re.compile(r"^aliases = \[([^\]]*)\]", re.MULTILINE)
_LIKE = re.compile(r'^like = "([^"]*)"', re.MULTILINE)


def packaged_file(kind: str) -> Path:
    return _DATA / _PACKAGED[kind]


def packaged_names(kind: str) -> list[Spelled]:
    """Name and aliases of every packaged row of `kind`, in file order."""
    path = packaged_file(kind)
    if path.suffix == ".csv":
        records = (record for _, record in parse_csv(read_text(path), path.name))
        return [
            (record["name"], tuple(filter(None, record.get("aliases", "").split(";"))))
            for record in records
        ]
    return [_spelled(text) for text in _texts(kind)]


def packaged_text(kind: str, name: str) -> str | None:
    """The TOML of one row, after the rows that it is `like`; None where no TOML row is so called."""
    text = _texts_by_name(kind).get(normalise(name))
    like = _LIKE.search(text) if text else None
    return f"{packaged_text(kind, like[1])}{text}" if like else text


@cache
def _texts_by_name(kind: str) -> dict[str, str]:
    rows = [(*_spelled(text), text) for text in _texts(kind)]
    aliases = {normalise(alias): text for _, aliases, text in rows for alias in aliases}
    return aliases | {normalise(name): text for name, _, text in rows}


def _texts(kind: str) -> list[str]:
    """Every row of `kind` as it is written."""
    path = packaged_file(kind)
    parts = _ROW.split(read_text(path)) if path.suffix == ".toml" else []
    return [part for part in parts if part.startswith(f"[[{kind}]]")]


def _spelled(text: str) -> Spelled:
    name, aliases = _NAME.search(text), _ALIASES.search(text)
    return name[1] if name else "", tuple(re.findall(r'"([^"]*)"', aliases[1] if aliases else ""))
