"""`computeflow catalog`: the facts, each with its source and date."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import click

from computeflow import codec
from computeflow.catalog import Catalog, Offer, Row, find_rows, load_catalog
from computeflow.catalog.loading import read_text, user_folder
from computeflow.catalog.lookup import GROUPS, group_rows
from computeflow.cli.output import catalog_option, emit, output_option
from computeflow.errors import InputError
from computeflow.views.catalog import overview_table, row_tables, rows_table

SCHEMA = "computeflow.catalog/1"
_LIMIT = 60


class ByName(click.Group):
    """A group whose unknown words are names of rows: `catalog h100-sxm` shows that row."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "show", self.commands["show"], args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = [
            *GROUPS,
            "import",
            *load_catalog().accelerators.names,
            *load_catalog().models.names,
        ]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group(
    cls=ByName,
    invoke_without_command=True,
    subcommand_metavar="[KIND] [NAME]",
    help=f"""The facts, each with its source and date.

    KIND is one of {", ".join(GROUPS)}. NAME alone is looked for in all of them. A model may also
    be a Hugging Face config.json or a TOML file. `computeflow catalog import FILE` takes a price
    list.
    """,
)
@click.pass_context
def catalog(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        rows = load_catalog()
        counts = {group: sum(map(len, group_rows(rows, group).values())) for group in GROUPS}
        emit("table", {}, [overview_table(counts, rows.files)])


@catalog.command(hidden=True, help="The row called NAME, whatever its kind.")
@click.argument("name")
@catalog_option
@output_option
def show(name: str, files: tuple[str, ...], output: str) -> None:
    _emit_one(load_catalog(files), name, None, output)


def _emit_one(facts: Catalog, name: str, group: str | None, output: str) -> None:
    found = find_rows(facts, name, group)
    if isinstance(found[0], Offer):
        _emit_many(found, 0, output)
        return
    data = {"schema": SCHEMA, "kind": found[0].kind, "rows": codec.encode(found), "not_shown": 0}
    emit(output, data, row_tables(found[0]))


def _emit_many(rows: list[Row], left_out: int, output: str) -> None:
    data = {
        "schema": SCHEMA,
        "kind": rows[0].kind if rows else None,
        "rows": codec.encode(rows),
        "not_shown": left_out,
    }
    emit(output, data, [rows_table(rows, left_out)])


def _emit_group(facts: Catalog, group: str, show_all: bool, output: str) -> None:
    kinds = group_rows(facts, group)
    if output == "json":
        rows = {kind: codec.encode(found) for kind, found in kinds.items()}
        only = next(iter(kinds)) if len(kinds) == 1 else None
        data = {"kind": only, "rows": rows[only]} if only else {"kind": group, "rows": rows}
        emit(output, {"schema": SCHEMA, **data, "not_shown": 0}, [])
        return
    limit = None if show_all else _LIMIT
    tables = [
        rows_table(list(found[:limit]), max(0, len(found) - (limit or len(found))))
        for found in kinds.values()
    ]
    emit(output, {}, tables)


def _list_command(group: str) -> click.Command:
    @click.argument("name", required=False)
    @click.option("--all", "show_all", is_flag=True, help="Show every row.")
    @catalog_option
    @output_option
    def listing(name: str | None, show_all: bool, files: tuple[str, ...], output: str) -> None:
        facts = load_catalog(files)
        if name:
            _emit_one(facts, name, group, output)
        else:
            _emit_group(facts, group, show_all, output)

    return click.command(group, help=f"All {group}, or the one called NAME.")(listing)


for _group in GROUPS:
    if _group != "offers":
        catalog.add_command(_list_command(_group))


@catalog.command(help="Prices, cheapest first; all of them, or of one instance called NAME.")
@click.argument("name", required=False)
@click.option("--accelerator", metavar="NAME", help="Only instances with this accelerator.")
@click.option("--provider", metavar="NAME", help="Only this provider's.")
@click.option("--region", metavar="TEXT", help="Only regions whose name contains this.")
@click.option("--term", type=click.Choice(["on-demand", "spot", "reserved"]), help="Only these.")
@click.option("--all", "show_all", is_flag=True, help="Show every row.")
@catalog_option
@output_option
def offers(
    name: str | None,
    accelerator: str | None,
    provider: str | None,
    region: str | None,
    term: str | None,
    show_all: bool,
    files: tuple[str, ...],
    output: str,
) -> None:
    facts = load_catalog(files)
    found: list[Offer] = [*facts.offers]
    if name:
        wanted = facts.offers[name].name
        found = [offer for offer in found if offer.name == wanted]
    if accelerator:
        device = facts.accelerators[accelerator].name
        found = [offer for offer in found if offer.accelerator == device]
    if provider:
        seller = facts.providers[provider].name
        found = [offer for offer in found if offer.provider == seller]
    found = [
        offer
        for offer in found
        if (not region or region in offer.region) and term in (None, offer.term)
    ]
    found.sort(key=lambda offer: (offer.usd_per_device_hour, offer.name, offer.region))
    limit = len(found) if show_all or output == "json" else _LIMIT
    _emit_many(list(found[:limit]), max(0, len(found) - limit), output)


@catalog.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--provider", metavar="NAME", help="Whose prices they are, if the file has no column."
)
@click.option("--source", metavar="TEXT", help="Where the file is from. [default: its name]")
@click.option("--as-of", metavar="DATE", help="When the prices held. [default: the file's date]")
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="FILE",
    help="Where to write the rows. [default: your catalog folder]",
)  # fmt: skip
@catalog_option
@output_option
def import_file(
    file: Path,
    provider: str | None,
    source: str | None,
    as_of: str | None,
    to: Path | None,
    files: tuple[str, ...],
    output: str,
) -> None:
    """Read a price list (a SkyPilot catalog CSV, or your own) into your catalog folder."""
    from computeflow.catalog.importing import import_prices, write_offers
    from computeflow.views.catalog import import_table

    text = read_text(file)
    found = import_prices(
        text,
        file.name,
        as_of=as_of or _file_date(file),
        source=source or file.name,
        provider=provider,
        accelerators=load_catalog(files).accelerators,
    )
    target = to or user_folder() / "catalog" / f"offers-{file.stem}.csv"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(write_offers(found.offers), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{target}: {error.strerror or error}") from None
    data = {
        "schema": SCHEMA,
        "written": str(target),
        "offers": len(found.offers),
        "left_out": found.left_out,
    }
    emit(output, data, [import_table(str(target), len(found.offers), found.left_out)])


def _file_date(file: Path) -> str:
    written = datetime.datetime.fromtimestamp(file.stat().st_mtime, tz=datetime.UTC)
    return written.date().isoformat()
