"""Claims about accelerators, from the catalog's rows and from predicted steps."""

from __future__ import annotations

import math

from computeflow.catalog import find_model
from computeflow.catalog.parameters import count_parameters
from computeflow.comparison.claims.claim import (
    Bench,
    Outcome,
    Verdict,
    check,
    is_near,
    verdict_of_facts,
    verdict_of_ranges,
)

_TERA = 1e12


@check("h100-fp16")
def h100_fp16(bench: Bench) -> Outcome:
    return _sparse(bench, "h100-sxm", 1979)


@check("b200-fp16")
def b200_fp16(bench: Bench) -> Outcome:
    return _sparse(bench, "b200-sxm", 4500)


@check("h200-fp16")
def h200_fp16(bench: Bench) -> Outcome:
    return _sparse(bench, "h200-sxm", 1979)


@check("b100-fp16")
def b100_fp16(bench: Bench) -> Outcome:
    return _sparse(bench, "b100-sxm", 3500)


@check("b200-memory")
def b200_memory(bench: Bench) -> Outcome:
    row = bench.catalog.accelerators["b200-sxm"]
    sold = row.hbm_bytes / 1e9
    seen = "" if row.reported_bytes is None else f", {row.reported_bytes / 1e9:.0f} GB as reported"
    return Outcome(
        verdict=verdict_of_facts(
            is_near(sold, 192, 0.01), is_near((row.reported_bytes or 0.0) / 1e9, 192, 0.01)
        ),
        ours=f"{sold:.0f} GB as sold{seen}",
        why="The same memory in two units: 180 GiB, sold as 180 GB, are 192 billion bytes. Beside an "
        'H100 of "80 GB", which has 80 GiB as well, the number to compare is 180.',
        numbers={"sold": sold},
    )


def _sparse(bench: Bench, name: str, claimed: float) -> Outcome:
    row = bench.catalog.accelerators[name]
    dense, sparse = row.dense_flops["fp16"] / _TERA, row.sparse_flops["fp16"] / _TERA
    best = row.matmul_flops.get("bf16")
    measured = f"; the best matmul anyone measured gives {best / _TERA:,.0f}" if best else ""
    fp8 = ", as is the dense FP8 peak" if is_near(row.dense_flops["fp8"] / _TERA, claimed) else ""
    return Outcome(
        verdict=_based(claimed, right=dense, wrong=sparse),
        ours=f"{dense:,.0f} TFLOP/s dense",
        why=f"{sparse:,.0f} is the peak with 2:4 sparsity, which training does not use{fp8}{measured}. "
        f"With {claimed:,.0f} as denominator every MFU and every predicted time comes out as "
        f"{dense / claimed:.2f} of what it is.",
        numbers={"dense": dense, "claimed": claimed, "sparse": sparse},
    )


def _based(claimed: float, *, right: float, wrong: float) -> Verdict:
    """Against the base that it names, and against another that it may have been taken from."""
    if is_near(right, claimed):
        return "holds"
    return "wrong base" if is_near(wrong, claimed) else "does not hold"


@check("nemo-1979")
def nemo(bench: Bench) -> Outcome:
    row = bench.catalog.accelerators["h100-sxm"]
    peak = row.dense_flops["bf16"] / _TERA
    return Outcome(
        verdict=_based(1979, right=peak, wrong=row.sparse_flops["bf16"] / _TERA),
        ours=f"40 % printed as {40 * peak / 1979:.0f} %",
        why=f"The dense BF16 peak is {peak:,.0f} TFLOP/s; against 1,979 a run of 40 % MFU shows "
        f"{40 * peak / 1979:.0f} %.",
        numbers={"shown": 0.4 * peak / 1979},
    )


