"""From a trace to its graph: `step_graph`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.backward_passes import optimizer_ends
from computeflow.telemetry.traces.event_names import ALLOCATOR, Call, Mark, WorkKind
from computeflow.telemetry.traces.host_stalls import HostStall, find_stalls
from computeflow.telemetry.traces.kernel_precision import full_precision_rows
from computeflow.telemetry.traces.kernel_roles import (
    evaluation_rows,
    single_tensor_optimizer_rows,
    unfused_attention_rows,
)
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.rank_accounts import Roles, intervals_of_mark
from computeflow.telemetry.traces.step_graph import (
    BACKWARD,
    OPTIMIZER,
    QUEUE,
    DeviceRows,
    HostLine,
    Role,
    StepGraph,
)
from computeflow.telemetry.traces.trace import Ints, Trace, TraceStep, distinct

MAX_CALLS = 60_000
"""Calls of the host in a graph, unless two steps have more."""
MAX_ROWS = 500_000
"""Calls, and as many pieces of the device's work, of a graph that is kept."""
MAX_NAME = 200
_TOLERANCE_NS = 2_000
"""Clocks of host and device agree to about this."""
_MAX_GAP_NS = 10_000
"""Longest gap that a device itself leaves between two kernels that are queued."""
_MAX_LAG_NS = 1_000_000
"""Longest wait before work for a reason that is not recorded. Work that is set free at once by another
stream shares the device, so some of it starts late (cuDNN's own streams, up to 0.7 ms); a copy may find
its engine busy (up to 0.97 ms in a recording that gives all memory back in every step)."""
_NEVER = int(np.iinfo(np.int64).min) // 4
_USUAL_GAP_NS = 1_200
_USUAL_RELEASE_NS = 1_500
"""From the end of a launch to the start of its kernel on an idle device (1.1 to 1.5 us on an H200)."""
_MAX_RELEASE_NS = 50_000
_OVERLAP = 0.02
"""Largest share of a thread's calls that may run beside the line's for the thread to belong to it."""
_STAGED_BYTES = 1 << 16
"""A copy from pageable memory up to this size is staged, and its call returns before it is made."""
_LOOK_BACK = 64
"""Rows looked at for the work that a call waited for."""


def step_graph(
    trace: Trace, launches: Launches, role: Roles, steps: tuple[TraceStep, ...]
) -> StepGraph | None:
    """The graph of whole steps, or None where launches are not recorded."""
    if not (trace.on_device and trace.launched and len(trace.calls)):
        return None
    steps = _that_fit(trace, steps or steps_by_optimizer(trace))
    start, end = _window(trace, steps)
    on_line = _line_calls(trace, launches, start, end)
    if not 0 < len(on_line) <= MAX_ROWS:
        return None
    on_line, end = _without_closing(trace, on_line, end, steps)
    rows = _device_rows(trace, launches, role, on_line, start)
    if not 0 < len(rows) <= MAX_ROWS or end <= start:
        return None
    thread = trace.calls.thread[on_line]
    stalls = find_stalls(trace, trace.calls.start[on_line] - start, thread, (start, end), steps)
    line = _line(trace, launches, rows, on_line, (start, end), steps)
    line = replace(line, irregular=_irregular(stalls, len(line)))
    kept, names = _names(trace, rows)
    launching = (line.call == Call.LAUNCH) & ~line.waited
    return StepGraph(
        steps=max(len(steps), 1),
        window=end - start,
        line=line,
        device=kept,
        names=names,
        stalls=stalls,
        launch=float(np.median(line.cost[launching])) if launching.any() else 0.0,
        profiler=trace.origin.kind,
        has_stacks=len(trace.functions) > 0,
        loader=_loader(trace),
        recorded_end=int((rows.start + rows.seconds * 1e9).max()) if len(rows) else 0,
    )


def _window(trace: Trace, steps: tuple[TraceStep, ...]) -> tuple[int, int]:
    """Start and end on the host."""
    if steps:
        return steps[0].start, steps[-1].end
    calls = trace.calls
    return int(calls.start.min()), int(calls.end.max())


