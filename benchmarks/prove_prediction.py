"""How accurate the predictor is, written to docs/accuracy.md. Reads the public data folder where it is.

Nothing is fitted for the main table. Below it: what fitting would change (left-out sources), what each
term is worth, our own H200 rows, memory, speed.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
import time
from pathlib import Path

import numpy as np

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.prediction import Parameters, find_stack, load_parameters, predict
from computeflow.prediction.batch import of_job
from computeflow.prediction.cases import PACKAGED, Case, read_cases
from computeflow.prediction.fitting import batch_of, log_errors
from computeflow.prediction.memory import memory
from computeflow.prediction.step import account_step
from computeflow.prediction.validation import (
    Errors,
    leave_one_source_out,
    summarise,
    validate,
)
from computeflow.workload import Job, Layout, Layouts

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
}


def line(name: str, e: Errors) -> str:
    return (
        f"| {name} | {e.n} | {100 * e.mape:.1f} % | {100 * e.median_ape:.1f} % | "
        f"{100 * e.bias:+.1f} % | {100 * e.p90_ape:.0f} % | {100 * e.in_range:.0f} % |"
    )


def published() -> tuple[list[Case], dict[str, str]]:
    return read_cases(PACKAGED.read_text(), FACTS)


def own() -> list[Case]:
    text = (ROOT / "benchmarks" / "data" / "h200" / "steps.csv").read_text()
    return read_cases(text, FACTS)[0]


def held_out() -> set[str]:
    path = ROOT / "benchmarks" / "data" / "h200" / "steps.csv"
    return {row["row_id"] for row in csv.DictReader(path.open()) if row["held_out"] == "1"}


def without(parameters: Parameters, names: list[str]) -> Parameters:
    gone = np.isin(parameters.names, names)
    return parameters.with_values(np.where(gone, 1e-12, parameters.values))


def ablations(cases: list[Case], parameters: Parameters) -> list[str]:
    batch = batch_of(cases)
    base = summarise(log_errors(cases, batch, parameters)).mape
    rows = []
    for term, names in TERMS.items():
        mape = summarise(log_errors(cases, batch, without(parameters, names))).mape
        rows.append((mape - base, f"| {term} | {100 * mape:.1f} % | {100 * (mape - base):+.1f} |"))
    return [text for _, text in sorted(rows, key=lambda row: -row[0])]


def memory_errors() -> list[float]:
    """Of allocated memory on the H200, which does not see the overhead."""
    path = ROOT / "benchmarks" / "data" / "h200" / "steps.csv"
    measured = {row["row_id"]: 1e9 * float(row["memory_gb"]) for row in csv.DictReader(path.open())}
    errors = []
    for case in own():
        batch = of_job(case.job, case.cluster, Layouts.of([case.layout]), case.stack)
        held = memory(batch).by_owner
        total = float(sum(v[0] for name, v in held.items() if name != "overhead"))
        errors.append(abs(total / measured[case.row_id] - 1))
    return errors


def watt_errors(parameters: Parameters) -> list[float]:
    """Of mean power on the H200, from the predicted share of the step with kernels running."""
    path = ROOT / "benchmarks" / "data" / "h200" / "steps.csv"
    measured = {row["row_id"]: float(row["watts"]) for row in csv.DictReader(path.open())}
    errors = []
    for case in own():
        found = predict(case.job, case.cluster, case.layout, case.stack, parameters)
        if found.watts_per_gpu is not None:
            errors.append(abs(found.watts_per_gpu / measured[case.row_id] - 1))
    return errors


def layouts_per_second(parameters: Parameters) -> float:
    job = Job(model=FACTS.models["llama-3.1-70b"], global_batch=1024, seq_len=8192)
    layouts = Layouts.of([Layout(gpus=512, tp=4, pp=4)] * 20_000)
    cluster, stack = find_cluster("h100-sxm:512", FACTS), find_stack("megatron")
    began = time.process_time()
    account_step(of_job(job, cluster, layouts, stack), parameters)
    return len(layouts) / (time.process_time() - began)


def single_node(parameters: Parameters) -> list[str]:
    path = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data"))
    path = path / "throughput_single_node.csv.gz"
    if not path.is_file():
        return []
    cases, _ = read_cases(gzip.decompress(path.read_bytes()).decode(), FACTS)
    return [line("small single-node runs (vTrain, 1 to 8 A100)",
                 validate(cases, {}, parameters).summary)]  # fmt: skip


def page() -> str:
    parameters = load_parameters()
    cases, skipped = published()
    result = validate(cases, skipped, parameters)
    left_out = summarise(leave_one_source_out(cases, parameters))
    mine = [case for case in own() if case.stack.attention != "unfused"]
    fresh = [case for case in mine if case.row_id in held_out()]
    held, watts = memory_errors(), watt_errors(parameters)
    groups = {
        "compiled": [c for c in mine if c.stack.kernels == "compiled"],
        "eager": [c for c in mine if c.stack.kernels == "eager"],
        "held out, compiled": [c for c in fresh if c.stack.kernels == "compiled"],
        "held out, eager": [c for c in fresh if c.stack.kernels == "eager"],
    }
    parts = [
        OPENING,
        *HEADER,
        line("**all published dense runs**", result.summary),
        *(line(kind, errors) for kind, errors in result.by_kind.items()),
        *(line(source, errors) for source, errors in result.by_source.items()),
        *single_node(parameters),
        "",
        f"Predicted: {len(result.rows)} of {len(result.rows) + len(skipped)} rows with shapes, layout "
        f"and step time. Not predicted: {'; '.join(dict.fromkeys(skipped.values()))}.",
        "",
        "## What fitting would change",
        "",
        "All parameters fitted to the published runs, each source predicted by a fit that never saw "
        f"it: MAPE {100 * left_out.mape:.1f} %, median {100 * left_out.median_ape:.1f} %, bias "
        f"{100 * left_out.bias:+.1f} %. That is worse than not fitting, so nothing is fitted.",
        "",
        "## Our own H200, single GPU",
        "",
        "Matmul and attention figures come from the probe. Elementwise, host, cast and optimizer "
        "traffic were read off some of the runs below. The held-out runs were not used for that, "
        "though they were in view.",
        "",
        *HEADER,
        *(line(name, validate(some, {}, parameters).summary) for name, some in groups.items()),
        "",
        f"Allocated memory of the same runs: MAPE {100 * float(np.mean(held)):.1f} %, worst "
        f"{100 * max(held):.0f} %. Mean power: MAPE {100 * float(np.mean(watts)):.1f} %, worst "
        f"{100 * max(watts):.0f} %, over {len(watts)} runs "
        "(its two constants were read off them).",
        "",
        "## What each term is worth",
        "",
        "MAPE over the published runs with the term taken out.",
        "",
        "| without | MAPE | change, points |",
        "|---|---|---|",
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

Made by `make proofs` (`benchmarks/prove_prediction.py`). Errors are predicted over measured step
time.

**Nothing is fitted to these runs.** The parameters are our own measurements of an H200, published
figures and physics; `src/computeflow/prediction/parameters.toml` says which. One exception:
Trainium's sustained rate is set on the only source there is. The stacks' capabilities and some
priors were chosen with the residuals of these sources in view, so the table is a development
figure, not a blind test. The residuals of the small single-node runs were
not looked at: that row is blind. The 80 % range was set on the published rows.
"""
CLOSING = """## Where it falls short

- Dense transformers only: no experts, latent or state-space mixers; no nvfp4, fp32 or tf32
  matmuls; no offload.
- Fitting does not transfer: a fit without a source predicts it worse than the priors do. A site's
  common factor (from two or three of its own steps) is not removed yet.
- Small single-node runs (aim: 12 %), memory (aim: 5 %) and the start of `predict` from the shell
  (about 0.2 CPU-seconds above importing numpy; aim: 0.15) miss their aims.
- Power of exposed communication is not measured, so only single-GPU predictions have watts.
- The range has not been tested by left-out source, nor the choice of layouts.
- nanotron's runs on 512 GPUs and PaxML's carry delays that nothing in their tables explains.
"""


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.read_text())
    sys.exit(0)
