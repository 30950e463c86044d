"""Output that the projects' own parsers refused (benchmarks/prove_exports.py) is no longer written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.errors import InputError
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.planning.exports.launchers import LAUNCHERS
from computeflow.prediction import find_stack
from computeflow.workload import Job, Layout

FACTS = load_catalog()


def setup(
    model: str = "llama-3.1-8b", *, job: dict[str, Any] | None = None, **layout: Any
) -> Setup:
    layout = {"gpus": 64, "sharding": "zero1", **layout}
    task: dict[str, Any] = {"global_batch": 256, "seq_len": 8192} | (job or {})
    return Setup(
        job=Job(model=FACTS.models[model], **task),
        layout=Layout(**layout),
        tokens=1e12,
        cluster=find_cluster(f"h100-sxm:{layout['gpus']}", FACTS),
        stack=find_stack("megatron"),
    )


REFUSED: list[tuple[str, Setup, str]] = [
    ("torchtitan", setup("qwen3-8b", pp=2, sharding="fsdp"), "pp = 2 against model = qwen3-8b"),
    ("torchtitan", setup("deepseek-v3", cp=2, sharding="fsdp"), "cp = 2 against model = deepseek"),
    ("torchtitan", setup(job={"seq_len": 1028}, tp=8, sharding="fsdp"), "1028 against 2 x tp x cp"),
    ("deepspeed", setup(cp=2, tp=2, context="all-to-all"), "cp = 2 against tp = 2"),
    ("deepspeed", setup(cp=2, pp=2, context="all-to-all"), "cp = 2 against pp = 2"),
    ("deepspeed", setup(pp=2, tp=2), "pp = 2 against tp = 2"),
    ("accelerate", setup(gpus=8, tp=8, sharding="fsdp"), "sharding = fsdp against 8 GPUs"),
    ("megatron", setup(job={"optimizer": "muon"}, sharding="fsdp"), "muon against sharding = fsdp"),
    ("megatron", setup(job={"optimizer": "muon"}, offload="optimizer"), "muon against offload"),
]


@pytest.mark.parametrize(("name", "plan", "message"), REFUSED)
def test_what_a_parser_refuses_is_refused_here_first(name: str, plan: Setup, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FRAMEWORKS[name].write(plan)


def deepspeed(plan: Setup) -> tuple[dict[str, Any], tuple[str, ...]]:
    written = FRAMEWORKS["deepspeed"].write(plan)
    return json.loads(written.files["ds_config.json"]), written.left_out


def test_autotp_is_given_no_batch_that_it_would_count_on_all_gpus() -> None:
    tree, left_out = deepspeed(setup(tp=2))
    assert "train_batch_size" not in tree
    assert any(line.startswith("global_batch = 256") for line in left_out)


def test_sequence_groups_of_deepspeed_come_with_the_ranks_beside_them() -> None:
    tree, _ = deepspeed(setup(cp=2, context="all-to-all"))
    assert (tree["sequence_parallel_size"], tree["data_parallel_size"]) == (2, 32)
    wrong = json.dumps(tree | {"data_parallel_size": 16})
    with pytest.raises(InputError, match=r"data_parallel_size = 16 against .* 32"):
        FRAMEWORKS["deepspeed"].read(wrong, "f")


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_accelerate_says_that_megatron_recomputes_all_through_it(recompute: str) -> None:
    written = FRAMEWORKS["accelerate"].write(setup(tp=2, recompute=recompute))
    assert 'megatron_lm_recompute_granularity: "full"' in written.files["accelerate.yaml"]
    assert any(line.startswith(f"recompute = {recompute}") for line in written.left_out)


@pytest.mark.parametrize(
    ("sharding", "there"), [("zero1", True), ("zero2", False), ("fsdp", False)]
)
def test_one_connection_is_asked_for_unless_megatrons_fsdp_shards(
    sharding: str, there: bool
) -> None:
    plan = setup(tp=2, sharding=sharding)
    script = LAUNCHERS["torchrun"].write(plan, ["python"]).files["torchrun.sh"]
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in script) is there
    plain = replace(plan, stack=find_stack("torchtitan"))
    arguments = FRAMEWORKS["megatron"].write(plain).files["megatron.args"]
    assert ("# CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun" in arguments) is there
