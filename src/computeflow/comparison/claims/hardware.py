"""Claims about accelerators, from the catalog's rows and from predicted steps."""

from __future__ import annotations

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
