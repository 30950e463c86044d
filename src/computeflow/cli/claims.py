"""What popular documents claim about training and its hardware, checked with our own models."""

from __future__ import annotations

from pathlib import Path

import click

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.cli.output import catalog_option, emit, output_option
from computeflow.errors import InputError


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all of them as a page of Markdown, too.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers.")
@catalog_option
@output_option
def claims(
    names: tuple[str, ...], page: Path | None, seed: int, files: tuple[str, ...], output: str
) -> None:  # fmt: skip
    from computeflow.comparison.claims import check_claims, mfu_path
    from computeflow.views import claim_views as views

    if page is not None and names:
        raise InputError("--page has every claim: give it without names")
    if page is not None and (page.is_dir() or not page.parent.is_dir()):
        raise InputError(f"--page {page}: not a file that can be written")
    facts = load_catalog(files)
    found = check_claims(facts, names, seed=seed)
    steps = mfu_path(facts) if not names or "mfu-path" in names else []
    tables = [views.claims_table(found)]
    if names:
        tables.append(views.reasons_table(found))
    if steps:
        tables.append(views.path_table(steps))
    if page is not None:
        _write(page, views.claims_page(found, steps))
    data = {
        "schema": "computeflow.claims/1",
        "claims": [{**codec.encode(one.claim), **codec.encode(one.answer)} for one in found],
        "mfu_path": codec.encode(steps),
    }
    emit(output, data, tables)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--page {path}: {error.strerror or error}") from None
