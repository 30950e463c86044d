"""Watts of one device, account by account: a stalled one draws less, not nothing.

Shares of the power limit, measured on our H200 (700 W): training steps for the busy share
(benchmarks/data/h200/steps.csv), a device that waits, polls or adds buffers as a collective makes it
for the others (benchmarks/data/h200/waiting.json). The links' own power is not in it, nor the host's.
"""

from __future__ import annotations

import numpy as np

from computeflow.cluster.collectives import neighbour_speed, ring_speed
from computeflow.prediction.blocks import Floats
from computeflow.prediction.communication import links
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.step_inputs import StepInputs

BUSY = 0.985
"""With matmuls running: the power limit is what stops them."""
_MEMORY_BOUND = 0.59
"""411 W at 3.5 TB/s."""
WAITING = 0.18
"""126 W without a kernel, 129 W with 24 programs polling."""
_JOULES_PER_BYTE = 1.0e-10
"""Energy of the device's memory traffic: 109 W more at 1.09 TB/s, 46 W at 0.40."""
_PASSES = 3.0
"""Bytes of memory traffic for a byte through the link: read own, read received, write."""
_WAITS = ("host", "copy", "input", "bubble", "imbalance", "straggler", "checkpoint")


def account_watts(b: StepInputs, p: Parameters) -> dict[str, Floats]:
    """Watts per device while an account runs; not a number where the power limit is unknown."""
    ones, joined = np.ones(len(b)), links(b, p)
    speeds = {
        "comm.tp": ring_speed(joined, b.tp, ones),
        "comm.cp": ring_speed(joined, b.cp, b.tp),
        "comm.ep": ring_speed(joined, b.ep, b.etp),
        "comm.pp": neighbour_speed(joined, b.pp, b.tp * b.cp * b.dp),
        "comm.dp": ring_speed(joined, b.dp * b.cp, b.tp),
    }
    waiting = WAITING * b.tdp_watts
    moving = {
        name: waiting + _PASSES * _JOULES_PER_BYTE * np.where(np.isfinite(speed), speed, 0.0)
        for name, speed in speeds.items()
    }
    busy = BUSY * b.tdp_watts
    computing = ("compute.model", "compute.clock", "compute.kernel", "compute.recompute")
    return {
        **dict.fromkeys(computing, busy),
        "optimizer": _MEMORY_BOUND * b.tdp_watts,
        **{name: np.minimum(watts, busy) for name, watts in moving.items()},
        **dict.fromkeys(_WAITS, waiting),
    }
