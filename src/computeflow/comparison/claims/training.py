"""Claims about memory, precision, software, data and MFU."""

from __future__ import annotations

from dataclasses import replace

from computeflow.catalog import find_model
from computeflow.cluster.machine import usual_cluster
from computeflow.comparison.claims.claim import (
    Bench,
    Outcome,
    check,
    is_near,
    percent,
    share_range,
    verdict_of_facts,
)
from computeflow.comparison.claims.path import mfu_path
from computeflow.planning import plan
from computeflow.planning.quick_spaces import quick_space
from computeflow.prediction import find_stack, predict
from computeflow.workload import Job, Layout
from computeflow.workload.flops import flops_per_token

_IMAGE_BYTES = 138e9 / 1_281_167
"""A training image of ImageNet-1k: the archive ILSVRC2012_img_train.tar over its images."""
_IMAGE_TOKENS = 196.0
"""Patches of 16 x 16 in an image of 224 x 224 (arXiv:2010.11929)."""
BEGIN, END = 0.2383, 0.5020
"""The claimed MFU."""


@check("zero3-offload")
def zero3(bench: Bench) -> Outcome:
    """Bytes of a device and seconds of a step, as sharding and offload are added."""
    job = Job(model=find_model(bench.catalog, "llama-2-7b"), global_batch=64, seq_len=4096)
    cluster = usual_cluster("h100-sxm", 64, bench.catalog)
    base = Layout(gpus=64, recompute="full", sharding="ddp")
    ways = {
        "ddp": base,
        "offload of the optimizer": replace(base, sharding="zero1", offload="optimizer"),
        "zero3": replace(base, sharding="zero3"),
        "zero3 with offload": replace(base, sharding="zero3", offload="parameters"),
    }
    predictions = {name: predict(job, cluster, layout) for name, layout in ways.items()}
    first = predictions["ddp"]
    ratios = {name: first.memory_bytes / one.memory_bytes for name, one in predictions.items()}
    slower = predictions["zero3 with offload"].step_seconds / predictions["zero3"].step_seconds
    states = 16 / 4
    rest = [value for name, value in ratios.items() if name != "ddp"]
    return Outcome(
        verdict=verdict_of_facts(
            is_near(ratios["zero3 with offload"], 4.1, 0.1), min(rest) <= 4.1 <= max(rest)
        ),
        ours=f"{ratios['offload of the optimizer']:.1f}x by optimizer offload, {ratios['zero3']:.1f}x "
        f"by ZeRO-3, {ratios['zero3 with offload']:.1f}x by both",
        why="Predicted bytes of a device, Llama-2-7B on 64 H100 with full recomputation, against plain "
        f"data parallelism. {states:.0f}x is what 12 of 16 bytes a parameter moved away give; ZeRO-3 "
        "divides by the number of GPUs and leaves activations. It is no constant, and offload is "
        f"paid for: a step takes {slower:.1f}x as long as with ZeRO-3 alone.",
        numbers=ratios | {"slower": slower},
    )


@check("mixed-precision")
def mixed_precision(bench: Bench) -> Outcome:
    speeds = {
        precision: bench.best(
            "llama-2-7b", "h100-sxm", 64, global_batch=1024, seq_len=4096, precision=precision
        ).tokens_per_second_per_gpu
        for precision in ("fp32", "tf32", "bf16")
    }
    job = Job(model=find_model(bench.catalog, "llama-2-7b"), global_batch=1024, seq_len=4096)
    cluster = usual_cluster("h100-sxm", 64, bench.catalog)
    plain, again = (
        predict(job, cluster, Layout(gpus=64, micro_batch=2, recompute=recompute))
        for recompute in ("none", "full")
    )
    cost = plain.step_seconds / again.step_seconds - 1
    gains = {name: speeds["bf16"] / speeds[name] - 1 for name in ("fp32", "tf32")}
    return Outcome(
        verdict="cannot be checked",
        ours=f"bf16 {1 + gains['fp32']:.1f}x fp32, {1 + gains['tf32']:.1f}x tf32; full recomputation "
        f"{100 * cost:+.0f} %",
        why="Predicted, Llama-2-7B on 64 H100. The baseline is not said. Against fp32 it would be "
        f"{100 * gains['fp32']:+.0f} %, against tf32 {100 * gains['tf32']:+.0f} %; against bf16 "
        f"recomputation alone is {100 * cost:+.0f} %, and the rest must be a larger batch's.",
        numbers=gains | {"recompute": cost},
    )


