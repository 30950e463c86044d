"""Rules on devices that are idle because their host is late."""

from __future__ import annotations

from dataclasses import replace

from computeflow.diagnosis.predicted_gains import Change
from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import NO_DEVICE, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.rules.kernels import best_larger_micro_batch
from computeflow.diagnosis.trace_case import PRACTICAL, TraceCase
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.traces.rank_measurements import RankMeasurement
from computeflow.units import format_count

LAUNCH_SHARE = 0.1
"""Least share of the window with late launches: a few percent are usual in eager runs."""
MIN_KERNELS = 100
"""With fewer kernels it is no training step: a start, a compilation, a toy."""
TOO_SHORT = Missing(f"a window of at least {MIN_KERNELS} kernels (profile whole steps)")
COMPILED_HOST = 0.68
_COMPILED_RANGE = (0.55, 0.82)
"""Host time of a compiled block over that of an eager one: 0.55 and 0.82 on the hosts of our two H200
measurements (`host_compiled` of the predictor; benchmarks/reports/calibration.md), and between them."""
STAGES = {
    "workers": "the loader's workers read, decode or collate too slowly",
    "read and decode": "reading and decoding in the training process",
    "collate": "collating samples in the training process",
    "copy": "copying batches into pinned memory",
}
_AHEAD = "load batches in worker processes, ahead of the step"
_PROBE = "`computeflow probe --data FOLDER` measures what each buys"
DATA_REMEDIES = {
    "workers": "use more loader workers, or give them less work: tokens written ahead of time instead "
    f"of text, shards read in order, a cache on local NVMe; {_PROBE}",
    "read and decode": f"{_AHEAD}; then tokens written ahead of time, shards read in order, a cache on "
    f"local NVMe; {_PROBE}",
    "collate": f"{_AHEAD}; pack samples to one length when they are written",
    "copy": f"{_AHEAD}, and copy from pinned memory without waiting",
}
"""What to change, by the stage of the loader that takes longest."""


def input_stall(case: TraceCase) -> Outcome:
    if all("input" in rank.missing for rank in case.ranks):
        return Missing(case.first.missing["input"])

    if not case.common("input", lambda rank: rank.accounts.get("input", 0.0)):
        return []
    stages: dict[str, float] = {}
    for rank in case.ranks:
        for name, seconds in rank.signals.loading.items():
            stages[name] = stages.get(name, 0.0) + seconds
    most = max(stages, key=lambda name: stages[name], default="read and decode")
    own = case.total(lambda rank: rank.accounts.get("input", 0.0))
    after = case.set_back("input")
    often = case.steps_with("input")
    return report(
        f"the device waits for data{_of_steps(case, often)}: {STAGES[most]}",
        [("input", own), ("host", after)],
        [
            seconds_evidence(
                "device idle while the data loader runs", case.where("account input"), own, 0.0
            ),
            *(
                seconds_evidence(
                    f"data loader: {name}", case.where("inside the loader's annotation"), seconds
                )
                for name, seconds in sorted(stages.items(), key=lambda item: -item[1])
            ),
            seconds_evidence("late launches after loading", case.where("account host"), after, 0.0),
        ],
        Remedy(
            change=DATA_REMEDIES[most],
            command=command("workers", case.framework),
            gain_gpu_seconds=own + after,
            gain_low=own,
            gain_high=own + after,
        ),
        steady=case.steady(often),
    )


def _of_steps(case: TraceCase, steps: int) -> str:
    return "" if case.steady(steps) else f" in {steps} of {case.steps} steps"


def _common(case: TraceCase, root: str) -> bool:
    """Whether a cause delays most hosts by more than the noise of their lateness."""
    return case.common("host", lambda rank: rank.signals.setbacks.get(root, 0.0))


