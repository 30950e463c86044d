"""Where rows come from: the packaged files, then the user's, later ones over earlier ones.

A row may start from another with `like = "h100-sxm"` and state only what differs. A row whose name
is already there replaces it; a price replaces the one of the same instance, region and term.
"""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from computeflow import codec
from computeflow.catalog import rows as kinds
from computeflow.catalog.config import short
from computeflow.catalog.files import KINDS, PlainRow, read_tables, toml_tables
from computeflow.catalog.models import Model
from computeflow.catalog.name_index import Spelled, packaged_file, packaged_names, packaged_text
from computeflow.catalog.rows import normalise
from computeflow.errors import InputError, UnknownNameError

__all__ = [
    "KINDS",
    "Catalog",
    "CatalogTable",
    "load_catalog",
    "normalise",
    "user_files",
    "user_folder",
]

R = TypeVar("R", bound=kinds.CatalogRow)

_REFERENCES = {
    "accelerator": {"link": "fabric", "node": "node"},
    "node": {"accelerator": "accelerator", "link": "fabric", "network": "fabric", "pcie": "fabric"},
    "offer": {"accelerator": "accelerator"},
    "collective": {"accelerator": "accelerator", "fabric": "fabric"},
}
"""Fields that hold the name of another row: kind -> field -> kind of that row."""


class CatalogTable(Generic[R]):
    """The rows of one kind, in file order, found by name or alias."""

    def __init__(self, kind: type[R], found: Iterable[R]) -> None:
        self.kind = kind
        self._found = found

    @cached_property
    def _rows(self) -> tuple[R, ...]:
        return tuple(self._found)

    def __iter__(self) -> Iterator[R]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def _by_name(self) -> dict[str, R]:
        names = {normalise(alias): row for row in self._rows for alias in row.aliases}
        return names | {normalise(row.name): row for row in self._rows}

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(row.name for row in self._rows))

    @property
    def spellings(self) -> dict[str, str]:
        """Every name and alias with the name it means: what a misspelling is compared with."""
        aliases = {alias: row.name for row in self._rows for alias in row.aliases}
        return {name: name for name in self.names} | aliases

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> R | None:
        return self._by_name.get(normalise(name))

    def __getitem__(self, name: str) -> R:
        row = self.get(name)
        if row is None:
            raise UnknownNameError(
                self.kind.kind, short(name), self.spellings, means=self.spellings
            )
        return row


class PackagedRows(CatalogTable[R]):
    """Our own rows of one kind; one that is requested by name is read without the others."""

    def __init__(self, kind: type[R]) -> None:
        super().__init__(kind, _packaged_rows(kind))
        self._alone: dict[str, R] = {}

    def get(self, name: str) -> R | None:
        key = normalise(name)
        if key not in self._alone:
            text = packaged_text(self.kind.kind, key)
            if text is None:
                return super().get(name)
            tables = toml_tables(text, packaged_file(self.kind.kind).name)[self.kind.kind]
            self._alone[key] = _decoded(self.kind, tables)[-1]
        return self._alone[key]


class Catalog:
    """All rows, each kind read when it is first used."""

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self.files = tuple(files)
        self._cache: dict[str, CatalogTable[Any]] = {}

    def __reduce__(self) -> tuple[type[Catalog], tuple[tuple[Path, ...]]]:
        """Pickled as its files: rows are read again where it arrives."""
        return Catalog, (self.files,)

    def rows(self, kind: type[R]) -> CatalogTable[R]:
        if kind.kind not in self._cache:
            own = [tables[kind.kind] for tables in self.tables.values() if kind.kind in tables]
            rows: CatalogTable[R] = PackagedRows(kind)
            if own:
                rows = CatalogTable(kind, _decoded(kind, _packaged_tables(kind), own))
            self._cache[kind.kind] = rows
        return self._cache[kind.kind]

    @property
    def accelerators(self) -> CatalogTable[kinds.Accelerator]:
        return self.rows(kinds.Accelerator)

    @property
    def nodes(self) -> CatalogTable[kinds.NodeType]:
        return self.rows(kinds.NodeType)

    @property
    def fabrics(self) -> CatalogTable[kinds.Fabric]:
        return self.rows(kinds.Fabric)

    @property
    def collectives(self) -> CatalogTable[kinds.PublishedCollective]:
        return self.rows(kinds.PublishedCollective)

    @property
    def storage(self) -> CatalogTable[kinds.Storage]:
        return self.rows(kinds.Storage)

    @property
    def models(self) -> CatalogTable[Model]:
        return self.rows(Model)

    @property
    def offers(self) -> CatalogTable[kinds.Offer]:
        return self.rows(kinds.Offer)

    @property
    def providers(self) -> CatalogTable[kinds.Provider]:
        return self.rows(kinds.Provider)

    @property
    def tiers(self) -> CatalogTable[kinds.UptimeTier]:
        return self.rows(kinds.UptimeTier)

    @property
    def coolings(self) -> CatalogTable[kinds.Cooling]:
        return self.rows(kinds.Cooling)

    @property
    def facilities(self) -> CatalogTable[kinds.Facility]:
        return self.rows(kinds.Facility)

    @property
    def grids(self) -> CatalogTable[kinds.Grid]:
        return self.rows(kinds.Grid)

    def names(self, kind: str) -> list[Spelled]:
        """Name and aliases of every row of `kind`, without decoding the rows."""
        by_key = {normalise(name): (name, aliases) for name, aliases in packaged_names(kind)}
        for tables in self.tables.values():
            for _, table in tables.get(kind, []):
                name, aliases = str(table.get("name", "")), table.get("aliases")
                key = normalise(name)
                if "like" in table and aliases is None and key in by_key:
                    aliases = by_key[key][1]
                spelled = aliases if isinstance(aliases, list | tuple) else ()
                by_key[key] = (name, tuple(map(str, spelled)))
        return list(by_key.values())

    @cached_property
    def tables(self) -> dict[Path, dict[str, list[PlainRow]]]:
        """Rows in the user's files, as written."""
        return {path: read_tables(path) for path in self.files}

    def check_file(self, path: Path) -> None:
        """Decode every row of one of the files, whatever its kind, and follow its references."""
        tables = self.tables[path]
        for kind in tables:
            self.rows(KINDS[kind])
        for kind, rows in tables.items():
            for field, other in _REFERENCES.get(kind, {}).items():
                known = self.rows(KINDS[other])
                for where, table in rows:
                    name = table.get(field)
                    if name is not None and name not in known:
                        spellings, hint = known.spellings, f"{where}: {field}"
                        raise UnknownNameError(
                            other, short(name), spellings, means=spellings, hint=hint
                        )


