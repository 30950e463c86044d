"""A plan written for a framework is the same plan when it is read back."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cluster import Cluster, find_cluster
from computeflow.errors import InputError
from computeflow.files.limits import CONFIG_BYTES
from computeflow.planning.exports.config_formats import ConfigReading, Setup
from computeflow.planning.exports.frameworks import FRAMEWORKS, Framework
from computeflow.prediction import find_stack
from computeflow.workload import Job, Layout, Layouts, refusals
from computeflow.workload.job import OPTIMIZERS, PRECISIONS
from computeflow.workload.layout import CHOICES

FACTS = load_catalog()
DATA = Path(__file__).parent / "data" / "exports"
MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt2-xl",
    "mixtral-8x7b",
)
JOB = ("global_batch", "seq_len", "precision", "optimizer", "checkpoint_steps", "training")


@cache
def cluster(gpus: int) -> Cluster:
    return find_cluster(f"h100-sxm:{gpus}", FACTS)


def setup(
    model: str = "llama-3.1-8b", *, job: dict[str, Any] | None = None, **layout: Any
) -> Setup:
    layout = {"gpus": 64, "sharding": "fsdp", **layout}
    task: dict[str, Any] = {"global_batch": 256, "seq_len": 8192} | (job or {})
    return Setup(
        job=Job(model=FACTS.models[model], **task),
        cluster=cluster(layout["gpus"]),
        layout=Layout(**layout),
        stack=find_stack("torchtitan"),
        tokens=1e12,
    )


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Any possible layout; most powers of two fit each other, the rest is discarded."""
    power = st.sampled_from([1, 1, 1, 2, 4, 8])
    sizes: dict[str, Any] = {n: draw(power) for n in ("tp", "pp", "cp", "ep", "micro_batch")}
    sizes["gpus"] = sizes["tp"] * sizes["pp"] * sizes["cp"] * draw(st.sampled_from([1, 2, 8, 16]))
    sizes["vp"] = draw(st.sampled_from([1, 2, 3])) if sizes["pp"] > 1 else 1
    sizes["etp"] = draw(st.sampled_from([1, sizes["tp"]]))
    chosen: dict[str, Any] = {name: draw(st.sampled_from(names)) for name, names in CHOICES.items()}
    chosen["schedule"] = "1f1b" if sizes["vp"] > 1 or sizes["pp"] == 1 else chosen["schedule"]
    sizes["replicas"] = draw(st.sampled_from([1, 2, 4])) if chosen["sharding"] == "hsdp" else 1
    model = draw(st.sampled_from(MODELS))
    if not any(block.experts for block in FACTS.models[model].blocks):
        sizes["ep"] = sizes["etp"] = 1
    job = Job(
        model=FACTS.models[model],
        global_batch=draw(st.sampled_from([64, 256, 768])),
        seq_len=draw(st.sampled_from([2048, 8192])),
        precision=draw(st.sampled_from(PRECISIONS)),
        optimizer=draw(st.sampled_from(OPTIMIZERS)),
        checkpoint_steps=draw(st.sampled_from([None, 500])),
    )
    layout = Layout(**sizes, **chosen)
    assume(not refusals(job, Layouts.of([layout])))
    copies = layout.gpus // (layout.tp * layout.pp * layout.cp)
    assume(layout.sharding != "hsdp" or 1 < layout.replicas < copies)  # else fsdp or ddp by name
    return Setup(
        job=job,
        cluster=cluster(layout.gpus),
        layout=layout,
        stack=find_stack("megatron"),
        tokens=draw(st.sampled_from([None, 1e11])),
    )


def written(framework: Framework, plan: Setup) -> tuple[str, ConfigReading, tuple[str, ...]]:
    made = framework.write(plan)
    name, text = next(iter(made.files.items()))
    assert framework.recognises(text, name)
    return text, framework.read(text, name), made.left_out


def matters(field: str, plan: Setup) -> bool:
    """Whether another value of a field would be another run."""
    if field == "sharding":
        return plan.dp * plan.layout.cp > 1
    return field != "context" or plan.layout.cp > 1


@pytest.mark.parametrize("name", FRAMEWORKS)
@given(plan=setups())
def test_what_is_written_is_read_back_the_same(name: str, plan: Setup) -> None:
    framework = FRAMEWORKS[name]
    try:
        text, found, left_out = written(framework, plan)
    except InputError as error:
        assert " against " in str(error)
        return
    assert found.unknown == ()
    said = " ".join(left_out)
    for field in framework.expresses:
        ours = found.job if field in (*JOB, "model") else found.layout
        value = getattr(plan.job if field in (*JOB, "model") else plan.layout, field)
        value = value.name if field == "model" else value
        if f"{field} = {value}" in said:
            continue
        if not matters(field, plan):
            continue
        assert ours.get(field) == value, (field, text)
    for field in (*CHOICES, "tp", "pp", "vp", "cp", "ep", "etp"):
        value = getattr(plan.layout, field)
        plain = Layout.__dataclass_fields__[field].default
        if field not in framework.expresses and matters(field, plan) and value != plain:
            assert f"{field} = {value}" in said
    assert all(line in "".join(framework.write(plan).files.values()) for line in left_out)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_file_of_more_than_five_megabytes_is_refused_unread(name: str) -> None:
    with pytest.raises(InputError, match="larger than"):
        FRAMEWORKS[name].read("#" * (CONFIG_BYTES + 1), "huge")


def read(file: str) -> ConfigReading:
    text = (DATA / file).read_text()
    (found,) = [known for known in FRAMEWORKS.values() if known.recognises(text, file)]
    return found.read(text, file)


