"""Rules on a device that stands idle because its host is late."""

from __future__ import annotations

from dataclasses import replace

from computeflow.diagnosis.case import PRACTICAL, Case
from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import NO_DEVICE, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.rules.kernels import merged
from computeflow.diagnosis.whatif import Change
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.traces.measured import RankMeasured

LAUNCH_SHARE = 0.1
"""Of the window, that the host must be late by itself: a few percent are usual in eager runs."""
_FEWEST_KERNELS = 100
"""Fewer are no training step: a start, a compilation, a toy."""
COMPILED_HOST = 0.68
_COMPILED_RANGE = (0.55, 0.82)
"""Of an eager block's host time, what a compiled one takes: 0.55 and 0.82 on the hosts of our two H200
measurements (`host_compiled` of the predictor; benchmarks/reports/calibration.md), and between them."""
_STAGES = {
    "workers": "waiting for the loader's workers, which read, decode or collate too slowly",
    "read and decode": "reading and decoding in the training process",
    "collate": "putting samples together in the training process",
    "copy": "copying batches into pinned memory",
}


def input_stall(case: Case) -> Outcome:
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
    workers = most != "workers"
    often = case.steps_with("input")
    return report(
        f"the device waits for data{_of_steps(case, often)}: {_STAGES[most]}",
        [("input", own), ("host", after)],
        [
            seconds_evidence("idle while the loader runs", case.where("account input"), own, 0.0),
            *(
                seconds_evidence(
                    f"of it: {name}", case.where("inside the loader's annotation"), seconds
                )
                for name, seconds in sorted(stages.items(), key=lambda item: -item[1])
            ),
            seconds_evidence("late launches after it", case.where("account host"), after, 0.0),
        ],
        Remedy(
            change="load in worker processes, ahead of the step"
            if workers
            else "more workers, or less work in each: decode ahead of time, read larger pieces",
            command=command("workers", case.framework),
            gain_gpu_seconds=own + after,
            gain_low=own,
            gain_high=own + after,
        ),
        steady=case.steady(often),
    )


def _of_steps(case: Case, steps: int) -> str:
    return "" if case.steady(steps) else f" in {steps} of {case.steps} steps"


def _common(case: Case, root: str) -> bool:
    """Whether a root sets most hosts back by more than the noise of their lateness."""
    return case.common("host", lambda rank: rank.signals.setbacks.get(root, 0.0))


def host_sync(case: Case) -> Outcome:
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
            seconds_evidence("idle after the host waited", case.where("account host"), total, 0.0),
            Evidence(
                what=f"waits {case.per}" + (f": {', '.join(named)}" if named else ""),
                where=case.where("synchronising runtime calls"),
                value=waits,
                unit="per step",
            ),
        ],
        Remedy(
            change="do not read values of the device inside of the step",
            command=command("sync", case.framework),
            gain_gpu_seconds=total,
            gain_low=0.75 * total,
            gain_high=total,
        ),
    )


def launch_bound(case: Case) -> Outcome:
    """The host is slow by itself. Where micro-batches can be merged, that is `underfilled`."""
    if not case.on_device:
        return NO_DEVICE
    if case.first.signals.kernels < _FEWEST_KERNELS:
        return Missing(f"a window of {_FEWEST_KERNELS} kernels and more (profile whole steps)")
    late = case.set_back("launch")
    if late < LAUNCH_SHARE * case.ledger.gpu_seconds:
        return []
    low, gain, high = _compiled_gains(case, late)
    return _launch_bound(case, late, gain, low, high) if gain > 0 else []


def _compiled_gains(case: Case, late: float) -> list[float]:
    """Low, middle and high of what compiled blocks would gain; zeros where they would not."""
    shares = (_COMPILED_RANGE[1], COMPILED_HOST, _COMPILED_RANGE[0])
    if case.replay is None:
        return [(1 - share) * late for share in shares]
    stack = case.replay.inferred.stack
    if stack.kernels != "eager" or merged(case) is not None:
        return [0.0, 0.0, 0.0]  # compiled already, or `underfilled`
    compiled = replace(stack, kernels="compiled")
    scale = case.steps * case.replay.inferred.layout.gpus
    now = case.replay.predict().step_seconds
    after = (case.replay.predict(Change(stack=compiled, compiled_host=s)) for s in shares)
    gains = [min(max((now - one.step_seconds) * scale, 0.0), late) for one in after]
    return gains if gains[1] >= PRACTICAL * now * scale else [0.0, 0.0, 0.0]


