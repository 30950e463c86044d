"""Configurations that public projects launch: read without help, as by eye, and predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.errors import InputError
from computeflow.files.limits import PIPELINE_PARTS
from computeflow.planning.exports.config_formats import ConfigReading, Setup
from computeflow.planning.exports.config_reader import read_file, setup_of
from computeflow.planning.exports.frameworks.shell.script import launch_words
from computeflow.planning.review import review
from computeflow.prediction import Prediction, predict

FACTS = load_catalog()
DATA = Path(__file__).parent / "data" / "exports"


@dataclass(frozen=True, kw_only=True)
class Public:
    """Values read from a file by eye (None where absent), and the hardware it is predicted on."""

    file: str
    format: str
    says: dict[str, Any]
    on: str
    given: dict[str, Any] = field(default_factory=dict)
    """Options that the file does not state."""
    published_seconds: float | None = None


def sizes(tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1) -> dict[str, int]:
    return {"tp": tp, "pp": pp, "cp": cp, "ep": ep}


def batch(micro: int | None, total: int | None, seq_len: int | None) -> dict[str, Any]:
    return {"micro_batch": micro, "global_batch": total, "seq_len": seq_len}


def kept(
    sharding: str | None, recompute: str | None, offload: str | None = "none"
) -> dict[str, Any]:
    return {"sharding": sharding, "recompute": recompute, "offload": offload}


PUBLIC = [
    Public(
        file="torchtitan_llama3_8b.toml", format="torchtitan", on="a100-80-sxm:64",
        says={"model": "llama-3.1-8b", "gpus": None, "precision": None, **sizes(),
              **batch(1, None, 8192), **kept("fsdp", "selective")},
        published_seconds=8192 / 2973,
    ),
    Public(
        file="torchtitan_llama3_8b_v0.1.toml", format="torchtitan", on="h100-sxm:64",
        says={"model": "llama-3.1-8b", "gpus": None, "precision": "fp8", **sizes(),
              **batch(1, None, 8192), **kept("fsdp", "selective")},
    ),
    Public(
        file="torchtitan_llama3_405b.toml", format="torchtitan", on="h100-sxm:128",
        says={"model": "llama-3.1-405b", "gpus": None, "precision": "fp8", **sizes(tp=8),
              **batch(2, None, 8192), **kept("fsdp", "full")},
        published_seconds=2 * 8192 / 8 / 185,
    ),
    Public(
        file="torchtitan_deepseek_16b.toml", format="torchtitan", on="h100-sxm:64",
        says={"model": "deepseek-v2-lite", "gpus": None, "precision": None, **sizes(ep=8),
              **batch(4, None, 4096), **kept("fsdp", "selective")},
    ),
    Public(
        file="torchtitan_llama4_scout.toml", format="torchtitan", on="h100-sxm:64",
        says={"model": "llama-4-scout", "gpus": None, "precision": None, "etp": 8, **sizes(tp=8),
              **batch(8, None, 8192), **kept("fsdp", "full")},
    ),
    Public(
        file="megatron_llama3_8b.sh", format="megatron", on="h100-sxm:8",
        says={"model": "32 layers of 4096", "gpus": 8, "precision": "fp8", **sizes(),
              **batch(1, 128, 8192), **kept("zero1", "none")},
    ),
    Public(
        file="megatron_gpt3_175b.sh", format="megatron", on="a100-80-sxm:1024",
        says={"model": None, "gpus": None, "precision": "fp16", **sizes(tp=8, pp=16),
              **batch(1, 1536, 2048), **kept("ddp", "none")},
        given={"model": "gpt3-175b"},
    ),
    Public(
        file="megatron_gpt_76b.sh", format="megatron", on="a100-80-sxm:1024",
        says={"model": None, "gpus": 1024, "precision": "fp16", "vp": 3, **sizes(tp=8, pp=4),
              **batch(2, 1792, 2048), **kept("ddp", "full")},
        given={"model": "gpt-76b"},
        published_seconds=16.06,
    ),
    Public(
        file="megatron_mixtral_8x7b.sh", format="megatron", on="h100-sxm:32",
        says={"model": "32 layers of 4096", "gpus": None, "precision": "bf16",
              **sizes(pp=4, ep=8), **batch(1, 256, 4096), **kept("zero1", "none")},
    ),
    Public(
        file="megatron_fsdp_deepseek_v3.sh", format="megatron", on="h100-sxm:512",
        says={"model": None, "gpus": None, "precision": "bf16", "etp": 1, **sizes(ep=8),
              **batch(4, 2048, 4096), **kept("fsdp", "selective")},
        given={"model": "deepseek-v3"},
    ),
    Public(
        file="megatron_bloom_176b.slurm", format="megatron", on="a100-80-sxm:384",
        says={"model": "70 layers of 14336", "gpus": 384, "precision": "bf16",
              **sizes(tp=4, pp=12), **batch(2, 2048, 2048), **kept("zero1", "full")},
        published_seconds=104.70,
    ),
    Public(
        file="megatron_pai_qwen3.sh", format="megatron", on="h100-sxm:16",
        says={"model": None, "gpus": None, "precision": None, "tp": None, "pp": None, "cp": 1,
              **batch(None, None, None), **kept(None, None, None)},
        given={"model": "qwen3-8b", "global_batch": 64, "seq_len": 4096, "tp": 2,
               "sharding": "zero1"},
    ),
    Public(
        file="trainer_zephyr_7b.yaml", format="trainer", on="h100-sxm:8",
        says={"model": "mistralai/Mistral-7B-v0.1", "gpus": None, "precision": "bf16",
              **batch(16, None, 2048), **kept("ddp", "full")},
        given={"sharding": "zero3"},
    ),
    Public(
        file="trainer_zephyr_7b_qlora.yaml", format="trainer", on="h100-sxm:8",
        says={"model": "mistralai/Mistral-7B-v0.1", "training": "qlora", "lora_rank": 16,
              "gpus": None, "precision": "bf16", **batch(4, None, 2048), **kept("ddp", "full")},
    ),
    Public(
        file="trainer_openr1_7b.yaml", format="trainer", on="h100-sxm:8",
        says={"model": "open-r1/Qwen2.5-Math-7B-RoPE-300k", "gpus": None, "precision": "bf16",
              **batch(2, None, 32768), **kept("ddp", "full")},
        given={"model": "qwen2.5-7b", "sharding": "zero3"},
    ),
    Public(
        file="trainer_llama_factory_qwen3_4b.yaml", format="trainer", on="h100-sxm:8",
        says={"model": "Qwen/Qwen3-4B-Instruct-2507", "gpus": None, "precision": "bf16",
              **batch(1, None, 2048), **kept(None, "none", None)},
        given={"model": "qwen3-4b", "sharding": "zero3"},
    ),
    Public(
        file="accelerate_fsdp.yaml", format="accelerate", on="h100-sxm:2",
        says={"model": None, "gpus": 2, "precision": "bf16", **sizes(), **batch(None, None, None),
              **kept("fsdp", "none")},
        given={"model": "qwen3-1.7b", "global_batch": 16, "seq_len": 4096},
    ),
    Public(
        file="accelerate_llama_factory_2x8.yaml", format="accelerate", on="h100-sxm:16",
        says={"model": None, "gpus": 16, "precision": "bf16", **sizes(),
              **batch(None, None, None), **kept("fsdp", "none")},
        given={"model": "llama-3.1-8b", "global_batch": 16, "seq_len": 8192},
    ),
    Public(
        file="accelerate_openr1_zero3.yaml", format="accelerate", on="h100-sxm:8",
        says={"model": None, "gpus": 8, "precision": "bf16", **sizes(), **batch(None, None, None),
              **kept("zero3", "none")},
        given={"model": "qwen2.5-7b", "global_batch": 32, "seq_len": 8192},
    ),
    Public(
        file="deepspeed_axolotl_zero3_offload.json", format="deepspeed", on="a100-80-sxm:8",
        says={"model": None, "gpus": None, "precision": "bf16", **sizes(),
              **batch(None, None, None), **kept("zero3", None, "parameters")},
        given={"model": "llama-3.1-8b", "global_batch": 256, "seq_len": 4096, "micro_batch": 4},
    ),
    Public(
        file="deepspeed_bing_bert_lamb.json", format="deepspeed", on="a100-80-sxm:64",
        says={"model": None, "gpus": None, "precision": "fp16", **sizes(),
              **batch(64, 65536, None), **kept("ddp", None)},
        given={"model": "gpt2-medium", "seq_len": 128},
    ),
    *(
        Public(
            file=file, format="deepspeed", on="h100-sxm:8",
            says={"model": None, "gpus": None, "precision": None, **sizes(),
                  **batch(None, None, None), **kept("zero3", None)},
            given={"model": "qwen2.5-7b", "global_batch": 64, "seq_len": 4096},
        )
        for file in ("deepspeed_transformers_zero3.json", "deepspeed_minicpm_v.json")
    ),
]  # fmt: skip


@cache
def read(file: str) -> ConfigReading:
    return read_file((DATA / file).read_text(), file)


def setup(public: Public) -> Setup:
    return setup_of(read(public.file), find_cluster(public.on, FACTS), public.given, FACTS)


def predicted(public: Public) -> Prediction:
    plan = setup(public)
    return predict(plan.job, plan.cluster, plan.layout, plan.stack)


every = pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.file)


def test_every_configuration_has_its_row() -> None:
    files = {path.name for path in DATA.iterdir()} - {"README.md"}
    assert {public.file for public in PUBLIC} <= files
    ours = ("torchtitan", "megatron_", "trainer", "accelerate", "deepspeed")
    others = ("megatron_bridge",)
    assert {f for f in files if f.startswith(ours) and not f.startswith(others)} == {
        public.file for public in PUBLIC
    }


@every
def test_a_file_is_recognised_and_says_what_a_reader_finds(public: Public) -> None:
    found = read(public.file)
    assert found.format == public.format
    stated = {**found.job, **found.layout}
    model = stated.get("model")
    if model is not None and not isinstance(model, str):
        stated["model"] = f"{model.layers} layers of {model.hidden}"
    assert {name: stated.get(name) for name in public.says} == public.says


@every
def test_a_prediction_of_it_is_of_this_world(public: Public) -> None:
    told = predicted(public)
    assert math.isfinite(told.step_seconds) and told.step_seconds > 0
    mfu = told.ledger.mfu
    assert mfu is not None and 0.05 < mfu < 0.75
    assert told.memory_bytes > 0
    if public.published_seconds is not None:
        assert told.step_seconds == pytest.approx(public.published_seconds, rel=0.25)


def flags(script: str) -> list[str]:
    return launch_words(script, "f")


SHELL = [
    ("torchrun x.py --tp ${TP:-8}", ["--tp", "8"]),
    ("TP=2\ntorchrun x.py --tp ${TP:-8}", ["--tp", "2"]),
    ('TP=${TP:-"4"}\ntorchrun x.py --tp "$TP"', ["--tp", "4"]),
    (': "${TP:=4}"\ntorchrun x.py --tp $TP', ["--tp", "4"]),
    ("A=2\nB=$((A*(4+$A)))\ntorchrun x.py --gbs $B", ["--gbs", "12"]),
    ("torchrun x.py --gbs $((TP > 1 ? 1 : 0))", ["--gbs", "$()"]),
    ("A=(--tp 2 # of two\n  --pp 4)\nA+=(--cp 1)\ntorchrun x.py ${A[@]}",
     ["--tp", "2", "--pp", "4", "--cp", "1"]),
    ('O="--tp 2 \\\n  --pp 4"\nO+=" --cp 1"\neval "torchrun x.py $O" 2>&1 | tee log',
     ["--tp", "2", "--pp", "4", "--cp", "1"]),
    ("export CMD='x.py --tp 2'\nsrun bash -c '$CMD --pp 4' 2>log", ["--tp", "2", "--pp", "4"]),
    ("P=fp8\nif [[ $P == fp8 || $P == x ]]; then O=--fp8; else O=--bf16; fi\ntorchrun x.py $O",
     ["--fp8"]),
    ("if [ -z $P ]; then O=--bf16; fi\ntorchrun x.py $O", ["--bf16"]),
    ('if [ "$1" = big ]; then TP=8; else TP=4; fi\ntorchrun x.py --tp $TP', ["--tp", "${TP}"]),
    ("case $1 in\n --tp|-t) TP=$2;;\nesac\nTP=4\ntorchrun x.py --tp $TP", ["--tp", "4"]),
    ("S=8B\ncase $S in\n 7B|8B) N=32;;\n *) N=80;;\nesac\ntorchrun x.py --n $N", ["--n", "32"]),
    ("while [ $# -gt 0 ]; do TP=$1; shift; done\ntorchrun x.py --tp ${TP:-2}", ["--tp", "2"]),
    ("if false; then\n${TP:=8} x; fi\ntorchrun x.py --tp ${TP:-2}", ["--tp", "2"]),
    ("python tokenize.py --workers 4\ntorchrun x.py --tp 2 --pp 4", ["--tp", "2", "--pp", "4"]),
    ("cat <<EOF > c.json\n{\"a\": 1} --tp 9\nEOF\ntorchrun x.py --tp 2", ["--tp", "2"]),
    ("TP=2\nsbatch <<EOF\nsrun x.py --tp $TP --r \\$RANK\nEOF", ["--tp", "2", "--r", "$RANK"]),
    ("usage() {\n  echo 'run --tp N'\n}\ntorchrun x.py --tp 2", ["--tp", "2"]),
    ("#SBATCH --nodes=4\ntorchrun x.py --nnodes $SLURM_NNODES", ["--nnodes", "4"]),
    ("A=$(nproc --all)\ntorchrun x.py --n `ls --all` --tp 2", ["--n", "$()", "--tp", "2"]),
    ("--tp 2 # of two\n--layout E|t|L\n", ["--tp", "2", "--layout", "E|t|L"]),
]  # fmt: skip


@pytest.mark.parametrize(("script", "words"), SHELL)
def test_what_a_script_settles_is_followed_without_running_it(
    script: str, words: list[str]
) -> None:
    found = flags(script)
    first = next(i for i, word in enumerate(found) if word.startswith("--"))
    assert found[first:] == words


HOSTILE = [
    "A=--xxxxxxxxxx\n" + "A=$A$A\n" * 60,
    "A=x\n" + "A+=$A\n" * 60,
    "if true; then\n" * 200,
    "${" * 10_000,
    "$((" * 10_000,
    '"$(' * 10_000,
    "--n $((" + "9**" * 50 + "9))\nx",
    "case x in " * 50 + ";;" * 100,
    "<<A\n" * 1000,
    "a | " * 5000 + "\n",
]


@pytest.mark.parametrize("script", HOSTILE, ids=range(len(HOSTILE)))
def test_a_script_that_grows_or_nests_without_end_is_refused_or_left_open(script: str) -> None:
    try:
        assert len(flags(script)) < 100_000
    except InputError as error:
        assert "more than" in str(error)


def megatron(text: str) -> ConfigReading:
    return read_file(f"--micro-batch-size 1\n{text}", "f", "megatron")


CHUNKS = [
    ("--num-layers 48 --num-layers-per-virtual-pipeline-stage 3", 4),
    ("--num-layers 46 --num-layers-per-virtual-pipeline-stage 3 "
     "--decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 5", 6),
    ("--num-layers 46 --num-layers-per-virtual-pipeline-stage 6 "
     "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", 2),
    ("--num-layers 61 --pipeline-model-parallel-layout Et*3|(tt|)*29m|L", 8),
    ("--num-layers-per-virtual-pipeline-stage 3", 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "chunks"), CHUNKS)
def test_stages_that_are_cut_into_chunks(text: str, chunks: int) -> None:
    found = megatron(f"--pipeline-model-parallel-size 4\n{text}")
    assert found.layout["vp"] == chunks


def test_a_layout_that_repeats_without_end_is_refused() -> None:
    text = f"--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout {'(t)*9999' * 9}"
    with pytest.raises(InputError, match="letters, bars"):
        megatron(text)
    assert PIPELINE_PARTS < 9 * 9999


EXPERTS = [
    ("1", 0),
    ("2", 30),
    ("([1]*60)", 0),
    ("[0]*3+[1]*57", 3),
    ("([0]+[1]*59)", 1),
    ("([0,1]*30)", 30),
]


@pytest.mark.parametrize(("frequency", "dense"), EXPERTS)
def test_layers_that_have_no_experts(frequency: str, dense: int) -> None:
    found = megatron(
        "--num-layers 60 --hidden-size 64 --num-attention-heads 4 --vocab-size 100 --num-experts 8\n"
        f"--moe-layer-freq {frequency}"
    )
    blocks = found.job["model"].blocks
    assert sum(block.count for block in blocks if block.experts is None) == dense
    assert sum(block.count for block in blocks) == 60


def test_a_flag_that_stands_there_twice_holds_as_argparse_has_it() -> None:
    found = megatron("--seq-length 12000 --split 9 --seq-length 8192 --split 8")
    assert found.job["seq_len"] == 8192
    assert found.notes == ("--seq-length 12000 and --seq-length 8192: the last holds",)


def test_a_size_that_the_script_does_not_settle_is_not_stated() -> None:
    found = megatron("--tensor-model-parallel-size $TP --data-path $DATA --bf16")
    assert "tp" not in found.layout and found.layout["pp"] == 1
    assert found.notes == (
        "not settled by the file, read as left out: --tensor-model-parallel-size $TP",
    )


def test_nodes_that_are_a_placeholder_leave_the_gpus_open() -> None:
    found = read("megatron_gpt3_175b.sh")
    assert "gpus" not in found.layout
    assert "1 x 8 GPUs, less than the 128 of one copy of the model: left open" in found.notes


def test_older_flags_tell_an_older_megatron() -> None:
    stacks = {file: read(file).stack for file in (p.file for p in PUBLIC) if "megatron" in file}
    assert stacks["megatron_bloom_176b.slurm"] == "megatron-deepspeed"
    assert stacks["megatron_gpt_76b.sh"] == "megatron-2021"
    assert stacks["megatron_mixtral_8x7b.sh"] == "megatron"


def test_a_batch_that_follows_from_the_gpus_is_worked_out() -> None:
    batches = {p.file: setup(p).job.global_batch for p in PUBLIC}
    assert batches["torchtitan_llama3_405b.toml"] == 2 * 128 // 8
    assert batches["trainer_openr1_7b.yaml"] == 2 * 8 * 8
    assert batches["trainer_zephyr_7b.yaml"] == 16 * 8


def test_keys_that_nobody_knows_are_kept_and_those_of_learning_are_not() -> None:
    unknown = {p.file: read(p.file).unknown for p in PUBLIC}
    assert unknown["megatron_bloom_176b.slurm"] == ("pp-partition-method", "rampup-batch-size")
    assert unknown["deepspeed_bing_bert_lamb.json"] == (
        "sparse_attention.mode",
        "sparse_attention.block",
    )
    assert unknown["trainer_openr1_7b.yaml"] == ("packing", "use_liger_kernel")
    assert unknown["torchtitan_llama3_8b.toml"] == ("quantize.linear.float8.filter_fqns",)


def test_an_optimizer_nobody_knows_is_taken_for_adamw() -> None:
    found = read("deepspeed_bing_bert_lamb.json")
    assert found.job["optimizer"] == "adamw"
    assert "optimizer.type = Lamb: taken for adamw" in found.notes


def test_deepspeed_in_another_file_leaves_sharding_open() -> None:
    found = read("trainer_llama_factory_qwen3_4b.yaml")
    assert "sharding" not in found.layout
    assert any(note.startswith("deepspeed = examples/") for note in found.notes)


def test_a_model_that_nobody_knows_asks_for_another() -> None:
    found = read("trainer_openr1_7b.yaml")
    with pytest.raises(InputError, match=r"the file's model: unknown model .*; give --model"):
        setup_of(found, find_cluster("h100-sxm:8", FACTS), {}, FACTS)


def test_a_better_layout_is_not_told_twice() -> None:
    plan = setup(next(p for p in PUBLIC if p.file == "torchtitan_llama3_8b.toml"))
    remarks = review(plan.job, plan.cluster, plan.layout, plan.stack).remarks
    changes = [remark.change for remark in remarks if remark.change is not None]
    assert changes and all(changes.count(change) == 1 for change in changes)


def test_hybrid_sharding_of_accelerate_copies_by_machine() -> None:
    text = (DATA / "accelerate_llama_factory_2x8.yaml").read_text()
    found = read_file(text.replace("FULL_SHARD", "4"), "f")
    assert (found.layout["sharding"], found.layout["replicas"]) == ("hsdp", 2)


def test_a_recipe_with_a_yaml_alias_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="aliases"):
        read_file("a: &n 4\nper_device_train_batch_size: *n\n", "f")
