"""Parameters that one device holds, updates, gathers and sends, and over how many ranks."""

from __future__ import annotations

import numpy as np

from computeflow.prediction.blocks import BlockArrays, Floats, local_experts, matrices
from computeflow.prediction.step_inputs import StepInputs


def shards(b: StepInputs) -> Floats:
    """Ranks over which what is sharded (weights, or the optimizer's state alone) is spread: one
    replica's data and context ranks.
    """
    return b.dp * b.cp / b.replicas


def expert_replicas(b: StepInputs) -> Floats:
    """Devices that hold the same experts."""
    return b.tp * b.cp * b.dp / (b.ep * b.etp)


def kind_parameters(b: StepInputs, k: BlockArrays) -> Floats:
    """Parameters of one block on one tensor-parallel rank, without its routed experts."""
    return sum((x.weights for x in matrices(k, b.hidden, b.tp)), start=np.zeros(len(b)))


def layer_parameters(b: StepInputs) -> Floats:
    """Parameters of the mean block on one tensor-parallel rank, without its routed experts."""
    return (
        sum((k.count * kind_parameters(b, k) for k in b.present), start=np.zeros(len(b))) / b.layers
    )


def expert_parameters(b: StepInputs) -> Floats:
    """Parameters of the mean block's routed experts on one device."""
    total = np.zeros(len(b))
    for k in b.present:
        total += k.count * local_experts(k, b.tp, b.ep, b.etp).weights
    return total / b.layers


def gathered_bytes(b: StepInputs) -> Floats:
    """Bytes per parameter that a fully sharded pass gathers: as computed with, or as kept."""
    return np.where(b.element_bytes > 2, b.element_bytes, np.minimum(b.param_bytes, 2.0))


def end_parameters(b: StepInputs) -> Floats:
    """Parameters of embedding and head that the heaviest stage has, on one rank."""
    return np.where(b.pp > 1, 1.0, 2.0 - b.tied) * b.vocab * b.hidden / b.tp


def stage_parameters(b: StepInputs) -> Floats:
    """Parameters of the heaviest pipeline stage on one rank, without routed experts."""
    return b.layers / b.pp * layer_parameters(b) + end_parameters(b)
