"""Published, measured runs as cases: what was run, and how long a step took.

A row of the table (columns as in `cases.csv`) becomes a job, a cluster, a layout and a stack; what
cannot be used says why. What a row leaves out is taken from the catalog or from the stack's usual
practice, and counted as missing, which widens the range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from computeflow.catalog import Catalog
from computeflow.catalog.models import Attention, Block, Dense, Model
from computeflow.cluster import Cluster
from computeflow.cluster.machine import usual_cluster
from computeflow.errors import ComputeFlowError, InputError
from computeflow.files.limits import NAME_CHARACTERS
from computeflow.files.names import shown
from computeflow.files.parsing import parse_csv
from computeflow.prediction.stack import STACKS, Stack
from computeflow.prediction.step_inputs import LOW_PRECISIONS, PEAKS, StepInputs, of_job, stack_rows
from computeflow.workload import Job, Layout, Layouts, check_layout, flops_per_token
from computeflow.workload.job import MAX_SIZE
from computeflow.workload.layout import Recompute, Sharding

PACKAGED = Path(__file__).with_name("cases.csv")
NEEDED = (
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq_len",
    "micro_batch",
    "global_batch",
    "num_gpus",
    "d_step_time_s",
)
_FRAMEWORKS = (  # first match; the words are the projects' own names
    ("neuron", "neuron"), ("jax", "jax"), ("maxtext", "jax"), ("bridge", "megatron"),
    ("deepspeed", "megatron-deepspeed"), ("nemo", "nemo"), ("megatron-lm", "megatron-2021"),
    ("composer", "composer"), ("torchtitan", "torchtitan"), ("nanotron", "nanotron"),
    ("computeflow.lab", "lab"),
)  # fmt: skip
_LOW = (  # first match
    (("nvfp4",), "nvfp4"), (("rowwise",), "fp8-rowwise"), (("block",), "fp8-block"),
    (("mxfp8", "fp8-mx"), "mxfp8"), (("fp8", "float8"), "fp8"),
)  # fmt: skip
_RECIPES: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (  # all that match, in order
    (("dispatcher=alltoall",), {"dispatcher": "alltoall"}),
    (("dispatcher=deepep", "dispatcher=hybridep"), {"dispatcher": "deduplicating"}),
    (("a2a_overlap=y",), {"ep_overlap": True}),
    (("cuda_graph=attn", "token_drop=y"), {"graphs": "blocks"}),
    (("cuda_graph=full",), {"graphs": "blocks"}),
    (("cuda_graph=full_iteration",), {"graphs": "step"}),
    (("tp_overlap=n",), {"tp_overlap": False}),
    (("asynctp",), {"tp_overlap": True}),
    (("no flash", "attention=unfused"), {"attention": "unfused"}),
    (("sequence-parallel=y",), {"sequence_parallel": True}),
)
_LINK = re.compile(r"(?:(\d{1,3})x)?(?<!\d)(\d{1,5}) Gb/s.*per (node|GPU)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    row_id: str
    source: str
    job: Job
    cluster: Cluster
    layout: Layout
    stack: Stack
    measured_seconds: float
    missing: tuple[str, ...]
    """Inputs that the time depends on and the source does not state."""


def read_cases(
    text: str, catalog: Catalog, where: str = "cases"
) -> tuple[list[MeasuredRun], dict[str, str]]:
    """Cases of a table, and why the other rows are none (row id to reason)."""
    cases, skipped = [], {}
    for line, row in parse_csv(text, where):
        name = row.get("row_id") or f"line {line}"
        try:
            cases.append(case_of(row, catalog))
        except ComputeFlowError as error:
            skipped[name] = str(error)
    return cases, skipped


def case_of(row: Mapping[str, str], catalog: Catalog) -> MeasuredRun:
    if missing := [name for name in NEEDED if not row.get(name)]:
        raise InputError(f"not stated: {', '.join(missing)}")
    stack = _stack(row)
    recompute, recompute_missing = _recompute(row, stack)
    layout = _layout(row, stack, recompute)
    precision = _precision(row.get("precision", ""))
    job = Job(
        model=_model(row, catalog),
        global_batch=_whole(row, "global_batch"),
        seq_len=_whole(row, "seq_len"),
        precision=precision,
        multi_token="mtp=y" in row.get("flags", ""),
    )
    cluster, network_missing = _cluster(row, catalog)
    check_layout(job, layout)
    unstated = {
        "recompute": recompute_missing,
        "network": network_missing and layout.gpus > cluster.domain,
    }
    return MeasuredRun(
        row_id=row.get("row_id", ""),
        source=row.get("source", ""),
        job=job,
        cluster=cluster,
        layout=layout,
        stack=stack,
        measured_seconds=_number(row, "d_step_time_s"),
        missing=tuple(name for name, unsaid in unstated.items() if unsaid),
    )


def step_inputs_of(cases: Sequence[MeasuredRun]) -> StepInputs:
    return stack_rows([of_job(c.job, c.cluster, Layouts.of([c.layout]), c.stack) for c in cases])


def _number(row: Mapping[str, str], name: str, default: float | None = None) -> float:
    text = row.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name} = '{shown(text, 40)}' is not a number") from None
    if not 0 < value < math.inf:
        raise InputError(f"{name} = {shown(text, 40)}: must be above zero and finite")
    return value


def _whole(row: Mapping[str, str], name: str, default: int = 1) -> int:
    value = _number(row, name, default)
    if value != int(value) or value > MAX_SIZE:
        raise InputError(f"{name} = {value:g}: not a whole number up to {MAX_SIZE:,}")
    return int(value)


def _model(row: Mapping[str, str], catalog: Catalog) -> Model:
    """The row's own sizes; what it does not state (head dimension, gating) from the catalog.

    With experts a row says too little of the model, so it must be one that the catalog knows.
    """
    name = row.get("model_name", "")
    known = catalog.models.get(name)
    if row.get("moe_experts"):
        if known is None:
            raise InputError(f"model '{shown(name)}' has experts and is not in the catalog")
        return known
    hidden, heads = _whole(row, "hidden"), _whole(row, "heads")
    usual, dense = (known.blocks[0].attention, known.blocks[0].dense) if known else (None, None)
    dense = dense or Dense(width=4 * hidden, gated=True)
    return Model(
        name=name or "unnamed",
        family=known.family if known else "transformer",
        source=row.get("source_path") or "the row",
        as_of=row.get("year") or "2026",
        hidden=hidden,
        vocab=_whole(row, "vocab"),
        blocks=(
            Block(
                count=_whole(row, "layers"),
                attention=Attention(
                    heads=heads,
                    kv_heads=_whole(row, "kv_heads", heads),
                    head_dim=usual.head_dim if usual and usual.heads == heads else hidden // heads,
                ),
                dense=Dense(width=_whole(row, "ffn_hidden", dense.width), gated=dense.gated),
            ),
        ),
    )


def _stack(row: Mapping[str, str]) -> Stack:
    framework, flags = row.get("framework", "").lower(), row.get("flags", "").lower()
    name = next((stack for word, stack in _FRAMEWORKS if word in framework), None)
    if name is None:
        raise InputError(f"framework '{shown(row.get('framework', ''))}' is unknown")
    changes: dict[str, Any] = {"year": _number(row, "year", STACKS[name].year)}
    changes |= _kernels(name, flags)
    if row.get("precision") == "amp":  # fp32 weights under autocast
        changes |= {"param_bytes": 4.0, "grad_bytes": 4.0, "state_bytes": 8.0}
    if "seqpar" in row.get("recompute", ""):
        changes["sequence_parallel"] = True
    for words, capability in _RECIPES:
        if any(word in flags for word in words):
            changes |= capability
    return replace(STACKS[name], **changes)


def _kernels(name: str, flags: str) -> dict[str, str]:
    if "compile=" in flags:
        compiled = any(f"compile={word}" in flags for word in ("y", "block", "whole"))
        return {"kernels": "compiled" if compiled else "eager"}
    return {"kernels": "eager"} if name == "torchtitan" else {}


def _recompute(row: Mapping[str, str], stack: Stack) -> tuple[Recompute, bool]:
    """The recomputation, and whether it had to be assumed."""
    text = row.get("recompute", "").lower()
    if text.startswith("full"):
        return "full", False
    if text.startswith(("selective", "minimal")):
        return "selective", False
    return ("none", False) if text else (stack.usual_recompute, True)


def _layout(row: Mapping[str, str], stack: Stack, recompute: Recompute) -> Layout:
    text = row.get("zero_fsdp", "").lower()
    sharding: Sharding = "zero1" if stack.name in ("megatron", "nemo") else "ddp"
    if "zero1" in text:
        sharding = "zero1"
    elif "zero2" in text:
        sharding = "zero2"
    elif ("fsdp" in text and text != "fsdp=1") or "fsdp=y" in row.get("flags", ""):
        sharding = "fsdp"
    return Layout(
        gpus=_whole(row, "num_gpus"),
        tp=_whole(row, "tp"),
        pp=_whole(row, "pp"),
        vp=_whole(row, "vp"),
        cp=_whole(row, "cp"),
        ep=_whole(row, "ep"),
        etp=_whole(row, "tp") if row.get("moe_experts") and stack.name == "nemo" else 1,
        micro_batch=_whole(row, "micro_batch"),
        recompute=recompute,
        sharding=sharding,
    )


def _precision(text: str) -> str:
    lowered = text.lower()
    for words, name in _LOW:
        if any(word in lowered for word in words):
            return name
    return lowered if lowered in ("fp32", "tf32", "fp16") else "bf16"


def _cluster(row: Mapping[str, str], catalog: Catalog) -> tuple[Cluster, bool]:
    gpus = _whole(row, "num_gpus")
    name = row.get("gpu", "")
    usual = usual_cluster(name, gpus, catalog)
    per_node = _whole(row, "gpus_per_node", usual.domain)
    match = _LINK.search(row.get("inter_node_link", "")[:NAME_CHARACTERS])
    if match is None:
        return usual_cluster(name, gpus, catalog, node_devices=per_node), True
    count, speed, per = match.groups()
    bytes_per_second = int(count or 1) * int(speed) * 1e9 / 8
    if per.lower() == "node":
        bytes_per_second /= per_node
    return usual_cluster(
        name, gpus, catalog, node_devices=per_node, nic_bytes_per_second=bytes_per_second
    ), False


def best_mfu(cases: Sequence[MeasuredRun], accelerator: str, job: Job) -> float | None:
    """Highest MFU of the device's runs in the job's precision (or as low a one); None without any."""
    low = job.precision in LOW_PRECISIONS
    mfus = [
        _mfu(case)
        for case in cases
        if case.cluster.accelerator.name == accelerator
        and (case.job.precision in LOW_PRECISIONS) == low
    ]
    return max(mfus, default=None)


def _mfu(case: MeasuredRun) -> float:
    job, device = case.job, case.cluster.accelerator
    flops = flops_per_token(job.model, job.seq_len, prediction=job.multi_token).total
    peak = device.peak_flops(PEAKS.get(job.precision, job.precision))
    return job.step_tokens * flops / (case.measured_seconds * case.layout.gpus * peak)
