"""Where rows come from: the packaged files, then the user's, later ones over earlier ones.

A catalog file is TOML with any mix of `[[accelerator]]`, `[[model]]`, `[[offer]]`, ... tables, or a
CSV of one kind (its columns tell which). A row may start from another with `like = "h100-sxm"` and
state only what differs. A row whose name is already there replaces it.
"""

from __future__ import annotations

import csv
import io
import os
import tomllib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from computeflow import codec
from computeflow.catalog import rows as kinds
from computeflow.catalog.models import Model
from computeflow.errors import InputError, UnknownNameError

R = TypeVar("R", bound=kinds.Row)

KINDS: dict[str, type[kinds.Row]] = {
    row.kind: row
    for row in (
        kinds.Accelerator, kinds.Node, kinds.Fabric, kinds.Collective, kinds.Storage, Model,
        kinds.Offer, kinds.Provider, kinds.Tier, kinds.Cooling, kinds.Facility, kinds.Grid,
    )
}  # fmt: skip
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
_MAX_FILE_BYTES = 64 * 2**20
_RECORDS = "offer"  # many prices share a provider/instance: rows are listed, not replaced by name


def normalise(name: str) -> str:
    """Spelling without case, spaces and underscores: "H100 SXM" is "h100-sxm"."""
    return "-".join(name.casefold().replace("_", " ").replace("/", " / ").split()).replace(
        "-/-", "/"
    )


class Rows(Generic[R]):
    """The rows of one kind, in file order, found by name or alias."""

    def __init__(self, kind: type[R], found: Iterable[R]) -> None:
        self.kind = kind
        self._rows = tuple(found)

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
        return normalise(name) in self._by_name

    def get(self, name: str) -> R | None:
        return self._by_name.get(normalise(name))

    def __getitem__(self, name: str) -> R:
        row = self.get(name)
        if row is None:
            raise UnknownNameError(self.kind.kind, name, self.spellings, means=self.spellings)
        return row


class Catalog:
    """All rows, each kind read when it is first asked for."""

    def __init__(self, files: Iterable[Path] = (), *, packaged: bool = True) -> None:
        self.files = tuple(files)
        self.packaged = packaged
        self._cache: dict[str, Rows[Any]] = {}

    def rows(self, kind: type[R]) -> Rows[R]:
        if kind.kind not in self._cache:
            self._cache[kind.kind] = Rows(kind, self._read(kind))
        return self._cache[kind.kind]

    @property
    def accelerators(self) -> Rows[kinds.Accelerator]:
        return self.rows(kinds.Accelerator)

    @property
    def nodes(self) -> Rows[kinds.Node]:
        return self.rows(kinds.Node)

    @property
    def fabrics(self) -> Rows[kinds.Fabric]:
        return self.rows(kinds.Fabric)

    @property
    def collectives(self) -> Rows[kinds.Collective]:
        return self.rows(kinds.Collective)

    @property
    def storage(self) -> Rows[kinds.Storage]:
        return self.rows(kinds.Storage)

    @property
    def models(self) -> Rows[Model]:
        return self.rows(Model)

    @property
    def offers(self) -> Rows[kinds.Offer]:
        return self.rows(kinds.Offer)

    @property
    def providers(self) -> Rows[kinds.Provider]:
        return self.rows(kinds.Provider)

    @property
    def tiers(self) -> Rows[kinds.Tier]:
        return self.rows(kinds.Tier)

    @property
    def coolings(self) -> Rows[kinds.Cooling]:
        return self.rows(kinds.Cooling)

    @property
    def facilities(self) -> Rows[kinds.Facility]:
        return self.rows(kinds.Facility)

    @property
    def grids(self) -> Rows[kinds.Grid]:
        return self.rows(kinds.Grid)

    @cached_property
    def _tables(self) -> list[tuple[str, dict[str, list[dict[str, Any]]]]]:
        return [(str(path), read_tables(path)) for path in self.files]

    def _read(self, kind: type[R]) -> list[R]:
        sources = list(self._tables)
        if self.packaged:
            path = Path(__file__).parent / "data" / _PACKAGED[kind.kind]
            sources.insert(0, (path.name, read_tables(path)))
        plain: dict[str, dict[str, Any]] = {}
        decoded: dict[str, R] = {}
        for where, tables in sources:
            for number, table in enumerate(tables.get(kind.kind, []), start=1):
                place = f"{where}: {kind.kind} {table.get('name', f'row {number}')!s}"
                table = _with_base(table, plain, place)
                row = codec.decode(kind, table, place)
                key = normalise(row.name)
                if kind.kind == _RECORDS:
                    key = f"{key} {table['region']} {row.as_of} {table['term']} {number} {where}"
                plain[key] = table
                decoded[key] = row
        return list(decoded.values())


