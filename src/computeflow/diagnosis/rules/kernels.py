"""Rules on kernels that could be faster: attention, precision, batch, recomputation, optimizer.

The trace shows each cause; its cost is what the predictor saves without that cause, at the speeds of
the recording.
"""

from __future__ import annotations

from dataclasses import replace

from computeflow.diagnosis.predicted_gains import Change, PredictedRun
from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import NO_DEVICE, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.trace_case import PRACTICAL, TraceCase
from computeflow.ledger import Evidence, Remedy
from computeflow.prediction.device_time import step_parts
from computeflow.telemetry.traces.rank_measurements import RankMeasurement

_FULL_PRECISION = 0.5
"""Least share of FLOPs in float32 for a run to count as float32."""
_SINGLE = 0.5
"""Least share of the optimizer's kernel time in kernels of one tensor each, to count as unfused."""
ROOM = 0.9
"""Largest share of the device's memory that a change may fill, as predicted."""
_SPREAD = 0.15
"""Relative range of a predicted gain: the predictor's own error on our H200 (docs/accuracy.md)."""


def unfused_attention(case: TraceCase) -> Outcome:
    seen = case.total(lambda rank: rank.signals.unfused_attention)
    if not any(rank.signals.shapes for rank in case.ranks):
        return Missing("shapes of operators (profile with record_shapes=True)")
    if not case.on_device:
        return NO_DEVICE
    if seen < PRACTICAL * case.ledger.gpu_seconds:
        return []
    if case.replay is None:
        return Missing(case.why_not)
    run = case.replay
    if run.inferred.job.precision in ("fp32", "tf32"):
        return []  # fused kernels need half precision: that is `matmul-precision`
    fused = replace(run.inferred.stack, attention="latest")
    parts = step_parts(run.inferred.job, run.cluster, run.inferred.layout, fused)
    needed = parts.attention * case.steps * len(case.ranks)
    gain = seen - needed
    if gain < PRACTICAL * case.ledger.gpu_seconds:
        return []
    return report(
        "attention writes its scores to memory; a fused kernel would not",
        [("compute.kernel", gain)],
        [
            seconds_evidence(
                "attention kernels that are not fused", case.where("kernels"), seen, needed
            ),
            Evidence(
                what=f"attention scores of {run.inferred.job.seq_len:,} x {run.inferred.job.seq_len:,}",
                where=case.where("aten::bmm"),
            ),
        ],
        _remedy("use a fused attention kernel", command("attention", case.framework), gain),
    )


def _remedy(change: str, command: str, gain: float, risk: str = "") -> Remedy:
    """A remedy whose range is the predictor's own error."""
    return Remedy(
        change=change,
        command=command,
        gain_gpu_seconds=gain,
        gain_low=(1 - _SPREAD) * gain,
        gain_high=(1 + _SPREAD) * gain,
        risk=risk,
    )


def matmul_precision(case: TraceCase) -> Outcome:
    types = case.first.types
    if not types:
        return Missing("shapes of operators (profile with record_shapes=True)")
    full = types.get("float", 0.0) / sum(types.values())
    if not case.on_device:
        return NO_DEVICE
    if full < _FULL_PRECISION or case.audit.accelerator is None:
        return []
    if "bf16" not in case.audit.accelerator.dense_flops:
        return []
    if case.replay is None:
        return Missing(case.why_not)
    half = in_half_precision(case.replay)
    after = half.predict().ledger
    scale = case.steps * len(case.ranks) / after.gpus
    now = {name: case.ledger.booked(name) for name in ("compute", "optimizer")}
    gains = {name: now[name] - after.booked(name) * scale for name in now}
    model = case.ledger.booked("compute.model") - after.booked("compute.model") * scale
    gain = sum(gains.values())
    if gain < PRACTICAL * case.ledger.gpu_seconds:
        return []
    kind = case.replay.inferred.job.precision
    return report(
        f"matrix products run in {kind}, not in bf16",
        [
            ("compute.kernel", gains["compute"] - model),
            ("compute.model", model),
            ("optimizer", max(gains["optimizer"], 0.0)),
        ],
        [
            Evidence(
                what="FLOPs with float32 operands",
                where=case.where("operators"),
                value=full,
                unit="share",
            ),
            seconds_evidence(
                "forward and backward kernels",
                case.where("account compute"),
                now["compute"],
                after.booked("compute") * scale,
            ),
        ],
        _remedy(
            "use bf16 weights and products, fp32 only where needed (loss, norms, master weights)",
            command("precision", case.framework),
            gain,
            "check the loss curve; keep reductions and the optimizer's state in fp32",
        ),
    )


