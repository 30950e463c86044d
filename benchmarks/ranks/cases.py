"""What is recorded: `CASES`, one planted fault or none in one script each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FIT = frozenset(
    "ddp_loop ddp_small ddp_accumulate fsdp2_loop hsdp_loop accelerate_loop lightning_callback "
    "deepspeed_zero1 pipeline_1f1b pipeline_gpipe pipeline_blocking tensor_mlp".split()
)
"""Scripts whose recordings rules may be fitted to. All others only judge."""

FRAMEWORKS = {
    "ddp": "DDP",
    "fsdp2": "FSDP2",
    "hsdp": "HSDP",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "deepspeed": "DeepSpeed",
    "tensor": "tensor parallel",
}
BY_HAND = ("pipeline_blocking", "pipeline_async")

CLASSES = {
    "none": ("", ""),
    "slow": ("straggler", "straggler-rank"),
    "loader": ("input", "input-stall"),
    "save": ("checkpoint", "checkpoint-stall"),
    "evaluate": ("evaluation", "evaluation"),
    "log": ("host", "host-stall"),
    "metrics": ("host", "host-stall"),
    "python": ("host", "host-stall"),
    "barrier": ("host", "host-stall"),
    "gc": ("host", "gc-pause"),
    "norms": ("straggler", "extra-operators"),
    "unequal": ("imbalance", "imbalance"),
    "reduced": ("comm", "repeated-reduction"),
    "stage": ("straggler", "straggler-stage"),
    "uneven-stages": ("straggler", "straggler-stage"),
    "few-micro-batches": ("bubble", "bubble"),
}
"""Each fault: the account that its time belongs to on the rank that causes it, and its class."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    script: str
    ranks: int
    fault: str = "none"
    culprit: int | None = None
    amount: float = 0.0
    """Share of the compute for slow ranks, stages and unequal lengths; else seconds each time."""
    every: int = 1
    """Steps from one time to the next."""
    annotated: bool = False
    """The work stands under a `record_function`."""
    shapes: bool = False
    marked: bool = True
    """The loop calls `prof.step()`."""
    micro_batches: int = 8
    fixed_micro_batches: int = 0
    """Micro-batches without the fault, where it is that there are too few."""
    layers: int = 3
    layer_seconds: float = 0.012
    """Forward pass of one layer for a whole batch; the backward pass takes twice as long."""
    profiled_steps: int = 6

    @property
    def half(self) -> str:
        return "fit" if self.script in FIT else "judge"

    @property
    def framework(self) -> str:
        if self.script in BY_HAND:
            return "pipeline by hand"
        return FRAMEWORKS.get(self.script.split("_")[0], "torch.distributed.pipelining")

    @property
    def is_pipeline(self) -> bool:
        return self.script.startswith("pipeline")

    @property
    def stages_per_rank(self) -> int:
        return 2 if self.script == "pipeline_interleaved" else 1

    @property
    def block_steps(self) -> int:
        """Steps counted in each block; those of pipelines are longer."""
        return 4 if self.is_pipeline else 8

    def bubble_share(self) -> float:
        """Idle share of equal stages: (p - 1) / (v m + p - 1).

        Narayanan et al., 2021, section 2.2, where it is given relative to the busy time.
        Neglected: messages, the optimizer.
        """
        idle = self.ranks - 1
        return idle / (self.stages_per_rank * self.micro_batches + idle)


def _value(key: str, text: str) -> object:
    if key in ("annotated", "shapes", "marked"):
        return text == "1"
    return float(text) if key in ("amount", "layer_seconds") else int(text)


def _cases(script: str, rows: str) -> list[Case]:
    """One case for each line: ranks, fault, then options as `name=value`."""
    cases = []
    for row in rows.strip().splitlines():
        ranks, fault, *options = row.split()
        given = dict(option.split("=") for option in options)
        label = given.pop("label", "")
        more: dict[str, Any] = {
            "culprit" if key == "rank" else key: _value(key, text) for key, text in given.items()
        }
        name = f"{script}_{ranks}_{fault}" + (f"-{label}" if label else "")
        cases.append(Case(name=name, script=script, ranks=int(ranks), fault=fault, **more))
    return cases


