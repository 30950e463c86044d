"""Published runs in the words of other planners; no planner is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmarks.compare_planners import ranks, reason, spearman
from benchmarks.planner_inputs import (
    EQUAL_WORK,
    FLASH,
    SHARDED,
    calculon_question,
    equal_width,
    simumax_question,
)

from computeflow.catalog import load_catalog
from computeflow.catalog.models import Attention, Dense
from computeflow.cluster.machine import usual_cluster
from computeflow.errors import InputError
from computeflow.prediction.published_runs import MeasuredRun
from computeflow.prediction.stack import find_stack
from computeflow.workload import Job, Layout

CATALOG = load_catalog()


def run_of(
    model: str = "llama-3.1-70b", device: str = "h100-sxm", job: Any = None, **sizes: Any
) -> MeasuredRun:
    layout = Layout(**{"gpus": 64, "tp": 4, "pp": 4, "vp": 5} | sizes)
    shape = {"global_batch": 128, "seq_len": 8192} | (job or {})
    return MeasuredRun(
        row_id="1",
        source="test",
        job=Job(model=CATALOG.models[model], **shape),
        cluster=usual_cluster(device, layout.gpus, CATALOG),
        layout=layout,
        stack=find_stack("nemo"),
        measured_seconds=1.0,
        missing=(),
    )


def test_gated_layers_and_grouped_keys_keep_their_flops() -> None:
    attention = Attention(heads=64, kv_heads=8, head_dim=128)
    assert equal_width(Dense(width=28672), attention) == 35840
    plain = Attention(heads=96, kv_heads=96, head_dim=128)
    assert equal_width(Dense(width=49152, gated=False), plain) == 49152


def test_calculon_is_asked_for_the_same_layout() -> None:
    question = calculon_question(run_of())
    execution = question.inputs["execution"]
    assert question.inputs["system"] == "h100_80g_nvl8"
    assert question.inputs["application"]["feedforward"] == 35840
    assert [execution[f"{name}_par"] for name in ("tensor", "pipeline", "data")] == [4, 4, 4]
    assert execution["pipeline_interleaving"] == 5
    assert execution["activation_recompute"] == "attn_only"
    assert {EQUAL_WORK, FLASH} <= set(question.assumed)


def test_groups_inside_a_node_use_its_links() -> None:
    def nets(**sizes: Any) -> list[int]:
        execution = calculon_question(run_of(vp=1, **sizes)).inputs["execution"]
        return [execution[f"{name}_par_net"] for name in ("tensor", "data", "pipeline")]

    assert nets(gpus=8, tp=2, pp=2) == [0, 0, 0]
    assert nets(gpus=16, tp=2, pp=2) == [0, 0, 1]
    assert nets(gpus=64, tp=8, pp=2) == [0, 1, 1]


def test_sharded_weights_are_marked() -> None:
    case = run_of(tp=1, pp=1, vp=1, sharding="fsdp")
    assert SHARDED in calculon_question(case).assumed
    assert calculon_question(case).inputs["execution"]["optimizer_sharding"]


def test_simumax_is_asked_for_the_same_layout() -> None:
    question = simumax_question(run_of(device="b200-sxm", cp=2))
    strategy, model = question.inputs["strategy"], question.inputs["model"]
    assert question.inputs["system"] == "b200_bf16_ceperm"
    assert strategy["micro_batch_num"] == 64
    assert (strategy["tp_size"], strategy["cp_size"], strategy["interleaving_size"]) == (4, 2, 5)
    assert (model["kv_head_num"], model["intermediate_size"], model["use_swiglu"]) == (
        8,
        28672,
        True,
    )
    assert question.known_links["nvlink"] is False


def test_simumax_counts_embedding_and_head_where_layers_do_not_divide() -> None:
    case = run_of("llama-3.1-405b", "b200-sxm", gpus=64, tp=4, pp=16, vp=1)
    assert simumax_question(case).inputs["strategy"]["account_for_loss_in_pipeline_split"]
    case = run_of("llama-3.1-8b", "b200-sxm", gpus=64, tp=4, pp=3, vp=1)
    assert simumax_question(case).inputs["strategy"]["num_layers_in_last_pipeline_stage"] == 10


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (run_of(device="h200-sxm"), "no system shipped"),
        (run_of(cp=2), "context parallelism"),
        (run_of("mixtral-8x7b", pp=1, vp=1, tp=1), "experts"),
        (run_of(job={"training": "lora"}), "low-rank"),
        (run_of(job={"precision": "mxfp8"}), "mxfp8"),
        (run_of(job={"optimizer": "muon"}), "optimizer"),
    ],
)
def test_calculon_is_not_asked_what_it_cannot_express(case: MeasuredRun, why: str) -> None:
    with pytest.raises(InputError, match=why):
        calculon_question(case)


def test_simumax_is_not_asked_what_it_cannot_express() -> None:
    low = run_of(device="b200-sxm", job={"precision": "fp8"})
    with pytest.raises(InputError, match="bf16 rates only"):
        simumax_question(low)
    with pytest.raises(InputError, match="two stages"):
        simumax_question(run_of(device="b200-sxm", pp=2))
    with pytest.raises(InputError, match="half of the products"):
        case = run_of(device="b200-sxm", recompute="selective")
        simumax_question(replace(case, stack=find_stack("torchtitan")))


def test_refusals_that_differ_by_figures_count_together() -> None:
    texts = [f"Error: Mem tier1 needs {size} GiB but only has 80.000 GiB" for size in (90.1, 81.2)]
    assert len({reason("Calculon", text) for text in texts}) == 1
    assert reason("SimuMax", "AssertionError: head_num 25 is odd\nmore") == (
        "SimuMax: head_num N is odd"
    )


def test_ranks_share_ties() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0])).tolist() == [2.5, 1.0, 2.5]
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0])) == pytest.approx(1)