def _that_fit(trace: Trace, steps: tuple[TraceStep, ...]) -> tuple[TraceStep, ...]:
    """The first steps, as many as `MAX_CALLS` holds, and two at least: a replay takes some
    microseconds for each call, and is made dozens of times.
    """
    starts = np.sort(trace.calls.start)
    ends = [int(np.searchsorted(starts, step.end)) for step in steps]
    first = int(np.searchsorted(starts, steps[0].start)) if steps else 0
    fit = sum(end - first <= MAX_CALLS for end in ends)
    return steps[: max(fit, 2)]


def steps_by_optimizer(trace: Trace) -> tuple[TraceStep, ...]:
    """Steps from one end of the optimizer to the next, where the profiler marks none."""
    return tuple(
        TraceStep(number=number, start=start, end=end)
        for number, (start, end) in enumerate(pairwise(optimizer_ends(trace).tolist()))
        if end > start
    )


def _line_calls(trace: Trace, launches: Launches, start: int, end: int) -> Ints:
    """Rows of the calls on the host's line, in order.

    The thread that launches most, and those that hand over to it: their calls do not run beside its.
    """
    calls = trace.calls
    inside = (calls.start >= start) & (calls.start < end)
    launching = np.bincount(
        calls.thread[inside & (calls.call == Call.LAUNCH) & (calls.thread >= 0)], minlength=1
    )
    chosen = np.zeros(len(calls), bool)
    for thread in np.argsort(-launching, kind="stable").tolist():
        if not launching[thread]:
            break
        rows = inside & (calls.thread == thread)
        if _beside(calls.start[rows], calls.end[rows], calls.start[chosen], calls.end[chosen]):
            continue
        chosen |= rows
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(calls.start[rows], kind="stable")]


def _without_closing(
    trace: Trace, on_line: Ints, end: int, steps: tuple[TraceStep, ...]
) -> tuple[Ints, int]:
    """Leave out the wait with which a recording is closed: no other step ends with one."""
    calls = trace.calls
    ends = np.searchsorted(calls.start[on_line], [step.end for step in steps[:-1]]) - 1
    usual = calls.call[on_line[ends[ends >= 0]]] == Call.SYNC
    while len(on_line) > 1 and len(usual) and not usual.any():
        last = on_line[-1]
        if calls.call[last] != Call.SYNC:
            break
        end -= int(min(calls.end[last], end) - calls.start[last])
        on_line = on_line[:-1]
    return on_line, end


def _beside(start: Ints, end: Ints, others: Ints, ends: Ints) -> bool:
    """Whether calls run at the same time as others, which are in order of start."""
    if not len(others):
        return False
    reach = np.maximum.accumulate(ends)
    last = np.searchsorted(others, end) - 1
    overlaps = (last >= 0) & (reach[np.maximum(last, 0)] > start)
    return bool(overlaps.mean() > _OVERLAP)


def _device_rows(
    trace: Trace, launches: Launches, role: Roles, on_line: Ints, start: int
) -> DeviceRows:
    """Work launched by the line's calls, and what was queued or running when the window began.

    What other threads launch meanwhile is left out.
    """
    device = trace.device
    position = np.full(len(trace.calls) + 1, -1, np.int64)
    position[on_line] = np.arange(len(on_line))
    call = position[launches.call]
    earlier = (call < 0) & (device.end > start) & (launches.start < start)
    rows = np.flatnonzero(earlier | (call >= 0))
    order = rows[np.lexsort((device.start[rows], call[rows]))]
    call = call[order]
    begin, stream = device.start[order], device.stream[order]
    first = np.concatenate([[True], (call[1:] != call[:-1]) | (call[1:] < 0)])
    head = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    previous = _previous_on_stream(stream, begin, device.end[order])
    launched = np.where(call >= 0, trace.calls.start[on_line[np.maximum(call, 0)]], start)
    copies = device.work[order] == WorkKind.COPY
    gap = np.clip(begin - previous, 0, np.where(copies, _MAX_LAG_NS, _MAX_GAP_NS))
    gap[(launched > previous) | (previous == _NEVER)] = _USUAL_GAP_NS
    after = _cross_waits(begin, device.end[order], launched, previous, stream)
    late = np.clip(begin - device.end[order][after], 0, _MAX_LAG_NS)
    gap = np.where(after >= 0, late, gap)
    return DeviceRows(
        start=begin - start,
        seconds=(device.end[order] - begin) / 1e9,
        call=call,
        offset=begin - begin[head],
        stream=stream,
        gap=gap,
        after=after,
        name=device.name[order],
        work=device.work[order],
        bytes=device.bytes[order],
        row=order,
        role=_roles(trace, launches, role)[order],
    )


