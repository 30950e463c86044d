"""`quick_space`: the layouts that rest on mechanisms which published runs tested.

The whole space takes a second; this one has a thousandth of it and takes milliseconds: 1F1B pipelines,
a split optimizer or FSDP, tensor and context parallelism up to eight, no offload. On fast networks it
finds the same plan; on slow ones it may miss one that relies on unmeasured mechanisms
(benchmarks/reports/comparison.md compares both).
"""

from __future__ import annotations

from computeflow.planning.space import Space, space_of
from computeflow.workload import Job

_CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 16)
_MAX_SIZES = {"tp": 8, "cp": 8, "micro_batch": 4}


def quick_space(job: Job, gpus: int) -> Space:
    space = space_of(
        job,
        gpus,
        fixed={"schedule": "1f1b", "offload": "none", "context": "ring", "replicas": 1},
        allowed={"sharding": ("zero1", "fsdp")},
    )
    values = dict(space.values)
    values["vp"] = [chunks for chunks in values["vp"] if chunks in _CHUNKS]
    for name, most in _MAX_SIZES.items():
        values[name] = [size for size in values[name] if size <= most]
    return Space(values)
