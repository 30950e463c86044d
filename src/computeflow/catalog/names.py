"""Every name in the packaged catalog, without decoding a row.

Looking a name up in all kinds, and completing it in a shell, must not cost the reading of two
thousand rows. Our own files keep `name` and `aliases` at the start of a line, so a scan of the
text finds them; a test compares it with the rows themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from computeflow.catalog.files import csv_records, read_text

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
_LINES = re.compile(
    r'^(?:\[\[(?P<kind>\w+)\]\]|name = "(?P<name>[^"]*)"|aliases = \[(?P<aliases>[^\]]*)\])',
    re.MULTILINE,
)


def packaged_file(kind: str) -> Path:
    return _DATA / _PACKAGED[kind]


def packaged_names(kind: str) -> list[Spelled]:
    """Name and aliases of every packaged row of `kind`, in file order."""
    path = packaged_file(kind)
    if path.suffix == ".csv":
        records = (record for _, record in csv_records(read_text(path), path.name))
        return [
            (record["name"], tuple(filter(None, record.get("aliases", "").split(";"))))
            for record in records
        ]
    return list(_scan(read_text(path), kind))


def _scan(text: str, wanted: str) -> Iterator[Spelled]:
    kind, name, aliases = "", "", ()
    for line in _LINES.finditer(text):
        if line["kind"]:
            if kind == wanted:
                yield name, aliases
            kind, name, aliases = line["kind"], "", ()
        elif line["name"] is not None:
            name = line["name"]
        else:
            aliases = tuple(re.findall(r'"([^"]*)"', line["aliases"]))
    if kind == wanted:
        yield name, aliases
