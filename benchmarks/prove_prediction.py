"""Accuracy of the predictor, written to docs/accuracy.md. Reads the public data folder where it is.

Nothing is fitted for the main table. Below it: what fitting would change (left-out sources), what each
term is worth, our own H200 rows, memory, speed.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import memory_report
from computeflow.catalog import load_catalog
from computeflow.cluster import Cluster, find_cluster
from computeflow.cluster.machine import usual_cluster
from computeflow.prediction import Parameters, find_stack, load_parameters, predict
from computeflow.prediction.calibration import load_calibration
from computeflow.prediction.published_runs import (
    PACKAGED,
    MeasuredRun,
    case_of,
    read_cases,
    step_inputs_of,
)
from computeflow.prediction.ranges import KNOWN, UNKNOWN, range_kind
from computeflow.prediction.stack import DEFAULT
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import GENERATIONS, USUAL_CEILING, StepInputs, of_job
from computeflow.prediction.validation import few_shot, regret, without_stall
from computeflow.prediction.validation.error_summary import (
    ErrorSummary,
    leave_one_source_out,
    summarise,
    validate,
)
from computeflow.prediction.validation.fitting import log_errors
from computeflow.views.prose import wrap_prose
from computeflow.workload import Job, Layout, Layouts

Relative = NDArray[np.float64]
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
FACTS = load_catalog()
HEADER = [
    "| runs | n | MAPE | median | bias | p90 | in 80 % range |",
    "|---|---|---|---|---|---|---|",
]
TERMS = {
    "host launch time": ["host_forward"],
    "traffic of the loss": ["logit_bytes"],
    "elementwise traffic": ["elementwise_bytes"],
    "sequence ramp of attention": ["attention_ramp_forward", "attention_ramp_backward"],
    "shape ramps of matmuls": ["depth_half", "output_half"],
    "power cap": ["power_exponent"],
    "immaturity of new hardware": ["immaturity"],
    "latency of collectives": ["tp_latency", "dp_latency"],
    "overlap of tensor parallelism": ["tp_hidden"],
    "overlap of gradient traffic": ["dp_hidden"],
    "interference of sharding": ["shard_interference"],
    "pipeline transfers": ["p2p_exposed"],
    "optimizer": ["optimizer_bytes"],
    "jitter": ["jitter"],
    "softmax of unfused attention": ["softmax_bytes"],
    "slower hosts of A100 nodes": ["host_ampere"],
}
"""Parameters that vanish (overheads) or become one (relations)."""
RELATIONS = ("host_ampere",)
PARTS: dict[str, Callable[[StepInputs], StepInputs]] = {
    "links inside a node": lambda b: replace(
        b,
        tier_bytes_per_second=np.column_stack(
            [np.full(len(b), np.inf), b.tier_bytes_per_second[:, 1:]]
        ),
    ),
    "network": lambda b: replace(
        b,
        tier_bytes_per_second=np.column_stack(
            [b.tier_bytes_per_second[:, :1], np.full((len(b), 3), np.inf)]
        ),
    ),
    "recomputation": lambda b: replace(
        b, recompute_full=np.zeros(len(b)), recompute_selective=np.zeros(len(b))
    ),
    "head and loss": lambda b: replace(b, vocab=np.full(len(b), 1.0)),
    "sums of gradients in fp32": lambda b: replace(b, half_grad_bytes=np.zeros(len(b))),
}


def line(name: str, e: ErrorSummary) -> str:
    return (
        f"| {name} | {e.n} | {100 * e.mape:.1f} % | {100 * e.median_ape:.1f} % | "
        f"{100 * e.bias:+.1f} % | {100 * e.p90_ape:.0f} % | {100 * e.in_range:.0f} % |"
    )


def published() -> tuple[list[MeasuredRun], dict[str, str]]:
    return read_cases(PACKAGED.read_text(), FACTS)


def h200_rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "benchmarks" / "data" / "h200" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def h200(name: str) -> list[MeasuredRun]:
    return [case_of(row, FACTS) for row in h200_rows(name)]


def without(parameters: Parameters, names: list[str]) -> Parameters:
    return parameters.replaced({name: 1.0 if name in RELATIONS else 1e-12 for name in names})


def ablations(cases: list[MeasuredRun], parameters: Parameters) -> list[str]:
    sets = {"published": cases, "own H200": h200("steps")}
    if small := [c for c in shared_cases("throughput_single_node.csv.gz") if _even(c)]:
        sets["small single-node"] = small
        sets["layout sweep"] = without_stall(shared_cases("throughput_layout_sweep.csv.gz"))
    batches = {name: step_inputs_of(some) for name, some in sets.items()}

    def mapes(
        p: Parameters, changed: Callable[[StepInputs], StepInputs] = lambda b: b
    ) -> list[float]:
        return [
            summarise(log_errors(some, changed(batches[n]), p)).mape for n, some in sets.items()
        ]

    base = mapes(parameters)
    variants = {term: mapes(without(parameters, names)) for term, names in TERMS.items()}
    variants |= {term: mapes(parameters, changed) for term, changed in PARTS.items()}
    rows = []
    for term, errors in variants.items():
        cells = " | ".join(
            f"{100 * m:.1f} % ({100 * (m - b):+.1f})" for m, b in zip(errors, base, strict=True)
        )
        worth = max(m - b for m, b in zip(errors, base, strict=True))
        rows.append((worth, f"| {term} | {cells} |"))
    heads = " | ".join(sets)
    return [
        f"| without | {heads} |",
        "|---" * (1 + len(sets)) + "|",
        *(text for _, text in sorted(rows, key=lambda row: -row[0])),
    ]


def watt_errors(name: str, parameters: Parameters) -> Relative:
    """Errors of mean power on the H200."""
    measured = {row["row_id"]: float(row["watts"]) for row in h200_rows(name)}
    return np.array(
        [
            (predict(c.job, c.cluster, c.layout, c.stack, parameters).watts_per_gpu or np.nan)
            / measured[c.row_id]
            - 1
            for c in h200(name)
        ]
    )


def hidden_knowledge(cases: list[MeasuredRun], parameters: Parameters) -> list[str]:
    """The range that 80 % of the runs need when one thing about them is unknown."""
    today = find_stack(DEFAULT)
    networked = [
        c for c in cases if "network" not in c.missing and c.layout.gpus > c.cluster.domain
    ]
    variants = {
        "nothing": cases,
        "stack": [replace(c, stack=today) for c in cases],
        "network": [replace(c, cluster=_usual_network(c)) for c in networked],
        "hardware": cases,
    }
    lines = ["| unknown | n | 80 % of measured / predicted | stated |", "|---|---|---|---|"]
    for name, some in variants.items():
        batch = step_inputs_of(some)
        if name == "hardware":
            other = np.full(len(batch), float(GENERATIONS.index("other")))
            ceiling = USUAL_CEILING["other"] * batch.peak_bf16
            batch = replace(batch, generation=other, matmul_ceiling=ceiling)
        low, high = np.exp(np.percentile(-log_errors(some, batch, parameters), [10, 90]))
        stated = KNOWN["dense"] if name == "nothing" else UNKNOWN[name]
        lines.append(
            f"| {name} | {len(some)} | {low:.2f} to {high:.2f} | {stated[0]} to {stated[1]} |"
        )
    return lines


def _usual_network(case: MeasuredRun) -> Cluster:
    name = case.cluster.accelerator.name
    return usual_cluster(name, case.cluster.gpus, FACTS, node_devices=case.cluster.domain)


def ranges_by_kind(cases: list[MeasuredRun], parameters: Parameters) -> list[str]:
    """Ratios by kind of run, and how a range set on the other sources holds the one left out."""
    ratios = -log_errors(cases, step_inputs_of(cases), parameters)
    sources = np.array([case.source for case in cases])
    kinds = np.array([range_kind(case.job) for case in cases])
    lines = [
        "| kind | n | 8th to 92nd percentile | stated | inside | sources | left out: inside | width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, (said_low, said_high) in KNOWN.items():
        here = kinds == kind
        seen = np.exp(ratios[here])
        low, high = np.percentile(seen, PERCENTILES)
        held = ((seen >= said_low) & (seen <= said_high)).mean()
        inside, widths = [], []
        for source in np.unique(sources[here]):
            others, own = here & (sources != source), here & (sources == source)
            if others.sum() >= ENOUGH:
                ends = np.percentile(ratios[others], PERCENTILES)
                inside += ((ratios[own] >= ends[0]) & (ratios[own] <= ends[1])).tolist()
                widths += [float(np.exp(ends[1] - ends[0]))] * int(own.sum())
        left_out = (
            f"{100 * np.mean(inside):.0f} % of {len(inside)}" if inside else "one source only"
        )
        width = f"{np.median(widths):.2f}" if widths else "-"
        lines.append(
            f"| {kind} | {here.sum()} | {low:.2f} to {high:.2f} | {said_low} to {said_high} | "
            f"{100 * held:.0f} % | {len(np.unique(sources[here]))} | {left_out} | {width} |"
        )
    return lines


def few_shot_lines(cases: list[MeasuredRun], parameters: Parameters) -> list[str]:
    lines = ["| own rows | MAPE | median | in 80 % range | width |", "|---|---|---|---|---|"]
    for result in few_shot(cases, parameters):
        lines.append(
            f"| {result.rows} | {100 * result.mape:.1f} % | {100 * result.median_ape:.1f} % | "
            f"{100 * result.in_range:.0f} % | {1 + result.width:.2f} |"
        )
    return lines


def choice_lines(cases: list[MeasuredRun], parameters: Parameters) -> list[str]:
    """Regret of the predictor's choice of layouts."""
    lines = [
        "| layouts | groups | n | first choice | best of three | best of five | worst first choice |",
        "|---|---|---|---|---|---|---|",
    ]
    grids = {"vTrain grids": [case for case in cases if case.source == "vtrain-multi"]}
    sweep = shared_cases("throughput_layout_sweep.csv.gz")
    if sweep:
        grids["layout sweep, all rows"] = sweep
        for factor in (1.5, 2.0, 3.0):
            grids[f"layout sweep, at most {factor:g} times the best"] = without_stall(sweep, factor)
    for name, some in grids.items():
        result = regret(some, account_step(step_inputs_of(some), parameters).seconds)
        lines.append(
            f"| {name} | {result.groups} | {result.layouts} | {100 * result.first:.1f} % | "
            f"{100 * result.best_of_three:.1f} % | {100 * result.best_of_five:.1f} % | "
            f"{100 * result.worst_first:.0f} % |"
        )
    return lines


