"""`computeflow catalog`: the facts, each with its source and date."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import click

from computeflow.catalog import Catalog, Offer, Row, find_model, load_catalog
from computeflow.catalog.loading import read_text, user_folder
from computeflow.catalog.lookup import (
    GROUPS,
    SINGULAR,
    by_price,
    find_names,
    find_offers,
    group_rows,
    is_file_name,
    rows_called,
)
from computeflow.catalog.rows import TERMS, check_date
from computeflow.catalog.serialise import rows_to_data
from computeflow.cli.completing import accelerator_names, names_of, seller_names
from computeflow.cli.output import catalog_option, emit, output_option
from computeflow.errors import InputError
from computeflow.views.catalog import offer_table, overview_table, row_tables, rows_table

SCHEMA = "computeflow.catalog/1"
_LIMIT = 60


class ByName(click.Group):
    """A group whose unknown words are names of rows: `catalog h100-sxm` shows that row."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and args[0] in SINGULAR:
            args = [SINGULAR[args[0]], *args[1:]]
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "show", self.commands["show"], args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        if not incomplete or incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [*super().shell_complete(ctx, incomplete), *names_of(None)(ctx, None, incomplete)]


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
@catalog_option
@output_option
@click.pass_context
def catalog(ctx: click.Context, files: tuple[str, ...], output: str) -> None:
    # Options before the name hold for the command that follows, unless it has its own.
    ctx.obj = files
    ctx.default_map = {name: {"output": output} for name in catalog.commands}
    if ctx.invoked_subcommand is None:
        facts = load_catalog(files)
        counts = {group: sum(map(len, group_rows(facts, group).values())) for group in GROUPS}
        data = {"schema": SCHEMA, "counts": counts, "files": [str(path) for path in facts.files]}
        emit(output, data, [overview_table(counts, facts.files)])


def _facts(files: tuple[str, ...]) -> Catalog:
    """The catalog with the files named before and after the command."""
    return load_catalog((*(click.get_current_context().obj or ()), *files))


@catalog.command(hidden=True, help="The row called NAME, whatever its kind.")
@click.argument("name")
@catalog_option
@output_option
def show(name: str, files: tuple[str, ...], output: str) -> None:
    _emit_one(_facts(files), name, None, output)


def _emit_one(facts: Catalog, name: str, group: str | None, output: str) -> None:
    rows: list[Row]
    also: list[tuple[str, str]] = []
    if group in (None, "models") and is_file_name(name):
        rows = [find_model(facts, name)]
    else:
        (kind, proper), *also = find_names(facts, name, group)
        rows = rows_called(facts, kind, proper)
    others = [(kind, SINGULAR[kind], other) for kind, other in also]
    prices = by_price(row for row in rows if isinstance(row, Offer))
    tables = [offer_table(prices, others)] if prices else row_tables(rows[0], others)
    data = {"also": [{"kind": kind, "name": other} for kind, other in also]}
    emit(output, _data([*prices] or rows) | data, tables)


def _data(rows: list[Row], left_out: int = 0) -> dict[str, Any]:
    return {"schema": SCHEMA, "rows": rows_to_data(rows), "not_shown": left_out}


def _emit_group(facts: Catalog, group: str, show_all: bool, output: str) -> None:
    kinds = group_rows(facts, group)
    if output == "json":
        emit(output, _data([row for rows in kinds.values() for row in rows]), [])
        return
    limit = None if show_all else _LIMIT
    emit(output, {}, [rows_table(r[:limit], len(r) - len(r[:limit])) for r in kinds.values()])


def _list_command(group: str) -> click.Command:
    @click.argument("name", required=False, shell_complete=names_of(group))
    @click.option("--all", "show_all", is_flag=True, help="Show every row.")
    @catalog_option
    @output_option
    def listing(name: str | None, show_all: bool, files: tuple[str, ...], output: str) -> None:
        facts = _facts(files)
        if name:
            _emit_one(facts, name, group, output)
        else:
            _emit_group(facts, group, show_all, output)

    return click.command(group, help=f"All {group}, or the one called NAME.")(listing)