def in_half_precision(run: PredictedRun) -> PredictedRun:
    """The same run in bf16; factors fitted on float32 kernels do not apply to it."""
    stack = replace(
        run.inferred.stack, param_bytes=2.0, grad_bytes=2.0, state_bytes=4.0, attention="latest"
    )
    job = replace(run.inferred.job, precision="bf16")
    factors = replace(run.factors, matmul=1.0, attention=1.0, other=1.0, loss=1.0, optimizer=1.0)
    return replace(run, inferred=replace(run.inferred, job=job, stack=stack), factors=factors)


def best_larger_micro_batch(case: TraceCase) -> tuple[int, float] | None:
    """A larger micro-batch at the same global batch: its size, and the seconds of its step.

    None where there is one micro-batch or memory has no room; the caller compares the time.
    """
    if case.replay is None:
        return None
    run, job, layout = case.replay, case.replay.inferred.job, case.replay.inferred.layout
    rounds = job.global_batch // (layout.micro_batch * layout.gpus)
    best = None
    for times in range(2, rounds + 1):
        if rounds % times:
            continue
        wider = replace(layout, micro_batch=layout.micro_batch * times)
        prediction = run.predict(Change(layout=wider))
        if prediction.memory_bytes > ROOM * prediction.memory_limit_bytes:
            break
        if best is None or prediction.step_seconds < best[1]:
            best = wider.micro_batch, prediction.step_seconds
    return best


def _stalls(case: TraceCase) -> list[float]:
    """GPU-seconds of stalls that other rules report, one by one."""
    roots: dict[str, float] = {}
    for rank in case.ranks:
        for root, seconds in rank.signals.setbacks.items():
            if root not in ("launch", "optimizer"):
                roots[root] = roots.get(root, 0.0) + seconds
    return [
        *roots.values(),
        *(case.ledger.booked(name) for name in ("input", "checkpoint")),
        case.total(lambda rank: rank.signals.pageable_seconds),
    ]


def underfilled(case: TraceCase) -> Outcome:
    if not case.on_device:
        return NO_DEVICE
    if case.replay is None:
        return Missing(case.why_not)
    best = best_larger_micro_batch(case)
    if best is None:
        return []
    late = case.set_back("launch")
    stalls = sum(
        seconds for seconds in _stalls(case) if seconds >= PRACTICAL * case.ledger.gpu_seconds
    )
    size, after = best
    scale = case.steps * len(case.ranks)
    gain = case.ledger.gpu_seconds - stalls - after * scale
    small = case.replay.predict().step_seconds * scale - after * scale
    if min(gain, small) < 2 * PRACTICAL * case.ledger.gpu_seconds or late < PRACTICAL * gain:
        return []
    layout = case.replay.inferred.layout
    waiting = min(late, gain)
    return report(
        f"micro-batches of {layout.micro_batch} are too small for the device",
        [("compute.kernel", gain - waiting), ("host", waiting)],
        [
            seconds_evidence(
                "GPU time of the window", case.where(), case.ledger.gpu_seconds, after * scale
            ),
            seconds_evidence("device idle, waiting for launches", case.where("account host"), late),
            Evidence(
                what=f"tokens in a micro-batch of {size}",
                where="predicted to fit and to be fastest",
                value=float(size * case.replay.inferred.job.seq_len),
                unit="tokens",
                expected=None,
            ),
        ],
        _remedy(
            f"use micro-batches of {size} at the same global batch",
            f"micro_batch = {size}, accumulation = "
            f"{case.replay.inferred.job.global_batch // (size * layout.gpus)}",
            gain,
            "activations take more memory",
        ),
    )