def host_sync(case: TraceCase) -> Outcome:
    if not case.on_device:
        return NO_DEVICE
    if not _common(case, "sync"):
        return []
    total = case.set_back("sync")
    reads = case.first.signals.reads
    named = [f"{name} {count / case.steps:.0f} times" for name, count in reads.items() if name]
    waits = sum(reads.values()) / case.steps
    return report(
        f"the host waits for the device {_times(waits)} {case.per} and then launches too late",
        [("host", total)],
        [
            seconds_evidence(
                "device idle after a synchronisation", case.where("account host"), total, 0.0
            ),
            Evidence(
                what=f"synchronisations {case.per}" + (f": {', '.join(named)}" if named else ""),
                where=case.where("synchronising runtime calls"),
                value=waits,
                unit="per step",
            ),
        ],
        Remedy(
            change="do not read device values on the host during a step",
            command=command("sync", case.framework),
            gain_gpu_seconds=total,
            gain_low=0.75 * total,
            gain_high=total,
        ),
    )


def launch_bound(case: TraceCase) -> Outcome:
    """A host slow for no other cause. Where micro-batches can be merged, that is `underfilled`."""
    if not case.on_device:
        return NO_DEVICE
    if case.first.signals.kernels < MIN_KERNELS:
        return TOO_SHORT
    late = case.set_back("launch")
    if late < LAUNCH_SHARE * case.ledger.gpu_seconds:
        return []
    low, gain, high = _compiled_gains(case, late)
    return _launch_bound(case, late, gain, low, high) if gain > 0 else []


def _compiled_gains(case: TraceCase, late: float) -> list[float]:
    """Low, middle and high gain of compiled blocks; zeros where they gain nothing."""
    shares = (_COMPILED_RANGE[1], COMPILED_HOST, _COMPILED_RANGE[0])
    if case.replay is None:
        return [(1 - share) * late for share in shares]
    stack = case.replay.inferred.stack
    if stack.kernels != "eager" or best_larger_micro_batch(case) is not None:
        return [0.0, 0.0, 0.0]  # compiled already, or `underfilled`
    compiled = replace(stack, kernels="compiled")
    scale = case.steps * case.replay.inferred.layout.gpus
    now = case.replay.predict().step_seconds
    after = (case.replay.predict(Change(stack=compiled, compiled_host=s)) for s in shares)
    gains = [min(max((now - prediction.step_seconds) * scale, 0.0), late) for prediction in after]
    return gains if gains[1] >= PRACTICAL * now * scale else [0.0, 0.0, 0.0]


def _launch_bound(case: TraceCase, late: float, gain: float, low: float, high: float) -> Outcome:
    kernels = case.first.signals.kernels / case.steps
    return report(
        "the device waits for the host to launch its kernels",
        [("host", gain)],
        [
            seconds_evidence(
                "device idle before launches that are late for no other cause",
                case.where("account host"),
                late,
            ),
            Evidence(
                what="launches into an empty queue",
                where=case.where("queue"),
                value=case.first.queue_empty,
                unit="share",
            ),
            Evidence(
                what=f"kernels {case.per}",
                where=case.where("kernels"),
                value=kernels,
                unit="per step",
            ),
            Evidence(
                what="the profiler itself slows the host: 1.3 to 1.8 times in our launch-bound "
                "recordings",
                where="docs/diagnosis.md",
            ),
        ],
        Remedy(
            change="launch fewer and larger kernels: compile the blocks, or use CUDA graphs",
            command=command("compile", case.framework),
            gain_gpu_seconds=gain,
            gain_low=low,
            gain_high=high,
            risk="the first step takes longer; new shapes compile again",
        ),
    )


def gc_pause(case: TraceCase) -> Outcome:
    if not any(rank.signals.collections for rank in case.ranks):
        return Missing(
            "marks of Python's garbage collection: gc.callbacks with record_function('gc')"
        )
    if not _common(case, "gc"):
        return []
    total = case.set_back("gc")
    runs = case.total(lambda rank: float(rank.signals.collections))
    inside = case.total(lambda rank: rank.signals.collection_seconds)
    return report(
        f"Python collects garbage {_rate(runs / len(case.ranks), case.steps, case.per)}",
        [("host", total)],
        [
            seconds_evidence(
                "device idle around garbage collections", case.where("account host"), total, 0.0
            ),
            seconds_evidence("host time in garbage collections", case.where("marks of gc"), inside),
        ],
        Remedy(
            change="collect rarely, at a fixed step, and create fewer reference cycles",
            command=command("gc", case.framework),
            gain_gpu_seconds=total,
            gain_low=0.75 * total,
            gain_high=total,
            risk="memory held by cycles is freed only at the next collection",
        ),
        steady=runs >= case.steps * len(case.ranks),
    )


