"""Options that say what to train and how it is laid out, shared by the commands that take a job.

They are named like the fields of `Job` and `Layout`, so a command hands them on as they come. With
`--from` a framework's file says the rest: what stands on the command line goes before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from computeflow.catalog import Catalog, find_model
from computeflow.catalog.files import read_text
from computeflow.cluster import Cluster, find_cluster
from computeflow.errors import InputError, UnknownNameError
from computeflow.prediction.stack import Stack, find_stack
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

if TYPE_CHECKING:
    from computeflow.planning.exports.model import Reading

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
    click.option("--global-batch", type=int, help="Sequences in a step."),
    click.option("--seq-len", type=int, help="Tokens in a sequence."),
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


def from_option(function: F) -> F:
    return click.option(
        "--from", "source", type=click.Path(path_type=Path), metavar="FILE",
        help="A framework's configuration: its job and layout, under what is said here.",
    )(format_option(function))  # fmt: skip


def format_option(function: F) -> F:
    return click.option(
        "--format", "format_name", metavar="NAME", callback=_known,
        help="The framework of the file, where its content leaves that open (torchtitan).",
    )(function)  # fmt: skip


def _known(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    if name is not None:
        from computeflow.planning.exports.frameworks import FRAMEWORKS

        if name not in FRAMEWORKS:
            raise UnknownNameError("format", name, FRAMEWORKS)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command line, and the file it names, ask for."""

    job: Job
    layout: Layout | None
    """None where the command takes none and no file states one."""
    stack: Stack | None
    """None where neither names one."""
    reading: Reading | None = None


def asked(
    model: str | None, source: Path | None, stack: str | None, options: Options,
    cluster: Cluster, facts: Catalog,
) -> Asked:  # fmt: skip
    """Of options alone, or of a configuration and the options that were given with it."""
    if options.get("training", "full") == "full" and _given(["lora_rank"]):
        raise InputError("--lora-rank goes with --training lora or qlora")
    if source is not None:
        return _from_file(model, source, stack, cluster, facts, options["format_name"])
    if options.get("format_name") is not None:
        raise InputError("--format goes with --from FILE")
    needed = {"MODEL": model, "--global-batch": options.get("global_batch"),
              "--seq-len": options.get("seq_len")}  # fmt: skip
    if missing := [name for name, value in needed.items() if value is None]:
        raise click.UsageError(f"missing {' and '.join(missing)}; or --from FILE")
    assert model is not None
    sizes = _fields(Layout, options)
    return Asked(
        job=Job(model=find_model(facts, model), **_fields(Job, options)),
        layout=Layout(gpus=cluster.gpus, **sizes) if sizes else None,
        stack=find_stack(stack) if stack else None,
    )


def _from_file(
    model: str | None, source: Path, stack: str | None, cluster: Cluster, facts: Catalog,
    format_name: str | None,
) -> Asked:  # fmt: skip
    from computeflow.planning.exports.reading import read_file, setup_of

    reading = read_file(read_text(source), str(source), format_name)
    given = _given([field.name for kind in (Job, Layout) for field in fields(kind)])
    given |= {name: value for name, value in (("model", model), ("stack", stack)) if value}
    setup = setup_of(reading, cluster, given, facts)
    return Asked(job=setup.job, layout=setup.layout, stack=setup.stack, reading=reading)


def _given(names: list[str]) -> Options:
    """Of these options, the ones that stand on the command line."""
    context = click.get_current_context()
    said = click.core.ParameterSource.COMMANDLINE
    return {
        name: context.params[name]
        for name in names
        if name in context.params and context.get_parameter_source(name) is said
    }


def title_of(job: Job, cluster: Cluster, gpus: str = "") -> str:
    size = gpus or f"{cluster.gpus:,}"
    return (
        f"{job.model.name} on {size} {cluster.accelerator.name}, {job.global_batch:,} x "
        f"{job.seq_len:,} tokens a step, {job.precision}"
    )


def _fields(kind: type, options: Options) -> Options:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in options.items() if name in names}
