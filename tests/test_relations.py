"""Relations that published measurements fix, whatever the absolute figures are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.prediction import find_stack, load_parameters, predict
from computeflow.prediction.published_runs import PACKAGED, MeasuredRun, read_cases, step_inputs_of
from computeflow.prediction.step import account_step
from computeflow.workload import Job, Layout
from computeflow.workload.layout import Schedule

FACTS = load_catalog()
MEGATRON = find_stack("megatron")
CASES = read_cases(PACKAGED.read_text(), FACTS)[0]
PREDICTED = dict(
    zip(
        (case.row_id for case in CASES),
        account_step(step_inputs_of(CASES), load_parameters()).seconds.tolist(),
        strict=True,
    )
)


def of(source: str) -> list[MeasuredRun]:
    return [case for case in CASES if case.source == source]


def test_fp8_against_bf16_in_the_same_configuration() -> None:
    """NVIDIA/dgxc-benchmarking runs both: measured 1.23 to 1.68 times as fast."""
    pairs: dict[object, dict[str, MeasuredRun]] = {}
    for case in of("dgxc-benchmarking"):
        key = (
            case.job.model.name,
            case.cluster.accelerator.name,
            case.layout,
            case.job.global_batch,
            case.stack.year,
        )
        pairs.setdefault(key, {})[case.job.precision] = case
    both = [pair for pair in pairs.values() if {"bf16", "fp8"} <= set(pair)]
    off = np.array(
        [
            PREDICTED[x["bf16"].row_id] / PREDICTED[x["fp8"].row_id]
            - x["bf16"].measured_seconds / x["fp8"].measured_seconds
            for x in both
        ]
    )
    assert len(both) >= 20
    assert np.abs(off).mean() < 0.08
    assert abs(off.mean()) < 0.04


def test_weak_scaling_from_64_to_2048_is_nearly_flat() -> None:
    """NVIDIA/dgxc-benchmarking, GPT-3 175B and Llama 3 70B on H100: 2 to 4 % from 128 to 2,048 GPUs."""
    layout = Layout(gpus=64, tp=4, pp=4, vp=5, cp=2)
    job = Job(model=FACTS.models["llama-3.1-70b"], global_batch=128, seq_len=8192)
    few = predict(job, find_cluster("h100-sxm:64", FACTS), layout, MEGATRON).step_seconds
    many = predict(
        replace(job, global_batch=4096),
        find_cluster("h100-sxm:2048", FACTS),
        replace(layout, gpus=2048),
        MEGATRON,
    ).step_seconds
    assert 1.0 < many / few < 1.06


def test_selective_against_full_recomputation() -> None:
    """arXiv:2205.05198, table 5: iteration time with full over that with selective."""
    times: dict[str, dict[str, MeasuredRun]] = {}
    for case in of("korthikanti-2022"):
        times.setdefault(case.job.model.name, {})[case.layout.recompute] = case
    assert len(times) == 3
    for pair in times.values():
        measured = pair["full"].measured_seconds / pair["selective"].measured_seconds
        said = PREDICTED[pair["full"].row_id] / PREDICTED[pair["selective"].row_id]
        assert said == pytest.approx(measured, rel=0.05)


def test_experts_that_are_not_balanced_by_force_cost_waiting() -> None:
    job = Job(model=FACTS.models["qwen3-235b-a22b"], global_batch=1024, seq_len=4096)
    cluster = find_cluster("h100-sxm:256", FACTS)
    layout = Layout(gpus=256, pp=8, ep=8)
    even = predict(job, cluster, layout, MEGATRON)
    skewed = predict(replace(job, expert_spread=0.5), cluster, layout, MEGATRON)
    waited = skewed.ledger.accounts["imbalance"] - even.ledger.accounts["imbalance"]
    assert 1.0 < skewed.step_seconds / even.step_seconds < 1.3
    assert waited == pytest.approx(skewed.ledger.gpu_seconds - even.ledger.gpu_seconds, rel=0.25)


def test_offloading_under_zero3_cuts_device_memory_and_says_what_it_costs() -> None:
    """Gradients and gathered weights remain of 18 bytes a parameter: a factor of about four."""
    job = Job(model=FACTS.models["llama-2-13b"], global_batch=8, seq_len=1024)
    cluster = find_cluster("a100-80-sxm:8", FACTS)
    layout = Layout(gpus=8, sharding="zero3", recompute="full")
    stays = predict(job, cluster, layout, MEGATRON)
    moved = predict(job, cluster, replace(layout, offload="parameters"), MEGATRON)

    def held(found: object) -> float:
        owners = found.memory_by_owner  # type: ignore[attr-defined]
        return float(sum(owners[name] for name in ("weights", "gradients", "optimizer")))

    assert 3.5 < held(stays) / held(moved) < 9
    assert moved.memory_bytes < 0.5 * stays.memory_bytes
    assert moved.memory_by_stage[0].host_bytes > 12 * 13e9 / 8
    assert moved.step_seconds > stays.step_seconds
    assert moved.ledger.accounts["copy"] > 0
    disk = predict(job, cluster, replace(layout, offload="nvme"), MEGATRON)
    assert disk.memory_by_stage[0].disk_bytes == pytest.approx(moved.memory_by_stage[0].host_bytes)
    assert disk.step_seconds > moved.step_seconds


def test_low_rank_updates_spare_a_third_of_the_matmuls_and_nearly_all_state() -> None:
    job = Job(model=FACTS.models["llama-3.1-8b"], global_batch=8, seq_len=4096)
    one = find_cluster("h100-sxm:1", FACTS)
    layout = Layout(gpus=1, sharding="ddp")
    full, lora, qlora = (
        predict(replace(job, training=kind), one, layout, MEGATRON)
        for kind in ("full", "lora", "qlora")
    )
    assert 0.6 < lora.step_seconds / full.step_seconds < 0.8
    assert lora.memory_by_owner["optimizer"] < 0.02 * full.memory_by_owner["optimizer"]
    assert lora.memory_by_owner["weights"] == full.memory_by_owner["weights"]
    assert qlora.memory_by_owner["weights"] < 0.3 * lora.memory_by_owner["weights"]
    assert not full.fits
    assert lora.fits


@pytest.mark.parametrize(
    ("schedule", "less_than"),
    [("zero-bubble", "1f1b"), ("zbv", "zero-bubble"), ("dualpipe", "1f1b")],
)
def test_schedules_that_fill_the_gaps_have_smaller_bubbles(
    schedule: Schedule, less_than: Schedule
) -> None:
    job = Job(model=FACTS.models["llama-3.1-405b"], global_batch=2048, seq_len=8192)
    cluster = find_cluster("h100-sxm:4096", FACTS)
    layout = Layout(gpus=4096, tp=8, pp=16)
    one, other = (
        predict(job, cluster, replace(layout, schedule=name), MEGATRON)
        for name in (schedule, less_than)
    )
    assert one.ledger.accounts["bubble"] < other.ledger.accounts["bubble"]
    if schedule == "dualpipe":
        assert one.memory_by_owner["weights"] == 2 * other.memory_by_owner["weights"]


def test_a_million_tokens_need_context_parallelism_and_a_loss_in_chunks() -> None:
    job = Job(model=FACTS.models["llama-3.1-8b"], global_batch=4, seq_len=2**20)
    cluster = find_cluster("h200-sxm:128", FACTS)
    layout = Layout(gpus=128, tp=8, cp=16, recompute="full")
    whole = predict(job, cluster, layout, MEGATRON)
    chunked = predict(replace(job, loss_chunks=16), cluster, layout, MEGATRON)
    assert chunked.memory_by_owner["logits"] <= whole.memory_by_owner["logits"] / 8
    assert chunked.fits
    exchanged = predict(
        replace(job, loss_chunks=16),
        cluster,
        Layout(gpus=128, cp=32, tp=1, recompute="full", context="all-to-all"),
        MEGATRON,
    )
    assert exchanged.ledger.accounts["comm.cp"] > 0
