"""Device time of one step by kind of work, without waiting: what a recording can be held against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.cluster import Cluster
from computeflow.prediction import kernels
from computeflow.prediction.blocks import Floats
from computeflow.prediction.parameters import Parameters, load_parameters
from computeflow.prediction.stack import Stack
from computeflow.prediction.step import update
from computeflow.prediction.step_inputs import StepInputs, of_job
from computeflow.workload import Job, Layout, Layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of one device and one step, as a predictor gives them or a trace shows them."""

    matmul: float
    """Matmuls with weights, head included, without what is recomputed."""
    attention: float
    other: float
    """Memory-bound kernels of the layers, forward and backward."""
    loss: float
    """Memory-bound kernels of the loss."""
    optimizer: float


def step_parts(
    job: Job, cluster: Cluster, layout: Layout, stack: Stack, parameters: Parameters | None = None
) -> Parts:
    p = parameters or load_parameters()
    inputs = of_job(job, cluster, Layouts.of([layout]), stack)
    r = kernels.rates(inputs, p)
    rounds = inputs.micro_batches / inputs.pp
    linear, attention, other = (np.zeros(len(inputs)) for _ in range(3))
    for k in inputs.present:
        layer = kernels.layer(inputs, k, p, r)
        linear += k.count * (layer.linear_forward + layer.linear_backward)
        attention += k.count * (layer.attention_forward + layer.attention_backward)
        other += k.count * (layer.other_forward + layer.other_backward)
    products = _head_products(inputs, p, r)
    loss = kernels.head(inputs, p, r) - products
    return Parts(
        matmul=_first(rounds * (linear + products)),
        attention=_first(rounds * attention),
        other=_first(rounds * other),
        loss=_first(rounds * loss),
        optimizer=_first(update(inputs, p, r)[0]),
    )


def _head_products(inputs: StepInputs, p: Parameters, r: kernels.Rates) -> Floats:
    """The head without what its loss moves."""
    return kernels.head(inputs, p.replaced({"logit_bytes": 0.0}), r)


def _first(values: Floats) -> float:
    return float(values[0])
