"""A saved answer of `predict` (`-o json`) as the plan it is of; changes are options of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from computeflow.answers.requests import JobOptions
from computeflow.catalog import Catalog
from computeflow.catalog.lookup import find_typed_model
from computeflow.cluster import Cluster
from computeflow.errors import ComputeFlowError, InputError
from computeflow.files.limits import CONFIG_BYTES
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.planning.explain import changed_fields
from computeflow.planning.exports.config_formats import Setup
from computeflow.prediction.stack import find_stack
from computeflow.workload import Job, Layout

SCHEMA = "computeflow.prediction/1"
_FORMATS = {
    "megatron": "megatron", "primus": "megatron", "nemo": "nemo", "torchtitan": "torchtitan",
    "torch": "fsdp2", "huggingface": "trainer", "accelerate": "accelerate",
    "deepspeed": "deepspeed", "jax": "maxtext",
}  # fmt: skip
"""Stacks to the formats whose files say what such a job can do."""


def saved_prediction(path: Path) -> dict[str, Any] | None:
    """The data of a saved prediction; None where the file is something else."""
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > CONFIG_BYTES:
        return None
    text = read_text(path)
    if SCHEMA not in text:
        return None
    try:
        data = parse_json(text, str(path))
    except ComputeFlowError:
        return None
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else None


def format_of_stack(stack: str) -> str:
    if stack not in _FORMATS:
        raise InputError(
            f"a prediction with the stack {stack}: it is not known what can be changed there; "
            f"known are {', '.join(_FORMATS)}"
        )
    return _FORMATS[stack]


def predicted_setup(
    saved: Mapping[str, Any],
    where: str,
    given: Mapping[str, Any],
    cluster: Cluster,
    catalog: Catalog,
) -> Setup:
    """The plan that was predicted, with the caller's values over it."""
    try:
        job, layout = {**saved["job"], **given}, dict(saved["layout"])
        model, gpus, stack = job["model"], layout["gpus"], saved["stack"]
        sizes = {name: job[name] for name in JobOptions.__annotations__}
    except (KeyError, TypeError):
        raise InputError(
            f"{where}: a prediction without its job, of an older release: save it again"
        ) from None
    if gpus != cluster.gpus:
        raise InputError(f"{where}: predicted on {gpus} GPUs, --on names {cluster.gpus}")
    if unknown := layout.keys() - {field.name for field in fields(Layout)}:
        raise InputError(f"{where}: layout.{min(unknown)} is not known")
    return Setup(
        job=Job(model=find_typed_model(catalog, model), **sizes),
        cluster=cluster,
        layout=Layout(**layout),
        stack=find_stack(stack),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """Options of `computeflow predict`, which can say every layout."""

    setup: Setup

    def with_plan(self, before: Setup, after: Setup) -> Self | None:
        return type(self)(setup=after) if before.stack == after.stack else None

    def diff(self, other: Self) -> str:
        before, after = self.setup, other.setup
        changed = dict(changed_fields(before.layout, after.layout))
        if before.job.precision != after.job.precision:
            changed["precision"] = before.job.precision, after.job.precision
        names = {name: name.replace("_", "-") for name in changed}
        old = (f"-    --{names[name]} {value}\n" for name, (value, _) in changed.items())
        new = (f"+    --{names[name]} {value}\n" for name, (_, value) in changed.items())
        return "".join((*old, *new))