def _with_base(
    table: dict[str, Any], known: dict[str, dict[str, Any]], place: str
) -> dict[str, Any]:
    if "like" not in table:
        return table
    table = dict(table)
    base = known.get(normalise(str(table.pop("like"))))
    if base is None:
        raise InputError(f"{place}: `like` names no row before it")
    return {k: v for k, v in base.items() if k not in ("aliases", "note")} | table


def load_catalog(files: Iterable[str | os.PathLike[str]] = ()) -> Catalog:
    """Our catalog, with the user's folder and then `files` over it."""
    return Catalog([*user_files(), *(Path(file) for file in files)])


def user_folder() -> Path:
    """`COMPUTEFLOW_CONFIG`, else `$XDG_CONFIG_HOME/computeflow`, else `~/.config/computeflow`."""
    named = os.environ.get("COMPUTEFLOW_CONFIG")
    if named:
        return Path(named)
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "computeflow"


def user_files() -> list[Path]:
    folder = user_folder() / "catalog"
    return sorted(p for p in folder.glob("*") if p.suffix in (".toml", ".csv"))


def read_tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Plain tables of a catalog file, by kind."""
    text = read_text(path)
    if path.suffix == ".csv":
        return _csv_tables(text, path.name)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name}: not TOML: {error}") from None
    for kind, found in tables.items():
        if kind not in KINDS:
            raise UnknownNameError("kind of row", kind, KINDS, hint=path.name)
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise InputError(f"{path.name}: write rows as [[{kind}]]")
    return tables


def read_text(path: Path) -> str:
    """The text of a small user file; what cannot be read is an error in words."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InputError(f"{path}: larger than {_MAX_FILE_BYTES >> 20} MiB: not a catalog file")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _csv_tables(text: str, where: str) -> dict[str, list[dict[str, Any]]]:
    records = csv_records(text, where)
    columns = set(records[0]) if records else set()
    for kind, row in KINDS.items():
        fields = row.__dataclass_fields__
        if columns and columns <= set(fields) and {"name", "source", "as_of"} <= columns:
            numbers = {n for n, f in fields.items() if "float" in str(f.type) or f.type == "int"}
            return {kind: [_typed(record, numbers, where) for record in records]}
    raise InputError(
        f"{where}: its columns fit no kind of row (an offer: {', '.join(_columns(kinds.Offer))}); "
        "price lists are read by `computeflow catalog import`"
    )


def _columns(kind: type[kinds.Row]) -> list[str]:
    return [name for name in kind.__dataclass_fields__ if name not in ("aliases", "note")]


def csv_records(text: str, where: str) -> list[dict[str, str]]:
    """Records of a CSV with a header; a row of another width is a truncated or broken file."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise InputError(f"{where}: empty")
        twice = [name for name in dict.fromkeys(header) if header.count(name) > 1]
        if twice:
            raise InputError(f"{where}: two columns are called {twice[0]!r}")
        records = []
        for values in filter(None, reader):  # a blank line is no record
            if len(values) != len(header):
                raise InputError(
                    f"{where}: line {reader.line_num} has {len(values)} of {len(header)} columns: "
                    "the file is truncated or not a CSV"
                )
            records.append(dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: {error}") from None
    return records


def _typed(record: dict[str, str], numbers: set[str], where: str) -> dict[str, Any]:
    """Empty cells are absent, number columns become numbers, `a;b` in aliases becomes a list."""
    table: dict[str, Any] = {}
    for name, text in record.items():
        if not text:
            continue
        if name in numbers:
            try:
                table[name] = int(text) if text.isdecimal() else float(text)
            except ValueError:
                raise InputError(f"{where}: {name} {text!r} is not a number") from None
        else:
            table[name] = text.split(";") if name == "aliases" else text
    return table
