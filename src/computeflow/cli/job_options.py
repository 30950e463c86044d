"""Options of a job, its layout and its cluster, named like the fields of `Job` and `Layout`."""

from __future__ import annotations

from computeflow.cli.command import choice, flag, option
from computeflow.cli.types import COUNT, FILE, NUMBER
from computeflow.workload.job import OPTIMIZERS, PRECISIONS, TRAININGS
from computeflow.workload.layout import OFFLOADS, RECOMPUTES, RINGS, SCHEDULES, SHARDINGS

GLOBAL_BATCH = option("--global-batch", type=COUNT, help="Sequences per step.")
SEQ_LEN = option("--seq-len", type=COUNT, help="Tokens per sequence.")
FORMAT = option(
    "--format",
    metavar="NAME",
    help="Framework of the configuration file (torchtitan), where its content does not tell.",
)
FROM = [
    option(
        "--from",
        "from_",
        type=FILE,
        metavar="FILE",
        help="Framework configuration file with the job and layout; options given here go first.",
    ),
    FORMAT,
]
CLUSTER = [
    option(
        "--on",
        required=True,
        metavar="CLUSTER",
        help="Cluster: accelerator:count (h100-sxm:512) or a cluster TOML file.",
    ),
    option(
        "--storage",
        metavar="NAME",
        help="Storage for data and checkpoints, by its name in the catalog.",
    ),
]
JOB = [
    GLOBAL_BATCH,
    SEQ_LEN,
    choice("--precision", PRECISIONS, "bf16", "Number format of the matrix products."),
    choice("--optimizer", OPTIMIZERS, "adamw", "Optimizer, for its memory and time."),
    choice(
        "--training", TRAININGS, "full", "Train all weights, or LoRA adapters on frozen weights."
    ),
    option("--lora-rank", type=COUNT, default=16, help="Rank of the LoRA adapters."),
    option(
        "--loss-chunks", type=COUNT, default=1, help="Chunks in which logits and loss are computed."
    ),
    option(
        "--expert-spread",
        type=NUMBER,
        default=0.0,
        help="Standard deviation of the experts' load over its mean; 0 is balanced.",
    ),
    flag("--multi-token", help="Also train the multi-token-prediction modules."),
    option(
        "--bytes-per-token",
        type=NUMBER,
        default=4.0,
        help="Bytes read from storage per token; images and audio need far more.",
    ),
    option(
        "--checkpoint-steps",
        type=COUNT,
        help="Steps between checkpoints; by default none are saved.",
    ),
]
LAYOUT = [
    option("--tp", type=COUNT, default=1, help="Tensor-parallel ranks."),
    option("--pp", type=COUNT, default=1, help="Pipeline stages."),
    option("--vp", type=COUNT, default=1, help="Model chunks per pipeline stage (interleaving)."),
    option("--cp", type=COUNT, default=1, help="Context-parallel ranks."),
    option("--ep", type=COUNT, default=1, help="Expert-parallel ranks."),
    option(
        "--etp",
        type=COUNT,
        default=1,
        help="Tensor-parallel ranks of an expert: 1, or the value of --tp.",
    ),
    option("--micro-batch", type=COUNT, default=1, help="Sequences per micro-batch."),
    choice(
        "--recompute", RECOMPUTES, "none", "Activations that are recomputed in the backward pass."
    ),
    choice(
        "--sharding",
        SHARDINGS,
        "zero1",
        "How data-parallel ranks shard the model and optimizer state.",
    ),
    option(
        "--replicas",
        type=COUNT,
        default=1,
        help="With --sharding hsdp: groups that each hold a full copy of the model.",
    ),
    choice("--schedule", SCHEDULES, "1f1b", "Pipeline schedule."),
    choice("--offload", OFFLOADS, "none", "State that is kept in host memory or on disk."),
    choice("--context", RINGS, "ring", "Communication pattern of context-parallel attention."),
]
