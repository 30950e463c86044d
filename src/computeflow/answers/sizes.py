"""`size`: FLOPs, GPUs x days and dollars of a training, in a second."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, Quantity, open_catalog, read_quantity, this_day
from computeflow.catalog.lookup import find_typed_model
from computeflow.comparison.clusters import Progress, silent
from computeflow.comparison.planner import usual_job
from computeflow.comparison.sizes import COUNTS, DEVICES, JobSize
from computeflow.comparison.sizes import size as size_job
from computeflow.views.sizes import size_headline, size_tables
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.views.html_report import Part


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SizeAnswer(Answer):
    size: JobSize

    @property
    def headline(self) -> str:
        return size_headline(self.size)

    def _data(self) -> dict[str, Any]:
        size, job = self.size, self.size.job
        return {
            "schema": "computeflow.size/1",
            "model": job.model.name,
            "global_batch": job.global_batch,
            "seq_len": job.seq_len,
            "precision": job.precision,
            "tokens": size.tokens,
            "flops": size.flops,
            "parameters": size.parameters,
            "active_parameters": size.active_parameters,
            "tokens_per_parameter": size.tokens_per_parameter,
            "state_bytes": size.state_bytes,
            "devices": [
                codec.encode(device)
                | {
                    "peak_flops": device.peak_flops if device.cells else None,
                    "usd": [device.usd(cell) for cell in device.cells],
                    "usd_ends": [device.usd_ends(cell) for cell in device.cells],
                }
                for device in size.devices
            ],
            "network_device": size.network_device,
            "network": [codec.encode(need) for need in size.network],
        }

    def tables(self) -> list[Table]:
        return size_tables(self.size)

    def parts(self) -> Sequence[Part]:
        from computeflow.views.sizes import days_figure

        job, _, *rest = self.tables()
        return [job, days_figure(self.size), *rest]


@checked
def size(
    model: str,
    *,
    tokens: Quantity,
    devices: Sequence[str] = (),
    counts: Sequence[int] = (),
    global_batch: int | None = None,
    seq_len: int | None = None,
    precision: str = "bf16",
    today: datetime.date | None = None,
    catalog: CatalogFiles = (),
    progress: Progress | None = None,
) -> SizeAnswer:
    """Size a training: FLOPs, GPUs x days by device, memory, network, power and dollars."""
    facts = open_catalog(catalog)
    job = usual_job(
        find_typed_model(facts, model),
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
    )
    return SizeAnswer(
        size=size_job(
            job,
            read_quantity(tokens, "tokens"),
            facts,
            today=this_day(today),
            devices=devices or DEVICES,
            counts=counts or COUNTS,
            progress=progress or silent,
        )
    )
