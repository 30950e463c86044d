"""Published, measured runs as cases: what was run, and how long a step took.

A row of the table (columns as in `cases.csv`) becomes a job, a cluster, a layout and a stack; what
cannot be used says why. What a row leaves out is taken from the catalog or from the stack's usual
practice, and counted as missing, which widens the range.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import get_args

from computeflow.catalog import Catalog
from computeflow.cluster import Cluster
from computeflow.cluster.machine import usual_cluster
from computeflow.errors import ComputeFlowError, InputError
from computeflow.files.limits import NAME_CHARACTERS
from computeflow.files.parsing import parse_csv
from computeflow.files.reading import read_text
from computeflow.prediction.evidence.seen_runs import range_kind
from computeflow.prediction.memory import HEADROOM, memory
from computeflow.prediction.run_model import run_model
from computeflow.prediction.run_sharding import run_sharding
from computeflow.prediction.run_training import run_training
from computeflow.prediction.run_words import (
    run_context,
    run_offload,
    run_precision,
    run_recompute,
    run_schedule,
    run_stack,
)
from computeflow.prediction.stack import Stack
from computeflow.prediction.step_inputs import LOW_PRECISIONS, PEAKS, StepInputs, of_job, stack_rows
from computeflow.prediction.table_cells import Row, number, whole, words
from computeflow.workload import Job, Layout, Layouts, check_layout, flops_per_token
from computeflow.workload.layout import Offload, Recompute, refusals

PACKAGED = Path(__file__).with_name("cases.csv")
TABLES = (
    PACKAGED,
    *(Path(__file__).with_name(f"{name}.csv") for name in ("cases_2", "found_runs")),
)
"""Packaged tables: two of the public data folder, and what was found since (docs/accuracy.md)."""
_CONTEXT = re.compile(r"\b(?:cp|sp|ulysses|ring)\s*=\s*(\d+)")
_LINK = re.compile(r"(?:(\d{1,3})x[^,;]{0,60}?)?(?<!\d)(\d{1,5}) ?Gb/s", re.IGNORECASE)
_FEW_BUBBLES = 4
"""Micro-batches per stage from which a pipeline's bubble is small (arXiv:1811.06965, section 2.3)."""


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
    framework: str = ""
    """The software as the source calls it."""
    clear: bool = True
    """Whether what was run and measured is beyond doubt: no chart reading, no missing setting."""


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


def case_of(row: Row, catalog: Catalog) -> MeasuredRun:
    if unsaid := [name for name in ("seq_len", "num_gpus") if not row.get(name)]:
        raise InputError(f"not stated: {', '.join(unsaid)}")
    stack, stack_known = run_stack(row)
    cluster, network_missing = _cluster(row, catalog)
    model, missing = run_model(row, catalog)
    job = Job(
        model=model,
        global_batch=_global_batch(row),
        seq_len=whole(row, "seq_len"),
        precision=_precision(row, cluster),
        multi_token="mtp=y" in words(row, "flags"),
        **run_training(row),
    )
    layout, assumed = _layout(row, job, cluster, stack)
    check_layout(job, layout)
    missing += assumed if row.get("precision") else (*assumed, "precision")
    if network_missing and layout.gpus > cluster.domain:
        missing += ("network",)
    return MeasuredRun(
        row_id=row.get("row_id", ""),
        source=row.get("source", ""),
        job=job,
        cluster=cluster,
        layout=layout,
        stack=stack,
        measured_seconds=_seconds(row, job),
        missing=missing if stack_known else (*missing, "stack"),
        framework=row.get("framework", ""),
        clear=row.get("core") != "0",
    )


def _precision(row: Row, cluster: Cluster) -> str:
    """As stated; else bf16, or fp16 where the device has no bf16."""
    if not row.get("precision") and "bf16" not in cluster.accelerator.dense_flops:
        return "fp16"
    return run_precision(row.get("precision", ""))


def _tokens_per_second(row: Row) -> float | None:
    """Tokens per second of all devices."""
    for name in ("tokens_per_sec_per_gpu", "d_tokens_per_sec_per_gpu"):
        if row.get(name):
            return number(row, name) * whole(row, "num_gpus")
    return None


def _stated_seconds(row: Row) -> float | None:
    for name in ("d_step_time_s", "step_time_s"):
        if row.get(name):
            return number(row, name)
    return None


def _seconds(row: Row, job: Job) -> float:
    """Time of a step, stated or from the tokens in a second."""
    seconds, rate = _stated_seconds(row), _tokens_per_second(row)
    if seconds is None and rate is None:
        raise InputError("not stated: d_step_time_s, or tokens_per_sec_per_gpu")
    return seconds if seconds is not None else job.step_tokens / (rate or 1.0)