@check("software-4x")
def software(bench: Bench) -> Outcome:
    """The same job and GPUs with software of 2021 and of today, the best plan on each."""
    job = Job(model=find_model(bench.catalog, "llama-3.1-70b"), global_batch=1024, seq_len=8192)
    cluster = usual_cluster("h100-sxm", 512, bench.catalog)
    speeds = {}
    for name in ("megatron-2021", "torchtitan", "megatron"):
        plans = plan(job, cluster, find_stack(name), top=1, space=quick_space(job, 512)).plans
        speeds[name] = plans[0].prediction.tokens_per_second_per_gpu
    ratio = speeds["megatron"] / speeds["megatron-2021"]
    steps = mfu_path(bench.catalog)
    path = steps[-2].mfu[1] / steps[0].mfu[1]
    return Outcome(
        verdict=verdict_of_facts(max(ratio, path) >= 3.95, max(ratio, path) > 1.05),
        ours=f"{ratio:.1f}x from 2021's software to today's; {path:.1f}x by configuration",
        why="Predicted: Llama-3.1-70B on 512 H100 with the best plan for each stack, and the path of "
        "configurations below. Published steps are smaller: +34 % (MegaScale), +45 % in half a year "
        "(MLPerf v5.0 to v5.1), -25 % cost in 2024 (SemiAnalysis). 4x needs a start without fused "
        "attention, or launch-bound kernels (3.1 to 6.1x by compiling a 1B model, stas00).",
        numbers={"stack": ratio, "path": path},
    )


@check("data-waste")
def data_waste(bench: Bench) -> Outcome:
    """The `input` account's share of what is not useful, as samples grow on one drive's bandwidth."""
    best = bench.best("llama-3.1-70b", "h100-sxm", 512, global_batch=1024, seq_len=8192)
    drive = bench.catalog.storage["nvme-gen4"]
    assert drive.read_bytes_per_second is not None
    cluster = usual_cluster("h100-sxm", 512, bench.catalog)
    slow = replace(cluster, storage=replace(drive, per="system"))
    tokens = best.tokens_per_second_per_gpu * best.layout.gpus
    stalls = drive.read_bytes_per_second / tokens
    shares = {}
    for name, size in (("text", 4.0), ("large", 3 * stalls)):
        one = predict(replace(best.job, bytes_per_token=size), slow, best.layout)
        wasted = one.ledger.gpu_seconds - one.ledger.accounts["compute.model"]
        shares[name] = one.ledger.accounts.get("input", 0.0) / wasted
    return Outcome(
        verdict=verdict_of_facts(shares["text"] >= 0.6, shares["large"] >= 0.6),
        ours=f"{percent(shares['text'])} of waste for text; {percent(shares['large'])} at "
        f"{3 * stalls / 1e3:.0f} kB a token from one drive",
        why=f"Predicted: Llama-3.1-70B on 512 H100 reads {4 * tokens / 1e6:.1f} MB/s of token numbers; "
        f"a single NVMe drive ({drive.read_bytes_per_second / 1e9:.0f} GB/s) keeps up until "
        f"{stalls / 1e3:.0f} kB a token. Kernels, clocks, communication and failures are the waste of "
        "text models. The claim can hold for jobs that are short of input: raw images and video, or "
        "preprocessing on few hosts (tf.data service: up to 31.7x).",
        numbers=shares | {"stalls_bytes": stalls},
    )