def _packaged_tables(kind: type[kinds.CatalogRow]) -> list[PlainRow]:
    path = packaged_file(kind.kind)
    return read_tables(path, path.name)[kind.kind]


def _packaged_rows(kind: type[R]) -> Iterator[R]:
    """Nothing is read before the first one is taken."""
    yield from _decoded(kind, _packaged_tables(kind))


class _Known:
    """The plain rows so far, which a later one may be `like`: by name, else by alias."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self._by_alias: dict[str, dict[str, Any]] = {}

    def add(self, table: dict[str, Any]) -> None:
        self.rows[normalise(table["name"])] = table
        for alias in table.get("aliases", ()):
            self._by_alias.setdefault(normalise(alias), table)

    def get(self, name: str) -> dict[str, Any] | None:
        return self.rows.get(normalise(name)) or self._by_alias.get(normalise(name))


def _decoded(
    kind: type[R], packaged: list[PlainRow], own: Iterable[list[PlainRow]] = ()
) -> list[R]:
    """Rows of the packaged file with those of the user's files over them."""
    known = _Known()
    decoded: dict[str, R] = {}
    _add_rows(kind, packaged, known, decoded, own=False)
    for tables in own:
        _add_rows(kind, tables, known, decoded, own=True)
    return list(decoded.values())


def _add_rows(
    kind: type[R], tables: list[PlainRow], known: _Known, decoded: dict[str, R], *, own: bool
) -> None:
    """Decode the rows of one file over those before it; `own` rows are the user's."""
    seen = set()
    for where, table in tables:
        if "like" in table:
            table = _with_base(kind.kind, table, known, where, own)
        row = _decode(kind, table, where)
        if row.key in seen:
            raise InputError(f"{where}: there is a second one in this file")
        seen.add(row.key)
        known.add(table)
        decoded[row.key] = row


def _with_base(
    kind: str, table: dict[str, Any], known: _Known, where: str, own: bool
) -> dict[str, Any]:
    table = dict(table)
    like = str(table.pop("like"))
    base = known.get(like)
    if base is None:
        names = {row["name"]: row["name"] for row in known.rows.values()}
        hint = f"{where}: `like` names a row that is already there"
        raise UnknownNameError(kind, short(like), names, means=names, hint=hint)
    missing = [field for field in ("source", "as_of") if field not in table]
    if own and missing:
        raise InputError(f"{where}: a row with `like` states its own {' and '.join(missing)}")
    renamed = normalise(str(table.get("name", ""))) != normalise(base["name"])
    dropped = ("aliases", "note") if renamed else ("note",)
    return {k: v for k, v in base.items() if k not in dropped} | table


def _decode(kind: type[R], table: dict[str, Any], where: str) -> R:
    try:
        return codec.decode(kind, table, where)
    except InputError as error:
        message = str(error).removeprefix(f"{where}: ")
        wrong = re.fullmatch(r"([^:]+): Invalid enum value '(.*?)'?", message, re.DOTALL)
        if not wrong:
            message = re.sub(r"\S{60,}", lambda word: short(word[0]), message)
            raise InputError(f"{where}: {message}") from None
    path, value = wrong.groups()
    choices = _choices(kind, path)
    hint = f"{where}: choose one of {', '.join(choices)}"
    raise UnknownNameError(path, short(value), choices, hint=hint)


def _choices(kind: type, path: str) -> tuple[str, ...]:
    """Choices for the field at `path` ("blocks[0].attention.qk_norm")."""
    hint: Any = kind
    for name in re.sub(r"\[[^\]]*\]", "", path).split("."):
        hint = typing.get_type_hints(hint)[name]
        inner = [hint, *typing.get_args(hint)]
        dataclasses = [part for part in inner if hasattr(part, "__dataclass_fields__")]
        hint = dataclasses[0] if dataclasses else hint
    literals = [part for part in (hint, *typing.get_args(hint)) if typing.get_args(part)]
    return typing.get_args(literals[0])


def load_catalog(files: Iterable[str | os.PathLike[str]] = ()) -> Catalog:
    """Our catalog, with the user's folder and then `files` over it; these are checked whole."""
    named = [Path(file) for file in files]
    catalog = Catalog([*user_files(), *named])
    for file in named:
        catalog.check_file(file)
    return catalog


def user_folder() -> Path:
    """`COMPUTEFLOW_CONFIG`, else `$XDG_CONFIG_HOME/computeflow`, else `~/.config/computeflow`."""
    named = os.environ.get("COMPUTEFLOW_CONFIG")
    if named:
        return Path(named)
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "computeflow"


def user_files() -> list[Path]:
    folder = user_folder() / "catalog"
    return sorted(
        path
        for path in folder.glob("*")
        if path.suffix.lower() in (".toml", ".csv") and not path.name.startswith(".")
    )
