"""The role of kernels, by what was launched around them, on code of any origin: attention that is
written out, forward passes without autograd, optimizers that update one tensor at a time.

Needs the host's operators (`read_trace(path, detailed=True)`), not their shapes. Each function
returns rows of `Trace.device`; without operators, none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.intervals import Intervals, union
from computeflow.telemetry.traces.event_names import Mark, WorkKind
from computeflow.telemetry.traces.kernel_precision import (
    Rows,
    has_pattern,
    product_rows,
    rows_named,
)
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.rank_accounts import (
    Roles,
    find_optimizer_steps,
    intervals_of_mark,
)
from computeflow.telemetry.traces.trace import Ints, Trace, distinct

_BATCHED = re.compile(r"^aten::(bmm|baddbmm_?)$")
_PLAIN = re.compile(
    r"^aten::(_?addmm\w*|mm|linear|_int_mm|_(scaled_)?(grouped_)?mm\w*)$|"
    r"^aten::\w*conv(olution|_transpose|_depthwise|\dd)\w*$|"
    r"^(?!aten::|autograd::|Torch-).*(gemm|(?<!bi)linear)",
    re.IGNORECASE,
)
"""Products of one matrix, also those of other libraries that say so in their operator's name."""
_WRAPPERS = re.compile(r"^aten::(matmul|einsum|bmm|baddbmm_?|_scaled_dot_product_attention_math)$")
"""Operators of one attention that copy or scale the operands of a batched product inside."""
_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)
_NO_SOFTMAX = re.compile(r"log_?softmax|cross_?entropy|nll", re.IGNORECASE)
_BACKWARD = re.compile(r"backward", re.IGNORECASE)
_COMPILED_SOFTMAX = re.compile(r"^triton_.*(?<!_log)_softmax")
_COMPILED_BACKWARD = re.compile(r"^triton_.*_softmax_backward")
_LAYER = re.compile(
    r"^aten::(linear|embedding|\w*conv(olution|\dd)\w*|\w*(layer|batch|group|rms)_norm|_?softmax|"
    r"\w*dot_product_attention\w*|gelu|relu_?|silu_?)$|^Torch-Compiled Region|CompiledFxGraph"
)
"""Operators that a model's forward pass has, and the products of an optimizer or a metric have
not."""
MIN_PRODUCTS = 8
"""Products in a row of a forward pass: two layers of a transformer have as many. Metrics and the
tables of position embeddings have one to three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    all: Rows
    products: Rows
    """The batched matrix products among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ThreadProducts:
    """Operators of matrix products on one thread, none inside another, in order of start."""

    start: Ints
    end: Ints
    batched: Rows


def unfused_attention_rows(trace: Trace, launches: Launches) -> AttentionRows:
    """Kernels of attention that is written out: from the batched product before a softmax to the
    batched product after it, and in the backward pass from the two before to the two after.

    Fused attention records no softmax; a router's softmax follows a product that is not batched.
    Recomputed attention is included.
    """
    every = np.zeros(len(trace.device), bool)
    products = every.copy()
    named = _flags(trace, _BATCHED)[trace.operators.name]
    multiplying = product_rows(trace, launches)
    for thread in distinct(trace.operators.thread[named]):
        own = _thread_products(trace, int(thread))
        rows = np.flatnonzero(launches.thread == thread)
        start = launches.start[rows]
        first, last = _around_softmax(own, *_softmax_times(trace, launches, int(thread)))
        first, last = _without_others(own, first, last, np.sort(start[multiplying[rows]]))
        if not len(first):
            continue
        wrappers = _named_intervals(trace, _WRAPPERS, int(thread))
        begin, _ = _widened(wrappers, own.start[first], own.end[first])
        _, finish = _widened(wrappers, own.start[last], own.end[last])
        every[rows] = union(begin, finish).contains(start)
        inside = own.batched & union(own.start[first], own.end[last]).contains(own.start)
        products[rows] = union(own.start[inside], own.end[inside]).contains(start)
    busy = (trace.device.work == WorkKind.COMPUTE) | (trace.device.work == WorkKind.MEMORY)
    return AttentionRows(all=every & busy, products=products & every & multiplying)


