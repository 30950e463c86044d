"""Claims about FLOPs, GPUs, months and dollars of a training run.

A row of the popular table is held against three things: what its FLOPs buy in tokens, what its own
GPUs deliver in its own time at the predicted MFU, and what 20 tokens a parameter need
(arXiv:2203.15556).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from computeflow.catalog import find_model
from computeflow.catalog.parameters import count_parameters
from computeflow.cluster.machine import usual_cluster
from computeflow.comparison.claims.claim import (
    Bench,
    Outcome,
    Verdict,
    check,
    mfu_range,
    verdict_of_facts,
)
from computeflow.comparison.rents import Rent, find_rents
from computeflow.economics import usd_of
from computeflow.prediction import Prediction, predict
from computeflow.units import DAY_SECONDS, HOUR_SECONDS
from computeflow.workload import Job, Layout
from computeflow.workload.flops import flops_per_token

_CHINCHILLA = 20.0
"""Tokens per parameter of compute-optimal training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedSize:
    model: str
    label: str
    flops: float
    gpus: tuple[int, int]
    days: tuple[float, float]
    usd: tuple[float, float]
    plan_gpus: int
    global_batch: int
    seq_len: int
    tokens: float
    """Tokens of the model's actual training; the source is in `trained`."""
    trained: str


SIZES = {
    "7b": ClaimedSize(model="llama-2-7b", label="7B", flops=1e21, gpus=(64, 64), days=(7, 14),
               usd=(1e5, 5e5), plan_gpus=64, global_batch=1024, seq_len=4096, tokens=2e12,
               trained="Llama 2 7B, 2T tokens (arXiv:2307.09288)"),
    "70b": ClaimedSize(model="llama-3.1-70b", label="70B", flops=1e23, gpus=(512, 1024), days=(30, 61),
                usd=(5e6, 20e6), plan_gpus=512, global_batch=1024, seq_len=8192, tokens=15e12,
                trained="Llama 3.1 70B, 15T tokens (arXiv:2407.21783)"),
    "400b": ClaimedSize(model="llama-3.1-405b", label="405B", flops=1e24, gpus=(4000, 4000),
                 days=(91, 183), usd=(50e6, 100e6), plan_gpus=4096, global_batch=2048,
                 seq_len=8192, tokens=15.6e12,
                 trained="Llama 3.1 405B, 15.6T tokens (arXiv:2407.21783)"),
    "1t": ClaimedSize(model="gpt-1t", label="1T", flops=1e25, gpus=(10_000, 10_000), days=(183, 365),
               usd=(1e8, 5e8), plan_gpus=8192, global_batch=4096, seq_len=2048, tokens=20e12,
               trained="20 tokens a parameter; no dense 1T run is published"),
}  # fmt: skip


def _predicted(bench: Bench, size: ClaimedSize) -> Prediction:
    return bench.best(
        size.model, "h100-sxm", size.plan_gpus, global_batch=size.global_batch, seq_len=size.seq_len
    )


def _flops(bench: Bench, size: ClaimedSize, tokens: float) -> float:
    return flops_per_token(find_model(bench.catalog, size.model), size.seq_len).total * tokens


def _parameters(bench: Bench, size: ClaimedSize) -> float:
    return float(count_parameters(find_model(bench.catalog, size.model)).total)


def check_size(bench: Bench, size: ClaimedSize) -> Outcome:
    peak = bench.catalog.accelerators["h100-sxm"].dense_flops["bf16"]
    parameters = _parameters(bench, size)
    optimal = _flops(bench, size, _CHINCHILLA * parameters)
    low, mfu, high = mfu_range(_predicted(bench, size))
    seconds = [days * DAY_SECONDS for days in size.days]
    least, most = size.gpus[0] * seconds[0] * peak, size.gpus[1] * seconds[1] * peak
    tokens = size.flops / _flops(bench, size, 1.0)
    need = [size.flops / (gpus * peak * mfu) / DAY_SECONDS for gpus in size.gpus]
    implied = size.flops / most, size.flops / least
    fits = implied[0] <= high and low <= implied[1]
    delivered = mfu * math.sqrt(least * most)
    nearer = "20 tokens a parameter" if delivered**2 > size.flops * optimal else "its FLOPs"
    return Outcome(
        verdict=verdict_of_facts(True, _within(optimal, size.flops))
        if fits
        else "contradicts itself",
        ours=f"{optimal:.2g} FLOPs at 20 tokens a parameter; {mfu * least:.2g} to {mfu * most:.2g} "
        "from its GPUs and time",
        why=f"{size.flops:.0e} FLOPs buy {tokens / 1e9:,.0f}B tokens, {tokens / parameters:.1f} a "
        f"parameter, and take {_days(need)} days on its GPUs at the predicted "
        f"{100 * mfu:.0f} % MFU; its own time implies {100 * implied[0]:.1f} to "
        f"{100 * implied[1]:.1f} %. 20 tokens a parameter need {optimal / size.flops:.2g} times the "
        f"FLOPs; GPUs and time are nearer to {nearer}.",
        numbers={"optimal": optimal, "claimed": size.flops, "days": max(need)},
    )


def _within(optimal: float, claimed: float) -> bool:
    """A popular table's orders of magnitude: a factor of two."""
    return 0.5 <= optimal / claimed <= 2


