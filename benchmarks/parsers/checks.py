"""The parser that checks each format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GPU = "a GPU that is asked for is said to be there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    asked: str
    """The project and its release."""
    how: str
    module: str
    """Module of benchmarks.parsers."""
    environment: str
    """Name of the environment; empty for this project's own."""
    key: str
    """A key in the files that the parser must know."""
    stands_in: str = ""
    """What differs from the project's own program: stand-ins and missing parts."""


RANKS = "a process group that exchanges nothing plays the plan's number of ranks"
_SHELL: Any = {"module": "shell", "environment": "", "asked": "bash"}
_KUBERNETES: Any = {
    "module": "kubernetes",
    "environment": "kubernetes",
    "asked": "Kubeflow Trainer 2.3.0",
}
_CORE = "and, as a Job of batch/v1, the schemas of Kubernetes 1.37 (kubernetes-validate 1.37.0)"
CHECKS = {
    "torchtitan": Check(
        asked="torchtitan 0.2.2", module="torchtitan", environment="torchtitan",
        key="tensor_parallel_degree", stands_in=RANKS,
        how="ConfigManager, the model's flavour, ParallelDims with its mesh, the cut into stages",
    ),
    "deepspeed": Check(
        asked="DeepSpeed 0.19.8", module="deepspeed", environment="deepspeed",
        how="DeepSpeedConfig as `initialize` makes it, AutoEP's checks; no key unread",
        key="overlap_comm",
        stands_in=f"{RANKS}; for pipelines, the number of data-parallel ranks of the script's module",
    ),
    "megatron": Check(
        asked="Megatron Core 0.19.2", module="megatron", environment="megatron",
        how="parse_args, validate_args, its configurations of model, optimizer and DDP",
        key="micro-batch-size",
        stands_in="the release before the one that the file names, which is not published yet; "
        f"{GPU}, and Transformer Engine 2.13; one name of Python 3.12; rope without its fused kernel",
    ),
    "accelerate": Check(
        asked="Accelerate 1.15.0", module="accelerate", environment="huggingface",
        how="the launch command up to the start of ranks, then each rank's plugin and sizes",
        key="num_machines",
    ),
    "trainer": Check(
        asked="transformers 5.22.2", module="trainer", environment="huggingface",
        how="HfArgumentParser, TrainingArguments and the plugins made of them",
        key="per_device_train_batch_size", stands_in=GPU,
    ),
    "megatron-bridge": Check(
        asked="Megatron-Bridge 0.6.0", module="megatron_bridge", environment="megatron",
        how="process_config_with_overrides, then runtime_config_update with all its checks; every "
        "key one of its container's",
        key="tensor_model_parallel_size",
        stands_in="the plain GPT recipe for every model, because the models' own ask a hub; "
        f"{GPU}, and Transformer Engine 2.13; one name of Python 3.12; packages for data, diffusion "
        "and logging that its imports want are empty",
    ),
    "nemo": Check(
        asked="NeMo 2.4.0 (NeMo-Run 0.5.0)", module="nemo", environment="nemo",
        how="the recipe with the values over it, its model, optimizer and strategy built; every "
        "key one of theirs",
        key="tensor_model_parallel_size",
        stands_in=f"{GPU}, and Transformer Engine 2.5 without its fused kernels; two packages that "
        "its imports want (modelopt, leptonai) are empty; models without a recipe use Llama's",
    ),
    "maxtext": Check(
        asked="MaxText 0.2.4", module="maxtext", environment="maxtext",
        how="pyconfig over base.yml and the model's file", key="per_device_batch_size",
        stands_in="the plan's devices as for a compilation ahead of time",
    ),
    "fsdp2": Check(
        asked="PyTorch 2.13", module="fsdp2", environment="",
        how="the file loaded, its toy cut by fully_shard or wrapped by DDP", key="fully_shard",
        stands_in=RANKS,
    ),
    "slurm": Check(
        **_SHELL, key="bash -c '", how="`bash -n`; sbatch took one in [launchers.md](launchers.md)"
    ),
    "torchrun": Check(**_SHELL, key="--max-restarts", how="`bash -n`, and torchrun's own parser"),
    "mpirun": Check(
        **_SHELL, key="bash -c '", how="`bash -n`; mpirun ran one in [launchers.md](launchers.md)"
    ),
    "jobset": Check(
        **_KUBERNETES, key="completionMode", how=f"its type of JobSet with no field lost, {_CORE}"
    ),
    "trainjob": Check(
        **_KUBERNETES, key="numProcPerNode", how=f"its type of TrainJob with no field lost, {_CORE}"
    ),
    "ray": Check(
        asked="Ray 2.60.0", module="ray", environment="ray", key="num_workers",
        how="the driver run up to the trainer, with Ray's ScalingConfig, RunConfig and TorchConfig",
        stands_in="nothing is started",
    ),
}  # fmt: skip
