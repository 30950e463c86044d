"""What a training takes: FLOPs, GPUs x days, memory, network, power and dollars, in a second."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from computeflow import codec
from computeflow.catalog import find_model, load_catalog
from computeflow.cli.output import catalog_option, emit, html_option, output_option, write_report
from computeflow.errors import InputError
from computeflow.units import parse
from computeflow.workload.layout import PRECISIONS

if TYPE_CHECKING:
    from computeflow.comparison.size import Size


F = TypeVar("F", bound=Callable[..., Any])


def today_option(function: F) -> F:
    return click.option(
        "--today", "day", callback=_day, metavar="DATE",
        help="From which prices are old (2026-11-15); else this day.",
    )(function)  # fmt: skip


def _day(_: click.Context, __: click.Parameter, text: str | None) -> datetime.date:
    if text is None:
        return datetime.datetime.now(tz=datetime.UTC).date()
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise InputError(f"--today {text}: a day, as 2026-11-15") from None


@click.command(help=__doc__)
@click.argument("model")
@click.option("--tokens", required=True, metavar="N", help="To train on (2T).")
@click.option("--devices", metavar="NAMES", help="Accelerators, comma-separated; else usual ones.")
@click.option("--counts", metavar="NUMBERS", help="Of GPUs, comma-separated; else 64,512,4096.")
@click.option(
    "--global-batch", type=click.IntRange(1), help="Sequences in a step; else 8 M tokens."
)
@click.option("--seq-len", type=click.IntRange(1), help="Tokens in a sequence; else 8192.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True)
@today_option
@catalog_option
@html_option
@output_option
def size(
    model: str, tokens: str, devices: str | None, counts: str | None, global_batch: int | None,
    seq_len: int | None, precision: str, day: datetime.date, files: tuple[str, ...],
    html: Path | None, output: str,
) -> None:  # fmt: skip
    from computeflow.comparison.quick import usual_job
    from computeflow.comparison.size import COUNTS, DEVICES
    from computeflow.comparison.size import size as sized
    from computeflow.views.sizes import size_tables

    facts = load_catalog(files)
    job = usual_job(
        find_model(facts, model), global_batch=global_batch, seq_len=seq_len, precision=precision
    )
    found = sized(
        job, parse(tokens, "tokens"), facts, today=day,
        devices=names(devices) or DEVICES, counts=numbers("--counts", counts) or COUNTS,
    )  # fmt: skip
    tables = size_tables(found)
    if html is not None:
        from computeflow.views.sizes import days_figure

        write_report(html, tables[0].title, [tables[0], days_figure(found), *tables[2:]])
    emit(output, size_data(found), tables)


def names(text: str | None) -> tuple[str, ...]:
    """Of a comma-separated option."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def numbers(option: str, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part.replace("_", "")) for part in names(text))
    except ValueError:
        raise click.UsageError(f"{option} {text}: whole numbers, comma-separated") from None


def size_data(found: Size) -> dict[str, Any]:
    return {
        "schema": "computeflow.size/1",
        "model": found.job.model.name,
        "global_batch": found.job.global_batch,
        "seq_len": found.job.seq_len,
        "precision": found.job.precision,
        "tokens": found.tokens,
        "flops": found.flops,
        "parameters": found.parameters,
        "active_parameters": found.active_parameters,
        "tokens_per_parameter": found.tokens_per_parameter,
        "state_bytes": found.state_bytes,
        "devices": [
            codec.encode(device) | {"peak_flops": device.peak_flops if device.cells else None,
                                    "usd": [device.usd(cell) for cell in device.cells]}
            for device in found.devices
        ],
        "network_device": found.network_device,
        "network": [codec.encode(need) for need in found.network],
    }  # fmt: skip