def layouts_per_second(parameters: Parameters) -> float:
    job = Job(model=FACTS.models["llama-3.1-70b"], global_batch=1024, seq_len=8192)
    layouts = Layouts.of([Layout(gpus=512, tp=4, pp=4)] * 20_000)
    cluster, stack = find_cluster("h100-sxm:512", FACTS), find_stack("megatron")
    began = time.process_time()
    account_step(of_job(job, cluster, layouts, stack), parameters)
    return len(layouts) / (time.process_time() - began)


def shared_cases(name: str) -> list[MeasuredRun]:
    path = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data")) / name
    if not path.is_file():
        return []
    return read_cases(gzip.decompress(path.read_bytes()).decode(), FACTS)[0]


def single_node(parameters: Parameters) -> list[str]:
    cases = shared_cases("throughput_single_node.csv.gz")
    halves = {
        "small single-node runs, half that was looked at": [c for c in cases if _even(c)],
        "small single-node runs, the other half": [c for c in cases if not _even(c)],
    }
    return [
        line(name, validate(some, {}, parameters).summary) for name, some in halves.items() if some
    ]


def _even(case: MeasuredRun) -> bool:
    return int(case.row_id) % 2 == 0


def own_lines(parameters: Parameters) -> list[str]:
    """The H200's steps: as they are, and with the probe's calibration."""
    path = ROOT / "benchmarks" / "data" / "h200" / "calibration.json"
    calibration = load_calibration(path, FACTS)
    usual, fresh = h200("steps"), h200("fresh")
    held = {row["row_id"] for row in h200_rows("steps") if row["held_out"] == "1"}
    groups = {
        "fresh": fresh,
        "held out": [case for case in usual if case.row_id in held],
        "others": [case for case in usual if case.row_id not in held],
    }
    lines = []
    for name, some in groups.items():
        for kernels in ("compiled", "eager"):
            cases = [
                c for c in some if c.stack.kernels == kernels and c.stack.attention != "unfused"
            ]
            lines.append(line(f"{name}, {kernels}", validate(cases, {}, parameters).summary))
            lines.append(
                line(
                    f"{name}, {kernels}, probe's calibration",
                    validate(cases, {}, parameters, calibration).summary,
                )
            )
    return lines