for _group in GROUPS:
    if _group != "offers":
        catalog.add_command(_list_command(_group))


@catalog.command(help="Prices, cheapest first; all of them, or of one instance called NAME.")
@click.argument("name", required=False, shell_complete=names_of("offers"))
@click.option(
    "--accelerator", metavar="NAME", shell_complete=accelerator_names,
    help="Only instances with this accelerator.",
)  # fmt: skip
@click.option(
    "--provider", metavar="NAME", shell_complete=seller_names, help="Only this provider's."
)
@click.option("--region", metavar="TEXT", help="Only regions whose name contains this.")
@click.option("--term", type=click.Choice(TERMS), help="Only these.")
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
    found = find_offers(
        _facts(files), name=name, accelerator=accelerator, provider=provider, region=region,
        term=term,
    )  # fmt: skip
    limit = len(found) if show_all or name or output == "json" else _LIMIT
    hidden = max(0, len(found) - limit)
    table = offer_table(found) if name else rows_table(found[:limit], hidden)
    emit(output, _data([*found[:limit]], hidden), [table])


class Import(click.Command):
    """Its help ends with the headers that are read."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from computeflow.catalog.own_list import HEADERS, MEANINGS

        with formatter.section("Headers of a list of your own (CSV, US dollars; * needed)"):
            formatter.write_dl(
                [(MEANINGS.get(field, field), ", ".join(names)) for field, names in HEADERS.items()]
            )


def _date(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    try:
        if text is not None:
            check_date("the date", text)
    except InputError as error:
        raise click.BadParameter(str(error)) from None
    return text


@catalog.command("import", cls=Import)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--provider", metavar="NAME", shell_complete=seller_names,
    help="Whose prices they are, if the file has no column.",
)  # fmt: skip
@click.option("--source", metavar="TEXT", help="Where the file is from. [default: its name]")
@click.option(
    "--as-of", metavar="DATE", callback=_date,
    help="When the prices held. [default: the file's date]",
)  # fmt: skip
@click.option(
    "--to", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The CSV to write. [default: offers-PROVIDER-FILE.csv in your catalog folder]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Write over an earlier import.")
@catalog_option
@output_option
def import_file(
    file: Path,
    provider: str | None,
    source: str | None,
    as_of: str | None,
    to: Path | None,
    force: bool,
    files: tuple[str, ...],
    output: str,
) -> None:
    """Read a price list (a SkyPilot catalog CSV, or your own) into your catalog folder."""
    from computeflow.catalog.importing import import_prices, write_offers
    from computeflow.views.catalog import import_table

    facts = _facts(files)
    found = import_prices(
        read_text(file),
        file.name,
        as_of=as_of or _file_date(file),
        source=source or file.name,
        provider=provider,
        accelerators=facts.accelerators,
        providers=facts.providers,
    )
    sellers = {offer.provider for offer in found.offers}
    seller = sellers.pop() if len(sellers) == 1 else "various"
    target = to or user_folder() / "catalog" / f"offers-{_plain(seller)}-{file.stem}.csv"
    _write(target, write_offers(found.offers), file, force)
    data = {
        "schema": SCHEMA,
        "written": str(target),
        "offers": len(found.offers),
        "left_out": found.left_out,
        "notes": found.notes,
    }
    table = import_table(str(target), len(found.offers), found.left_out, found.notes)
    emit(output, data, [table])


def _write(target: Path, text: str, source: Path, force: bool) -> None:
    """All of `text` or nothing, and never over what the user would miss."""
    if target.suffix.lower() != ".csv":
        raise InputError(f"{target}: offers are written as CSV: give it a name that ends in .csv")
    partial = target.with_name(f".{target.name}.partial")
    try:
        if target.exists():
            if target.samefile(source):
                raise InputError(f"{target}: that is the list itself: choose another name")
            if not force:
                raise InputError(f"{target}: is already there: --force writes over it")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"{target}: {error.strerror or error}") from None


def _plain(name: str) -> str:
    """A name that a file can have."""
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name)


def _file_date(file: Path) -> str:
    written = datetime.datetime.fromtimestamp(file.stat().st_mtime, tz=datetime.UTC)
    return written.date().isoformat()
