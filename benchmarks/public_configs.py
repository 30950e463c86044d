"""The public configurations of the tests, with the hardware that each is predicted on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.prediction.stack import find_stack
from computeflow.workload import Job, Layout

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "exports"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicConfig:
    file: str
    on: str
    given: dict[str, Any] = field(default_factory=dict)
    """Options of `improve` and `predict` for what the file does not state."""
    beside: tuple[str, ...] = ()
    """Words that the project's own script has and the facts of it here leave out."""
    without: tuple[str, ...] = ()
    """Flags or keys that the parser refuses in the file as it is."""
    because: str = "this release does not have"
    check: str = ""
    """The parser, where it is not that of the format's present release."""
    no_parser: str = ""
    """Why none can be asked."""

    @property
    def text(self) -> str:
        """The file; of FSDP2 there is no public one, and it is ours, with all recomputed."""
        if self.format != "fsdp2":
            return (FOLDER / self.file).read_text()
        facts = load_catalog()
        job = Job(model=facts.models["llama-3.1-8b"], global_batch=256, seq_len=8192)
        cluster = find_cluster(self.on, facts)
        layout = Layout(gpus=cluster.gpus, sharding="fsdp", recompute="full")
        plan = Setup(job=job, cluster=cluster, layout=layout, stack=find_stack("torch"))
        return FRAMEWORKS["fsdp2"].write(plan).files["fsdp2.py"]

    @property
    def format(self) -> str:
        bridge = self.file.startswith("megatron_bridge")
        return "megatron-bridge" if bridge else re.split(r"[_.]", self.file)[0]


def _config(file: str, on: str, given: dict[str, Any] | None = None, **more: Any) -> PublicConfig:
    return PublicConfig(file=file, on=on, given=given or {}, **more)


def _script(model: str, batch: int, length: int) -> dict[str, Any]:
    """What a file without a model leaves to the training script."""
    return {"model": model, "global_batch": batch, "seq_len": length}


PUBLIC_CONFIGS = [
    _config("fsdp2.py", "h100-sxm:64"),
    _config("torchtitan_llama3_8b.toml", "a100-80-sxm:64"),
    _config("torchtitan_llama3_8b_v0.1.toml", "h100-sxm:64", check="torchtitan-0.1",
            without=("training.batch_size",)),
    _config("torchtitan_llama3_405b.toml", "h100-sxm:128", without=("model.converters",)),
    _config("torchtitan_deepseek_16b.toml", "h100-sxm:64"),
    _config("torchtitan_llama4_scout.toml", "h100-sxm:64"),
    _config("megatron_llama3_8b.sh", "h100-sxm:8", beside=("--max-position-embeddings", "8192"),
            without=("--data-path",), because="is of data, and mock data stands in"),
    _config("megatron_gpt3_175b.sh", "a100-80-sxm:1024", {"model": "gpt3-175b"},
            without=("--step-batch-size-schedule",)),
    _config("megatron_gpt_76b.sh", "a100-80-sxm:1024", {"model": "gpt-76b"},
            no_parser="Megatron-LM of 2021 is on no package index"),
    _config("megatron_mixtral_8x7b.sh", "h100-sxm:32"),
    _config("megatron_fsdp_deepseek_v3.sh", "h100-sxm:512", {"model": "deepseek-v3"},
            beside=("--position-embedding-type", "rope", "--max-position-embeddings", "4096",
                    "--ckpt-format", "fsdp_dtensor")),
    _config("megatron_bloom_176b.slurm", "a100-80-sxm:384",
            no_parser="Megatron-DeepSpeed is on no package index"),
    _config("megatron_pai_qwen3.sh", "h100-sxm:16", _script("qwen3-8b", 64, 4096),
            no_parser="its sizes are arguments of the script"),
    _config("megatron_bridge_llama3_70b.yaml", "h100-sxm:32", {"model": "llama-3.1-70b"}),
    _config("nemo_llama3_70b.sh", "h100-sxm:32"),
    _config("maxtext_llama2_70b_gpu.yml", "h100-sxm:64"),
    _config("maxtext_llama3_405b_v6e.yml", "tpu-v6e:512"),
    _config("trainer_zephyr_7b.yaml", "h100-sxm:8"),
    _config("trainer_zephyr_7b_qlora.yaml", "h100-sxm:8"),
    _config("trainer_openr1_7b.yaml", "h100-sxm:8", {"model": "qwen2.5-7b"}),
    _config("trainer_llama_factory_qwen3_4b.yaml", "h100-sxm:8", {"model": "qwen3-4b"}),
    _config("accelerate_fsdp.yaml", "h100-sxm:2", _script("qwen3-1.7b", 16, 4096)),
    _config("accelerate_llama_factory_2x8.yaml", "h100-sxm:16",
            _script("llama-3.1-8b", 64, 2048)),
    _config("accelerate_openr1_zero3.yaml", "h100-sxm:8", _script("qwen2.5-7b", 32, 8192)),
    _config("deepspeed_axolotl_zero3_offload.json", "a100-80-sxm:8",
            _script("llama-3.1-8b", 256, 4096), without=("compile",)),
    _config("deepspeed_bing_bert_lamb.json", "a100-80-sxm:64",
            {"model": "gpt2-medium", "seq_len": 128}, without=("sparse_attention",)),
    _config("deepspeed_transformers_zero3.json", "h100-sxm:8", _script("qwen2.5-7b", 64, 4096)),
    _config("deepspeed_minicpm_v.json", "h100-sxm:8", _script("qwen2.5-7b", 64, 4096)),
]  # fmt: skip