def _roles(trace: Trace, launches: Launches, role: Roles) -> NDArray[np.int16]:
    """The roles of each row of `Trace.device`."""
    attention = unfused_attention_rows(trace, launches)
    full = full_precision_rows(trace, launches, role)
    found = np.zeros(len(trace.device), np.int16)
    for flag, rows in (
        (Role.OPTIMIZER, role.optimizer),
        (Role.BACKWARD, role.backward),
        (Role.RECOMPUTE, role.recompute),
        (Role.ATTENTION, attention.all),
        (Role.ATTENTION_PRODUCT, attention.products),
        (Role.EVALUATION, evaluation_rows(trace, launches)),
        (Role.FP32_PRODUCT, full.products),
        (Role.TF32_PRODUCT, full.tf32),
        (Role.FP32_ATTENTION, full.attention),
        (Role.FP32_OTHER, full.others),
        (Role.SINGLE_UPDATE, single_tensor_optimizer_rows(trace, launches, role)),
    ):
        found[rows] |= flag
    return found


def _previous_on_stream(stream: NDArray[np.int32], start: Ints, end: Ints) -> Ints:
    """End of the work before each on its stream; `_NEVER` for the first (times may be negative)."""
    previous = np.full(len(start), _NEVER, np.int64)
    for number in distinct(stream):
        rows = np.flatnonzero(stream == number)
        rows = rows[np.argsort(start[rows], kind="stable")]
        previous[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
    return previous


def _cross_waits(
    start: Ints, end: Ints, launched: Ints, previous: Ints, stream: NDArray[np.int32]
) -> Ints:
    """Rows of other streams that work waited for: it was launched, its stream was free, and it began
    only when another stream's work ended.
    """
    after = np.full(len(start), -1, np.int64)
    waited = start - np.maximum(previous, launched) > 2 * _MAX_GAP_NS
    if not waited.any() or len(distinct(stream)) < 2:
        return after
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    for row in np.flatnonzero(waited).tolist():
        at = int(np.searchsorted(ends, start[row], side="right")) - 1
        for place in range(at, max(at - _LOOK_BACK, -1), -1):
            other = by_end[place]
            if start[row] - ends[place] > _MAX_LAG_NS:
                break
            if stream[other] != stream[row] and launched[other] <= launched[row]:
                after[row] = other
                break
    return after


def _line(
    trace: Trace,
    launches: Launches,
    rows: DeviceRows,
    on_line: Ints,
    window: tuple[int, int],
    steps: tuple[TraceStep, ...],
) -> HostLine:
    calls = trace.calls
    start, end = calls.start[on_line], calls.end[on_line]
    call, thread = calls.call[on_line], calls.thread[on_line]
    before = np.maximum.accumulate(np.concatenate([[window[0]], end[:-1]]))
    gap = np.maximum(start - before, 0)
    operators, free = _inside_gaps(trace, before, start, thread)
    blocking = _blocking_copies(trace, rows)
    waits_for, delay, waited = _waits(rows, blocking, call, start - window[0], end - window[0])
    cost = end - start
    own = (call == Call.SYNC) & ~waited
    usual = int(np.median(cost[own])) if own.any() else 5_000
    cost = np.where(waited, np.minimum(usual, cost), cost)
    cost = _unblocked(cost, call, rows, start - window[0], waited)
    edges = np.array([step.start for step in steps[1:]], np.int64)
    return HostLine(
        start=start - window[0],
        end=end - window[0],
        gap=gap,
        operators=operators,
        free=free,
        irregular=np.zeros_like(free),
        loading=np.minimum(intervals_of_mark(trace, Mark.INPUT).within(before, start), gap),
        cost=cost,
        call=call,
        thread=thread,
        phase=_phases(trace, thread, start),
        step=np.searchsorted(edges, start, side="right").astype(np.int32),
        release=_releases(rows, start - window[0], cost, call == Call.COPY, waited),
        waits_for=waits_for,
        delay=delay,
        waited=waited,
    )


def _irregular(stalls: tuple[HostStall, ...], calls: int) -> Ints:
    """Irregular stalls before each call; what lies behind the last call is left out."""
    found = np.zeros(calls, np.int64)
    for stall in stalls:
        if not stall.is_regular and stall.call < calls:
            found[stall.call] += stall.length
    return found


def _inside_gaps(
    trace: Trace, before: Ints, start: Ints, thread: NDArray[np.int32]
) -> tuple[NDArray[np.int32], Ints]:
    """Operators' beginnings and ends in each gap, and its stretches without any."""
    mine = np.isin(trace.operators.thread, distinct(thread))
    times = np.sort(np.concatenate([trace.operators.start[mine], trace.operators.end[mine]]))
    first, last = np.searchsorted(times, before), np.searchsorted(times, start)
    edges = np.sort(np.concatenate([times, before, start]))
    lengths = np.diff(edges)
    quiet = np.flatnonzero(lengths >= LONG_NS)
    owner = np.searchsorted(start, edges[quiet], side="right")
    owner = np.minimum(owner, len(start) - 1)
    inside = (edges[quiet] >= before[owner]) & (edges[quiet + 1] <= start[owner])
    free = np.bincount(owner[inside], weights=lengths[quiet[inside]], minlength=len(start))
    return (last - first).astype(np.int32), free.astype(np.int64)


LONG_NS = 1_000_000
"""A stretch of host time without any event that is no overhead of a profiler: real work, or waiting."""


def _blocking_copies(trace: Trace, rows: DeviceRows) -> NDArray[np.bool_]:
    """Copies whose call always waits for them: to pageable memory, and large ones from it (CUDA's "API
    synchronization behavior"). Others may end within their call by chance, on an idle device.
    """
    kinds = {code: trace.names[code] for code in distinct(rows.name).tolist()}
    pageable = [code for code, name in kinds.items() if "ageable" in name]
    upward = [code for code, name in kinds.items() if "DtoH" in name]
    large = (rows.bytes > _STAGED_BYTES) | np.isin(rows.name, upward)
    return np.asarray(np.isin(rows.name, pageable) & large)


def _waits(
    rows: DeviceRows,
    blocking_copies: NDArray[np.bool_],
    call: NDArray[np.int8],
    start: Ints,
    end: Ints,
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """For each call: the work it waits for (-1: none), the delay of its return, whether it waited."""
    waits_for = np.full(len(call), -1, np.int64)
    delay = np.zeros(len(call), np.int64)
    waited = np.zeros(len(call), bool)
    ends = rows.start + np.rint(rows.seconds * 1e9).astype(np.int64)
    by_end = np.argsort(ends, kind="stable")
    ordered = ends[by_end]
    last_of_call = np.full(len(call), -1, np.int64)
    last_of_call[rows.call[rows.call >= 0]] = np.flatnonzero(rows.call >= 0)
    blocking = np.isin(call, (Call.SYNC, Call.COPY, *ALLOCATOR))
    for row in np.flatnonzero(blocking).tolist():
        if call[row] == Call.COPY:
            found = int(last_of_call[row])
            if found < 0 or ends[found] > end[row] + _copy_tolerance(end[row] - start[row]):
                continue
            queued = found > 0 and ends[found - 1] > start[row] + _TOLERANCE_NS
            if not (blocking_copies[found] or queued):
                continue
        else:
            found = _awaited(by_end, ordered, rows.call, row, int(end[row]))
            if found < 0:
                continue
        waits = ends[found] > start[row] + _TOLERANCE_NS
        if call[row] in ALLOCATOR and not waits:
            continue
        waits_for[row], waited[row] = found, waits
        delay[row] = end[row] - ends[found] if waits else min(end[row] - start[row], 5_000)
    return waits_for, delay, waited


def _copy_tolerance(length: int) -> int:
    """A copy that blocks returns with its last piece on the way: a little before its end."""
    return max(_TOLERANCE_NS, min(length // 20, 100_000))


def _awaited(by_end: Ints, ends: Ints, calls: Ints, row: int, end: int) -> int:
    """The last work to end before a call returned, of what was launched before it."""
    at = int(np.searchsorted(ends, end + _TOLERANCE_NS, side="right")) - 1
    for place in range(at, max(at - _LOOK_BACK, -1), -1):
        if calls[by_end[place]] < row:
            return int(by_end[place])
    return -1


def _unblocked(
    cost: Ints, call: NDArray[np.int8], rows: DeviceRows, start: Ints, waited: NDArray[np.bool_]
) -> Ints:
    """Launches that waited for room in a full queue take as long as others."""
    launched = np.searchsorted(rows.call, np.arange(len(call)))
    begun = np.searchsorted(np.sort(rows.start), start, side="right")
    full = (launched - begun >= QUEUE - 32) & ~waited & (call != Call.SYNC)
    if not full.any():
        return cost
    kept = cost.copy()
    for kind in distinct(call[full]):
        plain = (call == kind) & ~full & ~waited
        usual = int(np.median(cost[plain])) if plain.any() else 10_000
        mine = full & (call == kind)
        kept[mine] = np.minimum(cost[mine], usual)
    return kept


def _releases(
    rows: DeviceRows,
    start: Ints,
    cost: Ints,
    copies: NDArray[np.bool_],
    waited: NDArray[np.bool_],
) -> Ints:
    """From each call's start to the earliest start of its work; observed where the device was idle."""
    release = cost + _USUAL_RELEASE_NS
    first = np.searchsorted(rows.call, np.arange(len(start)))
    there = first < len(rows)
    first = np.minimum(first, len(rows) - 1) if len(rows) else first
    there &= rows.call[first] == np.arange(len(start)) if len(rows) else there
    ends = np.maximum.accumulate(rows.start + np.rint(rows.seconds * 1e9).astype(np.int64))
    idle = there & (first > 0)
    idle &= ends[np.maximum(first - 1, 0)] < start
    seen = rows.start[first] - start
    longest = np.where(copies, _MAX_LAG_NS, _MAX_RELEASE_NS)
    release = np.where(idle, np.clip(seen, 500, cost + longest), release)
    # a copy that blocks: what the host does for it before it starts
    busy = np.maximum(ends[np.maximum(first - 1, 0)], start)
    moving = there & copies & waited
    return np.asarray(np.where(moving, np.maximum(rows.start[first] - busy, 500), release))


def _phases(trace: Trace, thread: NDArray[np.int32], start: Ints) -> NDArray[np.int8]:
    phase = np.zeros(len(start), np.int8)
    for number in distinct(thread):
        rows = thread == number
        for mark, code in ((Mark.BACKWARD, BACKWARD), (Mark.OPTIMIZER, OPTIMIZER)):
            inside = intervals_of_mark(trace, mark, int(number)).contains(start[rows])
            phase[rows] = np.where(inside, code, phase[rows])
    return phase


def _loader(trace: Trace) -> str:
    names = trace.marks.name[trace.marks.mark == Mark.INPUT]
    return trace.names[names[0]][:MAX_NAME] if len(names) else ""


def _names(trace: Trace, rows: DeviceRows) -> tuple[DeviceRows, tuple[str, ...]]:
    """The rows with names numbered anew, and these names."""
    codes, index = np.unique(rows.name, return_inverse=True)
    names = tuple(trace.names[code][:MAX_NAME] for code in codes.tolist())
    return replace(rows, name=index.astype(np.int32)), names
