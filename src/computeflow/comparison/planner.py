"""Plans in milliseconds, for hundreds of clusters: those of `quick_space`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from computeflow.catalog import Accelerator, Catalog, Model
from computeflow.cluster import Cluster
from computeflow.cluster.machine import usual_cluster
from computeflow.errors import InputError
from computeflow.planning import Plan, plan
from computeflow.planning.quick_spaces import quick_space
from computeflow.prediction import Parameters, load_parameters
from computeflow.workload import Job

_STEP_TOKENS = 1024 * 8192
"""Tokens of a step where the user states none: Llama 3 trained with 4 M, then 8 M, then 16 M a step
(arXiv:2407.21783, section 3.4.1); this is the middle one."""
SEQ_LEN = 8192
"""Tokens of a sequence, from the same source."""
_MAX_TOKENS = 1e18
"""Far beyond all text there is; products of larger ones leave the range of floats."""


def usual_job(
    model: Model,
    *,
    global_batch: int | None = None,
    seq_len: int | None = None,
    precision: str = "bf16",
) -> Job:
    """A pretraining step of the usual size; a model with a shorter context gets shorter sequences."""
    length = seq_len or min(SEQ_LEN, model.context or SEQ_LEN)
    batch = global_batch or max(_STEP_TOKENS // length, 1)
    return Job(model=model, global_batch=batch, seq_len=length, precision=precision)


def check_tokens(tokens: float) -> None:
    if not 0 < tokens < math.inf:
        raise InputError(f"{tokens:g} tokens must be above zero and finite")
    if tokens > _MAX_TOKENS:
        raise InputError(f"{tokens:g} tokens: {_MAX_TOKENS:g} at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShape:
    """Machines of one kind and what joins them: all that a plan depends on but the number."""

    accelerator: str
    devices: int
    """Devices of one machine."""
    nic_bytes_per_second: float | None
    """Rate of one device to other machines; None: that of the device's usual node in the catalog."""


def shape_cluster(shape: MachineShape, gpus: int, catalog: Catalog) -> Cluster:
    cluster = usual_cluster(
        shape.accelerator,
        gpus,
        catalog,
        node_devices=shape.devices,
        nic_bytes_per_second=shape.nic_bytes_per_second,
    )
    return replace(cluster, node_devices=min(shape.devices, gpus))


@dataclass(slots=True)
class Planner:
    """The best quick plan of a job on a shape, remembered: many offers share one."""

    job: Job
    catalog: Catalog
    parameters: Parameters = field(default_factory=load_parameters)
    _known: dict[tuple[MachineShape, int], Plan | None] = field(default_factory=dict)

    def plan(self, shape: MachineShape, gpus: int) -> Plan | None:
        """None where the job does not fit, divides in no layout, or has no network to run over."""
        key = (shape, gpus)
        if key not in self._known:
            self._known[key] = self._search(shape, gpus)
        return self._known[key]

    def computes(self, shape: MachineShape) -> bool:
        """Whether the device's matmuls run in the job's precision."""
        return self.job.precision in precisions(self.catalog.accelerators[shape.accelerator])

    def _search(self, shape: MachineShape, gpus: int) -> Plan | None:
        try:
            cluster = shape_cluster(shape, gpus, self.catalog)
        except InputError:
            return None
        if not self.computes(shape):
            return None
        plans = plan(
            self.job, cluster, top=1, space=quick_space(self.job, gpus), parameters=self.parameters
        )
        return plans.plans[0] if plans.plans else None

    @property
    def searches(self) -> int:
        return len(self._known)


def precisions(device: Accelerator) -> tuple[str, ...]:
    """Precisions of its matmuls; the scaled kinds of fp8 count as fp8."""
    known = set(device.dense_flops)
    scaled = {"fp8": ("fp8-rowwise", "fp8-block", "mxfp8"), "fp4": ("nvfp4",)}
    return (*known, *(name for base, names in scaled.items() if base in known for name in names))
