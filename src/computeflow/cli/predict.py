"""Predict a training step: time with its range, where it goes, memory, power. Dense models so far."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computeflow.catalog import Catalog, find_model, load_catalog
from computeflow.cli.output import calibration_option, catalog_option, emit, output_option
from computeflow.cluster import find_cluster
from computeflow.ledger import ledger_to_data
from computeflow.prediction import Prediction, find_stack
from computeflow.prediction import predict as predict_step
from computeflow.views.predictions import prediction_tables
from computeflow.workload import Job, Layout
from computeflow.workload.layout import OPTIMIZERS, PRECISIONS, RECOMPUTES, SHARDINGS

if TYPE_CHECKING:
    from computeflow.prediction.calibration import Calibration


@click.command(help=__doc__)
@click.argument("model")
@click.option(
    "--on",
    "place",
    required=True,
    metavar="CLUSTER",
    help="accelerator:count (h100-sxm:512) or a cluster TOML.",
)
@click.option("--global-batch", type=int, required=True, help="Sequences in a step.")
@click.option("--seq-len", type=int, required=True, help="Tokens in a sequence.")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--vp", type=int, default=1, show_default=True, help="Model chunks on a stage.")
@click.option("--cp", type=int, default=1, show_default=True, help="Context-parallel ranks.")
@click.option("--micro-batch", type=int, default=1, show_default=True)
@click.option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True)
@click.option("--recompute", type=click.Choice(RECOMPUTES), default="none", show_default=True)
@click.option("--sharding", type=click.Choice(SHARDINGS), default="zero1", show_default=True)
@click.option(
    "--replicas",
    type=int,
    default=1,
    show_default=True,
    help="With hsdp: groups that each hold the model once.",
)
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adamw", show_default=True)
@click.option(
    "--storage",
    metavar="NAME",
    help="What data is read from and checkpoints go to: a storage row of the catalog.",
)
@click.option(
    "--bytes-per-token",
    type=float,
    default=4.0,
    show_default=True,
    help="Read from storage; images and sound are far more.",
)
@click.option("--checkpoint-steps", type=int, help="Steps between two checkpoints.")
@click.option(
    "--stack",
    "stack_name",
    metavar="NAME",
    help="The software; left out: today's practice, with a wider range.",
)
@calibration_option
@catalog_option
@output_option
def predict(
    model: str, place: str, global_batch: int, seq_len: int, tp: int, pp: int, vp: int, cp: int,
    micro_batch: int, precision: str, recompute: Any, sharding: Any, replicas: int, optimizer: str,
    storage: str | None, bytes_per_token: float, checkpoint_steps: int | None,
    stack_name: str | None, calibration: Path | None, files: tuple[str, ...], output: str,
) -> None:  # fmt: skip
    facts = load_catalog(files)
    cluster = find_cluster(place, facts)
    if storage is not None:
        cluster = replace(cluster, storage=facts.storage[storage])
    job = Job(
        model=find_model(facts, model), global_batch=global_batch, seq_len=seq_len,
        precision=precision, optimizer=optimizer, bytes_per_token=bytes_per_token,
        checkpoint_steps=checkpoint_steps,
    )  # fmt: skip
    layout = Layout(
        gpus=cluster.gpus, tp=tp, pp=pp, vp=vp, cp=cp, micro_batch=micro_batch, recompute=recompute,
        sharding=sharding, replicas=replicas,
    )  # fmt: skip
    stack = find_stack(stack_name) if stack_name else None
    measured = _calibration(calibration, facts) if calibration else None
    found = predict_step(job, cluster, layout, stack, calibration=measured)
    emit(output, _data(found), prediction_tables(found))


def _calibration(path: Path, facts: Catalog) -> Calibration:
    from computeflow.prediction.calibration.file import load_calibration

    return load_calibration(path, facts)


def _data(found: Prediction) -> dict[str, Any]:
    peak = found.ledger.peak
    assert peak is not None
    return {
        "schema": "computeflow.prediction/1",
        "step_seconds": found.step_seconds,
        "step_seconds_range": list(found.step_seconds_range),
        "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu,
        "mfu": found.ledger.mfu,
        "mfu_palm": found.ledger.mfu_palm,
        "peak_flops": peak.flops,
        "peak_precision": peak.precision,
        "memory": {
            "bytes": found.memory_bytes,
            "by_owner": found.memory_by_owner,
            "by_stage": [asdict(stage) for stage in found.memory_by_stage],
            "fits": found.fits,
        },
        "watts_per_gpu": found.watts_per_gpu,
        "tokens_per_joule": found.tokens_per_joule,
        "ledger": ledger_to_data(found.ledger),
        "layout": asdict(found.layout),
        "stack": found.stack.name,
        "assumed": list(found.assumed),
        "calibrated": list(found.calibrated),
    }
