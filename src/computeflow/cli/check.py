"""Read a framework's configuration, predict it, and list what would break or what it costs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from computeflow.answers.predictions import prediction_data
from computeflow.answers.requests import reading_data
from computeflow.catalog import load_catalog
from computeflow.cli.jobs import asked, cluster_of, format_option, place_options
from computeflow.cli.output import catalog_option, emit, output_option
from computeflow.planning.exports.model import Setup
from computeflow.planning.exports.terms import FrameworkTerms
from computeflow.planning.review import review
from computeflow.views.reviews import review_tables

PROBLEMS = 3


@click.command(help=__doc__)
@click.argument("file", type=click.Path(path_type=Path))
@place_options
@format_option
@click.option("--model", metavar="NAME", help="Where the file does not name its model.")
@click.option("--global-batch", type=int, help="Where the file does not state it.")
@click.option("--seq-len", type=int, help="Where the file does not state it.")
@click.option("--stack", metavar="NAME", help="The software; else the framework's own.")
@click.option("--price", type=float, help="Dollars per GPU-hour: prices what is lost.")
@catalog_option
@output_option
def check(
    file: Path, model: str | None, stack: str | None,
    price: float | None, files: tuple[str, ...], output: str, **options: Any,
) -> int:  # fmt: skip
    facts = load_catalog(files)
    cluster = cluster_of(options, facts)
    what = asked(model, file, stack, options, cluster, facts)
    assert what.reading is not None and what.layout is not None and what.stack is not None
    setup = Setup(job=what.job, cluster=cluster, layout=what.layout, stack=what.stack)
    terms = FrameworkTerms(what.reading.format, setup)
    found = review(what.job, cluster, what.layout, what.stack, terms, what.reading.timeouts)
    data = {
        "schema": "computeflow.check/1",
        "layout": asdict(what.layout),
        "prediction": None if found.prediction is None else prediction_data(found.prediction),
        "remarks": [asdict(remark) for remark in found.remarks],
        **reading_data(what.reading),
    }
    emit(output, data, review_tables(what.job, what.layout, what.reading, found, price))
    return PROBLEMS if found.remarks else 0
