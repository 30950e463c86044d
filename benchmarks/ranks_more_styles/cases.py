"""What is recorded: the style of each script, and its faults."""

from dataclasses import asdict, dataclass, field
from typing import Any

JOB = {"unequal", "reduced", "uneven-stages"}
NOTHING = {"none", "few-micro-batches"}


@dataclass(frozen=True)
class Style:
    """How a script is written and profiled."""

    framework: str
    names: str
    marked: bool = False
    annotated: bool = False
    shapes: bool = False
    stack: bool = False
    memory: bool = False


@dataclass(frozen=True)
class Case:
    """One recording."""

    script: str
    ranks: int
    fault: str = "none"
    culprits: tuple[int, ...] = ()
    size: float = 0.0
    every: int = 1
    account: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.script}_{self.ranks}_{self.fault}"

    @property
    def kind(self) -> str:
        if self.fault in NOTHING:
            return "clean"
        if self.fault in JOB:
            return "job"
        return "rank" if len(self.culprits) == 1 else "ranks"

    @property
    def skip(self) -> int:
        """Steps at the start of a block that are not counted (loader workers run ahead)."""
        return 3 if self.script == "workers" else 1

    @property
    def block(self) -> int:
        return self.skip + (9 if self.every == 3 else 8)

    @property
    def profiled(self) -> int:
        return 12 if self.every == 3 else 10

    def settings(self) -> dict[str, Any]:
        """What the ranks are told."""
        return {
            **asdict(self),
            "block": self.block,
            "profiled": self.profiled,
            "style": asdict(STYLES[self.script]),
        }


STYLES = {
    "contrastive": Style("ddp", "tensorboard", marked=True, annotated=True, shapes=True),
    "powersgd": Style("ddp", "rank{rank}.json.gz"),
    "zero1": Style("ddp-zero", "tensorboard-worker", marked=True),
    "joined": Style("ddp-join", "trace_rank_{rank}.json.gz", annotated=True, stack=True),
    "diloco": Style("diloco", "island-{rank}.json", annotated=True),
    "seqpar": Style("megatron-like", "rank_{rank}.pt.trace.json.gz", marked=True, shapes=True),
    "moe": Style("expert-parallel", "tensorboard-gz", annotated=True, shapes=True, marked=True),
    "actor_learner": Style("by-hand", "actor{rank}.json", annotated=True),
    "fabric_distill": Style("fabric", "rank{rank}.json", marked=True, stack=True),
    "hf_trainer": Style("hf-trainer", "rank{rank}.pt.trace.json.gz", marked=True, memory=True),
    "accelerate_accum": Style("accelerate", "profile_{rank}.json", shapes=True),
    "lightning_module": Style("lightning", "fit-{rank}.pt.trace.json", marked=True),
    "fsdp2": Style("fsdp2", "rank{rank}_trace.json.gz", marked=True, shapes=True),
    "hsdp": Style("hsdp", "rank{rank:02d}.json.gz", annotated=True),
    "deepspeed_zero": Style("deepspeed", "ds_rank{rank}.json", marked=True, shapes=True),
    "pipe_1f1b": Style("pipelining", "rank{rank}.json", marked=True),
    "pipe_interleaved": Style("pipelining", "tensorboard-worker", marked=True, annotated=True),
    "pipe_hand": Style("by-hand", "stage{rank}.json.gz"),
    "pipe_recompute": Style("by-hand", "rank{rank}.json", annotated=True, shapes=True),
    "pipe_data": Style("pipelining", "tensorboard-gz", marked=True, shapes=True),
    "tensor_parallel": Style("dtensor", "tp_rank{rank}.json"),
    "batchnorm_gan": Style("ddp", "tensorboard-gz", marked=True, annotated=True, memory=True),
    "thread_checkpoint": Style("by-hand", "rank{rank}.json.gz", marked=True),
    "workers": Style("ddp", "rank-{rank}.pt.trace.json", stack=True),
    "barrier_clip": Style("by-hand", "{rank}.json.gz", marked=True),
    "ring": Style("context-parallel", "cp{rank}.json", shapes=True),
    "gossip": Style("gossip", "rank{rank}.json", marked=True, annotated=True),
    "federated": Style("by-hand", "client_{rank}.json"),
    "ignite_engine": Style("ignite", "rank{rank}.json.gz", marked=True, shapes=True),
}