def no_findings(case: TraceCase) -> Outcome:
    """Where the step is replayed, `small-micro-batch` and `launch-bound` tell what this rule tells."""
    return []


def recompute_excess(case: TraceCase) -> Outcome:
    seen = case.ledger.booked("compute.recompute")
    if all("compute.recompute" in rank.missing for rank in case.ranks):
        return Missing(case.first.missing["compute.recompute"])
    if not case.on_device:
        return NO_DEVICE
    if seen < PRACTICAL * case.ledger.gpu_seconds:
        return []
    if case.replay is None:
        return Missing(case.why_not)
    run = case.replay
    without = run.predict(Change(layout=replace(run.inferred.layout, recompute="none")))
    if without.memory_bytes > ROOM * without.memory_limit_bytes:
        return []
    scale = case.steps * len(case.ranks) / without.ledger.gpus
    launched = case.ledger.booked("host")
    saved = max(launched - without.ledger.booked("host") * scale, 0.0)
    late = case.set_back("launch") + case.total(lambda rank: rank.host.get("queued", 0.0))
    return report(
        "activations are recomputed although memory has room for them",
        [("compute.recompute", seen), ("host", min(saved, late))],
        [
            seconds_evidence(
                "recomputation kernels", case.where("account compute.recompute"), seen, 0.0
            ),
            Evidence(
                what="predicted memory without recomputation, of "
                f"{without.memory_limit_bytes / 1e9:.0f} GB",
                where="the predictor",
                value=without.memory_bytes,
                unit="B",
            ),
        ],
        _remedy(
            "keep the activations instead of recomputing them",
            command("recompute", case.framework),
            seen + min(saved, late),
            f"uses about {without.memory_bytes / 1e9:.0f} of "
            f"{without.memory_limit_bytes / 1e9:.0f} GB",
        ),
    )


def updates_singly(rank: RankMeasurement) -> bool:
    """Whether most of the optimizer's time is in kernels of one tensor each."""
    whole = rank.accounts.get("optimizer", 0.0)
    return whole > 0 and rank.signals.optimizer_single >= _SINGLE * whole


def unfused_optimizer(case: TraceCase) -> Outcome:
    if not case.on_device:
        return NO_DEVICE
    seen = case.ledger.booked("optimizer")
    if not updates_singly(case.first):
        return []
    gaps = case.set_back("optimizer") + case.total(lambda rank: rank.signals.optimizer_queued)
    if seen + gaps < PRACTICAL * case.ledger.gpu_seconds:
        return []
    if case.replay is None:
        return Missing(case.why_not)
    run = case.replay
    needed = (
        step_parts(run.inferred.job, run.cluster, run.inferred.layout, run.inferred.stack).optimizer
        * case.steps
        * len(case.ranks)
    )
    gain = max(seen - needed, 0.0)
    if gain + gaps < PRACTICAL * case.ledger.gpu_seconds:
        return []
    kernels = case.first.signals.optimizer_kernels / case.steps
    return report(
        f"the optimizer updates one tensor at a time, in {kernels:,.0f} kernels a step",
        [("optimizer", gain), ("host", gaps)],
        [
            seconds_evidence("optimizer kernels", case.where("account optimizer"), seen, needed),
            seconds_evidence(
                "device idle between optimizer kernels", case.where("account host"), gaps, 0.0
            ),
        ],
        _remedy(
            "use a fused optimizer, which updates all tensors in a few kernels",
            command("optimizer", case.framework),
            gain + gaps,
        ),
    )