@check("mi300x-memory")
def mi300x(bench: Bench) -> Outcome:
    rows = bench.catalog.accelerators
    memory = rows["mi300x"].hbm_bytes
    over = {name: memory / rows[name].hbm_bytes for name in ("h100-sxm", "h200-sxm")}
    return Outcome(
        verdict="holds" if is_near(over["h100-sxm"], 2.4) else "does not hold",
        ours=f"{over['h100-sxm']:.2f}x an H100, {over['h200-sxm']:.2f}x an H200",
        why=f"{memory / 1e9:.0f} over {rows['h100-sxm'].hbm_bytes / 1e9:.0f} GB, from the catalog; the "
        f"H200 of the same year has {rows['h200-sxm'].hbm_bytes / 1e9:.0f}.",
        numbers={"h100": over["h100-sxm"], "h200": over["h200-sxm"]},
    )


@check("mi350-35x")
def mi350(bench: Bench) -> Outcome:
    """Decoding is bound by memory: bandwidth, times bytes of a weight saved by 4 instead of 8 bits."""
    new, old = bench.catalog.accelerators["mi355x"], bench.catalog.accelerators["mi300x"]
    memory = 2 * new.hbm_bytes_per_second / old.hbm_bytes_per_second
    compute = new.dense_flops["fp4"] / old.dense_flops["fp8"]
    low, high = sorted((memory, compute))
    return Outcome(
        verdict="holds" if low <= 35 <= high else "does not hold",
        ours=f"{low:.1f} to {high:.1f}x",
        why=f"The roofline of both devices: memory-bound with 4 instead of 8 bits {memory:.1f}x, "
        f"compute-bound FP4 over FP8 {compute:.1f}x. MLPerf has 2.7x over MI325X. 35x needs another "
        "setting on one side.",
        numbers={"low": low, "high": high},
    )


@check("trillium-v5p")
def trillium(bench: Bench) -> Outcome:
    rows = bench.catalog.accelerators
    new = rows["tpu-v6e"].dense_flops["bf16"]
    over = {name: new / rows[name].dense_flops["bf16"] for name in ("tpu-v5e", "tpu-v5p")}
    nearest = min(over, key=lambda name: abs(over[name] - 4.7))
    return Outcome(
        verdict=_based(4.7, right=over["tpu-v5p"], wrong=over["tpu-v5e"]),
        ours=f"{over['tpu-v5p']:.2f}x v5p, {over['tpu-v5e']:.2f}x v5e",
        why=f"Dense BF16 peaks of the catalog. 4.7x is nearest to {nearest}.",
        numbers={"v5p": over["tpu-v5p"], "v5e": over["tpu-v5e"]},
    )


@check("trainium2-4x")
def trainium(bench: Bench) -> Outcome:
    new, old = bench.catalog.accelerators["trainium2"], bench.catalog.accelerators["trainium1"]
    ratios = {
        "bf16": new.dense_flops["bf16"] / old.dense_flops["bf16"],
        "fp8": new.dense_flops["fp8"] / old.dense_flops["fp8"],
        "bandwidth": new.hbm_bytes_per_second / old.hbm_bytes_per_second,
        "memory": new.hbm_bytes / old.hbm_bytes,
    }
    listed = ", ".join(f"{name} {value:.1f}x" for name, value in ratios.items())
    less = [name for name, value in ratios.items() if value < 4]
    return Outcome(
        verdict=verdict_of_facts(*(value >= 4 for value in ratios.values())),
        ours=listed,
        why=f"Per chip, catalog rows. Under 4x: {', '.join(less) or 'none'}.",
        numbers=ratios,
    )


