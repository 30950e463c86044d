"""From what a user typed to a row: a name of any kind, or a file that describes a model."""

from __future__ import annotations

from pathlib import Path

from computeflow.catalog.loading import KINDS, Catalog, normalise
from computeflow.catalog.models import Model
from computeflow.catalog.rows import Row
from computeflow.errors import InputError, UnknownNameError

GROUPS: dict[str, tuple[str, ...]] = {
    "accelerators": ("accelerator",),
    "models": ("model",),
    "nodes": ("node",),
    "fabrics": ("fabric",),
    "storage": ("storage",),
    "sites": ("tier", "cooling", "facility", "grid"),
    "providers": ("provider",),
    "offers": ("offer",),
    "collectives": ("collective",),
}
"""What `computeflow catalog` lists under one word."""


def group_rows(catalog: Catalog, group: str) -> dict[str, tuple[Row, ...]]:
    """All rows of a group, by kind."""
    if group not in GROUPS:
        raise UnknownNameError("kind of row", group, GROUPS)
    return {kind: tuple(catalog.rows(KINDS[kind])) for kind in GROUPS[group]}


def find_rows(catalog: Catalog, name: str, group: str | None = None) -> list[Row]:
    """The row called `name`, looked for in one group or in all; an offer may have many prices."""
    groups = [group] if group else list(GROUPS)
    if "models" in groups and is_file_name(name):
        return [find_model(catalog, name)]
    known: dict[str, str] = {}
    for kind in (kind for g in groups for kind in GROUPS[g]):
        rows = catalog.rows(KINDS[kind])
        if name in rows:
            row = rows[name]
            same = [r for r in rows if normalise(r.name) == normalise(row.name)]
            return list(same)
        known |= rows.spellings
    kind = group.removesuffix("s") if group else "name"
    raise UnknownNameError(kind, name, known, means=known)


def find_model(catalog: Catalog, text: str) -> Model:
    """A model by catalog name, by Hugging Face `config.json`, or by TOML file with one [[model]]."""
    from computeflow.catalog.huggingface import read_config

    path = Path(text)
    if not is_file_name(text):
        return catalog.models[text]
    if path.suffix == ".json":
        return read_config(path)
    models = list(Catalog([path], packaged=False).models)
    if len(models) != 1:
        raise InputError(f"{text}: holds {len(models)} models; one is needed here")
    return models[0]


def is_file_name(text: str) -> bool:
    return Path(text).suffix in (".json", ".toml")