def _times(count: float) -> str:
    return "once" if round(count) == 1 else f"{count:,.0f} times"


def _rate(count: float, steps: int, per: str) -> str:
    if count >= steps:
        return f"{_times(count / steps)} {per}"
    return f"{'once' if count < 2 else f'{count:,.0f} times'} in {steps} steps"


def memory_pressure(case: TraceCase) -> Outcome:
    if not case.on_device:
        return NO_DEVICE
    if not _common(case, "allocator"):
        return []
    total = case.set_back("allocator")
    calls = case.total(lambda rank: float(rank.signals.allocations)) / case.steps
    return report(
        f"device memory is allocated and freed {_times(calls)} {case.per}",
        [("host", total)],
        [
            seconds_evidence(
                "device idle during allocator calls", case.where("account host"), total, 0.0
            )
        ],
        Remedy(
            change="let the allocator grow its segments; use a smaller micro-batch if it still "
            "frees and retries",
            command=command("allocator", case.framework),
            gain_gpu_seconds=total,
            gain_low=0.5 * total,
            gain_high=total,
        ),
    )


def pageable_copy(case: TraceCase) -> Outcome:
    if not case.on_device:
        return NO_DEVICE

    def lost(rank: RankMeasurement) -> float:
        return rank.signals.pageable_seconds + rank.signals.setbacks.get("pageable", 0.0)

    if not case.common("copy", lost):
        return []
    own = case.total(lambda rank: rank.signals.pageable_seconds)
    copied = min(own, case.ledger.booked("copy"))
    after = case.total(lost) - copied
    size = case.total(lambda rank: rank.signals.pageable_bytes) / case.steps
    count = case.total(lambda rank: float(rank.signals.pageable_count)) / case.steps
    return report(
        f"{format_count(count, 'copy', 'copies')} {case.per} through pageable memory, which blocks the "
        "host",
        [("copy", copied), ("host", after)],
        [
            seconds_evidence("exposed copies", case.where("account copy"), copied, 0.0),
            seconds_evidence(
                "late launches around the copies", case.where("account host"), after, 0.0
            ),
            Evidence(
                what=f"bytes copied {case.per}",
                where=case.where("Memcpy (Pageable)"),
                value=size,
                unit="B/step",
            ),
        ],
        Remedy(
            change="pin host memory and copy without blocking, ahead of the step",
            command=command("pin", case.framework),
            gain_gpu_seconds=case.total(lost),
            gain_low=0.75 * case.total(lost),
            gain_high=case.total(lost),
            risk="pinned memory cannot be swapped: limit it to the batches in flight",
        ),
    )


def checkpoint_stall(case: TraceCase) -> Outcome:
    if all("checkpoint" in rank.missing for rank in case.ranks):
        return Missing(case.first.missing["checkpoint"])

    def lost(rank: RankMeasurement) -> float:
        return rank.accounts.get("checkpoint", 0.0) + rank.signals.setbacks.get("checkpoint", 0.0)

    if not case.common("checkpoint", lost):
        return []
    own = case.total(lambda rank: rank.accounts.get("checkpoint", 0.0))
    after = case.total(lost) - own
    often = case.steps_with("checkpoint")
    return report(
        f"training stops while a checkpoint is written{_of_steps(case, often)}",
        [("checkpoint", own), ("host", after)],
        [seconds_evidence("device idle while saving", case.where("account checkpoint"), own, 0.0)],
        Remedy(
            change="write checkpoints in the background, from a copy in host memory",
            command=command("checkpoint", case.framework),
            gain_gpu_seconds=own + after,
            gain_low=0.5 * own,
            gain_high=own + after,
            risk="the window may hold more checkpoints than the rest of the run, whose share is "
            "then smaller",
        ),
        steady=case.steady(often),
    )
