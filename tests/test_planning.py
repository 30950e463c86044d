"""Plans are sane, counted to the last layout, and no better than anybody has measured in silence."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.cluster import find_cluster
from computeflow.errors import ComputeFlowError, InputError
from computeflow.planning import Limits, Plan, plan, space_of
from computeflow.planning.batches import tokens_to_target
from computeflow.planning.explain import account_losses, sensitivities
from computeflow.planning.plans import complexity, nearest_that_fits, unmeasured
from computeflow.planning.pools import plan_pools
from computeflow.planning.review import review
from computeflow.planning.search import pessimistic, search
from computeflow.planning.space import LayoutCounts, possible
from computeflow.prediction import find_stack, load_parameters, predict
from computeflow.prediction.published_runs import PACKAGED, best_mfu, device_cases, read_cases
from computeflow.workload import Job, Layout, refusals
from computeflow.workload.layout import RECOMPUTES, SHARDINGS

FACTS = load_catalog()
STACK = find_stack("megatron")


def job(model: str, batch: int = 256, seq_len: int = 8192, precision: str = "bf16") -> Job:
    found = FACTS.models[model]
    return Job(model=found, global_batch=batch, seq_len=seq_len, precision=precision)


SEVENTY = job("llama-3.1-70b", 1024)
H100 = find_cluster("h100-sxm:512", FACTS)


@cache
def plans_of_seventy() -> tuple[Plan, ...]:
    return plan(SEVENTY, H100, STACK).plans


def test_every_layout_of_the_space_is_predicted_or_left_out_for_a_reason() -> None:
    found = search(job("llama-3.1-8b", 64), find_cluster("h100-sxm:64", FACTS), STACK)
    count = found.count
    assert count.enumerated == len(space_of(job("llama-3.1-8b", 64), 64))
    assert sum(count.pruned.values()) + count.evaluated == count.enumerated
    assert all(n > 0 for n in count.pruned.values())


@given(
    model=st.sampled_from(["llama-3.1-8b", "gpt2-xl", "qwen3-30b-a3b"]),
    gpus=st.sampled_from([1, 6, 8, 48, 64]),
    batch=st.sampled_from([7, 24, 64, 96]),
    seq_len=st.sampled_from([512, 4096]),
)
@settings(max_examples=16, deadline=None)
def test_what_is_left_is_possible_and_what_is_found_fits(
    model: str, gpus: int, batch: int, seq_len: int
) -> None:
    task = job(model, batch, seq_len)
    count = LayoutCounts()
    for layouts, done in possible(task, gpus, space_of(task, gpus), count):
        assert 0 < done <= 1
        assert not refusals(task, layouts)
    cluster = find_cluster(f"h100-sxm:{gpus}", FACTS)
    found = search(task, cluster, STACK)
    assert sum(found.count.pruned.values()) + found.count.evaluated == found.count.enumerated
    assert (np.diff(found.scores) >= 0).all()
    for place in range(min(len(found.layouts), 3)):
        prediction = predict(task, cluster, found.layouts[place], STACK)
        assert prediction.memory_bytes <= 0.92 * prediction.memory_limit_bytes * (1 + 1e-9)
        assert found.seconds[place] >= prediction.step_seconds * (1 - 1e-9)


def test_the_search_finds_the_best_that_a_loop_over_all_finds() -> None:
    task, cluster = job("llama-3.1-8b", 16), find_cluster("h100-sxm:8", FACTS)
    fixed = {"schedule": "1f1b", "context": "ring", "micro_batch": 1}
    found = search(task, cluster, STACK, fixed=fixed)
    bad = pessimistic(load_parameters())
    times = []
    for tp, pp, cp, vp, sharding, recompute in product(
        (1, 2, 4, 8),
        (1, 2, 4, 8),
        (1, 2, 4, 8),
        (1, 2, 4, 8),
        (*SHARDINGS[:3], "fsdp"),
        RECOMPUTES,
    ):
        cut: Any = {
            "tp": tp,
            "pp": pp,
            "cp": cp,
            "vp": vp,
            "sharding": sharding,
            "recompute": recompute,
        }
        try:
            seen = predict(task, cluster, Layout(gpus=8, **cut), STACK, bad)
        except ComputeFlowError:
            continue
        if seen.memory_bytes <= 0.92 * seen.memory_limit_bytes:
            times.append(seen.step_seconds)
    best = min(times)
    assert found.seconds[0] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "on", "batch", "seq_len"),
    [
        ("llama-3.1-70b", "h100-sxm:512", 1024, 8192),
        ("llama-3.1-8b", "a100-80-sxm:64", 512, 4096),
        ("gpt3-175b", "a100-80-sxm:1024", 1536, 2048),
        ("llama-3.1-405b", "gb200:576", 1152, 8192),
    ],
)
def test_tensor_parallelism_stays_in_the_node(
    model: str, on: str, batch: int, seq_len: int
) -> None:
    cluster = find_cluster(on, FACTS)
    found = plan(job(model, batch, seq_len), cluster, STACK)
    assert found.plans
    assert all(each.layout.tp <= cluster.domain for each in found.plans)


def test_a_model_that_fits_without_tensor_parallelism_is_not_given_any() -> None:
    best = plan(job("llama-3.1-8b", 512), find_cluster("h200-sxm:64", FACTS), STACK).plans[0]
    assert best.layout.tp == 1
    assert best.complexity <= 1
    assert best.unmeasured == ()


def test_a_long_context_gets_context_parallelism() -> None:
    task = job("llama-3.1-8b", 64, 131072)
    best = plan(task, find_cluster("h100-sxm:64", FACTS), STACK, top=1).plans[0]
    assert best.layout.cp > 1


def test_many_experts_get_expert_parallelism() -> None:
    task = job("deepseek-v3", 15360, 4096, "fp8-block")
    fixed = {"micro_batch": 1, "cp": 1, "etp": 1, "offload": "none", "sharding": "zero1"}
    best = plan(task, find_cluster("h800-sxm:2048", FACTS), STACK, fixed=fixed, top=1).plans[0]
    assert best.layout.ep >= 8


def test_the_published_layout_of_llama_405b_is_near_the_best() -> None:
    """TP8 PP16 on 16,384 H100 (arXiv:2407.21783, table 4)."""
    task, cluster = job("llama-3.1-405b", 2048), find_cluster("h100-sxm:16384", FACTS)
    free, theirs = (
        plan(task, cluster, STACK, fixed=fixed, top=1).plans[0]
        for fixed in ({}, {"tp": 8, "pp": 16})
    )
    assert theirs.pessimistic_seconds <= 1.10 * free.pessimistic_seconds


def test_a_plan_better_than_anybody_measured_says_so() -> None:
    cases = read_cases(PACKAGED.read_text(), FACTS)[0]
    task, cluster = job("gpt3-175b", 1536, 2048), find_cluster("a100-80-sxm:1024", FACTS)
    known = best_mfu(cases, "a100-80-sxm", task)
    assert known is not None
    assert 0.5 < known < 0.65
    for each in plan(task, cluster, STACK, best_mfu=known).plans:
        mfu = each.prediction.ledger.mfu
        assert mfu is not None
        assert bool(each.warnings) == (mfu > known)
    assert best_mfu(cases, "tpu-v5p", task) is None


def test_a_dense_model_is_held_against_dense_ones_only() -> None:
    """The one packaged bf16 run with experts on b200-sxm has 12 %; no dense plan is held against it."""
    dense, experts = job("llama-3.1-8b", 64), job("mixtral-8x7b", 64)
    cases = device_cases("b200-sxm", FACTS)
    with_experts = [c for c in cases if any(block.experts for block in c.job.model.blocks)]
    best = best_mfu(with_experts, "b200-sxm", experts)
    assert best is not None
    assert best < 0.2
    assert best_mfu(with_experts, "b200-sxm", dense) is None
    assert (best_mfu(cases, "b200-sxm", dense) or 0.0) > best


def test_plans_are_unlike_each_other_and_the_first_is_the_plainest_of_a_tie() -> None:
    plans = plans_of_seventy()
    cuts = [(p.layout.tp, p.layout.pp, p.layout.ep, p.layout.cp > 1) for p in plans]
    assert len(plans) == 5
    assert len(set(cuts)) == 5
    tied = [p for p in plans if p.pessimistic_seconds <= 1.03 * plans[0].pessimistic_seconds]
    assert plans[0].unmeasured == ()
    assert len(plans[0].unmeasured) <= min(len(p.unmeasured) for p in tied)


def test_limits_are_kept() -> None:
    capped = plan(SEVENTY, H100, STACK, limits=Limits(watts_per_gpu=600), top=3).plans
    assert capped
    fewer = plan(SEVENTY, H100, STACK, limits=Limits(headroom=0.5), top=3).plans
    assert all(p.prediction.memory_bytes <= 0.5 * p.prediction.memory_limit_bytes for p in fewer)
    none = plan(SEVENTY, H100, STACK, limits=Limits(step_seconds=1.0))
    assert none.plans == ()
    assert none.count.beyond["slower than the deadline allows"] == none.count.evaluated
    thrifty = plan(SEVENTY, H100, STACK, objective="energy", top=1).plans[0]
    fast = plans_of_seventy()[0]
    assert thrifty.prediction.ledger.joules is not None
    assert fast.prediction.ledger.joules is not None
    assert thrifty.prediction.ledger.joules <= 1.03 * fast.prediction.ledger.joules


def test_less_recomputation_for_an_offload_is_tried() -> None:
    task, node = job("llama-3.1-8b", 512), find_cluster("h100-sxm:8", FACTS)
    fixed = {"tp": 1, "sharding": "zero1", "pp": 1, "cp": 1, "micro_batch": 1}
    found = search(task, node, STACK, fixed=fixed)
    assert {found.layouts[i].offload for i in range(len(found.layouts))} >= {"none", "optimizer"}
    assert sum(found.count.pruned.values()) + found.count.evaluated == found.count.enumerated


def test_watts_that_nobody_knows_cannot_be_planned_for() -> None:
    with pytest.raises(InputError, match="no power limit of tpu-v5p"):
        plan(job("llama-3.1-8b", 64), find_cluster("tpu-v5p:64", FACTS), STACK, objective="energy")


def test_an_interrupt_keeps_the_best_so_far() -> None:
    calls = []

    def stop(done: float, count: LayoutCounts) -> None:
        calls.append(done)
        if len(calls) == 2:
            raise KeyboardInterrupt

    task = job("deepseek-v3", 512, 4096)
    cluster = find_cluster("h100-sxm:256", FACTS)
    found = search(task, cluster, STACK, progress=stop, interruptible=True)
    assert not found.complete
    assert len(calls) == 2
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        search(task, cluster, STACK, progress=stop)


def test_pessimism_is_never_faster() -> None:
    worse = pessimistic(load_parameters())
    for layout in (Layout(gpus=512, tp=8, pp=4), Layout(gpus=512, sharding="fsdp", cp=2)):
        usual, bad = (predict(SEVENTY, H100, layout, STACK, p) for p in (None, worse))
        assert bad.step_seconds > usual.step_seconds


def test_what_does_not_fit_is_told_what_would() -> None:
    task, small = job("llama-3.1-405b", 64), find_cluster("h100-sxm:8", FACTS)
    assert plan(task, small, STACK).plans == ()
    two_nodes = find_cluster("h100-sxm:16", FACTS)
    found = nearest_that_fits(task, replace(two_nodes, gpus=8), STACK)
    assert found is not None
    assert found[0] >= 16
    assert predict(task, find_cluster(f"h100-sxm:{found[0]}", FACTS), found[1], STACK).fits


def test_the_explanation_closes() -> None:
    best, other, *_ = plans_of_seventy()
    parts = account_losses(best.prediction, other.prediction)
    assert sum(part.seconds for part in parts) == pytest.approx(
        other.prediction.step_seconds - best.prediction.step_seconds
    )
    changes = {item.change: item for item in sensitivities(SEVENTY, H100, best, STACK)}
    for name in ("twice the network", "fp8 matmuls", "20 % more memory"):
        gain = changes[name].gain
        assert gain is not None
        assert gain >= -0.04
    assert (changes["20 % lower power limit"].gain or 0) < 0


def test_two_pools_share_a_batch_by_their_speed() -> None:
    task = job("llama-3.1-8b", 1024, 8192)
    fast, slow = find_cluster("h100-sxm:64", FACTS), find_cluster("a100-80-sxm:64", FACTS)
    found = plan_pools(task, [fast, slow], STACK)
    assert found.mixed is not None
    assert sum(found.mixed.shares) == 1024
    assert found.mixed.shares[0] > found.mixed.shares[1]
    assert found.mixed_wins
    times = [p.prediction.step_seconds for p in found.alone if p is not None]
    assert found.mixed.step_seconds > 1 / sum(1 / t for t in times)  # not better than both added up
    tiny = find_cluster("a100-80-sxm:1", FACTS)
    assert not plan_pools(task, [fast, tiny], STACK).mixed_wins


def test_a_larger_batch_needs_more_tokens() -> None:
    """arXiv:1812.06162: at the critical size twice the least number of tokens."""
    assert tokens_to_target(1e12, 1024, 1024, 4096) == 1e12
    least = tokens_to_target(1e12, 0, 1024, 4096)
    assert tokens_to_target(1e12, 4096, 1024, 4096) == pytest.approx(2 * least)
    with pytest.raises(InputError, match="above zero"):
        tokens_to_target(1e12, 1, 1, 0)


def test_complexity_and_unmeasured_features() -> None:
    plain = Layout(gpus=8)
    assert complexity(plain) == 0
    assert unmeasured(plain) == ()
    odd = Layout(gpus=64, tp=16, pp=2, schedule="zbv", offload="optimizer")
    assert complexity(odd) == 6
    assert unmeasured(odd) == ("schedule zbv", "offload optimizer", "tp 16")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fix", "tp=0"], "whole number"),
        (["--fix", "tpp=8"], "nearest: tp"),
        (["--fix", "schedule=1f2b"], "nearest: 1f1b"),
        (["--deadline", "30"], "needs a unit"),
        (["--deadline", "30d"], "need --tokens"),
        (["--tokens", "1e12", "--budget", "1e6"], "needs --price"),
        (["--gpus", "8"], "FROM:TO"),
        (["--gpus", "64:8"], "growing"),
        (["--headroom", "2"], "up to 1"),
        (["--tokens", "inf"], "not a number"),
        (["--tokens", "-1"], "finite"),
        (["--tokens", "0"], "above zero"),
        (["--pool", "a100-80-sxm:8", "--fix", "tp=2"], "leave out --fix"),
        (["--fix", "tp=7"], "no layout is possible"),
        (["--tokens", "1e12", "--deadline", "15min"], "the deadline allows 15 min"),
        (
            ["--tokens", "1e12", "--budget", "1000", "--price", "2"],
            "no layout keeps the limits: the fastest takes",
        ),
    ],
)
def test_a_wrong_ask_is_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        [
            "plan",
            "llama-3.1-8b",
            "--on",
            "h100-sxm:8",
            "--global-batch",
            "64",
            "--seq-len",
            "4096",
            *arguments,
        ]
    )
    message = capsys.readouterr().err
    assert (code, message.count("\n")) == (2, 1), message
    assert words in message


def test_the_json_of_plans_has_the_stable_fields(capsys: pytest.CaptureFixture[str]) -> None:
    base = [
        "plan",
        "llama-3.1-8b",
        "--global-batch",
        "64",
        "--seq-len",
        "4096",
        "--tokens",
        "1e12",
        "--price",
        "2",
        "-o",
        "json",
    ]
    assert run([*base, "--on", "h100-sxm:8", "--explain"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) >= {"plans", "enumerated", "pruned", "evaluated", "search_seconds", "lost"}
    assert set(data["plans"][0]) >= {
        "step_seconds",
        "mfu",
        "memory",
        "ledger",
        "layout",
        "usd",
        "days",
    }
    assert run([*base, "--on", "h100-sxm:16", "--gpus", "8:32"]) == 0
    front = json.loads(capsys.readouterr().out)["front"]
    assert [row["gpus"] for row in front] == [8, 16, 32]
    assert front[0]["days"] > front[1]["days"] > front[2]["days"]


def test_a_review_prices_what_a_layout_wastes() -> None:
    wasteful = Layout(gpus=512, tp=8, pp=8, recompute="full")
    found = review(SEVENTY, H100, wasteful, STACK)
    assert found.prediction is not None
    rules = {remark.rule: remark for remark in found.remarks}
    assert rules["recompute-excess"].gain is not None
    assert rules["recompute-excess"].gain > 0.1
    assert rules["better-layout"].gain is not None
    assert rules["better-layout"].gain >= rules["recompute-excess"].gain
    wide = review(SEVENTY, H100, Layout(gpus=512, tp=16, pp=4), STACK)
    assert any(remark.rule == "tp-over-nodes" for remark in wide.remarks)


def test_a_review_says_what_breaks_first() -> None:
    full = review(SEVENTY, H100, Layout(gpus=512), STACK)
    assert (full.remarks[0].rule, full.remarks[0].breaks) == ("does-not-fit", True)
    assert any(remark.rule == "better-layout" for remark in full.remarks)
    wrong = review(SEVENTY, H100, Layout(gpus=512, tp=3), STACK)
    assert wrong.prediction is None
    assert all(remark.breaks for remark in wrong.remarks)


def test_the_best_plan_has_nothing_to_remark() -> None:
    best = plans_of_seventy()[0]
    assert review(SEVENTY, H100, best.layout, STACK).remarks == ()
