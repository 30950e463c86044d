"""`collect`: a collector that runs until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import Quantity, read_quantity
from computeflow.collection.collector.collector_options import CollectorOptions
from computeflow.collection.collector.running import CollectorReport, run_collector
from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS, format_count, format_seconds, format_si
from computeflow.views.tables import Table, columns

_MIN_KEEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CollectAnswer(Answer):
    report: CollectorReport

    def _data(self) -> dict[str, Any]:
        return {"schema": "computeflow.collect/1", **codec.encode(self.report)}

    @property
    def headline(self) -> str:
        report = self.report
        return (
            f"{report.batches:,} batches, {report.records:,} records, "
            f"{format_si(report.bytes, 'B')} in {format_seconds(report.seconds)}; "
            f"{format_count(report.open_findings, 'open finding')}."
        )

    def tables(self) -> list[Table]:
        report = self.report
        return [
            Table(
                title=f"collected in {report.store}",
                columns=columns("batches", "records", "repeated", "refused", "findings open"),
                rows=(
                    (
                        f"{report.batches:,}",
                        f"{report.records:,}",
                        f"{report.known:,}",
                        f"{report.refused:,}",
                        str(report.open_findings),
                    ),
                ),
            )
        ]


def _ignore(_: str) -> None:
    pass


@checked
def collect(
    *,
    store: str | Path,
    listen: str = "127.0.0.1:8471",
    follow: Sequence[str | Path] = (),
    price: float | None = None,
    token_file: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    behind_proxy: bool = False,
    alertmanager: str | None = None,
    webhook_file: str | Path | None = None,
    push_metrics: str | None = None,
    keep: Quantity = 30 * DAY_SECONDS,
    keep_bytes: Quantity | None = None,
    shared: str | Path | None = None,
    seconds: float | None = None,
    ready: Callable[[str], None] = _ignore,
) -> CollectAnswer:
    """Take batches of agents and follow run folders, until a signal or for so many seconds.

    `ready` is called once with the address.
    """
    keep_seconds = read_quantity(keep, "seconds")
    if keep_seconds < _MIN_KEEP_SECONDS:
        raise InputError(f"--keep {keep_seconds:g} s: at least {_MIN_KEEP_SECONDS:g} s")
    if price is not None and price < 0:
        raise InputError(f"--price {price:g}: dollars per GPU and hour, not below 0")
    if seconds is not None and seconds <= 0:
        raise InputError(f"--seconds {seconds:g}: more than 0")
    for folder in follow:
        if not Path(folder).is_dir():
            raise InputError(f"--follow {folder}: no such folder")
    options = CollectorOptions(
        store=Path(store),
        listen=listen,
        shared=_path(shared),
        follow=tuple(Path(folder) for folder in follow),
        price_usd_per_gpu_hour=price,
        token_file=_path(token_file),
        cert=_path(cert),
        key=_path(key),
        behind_proxy=behind_proxy,
        alertmanager=alertmanager,
        webhook_file=_path(webhook_file),
        push_metrics=push_metrics,
        keep_seconds=keep_seconds,
        keep_bytes=read_quantity(keep_bytes, "bytes"),
        seconds=seconds,
    )
    return CollectAnswer(report=run_collector(options, ready))


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)
