"""Options that say what to train and how it is laid out, shared by the commands that take a job.

They are named like the fields of `Job` and `Layout`, so a command hands them on as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import click

from computeflow.catalog import Catalog, find_model
from computeflow.cluster import Cluster, find_cluster
from computeflow.workload import Job, Layout
from computeflow.workload.layout import (
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    RECOMPUTES,
    RINGS,
    SCHEDULES,
    SHARDINGS,
    TRAININGS,
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
Options = dict[str, Any]
Decorator = Callable[[Any], Any]


def _number(name: str, doc: str, default: int | None = 1) -> Decorator:
    return click.option(name, type=int, default=default, show_default=default is not None, help=doc)


def _choice(name: str, choices: tuple[str, ...], default: str, doc: str = "") -> Decorator:
    return click.option(
        name, type=click.Choice(choices), default=default, show_default=True, help=doc or None
    )


_PLACE: list[Decorator] = [
    click.option("--on", "place", required=True, metavar="CLUSTER",
                 help="accelerator:count (h100-sxm:512) or a cluster TOML."),
    click.option("--storage", metavar="NAME",
                 help="What data is read from and checkpoints go to: a storage row of the catalog."),
]  # fmt: skip
_JOB: list[Decorator] = [
    click.option("--global-batch", type=int, required=True, help="Sequences in a step."),
    click.option("--seq-len", type=int, required=True, help="Tokens in a sequence."),
    _choice("--precision", PRECISIONS, "bf16"),
    _choice("--optimizer", OPTIMIZERS, "adamw"),
    _choice("--training", TRAININGS, "full"),
    _number("--lora-rank", "Of the updates beside frozen weights.", 16),
    _number("--loss-chunks", "Parts in which logits are made and dropped again."),
    click.option("--expert-spread", type=float, default=0.0, show_default=True,
                 help="Of the experts' load around its mean; 0: balanced by force."),
    click.option("--multi-token", is_flag=True,
                 help="Train the multi-token-prediction modules too."),
    click.option("--bytes-per-token", type=float, default=4.0, show_default=True,
                 help="Read from storage; images and sound are far more."),
    _number("--checkpoint-steps", "Steps between two checkpoints.", None),
]  # fmt: skip
_LAYOUT: list[Decorator] = [
    _number("--tp", "Tensor-parallel ranks."),
    _number("--pp", "Pipeline stages."),
    _number("--vp", "Model chunks on a stage."),
    _number("--cp", "Context-parallel ranks."),
    _number("--ep", "Expert-parallel ranks."),
    _number("--etp", "Ranks over which one expert is cut: 1 or tp."),
    _number("--micro-batch", "Sequences in a micro-batch."),
    _choice("--recompute", RECOMPUTES, "none"),
    _choice("--sharding", SHARDINGS, "zero1"),
    _number("--replicas", "With hsdp: groups that each hold the model once."),
    _choice("--schedule", SCHEDULES, "1f1b", "Of the pipeline."),
    _choice("--offload", OFFLOADS, "none", "What lives in the host's memory, or on disk."),
    _choice("--context", RINGS, "ring", "How context-parallel ranks attend to each other."),
]


def place_options(function: F) -> F:
    return _all(_PLACE, function)


def job_options(function: F) -> F:
    return _all(_JOB, function)


def layout_options(function: F) -> F:
    return _all(_LAYOUT, function)


def _all(options: list[Decorator], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def cluster_of(options: Options, facts: Catalog) -> Cluster:
    cluster = find_cluster(options["place"], facts)
    storage = options["storage"]
    return replace(cluster, storage=facts.storage[storage]) if storage else cluster


def job_of(model: str, options: Options, facts: Catalog) -> Job:
    return Job(model=find_model(facts, model), **_fields(Job, options))


def layout_of(options: Options, cluster: Cluster) -> Layout:
    return Layout(gpus=cluster.gpus, **_fields(Layout, options))


def title_of(job: Job, cluster: Cluster, gpus: str = "") -> str:
    size = gpus or f"{cluster.gpus:,}"
    return (
        f"{job.model.name} on {size} {cluster.accelerator.name}, {job.global_batch:,} x "
        f"{job.seq_len:,} tokens a step, {job.precision}"
    )


def _fields(kind: type, options: Options) -> Options:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in options.items() if name in names}