def _pipe(schedule: str, micro: int, stages: list[float], **more: Any) -> dict[str, Any]:
    """Pipeline settings; stages are forward seconds of one micro-batch."""
    return {"schedule": schedule, "micro": micro, "stages": stages, **more}


F4 = _pipe("1f1b", 8, [0.0055] * 4)
I2 = _pipe("interleaved", 4, [0.007] * 4)
L3 = _pipe("looped-bfs", 3, [0.007] * 6)
H3 = _pipe("1f1b", 6, [0.007] * 3)
R2 = _pipe("gpipe", 4, [0.008] * 2, recompute=True)
R4 = _pipe("gpipe", 6, [0.005] * 4, recompute=True)
D6 = _pipe("gpipe", 4, [0.009] * 3)
D4 = _pipe("gpipe", 5, [0.008] * 2)
TABLE = {"table": 12288}

CASES = [
    Case("contrastive", 4),
    Case("contrastive", 4, "slow", (2,), 0.35),
    Case("contrastive", 4, "loader", (1,), 0.04),
    Case("powersgd", 3),
    Case("powersgd", 3, "slow", (1,), 0.2),
    Case("powersgd", 3, "python", (2,), 0.03),
    Case("zero1", 4),
    Case("zero1", 4, "save", (1,), 0.15, every=3),
    Case("zero1", 4, "slow-optimizer", (3,), 0.045, account="optimizer;host;compute"),
    Case("joined", 3),
    Case("joined", 3, "unequal"),
    Case("joined", 3, "slow", (1,), 0.5),
    Case("diloco", 4),
    Case("diloco", 4, "throttle", (2,), 0.6, every=2, account="compute"),
    Case("diloco", 4, "save", (1,), 0.05),
    Case("seqpar", 4),
    Case("seqpar", 4, "slow", (3,), 0.3),
    Case("seqpar", 4, "norms", (1,), 0.035),
    Case("moe", 4),
    Case("moe", 4, "hot-expert", (2,), 1.0, account="compute"),
    Case("moe", 4, "log", (3,), 0.03),
    Case("actor_learner", 5),
    Case("actor_learner", 5, "slow-env", (3,), 0.45, account="host;compute;input"),
    Case("actor_learner", 5, "log", (0,), 0.05),
    Case("fabric_distill", 2),
    Case("fabric_distill", 2, "evaluate", (1,), 8, every=3),
    Case("fabric_distill", 2, "slow", (0,), 0.25),
    Case("hf_trainer", 3),
    Case("hf_trainer", 3, "log", (0,), 0.06, every=2),
    Case("hf_trainer", 3, "tokenise", (1,), 0.03, account="input;host"),
    Case("accelerate_accum", 3),
    Case("accelerate_accum", 2, "reduced", extra=TABLE),
    Case("accelerate_accum", 3, "reduced", extra={"table": 8192}),
    Case("accelerate_accum", 3, "loader", (2,), 0.06),
    Case("lightning_module", 3),
    Case("lightning_module", 3, "save", (1,), 0.12, every=2),
    Case("lightning_module", 3, "metrics", (2,), 0.025),
    Case("fsdp2", 4),
    Case("fsdp2", 4, "slow", (3,), 0.4),
    Case("fsdp2", 4, "gc", (1,), 0.05),
    Case("hsdp", 6),
    Case("hsdp", 6, "slow", (4,), 0.25),
    Case("hsdp", 8, "numa", (2, 3), 0.4, account="compute"),
    Case("hsdp", 4, "loader", (2,), 0.06, every=2),
    Case("deepspeed_zero", 2),
    Case("deepspeed_zero", 2, "slow", (1,), 0.3),
    Case("deepspeed_zero", 3, "save", (1,), 0.15, every=3),
    Case("pipe_1f1b", 4, extra=F4),
    Case("pipe_1f1b", 2, extra=_pipe("1f1b", 6, [0.008] * 2)),
    Case("pipe_1f1b", 3, "few-micro-batches", extra=_pipe("1f1b", 3, [0.01] * 3)),
    Case("pipe_1f1b", 4, "stage", (2,), 0.4, extra=F4),
    Case("pipe_1f1b", 4, "uneven-stages", extra=_pipe("1f1b", 8, [0.004, 0.008, 0.0045, 0.0035])),
    Case("pipe_1f1b", 4, "python", (1,), 0.06, extra=F4),
    Case("pipe_interleaved", 2, extra=I2),
    Case("pipe_interleaved", 4, extra=_pipe("interleaved", 4, [0.005] * 8)),
    Case("pipe_interleaved", 3, extra=L3),
    Case("pipe_interleaved", 2, "stage", (1,), 0.6, extra={**I2, "slow_stage": 3}),
    Case("pipe_interleaved", 3, "slow", (0,), 0.4, extra=L3),
    Case("pipe_hand", 3, extra=H3),
    Case("pipe_hand", 5, extra=_pipe("1f1b", 10, [0.0045] * 5)),
    Case("pipe_hand", 3, "stage", (1,), 0.5, extra=H3),
    Case("pipe_hand", 3, "uneven-stages", extra=_pipe("1f1b", 6, [0.011, 0.004, 0.006])),
    Case("pipe_hand", 3, "save", (2,), 0.06, extra=H3),
    Case("pipe_hand", 3, "loader", (0,), 0.03, extra=H3),
    Case("pipe_recompute", 2, extra=R2),
    Case("pipe_recompute", 4, extra=R4),
    Case("pipe_recompute", 4, "stage", (3,), 0.3, extra=R4),
    Case(
        "pipe_recompute",
        3,
        "few-micro-batches",
        extra=_pipe("gpipe", 2, [0.01] * 3, recompute=True),
    ),
    Case("pipe_data", 6, extra=D6),
    Case("pipe_data", 6, "slow", (4,), 0.35, extra=D6),
    Case("pipe_data", 4, "gc", (3,), 0.05, extra=D4),
    Case("tensor_parallel", 4),
    Case("tensor_parallel", 4, "python", (2,), 0.03),
    Case("tensor_parallel", 2, "throttle", (0,), 0.6, every=2, account="compute"),
    Case("batchnorm_gan", 3),
    Case("batchnorm_gan", 3, "jitter", (1,), 1.2, account="compute"),
    Case("batchnorm_gan", 5, "slow", (1, 3), 0.45),
    Case("thread_checkpoint", 3),
    Case("thread_checkpoint", 3, "slow-disk", (2,), 0.16, account="checkpoint;host"),
    Case("thread_checkpoint", 3, "norms", (0,), 0.03),
    Case("workers", 3),
    Case("workers", 3, "loader", (1,), 0.15),
    Case("workers", 2, "metrics", (1,), 0.04),
    Case("barrier_clip", 4),
    Case("barrier_clip", 4, "barrier", (2,), 0.04),
    Case("barrier_clip", 4, "metrics", (1, 2), 0.05),
    Case("ring", 4),
    Case("ring", 4, "slow", (1,), 0.4),
    Case("ring", 4, "log", (2,), 0.08, every=2),
    Case("gossip", 5),
    Case("gossip", 5, "slow", (2,), 0.5),
    Case("gossip", 5, "python", (4,), 0.05),
    Case("federated", 3),
    Case("federated", 3, "pickling", (1,), 0.04, account="host;checkpoint"),
    Case("federated", 3, "metrics", (2,), 0.03),
    Case("ignite_engine", 4),
    Case("ignite_engine", 4, "evaluate", (2,), 5, every=2),
    Case("ignite_engine", 4, "log", (1,), 0.02),
]