def _global_batch(row: Row) -> int:
    """Sequences in a step: stated, counted from micro-batches, or from time and tokens a second."""
    if row.get("global_batch"):
        return whole(row, "global_batch")
    if row.get("micro_batch") and row.get("grad_accum"):
        return whole(row, "micro_batch") * whole(row, "grad_accum") * _data_ranks(row)
    seconds, rate = _stated_seconds(row), _tokens_per_second(row)
    if seconds is None or rate is None:
        raise InputError("not stated: global_batch, or micro_batch and grad_accum")
    return max(round(seconds * rate / whole(row, "seq_len")), 1)


def _context_ranks(row: Row) -> int:
    """Context-parallel ranks; the flags say them where the column does not."""
    stated = None if row.get("cp") else _CONTEXT.search(words(row, "flags"))
    return whole({"cp": stated[1]}, "cp") if stated else whole(row, "cp")


def _data_ranks(row: Row) -> int:
    group = whole(row, "tp") * whole(row, "pp") * _context_ranks(row)
    return max(whole(row, "num_gpus") // group, 1)


def _layout(row: Row, job: Job, cluster: Cluster, stack: Stack) -> tuple[Layout, tuple[str, ...]]:
    """The layout, and what of it had to be assumed: the first guess that fits in memory."""
    recompute, recompute_stated = run_recompute(row, stack)
    schedule, schedule_known = run_schedule(row)
    plain = Layout(
        gpus=whole(row, "num_gpus"),
        tp=whole(row, "tp"),
        pp=whole(row, "pp"),
        vp=_chunks(row, schedule),
        cp=_context_ranks(row),
        ep=whole(row, "ep"),
        etp=whole(row, "tp") if row.get("moe_experts") and stack.name == "nemo" else 1,
        recompute=recompute,
        schedule=schedule if whole(row, "pp") > 1 else "1f1b",
    )
    cuts = [plain] if _is_cut(row) else _cuts(plain, cluster)
    cuts = [_with_sharding(row, cut, stack, cluster) for cut in cuts]
    guesses = [
        replace(cut, micro_batch=micro_batch, recompute=again, offload=offload)
        for cut in cuts
        for again, offload in itertools.product(
            _recomputes(row, recompute, stated=recompute_stated),
            _offloads(row, cut),
        )
        for micro_batch in _micro_batches(row, job, cut)
    ]
    unstated = {
        "recompute": not recompute_stated,
        "micro_batch": any(len(_micro_batches(row, job, cut)) > 1 for cut in cuts),
        "layout": not _is_cut(row),
        "schedule": not schedule_known,
    }
    assumed = tuple(name for name, unsaid in unstated.items() if unsaid)
    return _first_that_fits(job, cluster, stack, guesses), assumed


def _chunks(row: Row, schedule: str) -> int:
    """Model chunks on a stage; an interleaved schedule that does not say has two."""
    if schedule != "1f1b":
        return 1
    interleaved = "interleaved" in words(row, "flags") and whole(row, "pp") > 1
    return whole(row, "vp", 2 if interleaved else 1)


def _recomputes(row: Row, recompute: Recompute, *, stated: bool) -> list[Recompute]:
    """Recomputations that a run may have: memory decides where it decides the micro-batch too."""
    if stated or row.get("micro_batch"):
        return [recompute]
    every: tuple[Recompute, ...] = get_args(Recompute)
    return list(every[every.index(recompute) :])


def _is_cut(row: Row) -> bool:
    """Whether a row says how its model is cut, or needs not."""
    return any(row.get(name) for name in ("tp", "pp", "dp")) or whole(row, "num_gpus") == 1


def _cuts(plain: Layout, cluster: Cluster) -> list[Layout]:
    """Tensor parallelism inside a node, then a pipeline over nodes: the least first."""
    degrees = [2**i for i in range(10)]
    inside = [tp for tp in degrees if tp <= min(cluster.domain, 8)]
    cuts = [replace(plain, tp=tp) for tp in inside]
    cuts += [replace(plain, tp=inside[-1], pp=pp) for pp in degrees[1:]]
    return [cut for cut in cuts if plain.gpus % (cut.tp * cut.pp * cut.cp) == 0]


def _with_sharding(row: Row, cut: Layout, stack: Stack, cluster: Cluster) -> Layout:
    dp = max(cut.gpus // (cut.tp * cut.pp * cut.cp), 1)
    in_node = max(whole(row, "gpus_per_node", cluster.domain) // cut.tp, 1)
    sharding, replicas = run_sharding(row, stack, dp * cut.cp, in_node)
    replicas = replicas if dp % replicas == 0 else 1
    context = run_context(row) if cut.cp > 1 else "ring"
    return replace(cut, sharding=sharding, replicas=replicas, context=context)


def _offloads(row: Row, cut: Layout) -> list[Offload]:
    """What may lie on the host: as stated, or only where it must."""
    sharded = cut.sharding in ("fsdp", "zero3", "hsdp")
    offload, certain = run_offload(row, sharded=sharded)
    return [offload] if certain else ["none", offload]


def _micro_batches(row: Row, job: Job, cut: Layout) -> list[int]:
    """The micro-batch that a row states, or all that divide its batch: the largest first; where none
    fills a pipeline well, the smallest.
    """
    ranks = max(cut.gpus // (cut.tp * cut.pp * cut.cp), 1)
    if row.get("micro_batch"):
        return [whole(row, "micro_batch")]
    share = job.global_batch // ranks
    if row.get("grad_accum") and share % whole(row, "grad_accum") == 0:
        return [max(share // whole(row, "grad_accum"), 1)]
    sizes = [size for size in range(min(share, _MAX_MICRO_BATCH), 0, -1) if share % size == 0]
    few = _FEW_BUBBLES * cut.pp if cut.pp > 1 else 1
    fills = [size for size in sizes if share // size >= few]
    return fills + [size for size in sizes[::-1] if size not in fills] or [1]


_MAX_MICRO_BATCH = 512
"""Largest micro-batch that is tried; above, nothing gets faster."""


def _first_that_fits(job: Job, cluster: Cluster, stack: Stack, guesses: list[Layout]) -> Layout:
    """The first possible layout that fits in memory; if none does, the one that needs the least."""
    if len(guesses) == 1:
        return guesses[0]
    layouts = Layouts.of(guesses)
    possible = sum(refusals(job, layouts).values(), start=layouts.gpus == 0) == 0
    if not possible.any():
        return guesses[-1]
    rows = possible.nonzero()[0]
    needed = memory(of_job(job, cluster, layouts.where(rows), stack)).bytes
    fits = needed <= HEADROOM * cluster.accelerator.hbm_bytes
    return guesses[int(rows[fits.argmax() if fits.any() else needed.argmin()])]


def step_inputs_of(cases: Sequence[MeasuredRun]) -> StepInputs:
    return stack_rows([of_job(c.job, c.cluster, Layouts.of([c.layout]), c.stack) for c in cases])


def _cluster(row: Row, catalog: Catalog) -> tuple[Cluster, bool]:
    """The cluster, and whether its network had to be assumed."""
    gpus = whole(row, "num_gpus")
    name = row.get("gpu", "")
    usual = usual_cluster(name, gpus, catalog)
    per_node = whole(row, "gpus_per_node", usual.domain)
    speed = _network_speed(row, per_node)
    return usual_cluster(
        name, gpus, catalog, node_devices=per_node, nic_bytes_per_second=speed
    ), speed is None


def _network_speed(row: Row, per_node: int) -> float | None:
    """Bytes a second of one device over the network, where its links are stated."""
    text = words(row, "inter_node_link")[:NAME_CHARACTERS]
    match = _LINK.search(text[max(text.find("compute:"), 0) :])
    if match is None or not (match[1] or re.search(r"per (?:node|vm|host|gpu)", text)):
        return None
    bytes_per_second = int(match[1] or 1) * int(match[2]) * 1e9 / 8
    return bytes_per_second if "per gpu" in text else bytes_per_second / per_node


def best_mfu(cases: Sequence[MeasuredRun], accelerator: str, job: Job) -> float | None:
    """Highest MFU of the device's runs that are like the job; None without any.

    Alike: in kind (experts, low-rank, long context) and in how low the precision is. What experts
    reach says nothing of a dense model.
    """

    def traits(task: Job) -> tuple[str, bool]:
        return range_kind(task), task.precision in LOW_PRECISIONS

    mfus = [
        _mfu(case)
        for case in cases
        if case.clear
        and case.cluster.accelerator.name == accelerator
        and traits(case.job) == traits(job)
    ]
    return max(mfus, default=None)


@lru_cache(maxsize=64)
def device_cases(accelerator: str, catalog: Catalog) -> tuple[MeasuredRun, ...]:
    """Cases of one device in all packaged tables."""
    rows = (row for table in TABLES for _, row in parse_csv(read_text(table), table.name))
    cases = []
    for row in rows:
        with suppress(ComputeFlowError):  # a row that is no case says why in `read_cases`
            if catalog.accelerators[row.get("gpu", "")].name == accelerator:
                cases.append(case_of(row, catalog))
    return tuple(cases)


def _mfu(case: MeasuredRun) -> float:
    job, device = case.job, case.cluster.accelerator
    flops = flops_per_token(job.model, job.seq_len, prediction=job.multi_token).total
    peak = device.peak_flops(PEAKS.get(job.precision, job.precision))
    return job.step_tokens * flops / (case.measured_seconds * case.layout.gpus * peak)