def evaluation_rows(trace: Trace, launches: Launches) -> Rows:
    """Work of forward passes that autograd does not record: evaluation in the training loop.

    A frozen model that runs without autograd beside the trained one (a teacher, a reference model,
    an image encoder) looks the same. One that runs with autograd enabled is not seen, nor is
    evaluation in a window without a backward pass.
    """
    found = np.zeros(len(trace.device), bool)
    marks = trace.marks
    training = (marks.mark == Mark.BACKWARD) | (marks.mark == Mark.OPTIMIZER)
    if not (marks.mark == Mark.BACKWARD).any():
        return found
    for thread in distinct(marks.thread[marks.mark == Mark.FORWARD_OP]):
        own = _thread_products(trace, int(thread))
        covered = intervals_of_mark(trace, Mark.FORWARD_OP, int(thread))
        for mark in (Mark.BACKWARD, Mark.OPTIMIZER):
            covered = covered.either(intervals_of_mark(trace, mark, int(thread)))
        free = ~covered.contains(own.start)
        breaks = union(
            np.concatenate([own.start[~free], marks.start[training]]),
            np.concatenate([own.end[~free], marks.end[training]]),
        )
        rows = np.flatnonzero(launches.thread == thread)
        rows = rows[np.argsort(launches.start[rows], kind="stable")]
        if not len(rows):
            continue
        layers = _flags(trace, _LAYER)[trace.operators.name] & (trace.operators.thread == thread)
        layer_starts = trace.operators.start[layers]
        for first, last in _runs(np.searchsorted(breaks.start, own.start[free])):
            run = own.start[free][first : last + 1]
            end = int(own.end[free][last])
            seen = np.searchsorted(layer_starts, [run[0], end])
            if last - first + 1 >= MIN_PRODUCTS and seen[1] > seen[0]:
                found[_pass_rows(launches, rows, run, end, breaks, covered)] = True
    return found


def single_tensor_optimizer_rows(trace: Trace, launches: Launches, role: Roles) -> Rows:
    """Kernels of an optimizer that update one tensor at a time, and have a form that updates many.

    Neither those that already do all of a tensor's update (bitsandbytes), nor any of an optimizer
    with matrix products of its own (Muon, Shampoo).
    """
    rows = (trace.device.work == WorkKind.COMPUTE) | (trace.device.work == WorkKind.MEMORY)
    rows &= role.optimizer & ~rows_named(trace, MANY_TENSORS)
    products = role.optimizer & product_rows(trace, launches)
    for thread in distinct(launches.thread[products]):
        mine = rows & (launches.thread == thread)
        steps = find_optimizer_steps(trace, int(thread))
        starts = np.sort(launches.start[products & (launches.thread == thread)])
        multiplies = np.searchsorted(starts, steps.end) > np.searchsorted(starts, steps.start)
        with_products = Intervals(steps.start[multiplies], steps.end[multiplies])
        rows[mine] = ~with_products.contains(launches.start[mine])
    return np.asarray(rows)


MANY_TENSORS = re.compile(
    r"multi_tensor|fused_?adam|triton|foreach|lpnorm|reduce_kernel|memset|kOptimizer", re.IGNORECASE
)
"""Kernels that update many tensors at once (torch's foreach and fused forms, Apex, DeepSpeed,
Transformer Engine), all of one tensor's update (bitsandbytes' kOptimizer), or clip gradients, which
every optimizer has."""


def _flags(trace: Trace, pattern: re.Pattern[str]) -> Rows:
    """Numbers of names that have this pattern and an operator."""
    flags = np.zeros(len(trace.names) + 1, bool)
    flags[trace.operators.name] = True
    for number in np.flatnonzero(flags):
        flags[number] = has_pattern(pattern, trace.names[number])
    return flags


def _thread_products(trace: Trace, thread: int) -> _ThreadProducts:
    operators = trace.operators
    batched = _flags(trace, _BATCHED)
    rows = (batched | _flags(trace, _PLAIN))[operators.name] & (operators.thread == thread)
    start, end, name = operators.start[rows], operators.end[rows], operators.name[rows]
    order = np.lexsort((-end, start))
    start, end, name = start[order], end[order], name[order]
    reach = np.maximum.accumulate(end)
    outer = np.concatenate([[True], start[1:] >= reach[:-1]])[: len(start)]
    return _ThreadProducts(start=start[outer], end=end[outer], batched=batched[name[outer]])


