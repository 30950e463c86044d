"""`/simulate`: a whole run with failures."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from fastapi.responses import Response

from computeflow.web.pages.asking import (
    Batch,
    Device,
    Gpus,
    Model,
    Precision,
    Price,
    Sequence,
    Tokens,
    WorkbenchDep,
    ask,
)

_MAX_SIMULATIONS = 1_000


def simulate_page(
    bench: WorkbenchDep,
    model: Model = "llama-3.1-70b",
    device: Device = "h100-sxm",
    gpus: Gpus = 512,
    sequence: Sequence = 8192,
    batch: Batch = 1024,
    precision: Precision = "bf16",
    tokens: Tokens = "1T",
    price: Price = None,
    failures: Annotated[
        str, Query(max_length=80, description="Measured failure rates.")
    ] = "llama-3",
    interval: Annotated[
        float | None,
        Query(gt=0, le=10_000, allow_inf_nan=False, description="Minutes between checkpoints."),
    ] = None,
    spares: Annotated[int | None, Query(ge=0, le=1_000, description="Spare nodes.")] = None,
    simulations: Annotated[int, Query(ge=10, le=_MAX_SIMULATIONS)] = 200,
    sensitivity: Annotated[
        Literal["no", "yes"],
        Query(description="Also simulate each input at both ends of its range."),
    ] = "no",
) -> Response:
    """When a run ends with failures and checkpoints, what it costs, where its time goes."""
    parameters = {
        "model": model,
        "device": device,
        "gpus": gpus,
        "sequence": sequence,
        "batch": batch,
        "precision": precision,
        "tokens": tokens,
        "price": price,
        "failures": failures,
        "interval": interval,
        "spares": spares,
        "simulations": simulations,
        "sensitivity": sensitivity == "yes",
    }
    return ask(bench, "long", "simulate", parameters)
