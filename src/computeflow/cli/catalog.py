"""`computeflow catalog`: hardware, models, prices and sites, each with its source and date."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from computeflow.catalog.lookup import GROUPS, SINGULAR
from computeflow.catalog.rows import TERMS
from computeflow.cli.command import FORCE, OUTPUT, AnswerCommand, choice, flag, option
from computeflow.cli.completing import accelerator_names, names_of, seller_names
from computeflow.cli.options import CATALOG
from computeflow.cli.types import FILE


class _Command(AnswerCommand):
    """A command that also takes the options typed before its name."""

    def options(self, ctx: click.Context) -> dict[str, Any]:
        before = ctx.parent.params if ctx.parent is not None else {}
        options = super().options(ctx)
        options["catalog"] = (*before.get("catalog", ()), *options.get("catalog", ()))
        return {"output": before.get("output", "table")} | options


class ByName(click.Group):
    """A group that takes any other word as the name of a row: `catalog h100-sxm` shows it."""

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


class _List(_Command):
    """All rows of one kind, or one by name."""

    def __init__(self, group: str) -> None:
        name = click.Argument(["name"], required=False, shell_complete=names_of(group))
        super().__init__(
            group,
            "catalogs:list_rows",
            [name, _ALL, CATALOG],
            html=False,
            help=f"All {group}, or the one named NAME.",
        )

    def library_function(self) -> Any:
        return partial(super().library_function(), self.name)


class _Import(_Command):
    """The import of prices: its help ends with the headers that are read."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from computeflow.catalog.own_price_list import HEADERS, MEANINGS

        with formatter.section("Headers of your own list (CSV, US dollars; * required)"):
            formatter.write_dl(
                [(MEANINGS.get(field, field), ", ".join(names)) for field, names in HEADERS.items()]
            )


_ALL = flag("--all", help="Show all rows; by default the first ones.")
_OVERVIEW = _Command("catalog", "catalogs:overview", [CATALOG], help="", html=False)


@click.pass_context
def _overview(ctx: click.Context, /, **_: Any) -> None:
    if ctx.invoked_subcommand is None:
        _OVERVIEW.invoke(ctx)


catalog = ByName(
    "catalog",
    callback=_overview,
    params=[CATALOG, OUTPUT],
    invoke_without_command=True,
    subcommand_metavar="[KIND] [NAME]",
    help=f"""Hardware, models, prices and sites, each with its source and date.

    KIND is one of {", ".join(GROUPS)}. NAME alone is searched in all of them. A model may also
    be a Hugging Face config.json or a TOML file. `computeflow catalog import FILE` takes a price
    list.
    """,
)
catalog.add_command(
    _Command(
        "show",
        "catalogs:show_row",
        [click.Argument(["name"]), CATALOG],
        html=False,
        hidden=True,
        help="The row named NAME, whatever its kind.",
    )
)
for _group in GROUPS:
    if _group != "offers":
        catalog.add_command(_List(_group))
catalog.add_command(
    _Command(
        "offers",
        "catalogs:list_offers",
        [
            click.Argument(["name"], required=False, shell_complete=names_of("offers")),
            option(
                "--accelerator",
                metavar="NAME",
                shell_complete=accelerator_names,
                help="Only instances with this accelerator.",
            ),
            option(
                "--provider",
                metavar="NAME",
                shell_complete=seller_names,
                help="Only offers of this provider.",
            ),
            option("--region", metavar="TEXT", help="Only regions whose name contains this text."),
            choice("--term", TERMS, None, "Only prices of this term."),
            _ALL,
            CATALOG,
        ],
        help="Prices, cheapest first; all of them, or those of the instance NAME.",
        html=False,
    )
)
catalog.add_command(
    _Import(
        "import",
        "catalogs:import_prices",
        [
            click.Argument(["file"], type=FILE),
            option(
                "--provider",
                metavar="NAME",
                shell_complete=seller_names,
                help="Provider of the prices, if the file has no column for it.",
            ),
            option(
                "--source", metavar="TEXT", help="Source of the prices; by default the file's name."
            ),
            option(
                "--as-of", metavar="DATE", help="Date of the prices; by default the file's date."
            ),
            option(
                "--to",
                type=FILE,
                metavar="FILE",
                help="CSV file to write; by default offers-PROVIDER-FILE.csv in your catalog folder.",
            ),
            FORCE,
            CATALOG,
        ],
        help="Read a price list (a SkyPilot catalog CSV, or your own) into your catalog folder.",
        html=False,
    )
)