def _softmax_times(trace: Trace, launches: Launches, thread: int) -> tuple[Ints, Rows]:
    """Times of softmax on the host, and which of them are of the backward pass."""
    operators = trace.operators
    softmax = _flags(trace, _SOFTMAX) & ~_flags(trace, _NO_SOFTMAX)
    backward = _flags(trace, _BACKWARD)
    rows = softmax[operators.name] & (operators.thread == thread)
    compiled = rows_named(trace, _COMPILED_SOFTMAX) & (launches.thread == thread)
    compiled_backward = rows_named(trace, _COMPILED_BACKWARD)[compiled]
    return (
        np.concatenate([operators.start[rows], launches.start[compiled]]),
        np.concatenate([backward[operators.name[rows]], compiled_backward]),
    )


def _around_softmax(own: _ThreadProducts, times: Ints, backward: Rows) -> tuple[Ints, Ints]:
    """The first and last product of each attention around these softmaxes."""
    before = np.searchsorted(own.start, times, side="right") - 1
    kept = (before >= 0) & (before < len(own.start) - 1)
    before, times, backward = before[kept], times[kept], backward[kept]
    kept = own.batched[before] & own.batched[before + 1] & (own.end[before] <= times)
    first = distinct(before[kept])
    last = first + 1
    between = np.zeros(len(own.start) + 1, bool)  # a softmax follows this product
    between[before] = True
    batched = np.concatenate([own.batched, [False]])  # at index -1, too: there is no product
    back = np.isin(first, before[kept & backward])
    lower = back & batched[first - 1] & ~between[first - 1]
    upper = back & batched[last + 1] & ~between[last]
    return first - lower, last + upper


def _without_others(
    own: _ThreadProducts, first: Ints, last: Ints, kernels: Ints
) -> tuple[Ints, Ints]:
    """Attentions that launch no matrix product between their first and last but their own."""
    known = union(own.start, own.end).contains(kernels)
    unknown = kernels[~known]
    none = np.searchsorted(unknown, own.start[first]) == np.searchsorted(unknown, own.end[last])
    return first[none], last[none]


def _named_intervals(trace: Trace, pattern: re.Pattern[str], thread: int) -> Intervals:
    operators = trace.operators
    rows = _flags(trace, pattern)[operators.name] & (operators.thread == thread)
    return union(operators.start[rows], operators.end[rows])


def _widened(wrappers: Intervals, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Each interval, or the wrapper around it."""
    at = np.maximum(np.searchsorted(wrappers.start, start, side="right") - 1, 0)
    return np.minimum(start, wrappers.start[at]), np.maximum(end, wrappers.end[at])


def _runs(group: Ints) -> list[tuple[int, int]]:
    """First and last index of each run of equal numbers."""
    if not len(group):
        return []
    last = np.append(np.flatnonzero(group[1:] != group[:-1]), len(group) - 1)
    first = np.append(0, last[:-1] + 1)
    return list(zip(first.tolist(), last.tolist(), strict=True))


def _pass_rows(
    launches: Launches, rows: Ints, run: Ints, end: int, breaks: Intervals, covered: Intervals
) -> Ints:
    """Rows launched by forward passes whose products start at `run`: everything between the
    products, and before and after them what autograd did not record. That is as much as lies
    between two products, at most: an average of the weights may be updated next to it.
    """
    start = launches.start[rows]
    at = np.searchsorted(start, run)
    low, high = int(at[0]), int(np.searchsorted(start, end))
    most = int(np.diff(at).max())
    after = np.searchsorted(breaks.start, run[0])
    floor = int(breaks.end[after - 1]) if after else int(start[0])
    ceiling = int(breaks.start[after]) if after < len(breaks) else int(start[-1]) + 1
    before = np.arange(np.searchsorted(start, floor), low)
    behind = np.arange(high, np.searchsorted(start, ceiling))
    before = before[~covered.contains(start[before])]
    behind = behind[~covered.contains(start[behind])][:most]
    before = before[max(len(before) - most, 0) :]
    return np.asarray(rows[np.concatenate([before, np.arange(low, high), behind])])
