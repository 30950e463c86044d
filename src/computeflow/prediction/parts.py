"""Device time of one step by kind of work, without waiting: what a recording can be held against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.cluster import Cluster
from computeflow.prediction import terms
from computeflow.prediction.batch import Batch, of_job
from computeflow.prediction.kinds import Floats
from computeflow.prediction.parameters import Parameters, load_parameters
from computeflow.prediction.stack import Stack
from computeflow.prediction.step import update
from computeflow.workload import Job, Layout, Layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of one device and one step, as a predictor gives them or a trace shows them."""

    matmul: float
    """Of weights, head included; what is computed again is not."""
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
    batch = of_job(job, cluster, Layouts.of([layout]), stack)
    r = terms.rates(batch, p)
    rounds = batch.micro_batches / batch.pp
    linear, attention, other = (np.zeros(len(batch)) for _ in range(3))
    for k in batch.present:
        one = terms.layer(batch, k, p, r)
        linear += k.count * (one.linear_forward + one.linear_backward)
        attention += k.count * (one.attention_forward + one.attention_backward)
        other += k.count * (one.other_forward + one.other_backward)
    products = _head_products(batch, p, r)
    loss = terms.head(batch, p, r) - products
    return Parts(
        matmul=_first(rounds * (linear + products)),
        attention=_first(rounds * attention),
        other=_first(rounds * other),
        loss=_first(rounds * loss),
        optimizer=_first(update(batch, p, r)[0]),
    )


def _head_products(batch: Batch, p: Parameters, r: terms.Rates) -> Floats:
    """The head without what its loss moves."""
    return terms.head(batch, p.replaced({"logit_bytes": 0.0}), r)


def _first(values: Floats) -> float:
    return float(values[0])