@check("disconnected-chips")
def disconnected(bench: Bench) -> Outcome:
    """Tokens a second of a GPU as its share of the network shrinks, against older connected ones."""

    def speed(device: str, nic: float | None = None) -> float:
        return bench.best(
            "llama-3.1-70b", device, 512, global_batch=1024, seq_len=8192, nic_bytes_per_second=nic
        ).tokens_per_second_per_gpu

    mid = {name: speed(name) for name in ("h100-sxm", "a100-80-sxm")}
    alone = {gigabits: speed("b200-sxm", gigabits * 1e9 / 8 / 8) for gigabits in (25, 100, 400)}
    whole = speed("b200-sxm")
    listed = ", ".join(f"{gigabits} Gb/s {value:,.0f}" for gigabits, value in alone.items())
    return Outcome(
        verdict=verdict_of_facts(
            *(value < mid["h100-sxm"] for gigabits, value in alone.items() if gigabits < 400)
        ),
        ours=f"B200 with {listed} for eight; H100 at 400 each {mid['h100-sxm']:,.0f}, A100 "
        f"{mid['a100-80-sxm']:,.0f} tokens/s",
        why="Predicted tokens a second per GPU, Llama-3.1-70B on 512 GPUs, best plan on each; a B200 "
        f"with its usual network has {whole:,.0f}. The claim holds under a width, not in general, and "
        "the width depends on the batch of a GPU.",
        numbers={str(key): value for key, value in (alone | {"whole": whole}).items()} | mid,
    )


@check("groq-500")
def groq(bench: Bench) -> Outcome:
    """One token reads every weight once, chip after chip; each chip at its own SRAM's rate."""
    row = bench.catalog.accelerators["groq-lpu"]
    weights = float(count_parameters(find_model(bench.catalog, "llama-3.1-70b")).total)
    rates = {bits: row.hbm_bytes_per_second / (weights * bits / 8) for bits in (16, 8)}
    chips = {bits: math.ceil(weights * bits / 8 / row.hbm_bytes) for bits in (16, 8)}
    return Outcome(
        verdict=verdict_of_facts(rates[16] >= 500, rates[8] >= 500),
        ours=f"at most {rates[16]:,.0f} (16 bits) or {rates[8]:,.0f} (8 bits) tokens/s of one user, "
        "for 70B",
        why=f"{row.hbm_bytes_per_second / 1e12:.0f} TB/s of SRAM over the weights; a chip has "
        f"{row.hbm_bytes / 1e6:.0f} MB, so that 70B take {chips[16]} or {chips[8]} chips. 500 lies "
        "under that limit, for models of that size. It is latency of one user, not tokens per "
        "dollar, and the device does not train.",
        numbers={"fp16": rates[16], "int8": rates[8], "chips": float(chips[8])},
    )


@check("cerebras-cores")
def cerebras(bench: Bench) -> Outcome:
    row = bench.catalog.accelerators["cerebras-cs3"]
    return Outcome(
        verdict="holds in part",
        ours=f"900,000 cores, {row.hbm_bytes / 1e9:.0f} GB, {row.hbm_bytes_per_second / 1e15:.0f} "
        "PB/s; no dense peak published",
        why="The vendor's count, repeated by all; cores of different makers are not alike, so it says "
        "nothing of speed. Without a dense peak it cannot be compared: a run of a public model with "
        "its tokens a second would settle what it is worth.",
        basis="cited",
        numbers={"cores": 9e5},
    )


@check("blackwell-2-3x")
def blackwell(bench: Bench) -> Outcome:
    """A predicted step of the same job on as many GPUs, in the same precision."""

    def speed(device: str, precision: str) -> float:
        best = bench.best(
            "llama-3.1-70b", device, 512, global_batch=1024, seq_len=8192, precision=precision
        )
        return best.tokens_per_second_per_gpu

    ratios = {
        f"{name} {precision}": speed(name, precision) / speed("h100-sxm", precision)
        for name in ("b200-sxm", "gb200")
        for precision in ("bf16", "fp8")
    }
    both = speed("b200-sxm", "fp8") / speed("h100-sxm", "bf16")
    low, high = min(ratios.values()), max(ratios.values())
    return Outcome(
        verdict=verdict_of_ranges((low, high), (2, 3)),
        ours=f"{low:.2f} to {high:.2f}x in the same precision",
        why="Predicted tokens a second per GPU, Llama-3.1-70B on 512 GPUs, best plan on each: "
        + ", ".join(f"{name} {value:.2f}x" for name, value in ratios.items())
        + f". B200 in FP8 against H100 in BF16: {both:.2f}x. What Blackwell sustains of its best "
        "matmul is taken as Hopper's; we have not measured it.",
        numbers={"low": low, "high": high},
    )