_ROWS = {
    "ddp_loop": """
        2 none
        4 none shapes=1
        2 slow label=20 rank=1 amount=0.2
        4 slow label=40 rank=2 amount=0.4
        4 slow label=60 rank=0 amount=0.6 shapes=1
        4 save label=annotated rank=0 amount=0.09 annotated=1
        4 save rank=0 amount=0.09 profiled_steps=5
        2 save label=every4 rank=0 amount=0.25 every=4 profiled_steps=9
        4 evaluate label=annotated rank=0 amount=0.08 annotated=1
        2 evaluate rank=0 amount=0.08
        4 loader rank=3 amount=0.06
        4 log rank=0 amount=0.05 marked=0
        4 unequal amount=0.5 profiled_steps=8
        4 norms rank=1
        4 python rank=2 amount=0.06
        2 gc rank=1
        4 barrier rank=1 amount=0.07
    """,
    "ddp_small": """
        2 none layers=4
        2 slow label=40 rank=0 amount=0.4 layers=4
        2 metrics rank=0 amount=0.06 layers=4
    """,
    "ddp_accumulate": """
        2 none micro_batches=4
        2 reduced micro_batches=4
        4 reduced micro_batches=4
        4 none micro_batches=4
    """,
    "fsdp2_loop": """
        2 none
        4 none layer_seconds=0.024
        4 slow label=40 rank=1 amount=0.4 layer_seconds=0.024
        2 python rank=1 amount=0.06 annotated=1
        4 loader rank=2 amount=0.07 layer_seconds=0.024
    """,
    "hsdp_loop": """
        4 none layer_seconds=0.024
        4 slow label=60 rank=3 amount=0.6 layer_seconds=0.024
    """,
    "accelerate_loop": """
        2 none
        4 evaluate rank=0 amount=0.08
        2 unequal amount=0.6
    """,
    "lightning_callback": """
        2 none
        2 metrics rank=0 amount=0.07
        4 save rank=0 amount=0.09
    """,
    "deepspeed_zero1": """
        2 none
        2 slow label=60 rank=1 amount=0.6
    """,
    "pipeline_1f1b": """
        4 none micro_batches=16 layers=1 layer_seconds=0.24
        4 stage label=60 rank=2 amount=0.6 layers=1 layer_seconds=0.12
        4 uneven-stages rank=3 layer_seconds=0.04
        4 few-micro-batches micro_batches=4 fixed_micro_batches=16 layers=1 layer_seconds=0.15
        4 save rank=0 amount=0.15 layers=1 layer_seconds=0.12
    """,
    "pipeline_gpipe": """
        2 none micro_batches=8 layers=1 layer_seconds=0.09
        2 stage label=40 rank=1 amount=0.4 layers=1 layer_seconds=0.09 profiled_steps=3
        2 few-micro-batches micro_batches=2 fixed_micro_batches=8 layers=1 layer_seconds=0.09
    """,
    "pipeline_blocking": """
        4 none layers=1 layer_seconds=0.12
        2 none layers=1 layer_seconds=0.09
        4 stage label=60 rank=1 amount=0.6 layers=1 layer_seconds=0.12
        4 few-micro-batches micro_batches=3 fixed_micro_batches=12 layers=1 layer_seconds=0.12
    """,
    "tensor_mlp": """
        2 none
        4 none layer_seconds=0.024
        4 slow label=40 rank=2 amount=0.4 layer_seconds=0.024
        2 log rank=0 amount=0.06
    """,
    "ddp_text": """
        2 none
        4 none
        8 none shapes=1 layer_seconds=0.03
        4 slow label=20 rank=3 amount=0.2
        2 slow label=40 rank=0 amount=0.4 marked=0
        8 slow label=60 rank=5 amount=0.6 layer_seconds=0.03
        4 save rank=0 amount=0.1
        2 save label=annotated rank=0 amount=0.1 annotated=1
        8 evaluate rank=0 amount=0.18 layer_seconds=0.03
        4 evaluate label=every2 rank=0 amount=0.16 every=2 annotated=1
        2 loader rank=1 amount=0.06
        4 log rank=0 amount=0.06 annotated=1
        4 barrier rank=2 amount=0.07
        4 gc rank=3
        2 python rank=1 amount=0.06
        2 norms rank=0
        2 unequal amount=0.6
    """,
    "ddp_hooks": """
        2 none micro_batches=4 marked=0
        2 reduced micro_batches=4 marked=0
        4 reduced micro_batches=3
    """,
    "fsdp2_blocks": """
        2 none layer_seconds=0.024
        4 slow label=60 rank=3 amount=0.6 layer_seconds=0.024
        2 metrics rank=0 amount=0.07 layer_seconds=0.024
        4 unequal amount=0.6 layer_seconds=0.024
    """,
    "hsdp_blocks": """
        4 none layer_seconds=0.024
        4 slow label=40 rank=1 amount=0.4 layer_seconds=0.024
        8 slow label=60 rank=6 amount=0.6 layer_seconds=0.03
    """,
    "accelerate_accumulate": """
        2 none micro_batches=2
        4 save rank=0 amount=0.1 micro_batches=2
        2 slow label=40 rank=1 amount=0.4 micro_batches=2
        2 reduced micro_batches=4
    """,
    "lightning_module": """
        2 none
        2 log rank=0 amount=0.07
        4 slow label=40 rank=3 amount=0.4
    """,
    "deepspeed_zero2": """
        2 none
        4 loader rank=1 amount=0.07
        2 save rank=0 amount=0.1
    """,
    "pipeline_interleaved": """
        2 none micro_batches=8 layers=1 layer_seconds=0.24
        4 none micro_batches=16 layers=1 layer_seconds=0.24
        4 stage label=60 rank=1 amount=0.6 micro_batches=8 layers=1 layer_seconds=0.24
        4 few-micro-batches micro_batches=4 fixed_micro_batches=16 layers=1 layer_seconds=0.24
    """,
    "pipeline_1f1b_deep": """
        8 none micro_batches=16 layers=1 layer_seconds=0.24
        8 stage label=60 rank=5 amount=0.6 micro_batches=16 layers=1 layer_seconds=0.24
        4 few-micro-batches micro_batches=5 fixed_micro_batches=15 layers=1 layer_seconds=0.24
        4 uneven-stages rank=1 layer_seconds=0.06
        2 log rank=1 amount=0.2 layers=1 layer_seconds=0.24
    """,
    "pipeline_async": """
        4 none micro_batches=12 layers=1 layer_seconds=0.24
        2 none micro_batches=8 layers=1 layer_seconds=0.24
        4 stage label=40 rank=2 amount=0.4 layers=1 layer_seconds=0.24
        2 few-micro-batches micro_batches=2 fixed_micro_batches=10 layers=1 layer_seconds=0.24
        4 python rank=0 amount=0.2 layers=1 layer_seconds=0.24
    """,
    "tensor_transformer": """
        2 none layer_seconds=0.024
        4 slow label=60 rank=1 amount=0.6 layer_seconds=0.024
        2 loader rank=1 amount=0.07 layer_seconds=0.024
    """,
}
CASES = {case.name: case for script, rows in _ROWS.items() for case in _cases(script, rows)}
