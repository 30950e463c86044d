"""FSDP2, Megatron-Bridge, NeMo and MaxText: what they refuse, public files, a file that trains."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from computeflow.catalog import load_catalog
from computeflow.cluster import Cluster, find_cluster
from computeflow.errors import InputError
from computeflow.planning.exports.config_formats import ConfigReading, Setup
from computeflow.planning.exports.config_reader import read_file, setup_of
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.prediction import find_stack
from computeflow.workload import Job, Layout

FACTS = load_catalog()
DATA = Path(__file__).parent / "data" / "exports"
NEW = ("fsdp2", "megatron-bridge", "nemo", "maxtext")


@cache
def cluster(name: str) -> Cluster:
    return find_cluster(name, FACTS)


def setup(
    model: str = "llama-3.1-8b",
    *,
    on: str = "h100-sxm",
    job: dict[str, Any] | None = None,
    tokens: float | None = 1e12,
    **layout: Any,
) -> Setup:
    layout = {"gpus": 64, "sharding": "fsdp", **layout}
    task: dict[str, Any] = {"global_batch": 256, "seq_len": 8192} | (job or {})
    return Setup(
        job=Job(model=FACTS.models[model], **task),
        cluster=cluster(f"{on}:{layout['gpus']}"),
        layout=Layout(**layout),
        stack=find_stack("megatron"),
        tokens=tokens,
    )


def text_of(name: str, plan: Setup) -> str:
    return next(iter(FRAMEWORKS[name].write(plan).files.values()))


def public(file: str) -> ConfigReading:
    return read_file((DATA / file).read_text(), file)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt2-xl"])
def test_a_written_file_is_one_formats_and_no_others(name: str, model: str) -> None:
    made = FRAMEWORKS[name].write(setup(model, job={"seq_len": 1024}))
    file, text = next(iter(made.files.items()))
    assert [known.name for known in FRAMEWORKS.values() if known.recognises(text, file)] == [name]


@pytest.mark.parametrize("name", NEW)
def test_a_file_is_enough_for_a_prediction(name: str) -> None:
    reading = read_file(text_of(name, setup(micro_batch=2, recompute="full")), "f")
    back = setup_of(reading, cluster("h100-sxm:64"), {}, FACTS)
    assert back.job.model.blocks == FACTS.models["llama-3.1-8b"].blocks
    assert (back.job.global_batch, back.layout.micro_batch, back.layout.gpus) == (256, 2, 64)
    assert (back.layout.sharding, back.layout.recompute) == ("fsdp", "full")


@pytest.mark.parametrize("name", NEW)
def test_tokens_come_back_as_steps(name: str) -> None:
    found = read_file(text_of(name, setup(tokens=1e12)), "f")
    assert found.job["tokens"] == pytest.approx(1e12, rel=1e-6)
    assert "tokens" not in read_file(text_of(name, setup(tokens=None)), "f").job


@pytest.mark.parametrize("name", NEW)
def test_keys_that_nobody_knows_are_kept(name: str) -> None:
    line = {"nemo": "trainer.sparkle=1\n", "maxtext": "sparkle: 1\n"}.get(
        name, "sparkle:\n  a: 1\n"
    )
    text = text_of(name, setup())
    text = text.replace("PLAN = {", 'PLAN = {"sparkle": 1,') if name == "fsdp2" else text + line
    assert [key for key in read_file(text, "f").unknown if "sparkle" in key]


def test_megatron_bridges_own_70b_recipe() -> None:
    found = public("megatron_bridge_llama3_70b.yaml")
    assert found.format == "megatron-bridge"
    assert found.job == {
        "global_batch": 512,
        "seq_len": 8192,
        "precision": "bf16",
        "checkpoint_steps": 500,
        "tokens": 512 * 8192 * 1168251.0,
    }
    sizes = {name: found.layout[name] for name in ("tp", "pp", "vp", "cp", "micro_batch")}
    assert sizes == {"tp": 4, "pp": 4, "vp": 5, "cp": 2, "micro_batch": 1}
    assert (found.layout["sharding"], found.layout["recompute"]) == ("zero1", "none")
    assert found.unknown == ("dataset.num_workers", "model.cross_entropy_fusion_impl")
    assert "model" not in found.job and "ep" not in found.layout  # the recipe's


def test_nemos_own_70b_recipe() -> None:
    found = public("nemo_llama3_70b.sh")
    assert (found.format, found.stack) == ("nemo", "nemo")
    assert found.job == {
        "model": "llama-3-70b",
        "global_batch": 512,
        "seq_len": 8192,
        "precision": "bf16",
        "tokens": 512 * 8192 * 1168251.0,
    }
    sizes = {name: found.layout[name] for name in ("gpus", "tp", "pp", "vp", "cp", "micro_batch")}
    assert sizes == {"gpus": 32, "tp": 4, "pp": 4, "vp": 5, "cp": 2, "micro_batch": 1}
    assert found.layout["sharding"] == "zero1"
    assert found.unknown == ("optim.config.lr",)
    assert "log.log_dir=$LOGS: set outside of the file" in found.notes
    assert "left to the recipe: recompute" in found.notes


def test_maxtexts_405b_on_two_pods_of_v6e() -> None:
    found = public("maxtext_llama3_405b_v6e.yml")
    assert (found.format, found.stack) == ("maxtext", "jax")
    assert found.job == {"model": "llama-3.1-405b", "seq_len": 8192}
    assert (found.layout["sharding"], found.layout["micro_batch"]) == ("fsdp", 1)
    assert (found.layout["recompute"], found.layout["offload"]) == ("full", "activations")
    assert "gpus" not in found.layout  # dcn_data_parallelism is open in base.yml
    assert found.unknown == ()


def test_maxtexts_70b_on_gpus() -> None:
    found = public("maxtext_llama2_70b_gpu.yml")
    assert found.job == {"model": "llama-2-70b", "seq_len": 4096}
    assert (found.layout["micro_batch"], found.layout["recompute"]) == (6, "full")
    assert found.unknown == ()


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3", "qwen3-30b-a3b", "gpt2-xl"])
def test_megatron_bridges_fields_are_the_whole_shape(model: str) -> None:
    ours = FACTS.models[model]
    text = text_of("megatron-bridge", setup(model, sharding="zero1", job={"seq_len": 1024}))
    theirs = FRAMEWORKS["megatron-bridge"].read(text, "f").job["model"]
    assert (theirs.blocks, theirs.hidden, theirs.vocab, theirs.tied, theirs.norm) == (
        ours.blocks,
        ours.hidden,
        ours.vocab,
        ours.tied,
        ours.norm,
    )


def test_a_recipe_is_named_where_there_is_one() -> None:
    assert "Over llama31_8b_pretrain_config" in text_of("megatron-bridge", setup())
    assert "Over vanilla_gpt_pretrain_config" in text_of("megatron-bridge", setup("gpt3-13b"))
    assert "--factory llama31_8b\n" in text_of("nemo", setup())
    assert "--factory" not in text_of("nemo", setup("gpt3-13b")).replace("pretrain --factory", "")


@pytest.mark.parametrize(
    ("lines", "recompute"),
    [
        ("remat_policy: none", "full"),
        ("remat_policy: none\nscan_layers: false", "none"),
        ("remat_policy: minimal_with_context", "none"),
        ("remat_policy: save_qkv_proj", "selective"),
        ("remat_policy: custom\nmlpwo: device", "selective"),
    ],
)
def test_maxtexts_policies_are_what_they_compute_again(lines: str, recompute: str) -> None:
    assert FRAMEWORKS["maxtext"].read(lines, "f").layout["recompute"] == recompute


def test_maxtext_fills_a_slice_before_it_leaves_it() -> None:
    text = text_of("maxtext", setup(on="tpu-v6e", gpus=512, sharding="hsdp", replicas=2, tp=4))
    assert 'hardware: "tpu"' in text
    inside = dict(re.findall(r"^ici_(\w+)_parallelism: (\d+)", text, re.MULTILINE))
    between = dict(re.findall(r"^dcn_(\w+)_parallelism: (\d+)", text, re.MULTILINE))
    assert (inside["tensor"], inside["fsdp"], inside["data"]) == ("4", "64", "1")
    assert (between["tensor"], between["fsdp"], between["data"]) == ("1", "1", "2")


def test_maxtext_counts_the_two_devices_of_a_v7_chip() -> None:
    made = FRAMEWORKS["maxtext"].write(setup(on="tpu-v7", micro_batch=2))
    assert "gpus = 64: JAX counts 128, and the axes do" in made.left_out
    found = read_file(made.files["maxtext.yml"], "f")
    assert (found.layout["gpus"], found.job["global_batch"]) == (128, 256)


REFUSED = [
    ("fsdp2", "x = 1", "PLAN is set 0 times"),
    ("fsdp2", "PLAN = {}\nPLAN = {}", "PLAN is set 2 times"),
    ("fsdp2", "PLAN = dict(gpus=2)", "not a literal"),
    ("fsdp2", "PLAN = {'gpus': __import__('os').getpid()}", "not a literal"),
    ("fsdp2", "PLAN = [1]", "not a table"),
    ("fsdp2", "PLAN = " + "[" * 100_000, "not Python"),
    ("fsdp2", "PLAN = " + "-" * 100_000 + "1", "not Python|not a literal"),
    ("fsdp2", "PLAN = {'sharding': 'fsdp', 'replicas': 2}", "replicas = 2 against .*fsdp"),
    ("fsdp2", "PLAN = {'sharding': 'ddp', 'offload': 'parameters'}", "parameters against .*ddp"),
    ("fsdp2", "PLAN = {'gpus': 2, 'micro_batch': 3, 'accumulation': 4, 'global_batch': 25}",
     "25 against .* 2 x 3 x 4"),
    ("megatron-bridge", "dataset:\n  seq_length: 1\nmodel:\n  seq_length: 2", "1 against .* = 2"),
    ("megatron-bridge", "ddp:\n  use_distributed_optimizer: true\noptimizer:\n"
     "  use_distributed_optimizer: false", "True against .* False"),
    ("megatron-bridge", "ddp:\n  use_megatron_fsdp: true\ndist:\n  use_megatron_fsdp: false",
     "ddp.use_megatron_fsdp = True against dist"),
    ("megatron-bridge", "model:\n  pipeline_model_parallel_size: 4\n"
     "  pipeline_model_parallel_layout: Et|t|tL", "3 parts against pp = 4"),
    ("megatron-bridge", "model:\n  cpu_offloading: true\n  recompute_granularity: full",
     "cpu_offloading against recompute = full"),
    ("megatron-bridge", "mixed_precision:\n  fp8: hybrid\n  fp4: e2m1", "hybrid against .*e2m1"),
    ("megatron-bridge", "mixed_precision: fp7_mixed", "mixed_precision = fp7_mixed"),
    ("megatron-bridge", "model:\n  tensor_model_parallel_size: many", "size = many"),
    ("megatron-bridge", "model:\n  num_layers: many", "model.num_layers = many"),
    ("nemo", "data.micro_batch_size=1\ndata.micro_batch_size=2", "size=1 against .*size=2"),
    ("nemo", "trainer.strategy.fsdp=megatron optim.config.use_distributed_optimizer=False",
     "megatron against .* False"),
    ("nemo", "trainer.strategy.fsdp=pytorch", "fsdp = pytorch"),
    ("nemo", "trainer.num_nodes=3 trainer.devices=8 trainer.strategy.context_parallel_size=16",
     "24 GPUs against .* 16"),
    ("nemo", "data.seq_length=1 model.config.seq_length=2", "1 against .* = 2"),
    ("maxtext", "ici_fsdp_parallelism: -1\nici_data_parallelism: -1", "data.* -1 against ici_fsdp"),
    ("maxtext", "ici_tensor_parallelism: 0", "ici_tensor_parallelism = 0"),
    ("maxtext", "per_device_batch_size: 0.3", "0.3 against 1 devices"),
    ("maxtext", "per_device_batch_size: 2\nquantization: fp8\ngradient_accumulation_steps: 4",
     "fp8 against .* = 4"),
    ("maxtext", "per_device_batch_size: 1\nici_pipeline_parallelism: 4\n"
     "num_pipeline_microbatches: 6", "6 against 4 stages"),
    ("maxtext", "per_device_batch_size: lots", "per_device_batch_size = lots"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_what_contradicts_itself_is_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FRAMEWORKS[name].read(text, "f")


IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("fsdp2", {"tp": 2}, "tp = 2 against dp = 32"),
    ("fsdp2", {"pp": 2}, "pp = 2 against dp = 32"),
    ("fsdp2", {"cp": 2}, "cp = 2 against dp = 32"),
    ("megatron-bridge", {"offload": "activations", "pp": 2}, "activations against pp = 2"),
    ("megatron-bridge", {"job": {"optimizer": "muon"}}, "muon against sharding = fsdp"),
    ("nemo", {"offload": "optimizer", "sharding": "ddp"}, "optimizer against sharding = ddp"),
    ("maxtext", {"sharding": "ddp", "cp": 2}, "sharding = ddp against cp = 2"),
    ("maxtext", {"pp": 8, "vp": 3, "job": {"global_batch": 512}}, "32 layers against pp x vp = 24"),
    ("maxtext", {"pp": 8, "micro_batch": 8, "job": {"global_batch": 256}}, "4 micro.* pp = 8"),
    ("maxtext", {"model": "deepseek-v3", "pp": 2}, "pp = 2 against dense layers"),
    ("maxtext", {"model": "qwen3-30b-a3b", "ep": 8, "tp": 16}, "ep = 8 against dp = 4"),
    ("maxtext", {"on": "trainium2"}, "trainium2 against TPUs and GPUs"),
    ("maxtext", {"on": "tpu-v7"}, "micro_batch = 1 against 2 cores"),
    ("maxtext", {"on": "mi300x", "job": {"precision": "fp8"}}, "nanoo_fp8 against 4 micro"),
]


@pytest.mark.parametrize(("name", "layout", "message"), IMPOSSIBLE)
def test_what_a_framework_cannot_run_is_not_written(
    name: str, layout: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        FRAMEWORKS[name].write(setup(**layout))


RUNS: dict[str, dict[str, Any]] = {
    "fsdp": {}, "zero2": {"recompute": "selective"}, "hsdp": {"replicas": 2},
    "zero3": {"recompute": "full", "offload": "parameters"}, "ddp": {"recompute": "full"},
    "zero1": {"job": {"global_batch": 16, "precision": "fp32"}},
}  # fmt: skip


@pytest.mark.live
@pytest.mark.parametrize("sharding", RUNS)
def test_the_fsdp2_file_trains_on_two_ranks_as_one_process_does(
    sharding: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    options = {"job": {"global_batch": 16}} | RUNS[sharding]
    file = tmp_path / "fsdp2.py"
    file.write_text(text_of("fsdp2", setup(gpus=2, sharding=sharding, micro_batch=2, **options)))
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), 3 micro", launched(file, 2))]
    assert losses == pytest.approx(trained_alone(file), abs=0.005)


def trained_alone(file: Path) -> list[float]:
    """The toy's losses over the data of both ranks, without any of the file's own steps."""
    import torch

    toy = runpy.run_path(str(file))["Toy"]
    torch.manual_seed(0)
    model = toy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = []
    for rank in range(2):
        torch.manual_seed(1 + rank)
        parts.append(torch.randint(256, (3, 2, 33)).flatten(0, 1))
    data, losses = torch.cat(parts), []
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model(data[:, :-1]), data[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.live
def test_the_fsdp2_file_stops_on_fewer_ranks_than_planned(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "fsdp2.py"
    file.write_text(text_of("fsdp2", setup(gpus=64)))
    assert "the plan is for 64 ranks, 1 are there" in launched(file, 1, fails=True)


def launched(file: Path, ranks: int, *, fails: bool = False) -> str:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        str(file),
        "--steps",
        "3",
        "--accumulate",
        "3",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=file.parent,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.returncode != 0) == fails, done.stderr[-2000:]
    return done.stdout + done.stderr