def _days(values: list[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def _check_cost(bench: Bench, size: ClaimedSize) -> Outcome:
    """GPU-hours of the actual run at the predicted step, at a contract's rent, as a range of both."""
    prediction = _predicted(bench, size)
    low, high = (end / prediction.step_seconds for end in prediction.step_seconds_range)
    seconds = size.tokens / prediction.tokens_per_second_per_gpu
    least, most = (
        days * DAY_SECONDS * gpus for days, gpus in zip(size.days, size.gpus, strict=True)
    )
    rent = _rent(bench)
    usd = (
        usd_of(seconds * low, rent.low),
        usd_of(seconds, rent.middle),
        usd_of(seconds * high, rent.high),
    )
    own = usd_of(least, rent.low), usd_of(most, rent.high)
    meets = usd[0] <= size.usd[1] and size.usd[0] <= usd[2]
    fits = own[0] <= size.usd[1] and size.usd[0] <= own[1]
    verdict: Verdict = "does not hold"
    if meets or fits:
        verdict = "holds" if meets and fits else "holds in part"
    return Outcome(
        verdict=verdict,
        ours=f"${_millions(usd[1])} million ({_millions(usd[0])} to {_millions(usd[2])}) for "
        f"{size.trained}",
        why=f"{seconds / HOUR_SECONDS / 1e6:.2g} million H100-hours at the predicted step, at "
        f"${rent.low:.2f} to {rent.high:.2f} on a year's contract that other work fills "
        f"({rent.newest}). The row's own GPUs and time cost "
        f"${_millions(own[0])} to {_millions(own[1])} million. Without the tokens a size has no "
        "price.",
        numbers={"low": usd[0], "middle": usd[1], "high": usd[2]},
    )


def _millions(usd: float) -> str:
    return f"{usd / 1e6:.0f}" if usd >= 1e7 else f"{usd / 1e6:.2g}"


def _rent(bench: Bench) -> Rent:
    rent = find_rents(bench.catalog, "h100-sxm").contract
    assert rent is not None
    return rent


for _name, _size in SIZES.items():
    check(f"size-{_name}")(partial(check_size, size=_size))
    check(f"cost-{_name}")(partial(_check_cost, size=_size))


@check("llama-hours")
def llama_hours(bench: Bench) -> Outcome:
    """The predicted hours of the best plan, against those that were spent."""
    peak = bench.catalog.accelerators["h100-sxm"].dense_flops["bf16"]
    parts, numbers, inside = [], {}, {}
    for model, gpus, said in (
        ("llama-3.1-8b", 1024, 1.46e6),
        ("llama-3.1-70b", 2048, 7.0e6),
        ("llama-3.1-405b", 8192, 30.84e6),
    ):
        best = bench.best(model, "h100-sxm", gpus, global_batch=2048, seq_len=8192)
        hours = 15e12 / best.tokens_per_second_per_gpu / HOUR_SECONDS
        low, high = (hours * end / best.step_seconds for end in best.step_seconds_range)
        flops = flops_per_token(find_model(bench.catalog, model), 8192).total * 15e12
        implied = flops / (said * HOUR_SECONDS * peak)
        numbers[model] = hours / said
        inside[model] = low <= said <= high
        parts.append(
            f"{model} {hours / 1e6:.2f} ({low / 1e6:.2f} to {high / 1e6:.2f}) million, "
            f"{100 * implied:.0f} % MFU implied by what was spent"
        )
    within = [model for model, so in inside.items() if so]
    outside = [f"{one} ({1 / numbers[one]:.1f} times)" for one, so in inside.items() if not so]
    return Outcome(
        verdict=verdict_of_facts(*inside.values()),
        ours="; ".join(parts),
        why="Predicted for 15T tokens with the best plan, without failures. In the range: "
        f"{', '.join(within) or 'none'}. Outside, as spent over what "
        f"the best plan needs: {', '.join(outside) or 'none'}; a prediction cannot tell waste from a "
        "wrong figure.",
        numbers=numbers,
    )


@check("deepseek-cost")
def deepseek(bench: Bench) -> Outcome:
    """With the layout that its report states: 16 stages, 64-way experts, DualPipe."""
    job = Job(
        model=find_model(bench.catalog, "deepseek-v3"),
        global_batch=15360,
        seq_len=4096,
        precision="fp8-block",
    )
    cluster = usual_cluster("h800-sxm", 2048, bench.catalog)
    layout = Layout(
        gpus=2048, pp=16, ep=64, micro_batch=1, recompute="selective", schedule="dualpipe"
    )
    prediction = predict(job, cluster, layout)
    hours = 14.8e12 / prediction.tokens_per_second_per_gpu / HOUR_SECONDS
    low, high = (hours * end / prediction.step_seconds for end in prediction.step_seconds_range)
    inside = low <= 2.664e6 <= high
    return Outcome(
        verdict=verdict_of_facts(inside, 0.5 <= hours / 2.664e6 <= 2),
        ours=f"{hours / 1e6:.2f} million H800-hours ({low / 1e6:.2f} to {high / 1e6:.2f}), "
        f"${2 * hours / 1e6:.1f}M at its $2",
        why="Predicted for 14.8T tokens in FP8 with 16 stages, 64-way experts and DualPipe as "
        "published; micro-batch 1 and selective recomputation are taken. Of the 2.788 million, 2.664 "
        "are pre-training. The price is its authors' assumption, and research before it is left "
        "out. A mixture of experts costs what its active weights do: sizes alone give no price.",
        numbers={"hours": hours, "low": low, "high": high},
    )