def _launch_bound(case: Case, late: float, gain: float, low: float, high: float) -> Outcome:
    kernels = case.first.signals.kernels / case.steps
    return report(
        "the device waits for the host to launch its kernels",
        [("host", gain)],
        [
            seconds_evidence(
                "idle before late launches, by what made the host late: nothing but itself",
                case.where("account host"),
                late,
            ),
            Evidence(
                what="launches that found nothing queued",
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
                what="a profiler slows the host itself: 1.3 to 1.8 times in our launch-bound "
                "recordings",
                where="docs/diagnosis.md",
            ),
        ],
        Remedy(
            change="fewer and larger launches: compile the blocks, or CUDA graphs",
            command=command("compile", case.framework),
            gain_gpu_seconds=gain,
            gain_low=low,
            gain_high=high,
            risk="the first step takes longer; changing shapes compile again",
        ),
    )


def gc_pause(case: Case) -> Outcome:
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
            seconds_evidence("idle around collections", case.where("account host"), total, 0.0),
            seconds_evidence("of the host, in collections", case.where("marks of gc"), inside),
        ],
        Remedy(
            change="collect rarely and at a known moment, and make fewer cyclic objects",
            command=command("gc", case.framework),
            gain_gpu_seconds=total,
            gain_low=0.75 * total,
            gain_high=total,
            risk="memory of cycles stays until the next collection",
        ),
        steady=runs >= case.steps * len(case.ranks),
    )


def _times(count: float) -> str:
    return "once" if round(count) == 1 else f"{count:,.0f} times"


def _rate(count: float, steps: int, per: str) -> str:
    if count >= steps:
        return f"{_times(count / steps)} {per}"
    return f"{'once' if count < 2 else f'{count:,.0f} times'} in {steps} steps"


def memory_pressure(case: Case) -> Outcome:
    if not case.on_device:
        return NO_DEVICE
    if not _common(case, "allocator"):
        return []
    total = case.set_back("allocator")
    calls = case.total(lambda rank: float(rank.signals.allocations)) / case.steps
    return report(
        f"memory of the device is taken and given back {_times(calls)} {case.per}",
        [("host", total)],
        [seconds_evidence("idle in allocator calls", case.where("account host"), total, 0.0)],
        Remedy(
            change="let the allocator grow its segments; use a smaller micro-batch if it still "
            "frees and retries",
            command=command("allocator", case.framework),
            gain_gpu_seconds=total,
            gain_low=0.5 * total,
            gain_high=total,
        ),
    )


def pageable_copy(case: Case) -> Outcome:
    if not case.on_device:
        return NO_DEVICE

    def lost(rank: RankMeasured) -> float:
        return rank.signals.pageable_seconds + rank.signals.setbacks.get("pageable", 0.0)

    if not case.common("copy", lost):
        return []
    own = case.total(lambda rank: rank.signals.pageable_seconds)
    copied = min(own, case.ledger.booked("copy"))
    after = case.total(lost) - copied
    size = case.total(lambda rank: rank.signals.pageable_bytes) / case.steps
    count = case.total(lambda rank: float(rank.signals.pageable_count)) / case.steps
    return report(
        f"{count:,.0f} copies {case.per} go through pageable memory and block the host",
        [("copy", copied), ("host", after)],
        [
            seconds_evidence("exposed copies", case.where("account copy"), copied, 0.0),
            seconds_evidence("late launches around them", case.where("account host"), after, 0.0),
            Evidence(
                what=f"bytes {case.per}",
                where=case.where("Memcpy (Pageable)"),
                value=size,
                unit="B/step",
            ),
        ],
        Remedy(
            change="pin the host's memory and copy without blocking, ahead of the step",
            command=command("pin", case.framework),
            gain_gpu_seconds=case.total(lost),
            gain_low=0.75 * case.total(lost),
            gain_high=case.total(lost),
            risk="pinned memory is not swapped: keep it to the batches in flight",
        ),
    )


def checkpoint_stall(case: Case) -> Outcome:
    if all("checkpoint" in rank.missing for rank in case.ranks):
        return Missing(case.first.missing["checkpoint"])

    def lost(rank: RankMeasured) -> float:
        return rank.accounts.get("checkpoint", 0.0) + rank.signals.setbacks.get("checkpoint", 0.0)

    if not case.common("checkpoint", lost):
        return []
    own = case.total(lambda rank: rank.accounts.get("checkpoint", 0.0))
    after = case.total(lost) - own
    often = case.steps_with("checkpoint")
    return report(
        f"training stands still while a checkpoint is written{_of_steps(case, often)}",
        [("checkpoint", own), ("host", after)],
        [seconds_evidence("blocked on saving", case.where("account checkpoint"), own, 0.0)],
        Remedy(
            change="write in the background, from a copy in the host's memory",
            command=command("checkpoint", case.framework),
            gain_gpu_seconds=own + after,
            gain_low=0.5 * own,
            gain_high=own + after,
            risk="the window may hold more checkpoints than the run does: its share here is not "
            "the run's",
        ),
        steady=case.steady(often),
    )
