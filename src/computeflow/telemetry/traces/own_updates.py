"""Optimizers that leave no mark of their own, by their kernels: `with_own_updates`.

Code that is no `torch.optim.Optimizer` (written by hand, or over dicts of tensors) updates its weights
after the backward pass in elementwise kernels, several for each tensor.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from computeflow.telemetry.traces.event_names import Mark, WorkKind
from computeflow.telemetry.traces.kernel_precision import Rows, product_rows, rows_named
from computeflow.telemetry.traces.launches import BEFORE, Launches
from computeflow.telemetry.traces.rank_accounts import Roles
from computeflow.telemetry.traces.trace import Ints, Trace, distinct

_ELEMENTWISE = re.compile(r"elementwise_kernel")
_MOVING = re.compile(r"FillFunctor|copy_kernel|copy_device")
"""Elementwise kernels that only fill or copy: gradients are zeroed, weights cast."""
ROOT = re.compile(r"sqrt_kernel")
"""Adam and its kin take one square root for each tensor."""
_PREPARING = re.compile(r"_foreach_(norm|mul_)$|clip_grad|zero_grad", re.IGNORECASE)
"""Marks of the optimizer's time in which gradients are clipped or zeroed, by whichever optimizer."""
_ACCUMULATES = "AccumulateGrad"
MIN_TENSORS = 4
MIN_KERNELS = 5
"""Fewest kernels for each tensor: Adam has seven, Lion six. Clipping of gradients and an average of the
weights, each tensor by itself, have four together."""


def with_own_updates(trace: Trace, launches: Launches, role: Roles) -> Roles:
    """The roles, with updates of weights as the optimizer's where no optimizer is marked."""
    marked = distinct(trace.marks.name[trace.marks.mark == Mark.OPTIMIZER])
    if not role.backward.any() or not all(_PREPARING.search(trace.names[name]) for name in marked):
        return role
    return replace(role, optimizer=role.optimizer | _update_rows(trace, launches, role))


def _update_rows(trace: Trace, launches: Launches, role: Roles) -> Rows:
    """Rows between a backward pass and the next matrix product, or the end of the step, that are as
    many as an optimizer's.
    """
    found = np.zeros(len(trace.device), bool)
    order = np.flatnonzero((trace.device.work == WorkKind.COMPUTE) & (launches.start > BEFORE))
    order = order[np.argsort(launches.start[order], kind="stable")]
    launched, backward = launches.start[order], role.backward[order]
    forward = product_rows(trace, launches)[order] & ~backward
    counts = rows_named(trace, _ELEMENTWISE) & ~rows_named(trace, _MOVING)
    roots, tensors = rows_named(trace, ROOT), _accumulations(trace)
    edges = np.append(np.flatnonzero(forward | backward), len(order))
    long = np.diff(edges) > MIN_TENSORS * MIN_KERNELS
    for at, end in zip(edges[:-1][long].tolist(), edges[1:][long].tolist(), strict=True):
        if forward[at]:
            continue
        rows = order[at + 1 : end]
        rows = rows[launches.start[rows] < _step_end(trace, int(launched[at]))]
        before = np.flatnonzero(forward[:at])
        begun = launched[before[-1]] if len(before) else 0
        updates = np.flatnonzero(counts[rows])
        accumulated = np.diff(np.searchsorted(tensors, [begun, launched[at]]))[0]
        number = max(int(roots[rows].sum()), int(accumulated))
        if number >= MIN_TENSORS and len(updates) >= MIN_KERNELS * number:
            found[rows[updates[0] : updates[-1] + 1]] = True
    return found


def _accumulations(trace: Trace) -> Ints:
    """Times at which gradients of parameters were accumulated."""
    named = np.array([_ACCUMULATES in name for name in trace.names] or [False])
    rows = (trace.marks.mark == Mark.BACKWARD) & named[trace.marks.name]
    return np.sort(trace.marks.start[rows])


def _step_end(trace: Trace, time: int) -> int:
    """End of the marked step that holds this time."""
    starts = np.array([step.start for step in trace.steps], np.int64)
    at = int(np.searchsorted(starts, time, side="right")) - 1
    return trace.steps[at].end if at >= 0 else np.iinfo(np.int64).max
