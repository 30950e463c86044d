"""Options of a job, its layout and its cluster, named like the fields of `Job` and `Layout`."""

from __future__ import annotations

from computeflow.cli.command import choice, flag, option
from computeflow.cli.types import COUNT, FILE, NUMBER
from computeflow.workload.layout import (
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    RECOMPUTES,
    RINGS,
    SCHEDULES,
    SHARDINGS,
    TRAININGS,
)

GLOBAL_BATCH = option("--global-batch", type=COUNT, help="Sequences in a step.")
SEQ_LEN = option("--seq-len", type=COUNT, help="Tokens in a sequence.")
FORMAT = option(
    "--format",
    metavar="NAME",
    help="The framework of the file, where its content leaves that open (torchtitan).",
)
FROM = [
    option(
        "--from",
        "from_",
        type=FILE,
        metavar="FILE",
        help="A framework's configuration: its job and layout, under what is said here.",
    ),
    FORMAT,
]
CLUSTER = [
    option(
        "--on",
        required=True,
        metavar="CLUSTER",
        help="accelerator:count (h100-sxm:512) or a cluster TOML.",
    ),
    option(
        "--storage",
        metavar="NAME",
        help="What data is read from and checkpoints go to: a storage row of the catalog.",
    ),
]
JOB = [
    GLOBAL_BATCH,
    SEQ_LEN,
    choice("--precision", PRECISIONS, "bf16", "Number format of the matrix products."),
    choice("--optimizer", OPTIMIZERS, "adamw", "The optimizer, for its state and its time."),
    choice("--training", TRAININGS, "full", "All weights, or LoRA adapters on frozen ones."),
    option("--lora-rank", type=COUNT, default=16, help="Rank of the LoRA adapters."),
    option("--loss-chunks", type=COUNT, default=1,
           help="Parts in which logits are made and dropped again."),
    option("--expert-spread", type=NUMBER, default=0.0,
           help="Spread of the experts' load around its mean; 0: balanced by force."),
    flag("--multi-token", help="Train the multi-token-prediction modules too."),
    option("--bytes-per-token", type=NUMBER, default=4.0,
           help="Bytes read from storage for a token; images and sound are far more."),
    option("--checkpoint-steps", type=COUNT, help="Steps between two checkpoints."),
]  # fmt: skip
LAYOUT = [
    option("--tp", type=COUNT, default=1, help="Tensor-parallel ranks."),
    option("--pp", type=COUNT, default=1, help="Pipeline stages."),
    option("--vp", type=COUNT, default=1, help="Model chunks on a stage."),
    option("--cp", type=COUNT, default=1, help="Context-parallel ranks."),
    option("--ep", type=COUNT, default=1, help="Expert-parallel ranks."),
    option("--etp", type=COUNT, default=1, help="Ranks over which one expert is cut: 1 or tp."),
    option("--micro-batch", type=COUNT, default=1, help="Sequences in a micro-batch."),
    choice("--recompute", RECOMPUTES, "none", "Activations that are computed again."),
    choice("--sharding", SHARDINGS, "zero1", "What data-parallel ranks split among them."),
    option("--replicas", type=COUNT, default=1,
           help="With hsdp: groups that each hold the model once."),
    choice("--schedule", SCHEDULES, "1f1b", "The pipeline's schedule."),
    choice("--offload", OFFLOADS, "none", "What lives in the host's memory, or on disk."),
    choice("--context", RINGS, "ring", "How context-parallel ranks attend to each other."),
]  # fmt: skip