def share(errors: Relative) -> str:
    size = np.abs(errors)
    return f"MAPE {100 * np.nanmean(size):.1f} %, worst {100 * np.nanmax(size):.0f} %"


def page() -> str:
    parameters = load_parameters()
    cases, skipped = published()
    result = validate(cases, skipped, parameters)
    left_out = summarise(leave_one_source_out(cases, parameters))
    dense = [case for case in cases if range_kind(case.job) != "experts"]
    reasons = "; ".join(dict.fromkeys(skipped.values()))
    parts = [
        OPENING,
        *HEADER,
        line("**all published runs**", result.summary),
        *(line(kind, errors) for kind, errors in result.by_kind.items()),
        *(line(source, errors) for source, errors in result.by_source.items()),
        *single_node(parameters),
        "",
        f"Predicted: {len(result.rows)} of {len(result.rows) + len(skipped)} rows with shapes, layout "
        f"and step time. Not predicted: {reasons}.",
        "",
        "## What fitting would change",
        "",
        "All parameters fitted to the published runs, each source predicted by a fit that never saw "
        f"it: MAPE {100 * left_out.mape:.1f} %, median {100 * left_out.median_ape:.1f} %, bias "
        f"{100 * left_out.bias:+.1f} %. That is worse than not fitting, so nothing is fitted.",
        "",
        FEW_SHOT,
        *few_shot_lines(dense, parameters),
        "",
        RANGES,
        *ranges_by_kind(cases, parameters),
        "",
        "Hiding what is known, over the runs without experts, the middle 80 %:",
        "",
        *hidden_knowledge(dense, parameters),
        "",
        CHOICE,
        *choice_lines(cases, parameters),
        "",
        H200,
        *HEADER,
        *own_lines(parameters),
        "",
        f"Mean power, fresh runs: {share(watt_errors('fresh', parameters))}; earlier runs (its busy "
        f"share was read off them): {share(watt_errors('steps', parameters))}.",
        "",
        MEMORY,
        memory_report.markdown(memory_report.memory_errors(memory_report.all_rows())),
        "",
        "## What each term is worth",
        "",
        "MAPE with the term taken out, and how many points that is worse: over the published runs, "
        "our H200's (all earlier ones), the small single-node runs (the half that was looked at) and "
        "the layout sweep without its stalls. A term stays that pays in one of them.",
        "",
        *ablations(cases, parameters),
        "",
        "## Speed",
        "",
        f"{layouts_per_second(parameters):,.0f} layouts per CPU-second in one call.",
        "",
        CLOSING,
    ]
    return "\n".join(parts)