@check("hard-drives")
def hard_drives(bench: Bench) -> Outcome:
    """One hard drive in each node of eight H100s: text in order, images at random places."""
    best = bench.best("llama-3.1-8b", "h100-sxm", 64, global_batch=256, seq_len=8192)
    drive = bench.catalog.storage["hdd"]
    assert drive.read_bytes_per_second is not None and drive.latency_seconds is not None
    tokens = 8 * best.tokens_per_second_per_gpu
    text = 4.0 * tokens / drive.read_bytes_per_second
    seconds = drive.latency_seconds + _IMAGE_BYTES / drive.read_bytes_per_second
    images = tokens / _IMAGE_TOKENS * seconds
    shards = tokens / _IMAGE_TOKENS * _IMAGE_BYTES / drive.read_bytes_per_second
    return Outcome(
        verdict=verdict_of_facts(text > 1, images > 1),
        ours=f"text needs {percent(text, 2)} of a drive; images {images:.1f} drives, in shards "
        f"{shards:.2f}",
        why=f"Llama-3.1-8B trains {tokens:,.0f} tokens a second on a node: {4 * tokens / 1e6:.2f} MB/s "
        f"of token numbers, against {drive.read_bytes_per_second / 1e6:.0f} MB/s of one drive. As many "
        f"patches of images, {_IMAGE_BYTES / 1e3:.0f} kB for {_IMAGE_TOKENS:.0f} of them (ImageNet, "
        f"ViT/16), are {tokens / _IMAGE_TOKENS:,.0f} files a second, of which a drive that seeks finds "
        f"{1 / seconds:.0f}. Read in order from shards they take {shards:.2f} drives.",
        numbers={"text": text, "images": images, "shards": shards},
    )


@check("mfu-path")
def mfu(bench: Bench) -> Outcome:
    steps = mfu_path(bench.catalog)
    first, recipe, last = steps[0], steps[-3], steps[-2]
    gains = [one.mfu[1] / first.mfu[1] for one in (recipe, last)]
    largest = max(steps[:-1], key=lambda step: step.gain or 0.0)
    return Outcome(
        verdict=verdict_of_facts(_inside(BEGIN, first.mfu), _inside(END, recipe.mfu)),
        ours=f"{share_range(first.mfu)} to {share_range(recipe.mfu)} with the published recipe, "
        f"{share_range(last.mfu)} with selective recomputation",
        why=f"Predicted on eight B200, step by step below: {gains[0]:.2f}x with the recipe, "
        f"{gains[1]:.2f}x with selective recomputation, of the claimed {END / BEGIN:.2f}x. 23.83 % is "
        f"{_within(BEGIN, first.mfu)} of the preset; 50.20 % is {_within(END, recipe.mfu)} of the "
        f"recipe and {_within(END, last.mfu)} of the step after it, which is of the vendor's "
        "recipe for two nodes and was put on this path by us. The largest step is "
        f'"{largest.name}", {100 * (largest.gain or 0):+.0f} %, for which there is no published '
        "number. The vendor's post states both percentages, but no hardware, layout or count of "
        "FLOPs: eight B200, as in its published recipe, are our assumption.",
        numbers={
            "gain": gains[1],
            "recipe_gain": gains[0],
            "first": first.mfu[1],
            "last": last.mfu[1],
        },
    )


def _within(value: float, mfus: tuple[float, float, float]) -> str:
    return "in the range" if _inside(value, mfus) else "outside the range"


def _inside(value: float, mfus: tuple[float, float, float]) -> bool:
    return mfus[0] <= value <= mfus[2]


@check("torchtitan-compile")
def torchtitan(bench: Bench) -> Outcome:
    """MFU from the same file's tokens a second per GPU: 5,762 plain, 6,667 compiled."""
    flops = flops_per_token(find_model(bench.catalog, "llama-3.1-8b"), 8192)
    peak = bench.catalog.accelerators["h100-sxm"].dense_flops["bf16"]
    plain, compiled = (tps * flops.palm / peak for tps in (5762, 6667))
    return Outcome(
        verdict="contradicts itself" if compiled > plain else "holds",
        ours=f"{percent(plain)} without, {percent(compiled)} with torch.compile",
        why="The file's own table has 5,762 tokens a second without and 6,667 with compiling; the "
        "sentence has the two the wrong way round. MFU here is PaLM's (full attention) against 989 "
        f"TFLOP/s; with causal attention it is {percent(5762 * flops.total / peak)} and "
        f"{percent(6667 * flops.total / peak)}.",
        numbers={"plain": plain, "compiled": compiled},
    )
