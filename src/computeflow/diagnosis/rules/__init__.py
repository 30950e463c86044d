"""The rules, each a function of a `Case`: `RULES` by name, in the order of DESIGN's list."""

from computeflow.diagnosis.case import Rule
from computeflow.diagnosis.rules import host, kernels, ranks

RULES: dict[str, Rule] = {
    "input-stall": host.input_stall,
    "host-sync": host.host_sync,
    "launch-bound": host.launch_bound,
    "gc-pause": host.gc_pause,
    "memory-pressure": host.memory_pressure,
    "pageable-copy": host.pageable_copy,
    "checkpoint-stall": host.checkpoint_stall,
    "unfused-attention": kernels.unfused_attention,
    "matmul-precision": kernels.matmul_precision,
    "underfilled": kernels.underfilled,
    "recompute-excess": kernels.recompute_excess,
    "unfused-optimizer": kernels.unfused_optimizer,
    "exposed-comm": ranks.exposed_comm,
    "slow-link": ranks.slow_link,
    "straggler-rank": ranks.straggler_rank,
    "imbalance": ranks.imbalance,
}

__all__ = ["RULES"]