OPENING = """# Accuracy

This page says how far predictions of step time, memory and power are from measurements. Read it
before you rely on one. Errors are predicted over measured step time. Made by `make proofs`
(`benchmarks/prove_prediction.py`).

## On runs it had never seen

822 published runs that were in none of the predictor's files, judged outside of this repository:

| runs | n | answered | error | in 80 % range |
|---|---|---|---|---|
| new runs of sources that it knew | 288 | 100 % | mean 11.8 % | 72 % |
| sources it had never seen | 534 | 58 % | median 22 to 25 % | 32 to 39 % |
| of these, dense pre-training | | | mean 20 %, median 13 % | |

The rest was refused: frameworks that are not in its list, rows without a micro-batch. Far off are
LoRA (read as full training), long context, TPUs, new AMD devices, FSDP2 on B200, and gradient
reductions over 1,024 ranks. On a framework, device or kind of training that the tables below do not
have, take a prediction as a rough guide and its range as too narrow. About half of these rows are
in the public data folder: `computeflow validate --cases throughput_2.csv` answers 125 of 260, with
a median error of 30 % and 28 % inside the range.

## On the packaged runs

**Nothing is fitted to the published runs.** The parameters are our own measurements of an H200,
published figures and physics; `src/computeflow/prediction/parameters.toml` says which. So leaving a
source out changes no prediction, and the table is the left-out one too, with exceptions: Trainium's
sustained rate is set on the only source there is, the host time of A100 nodes on half of the
single-node runs, the host time of blocks with experts on runs of one source, and the rates of
rowwise and block-scaled fp8, mxfp8 and nvfp4 come from a prototype's fit to some of these runs. The
stacks' capabilities and some priors were chosen with the residuals of these sources in view: a
development figure, not a blind test. Only the other half of the single-node runs is blind.
"""
FEW_SHOT = """## After a few rows of one's own

`computeflow calibrate` removes a site's common factor. From each source with six or more rows, so
many are drawn, and its other rows are predicted; runs with experts are left out. The shrinkage was
chosen with these rows in view.
"""
RANGES = """## The range

80 % of runs should lie in it. It goes from the 8th to the 92nd percentile of what was measured over
what was predicted, by kind. "Left out" means: set on the other sources of the kind, tested on each
source.
"""
PERCENTILES, ENOUGH = (8, 92), 8
CHOICE = """## Choice of layouts

How much slower than the measured best the predictor's choices are, in the mean over groups (one
model on so many GPUs with one batch). Many rows of the layout sweep carry a stall that no layout
explains. Rows count as free of it when they took, per micro-batch and unit of work, no more than so
many times the GPU-seconds of the best row of their model (`without_stall`): measurements and
arithmetic only, no prediction. Twice is the rule; the others show how much it matters.
"""
H200 = """## Our own H200, single GPU

`fresh` runs were first looked at when the formulas for dense models were settled. They showed one
cause, attention at a head dimension of 80, which is padded, and that was added; nothing else was
changed for them, but they are no longer blind for step time. Their memory and power were not looked
at until the tables below were made. Of the earlier runs, elementwise, host, cast and optimizer
traffic were read off `others`; `held out` were in view. The generic figures come from this kind of
device, so the probe's calibration can add little here.
"""
MEMORY = """## Memory

What each source measures decides what is compared: the allocator's peak, what it reserved, or all
of the device (`benchmarks/memory_report.py`).
"""
CLOSING = """## Where it falls short

- Experts: only Megatron's and NeMo's runs, from two sources; all eleven of GPT-OSS are predicted
  too fast, by 4 to 41 % (attention sinks and a width of 2,880 may be why).
- State-space and compressed-attention models, offload, low-rank training, zero-bubble schedules and
  TPUs have no published rows here: their formulas are tested against relations, not against runs.
- Fitting does not transfer: a fit without a source predicts it worse than the priors do.
- Memory: BLOOM's and nanotron's runs miss 5 %; the sweep does not say how tensor parallelism was
  run; `megatron`, the default stack, has no published memory rows.
- Small single-node runs: their spread is wider than the stated range.
- Power of communication was measured without links, on one device.
- nanotron's runs on 512 GPUs and PaxML's carry delays that nothing in their tables explains;
  BLOOM's tensor parallelism over eight GPUs is slower than predicted, by 13 to 21 % with one or two
  sequences in a micro-batch.
"""


if __name__ == "__main__":
    PAGE.write_text(wrap_prose(page()))
    print(PAGE.read_text())
    sys.exit(0)