def test_torchtitans_own_405b_preset() -> None:
    found = read("torchtitan_llama3_405b.toml")
    assert found.job == {
        "model": "llama-3.1-405b",
        "seq_len": 8192,
        "precision": "fp8",
        "optimizer": "adamw",
    }
    assert (found.layout["tp"], found.layout["micro_batch"]) == (8, 2)
    assert (found.layout["sharding"], found.layout["recompute"]) == ("fsdp", "full")
    assert "gpus" not in found.layout  # data_parallel_shard_degree = -1
    assert "parallelism.enable_async_tensor_parallel" in found.unknown


def test_megatrons_own_llama_script_with_its_variables() -> None:
    found = read("megatron_llama3_8b.sh")
    model = found.job.pop("model")
    assert model.blocks == FACTS.models["llama-3.1-8b"].blocks
    assert (model.hidden, model.vocab, model.tied) == (4096, 128256, False)
    assert found.job == {
        "global_batch": 128,
        "seq_len": 8192,
        "precision": "fp8",
        "checkpoint_steps": 1000,
    }
    assert found.layout["gpus"] == 8 and found.layout["pp"] == 1
    assert found.layout["sharding"] == "zero1"
    assert found.unknown == () and found.notes == ()


def test_accelerates_own_template() -> None:
    found = read("accelerate_fsdp.yaml")
    assert found.job == {"precision": "bf16"}
    assert found.layout["gpus"] == 2 and found.layout["sharding"] == "fsdp"
    assert found.unknown == ()


@pytest.mark.parametrize("file", ["deepspeed_transformers_zero3.json", "deepspeed_minicpm_v.json"])
def test_deepspeed_files_that_leave_sizes_to_the_trainer(file: str) -> None:
    found = read(file)
    assert found.layout["sharding"] == "zero3" and found.layout["offload"] == "none"
    assert found.job == {"optimizer": "adamw"}
    assert "train_micro_batch_size_per_gpu = auto: left to the script" in found.notes


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3", "qwen3-30b-a3b", "gpt3-175b"])
def test_megatrons_flags_are_the_whole_shape(model: str) -> None:
    text = FRAMEWORKS["megatron"].write(setup(model)).files["megatron.args"]
    ours, theirs = FACTS.models[model], FRAMEWORKS["megatron"].read(text, "f").job["model"]
    assert (theirs.blocks, theirs.hidden, theirs.tied, theirs.norm) == (
        ours.blocks,
        ours.hidden,
        ours.tied,
        ours.norm,
    )


REFUSED = [
    ("deepspeed", '{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 3}', "100.*3 x 1"),
    ("deepspeed", '{"zero_optimization": {"stage": "three"}}', "stage = three"),
    ("deepspeed", '{"bf16": {"enabled": true}, "fp16": {"enabled": true}}', "bf16.*fp16"),
    ("deepspeed", '{"train_batch_size": true}', "train_batch_size = True"),
    ("deepspeed", "[" * 100_000, "nested too deeply|not JSON"),
    ("torchtitan", "[training]\nlocal_batch_size = 3\nglobal_batch_size = 16\n[parallelism]\n"
     "data_parallel_shard_degree = 2", "16 against .* 3 x 2"),
    ("torchtitan", "[parallelism]\ntensor_parallel_degree = -4", "tensor_parallel_degree = -4"),
    ("torchtitan", "x = " + "[" * 100_000, "TOML"),
    ("torchtitan", "x = " + "9" * 100_000, "too large a number"),
    ("megatron", "--bf16 --fp16 --micro-batch-size 1", "--bf16 against --fp16"),
    ("megatron", "--micro-batch-size many", "micro-batch-size = many"),
    ("megatron", "--nnodes 3 --nproc_per_node 8 --tensor-model-parallel-size 16", "24 GPUs.* 16"),
    ("accelerate", "distributed_type: FSDP\nnum_processes: 8\nparallelism_config:\n"
     "  parallelism_config_dp_shard_size: 2\n  parallelism_config_tp_size: 2", "8 against .*2 x 2"),
    ("accelerate", "distributed_type: &a FSDP\nnum_processes: *a", "aliases"),
    ("accelerate", "distributed_type: FSDP\ndistributed_type: NO", "twice"),
    ("accelerate", "distributed_type: " + "[" * 10_000, "nested too deeply"),
    ("trainer", '{"per_device_train_batch_size": 2, "fsdp": true, "deepspeed": {}}', "fsdp"),
    ("trainer", '{"per_device_train_batch_size": 2, "deepspeed": '
     '{"train_micro_batch_size_per_gpu": 4}}', "2 against .* 4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_what_contradicts_itself_is_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FRAMEWORKS[name].read(text, "f")


IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("torchtitan", {"sharding": "ddp", "tp": 2}, "sharding = ddp against tp = 2"),
    ("deepspeed", {"sharding": "zero3", "pp": 2}, "zero3 .* against pp = 2"),
    ("megatron", {"offload": "activations", "pp": 2}, "activations against pp = 2"),
    ("accelerate", {"sharding": "fsdp", "pp": 2}, "fsdp against pp = 2"),
    ("trainer", {"tp": 2}, "tp = 2 against dp = 32"),
]


@pytest.mark.parametrize(("name", "layout", "message"), IMPOSSIBLE)
def test_what_a_framework_cannot_run_is_not_written(
    name: str, layout: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        FRAMEWORKS[name].write(setup(**layout))


@given(text=st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_any_text_is_read_or_refused(text: str) -> None:
    for framework in FRAMEWORKS.values():
        framework.recognises(text, "f")
        with suppress(InputError):
            framework.read(text, "f")
