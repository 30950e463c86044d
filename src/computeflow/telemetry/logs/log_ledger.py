"""The ledger of a log: the seconds that its timeline booked, times its ranks; the model's part of them
where the FLOPs are known; and notes that say how to read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from computeflow.errors import InputError, LedgerError
from computeflow.ledger import Entry, Ledger, PeakFlops, Window
from computeflow.ledger.book import is_within
from computeflow.telemetry.logs.log_facts import LoggedRun
from computeflow.telemetry.logs.run_log import RunLog
from computeflow.telemetry.source_reports import ModelWork, SourceRequest
from computeflow.units import format_share

_ASSUMED_PRECISION = "bf16"
_CLAIM_DIFFERS = 0.05
"""Relative difference from which on the log's claimed rate is noted as another."""
_TIMED = ("optimizer", "comm", "input")
_STEPS = ("compute", *_TIMED)
_TIMER_FORMS = {
    "one": "from the one rank that prints them",
    "most": "from the slowest rank and not booked",
    "least": "the minimum over the ranks; waits beyond it are in compute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Useful:
    """The model's part of the time of the steps."""

    work: ModelWork
    gpus: int
    steps: float
    """Steps trained; those done again are not counted twice."""
    peak: PeakFlops

    @property
    def gpu_seconds(self) -> float:
        return self.steps * self.work.flops_per_step / self.peak.flops


def build_ledger(
    log: RunLog, run: LoggedRun, request: SourceRequest
) -> tuple[Ledger | None, str, list[str]]:
    """The ledger, or why there is none; and notes."""
    wall = sum(log.timeline.booked.values())
    if not wall:
        missing = "times of day or step times" if run.steps else "steps"
        return None, f"the log has no {missing}", _notes(log, run)
    ranks = run.world_size or request.gpus
    notes, gpus = [], ranks or 1
    if ranks is None:
        notes.append("the log does not say how many ranks ran: GPU-seconds are those of one rank")
    elif request.gpus not in (None, ranks):
        raise InputError(f"the log is from {ranks:,} ranks, --on names {request.gpus:,} GPUs")
    useful = _useful(log, run, request)
    booked = {name: seconds * gpus for name, seconds in log.timeline.booked.items()}
    if isinstance(useful, _Useful):
        booked = _split_compute(booked, useful, run)
        notes += _useful_notes(log, useful)
    unavailable, booked_under = _unavailable(log, useful)
    try:
        ledger = Ledger.closed(
            [Entry(account=name, gpu_seconds=seconds) for name, seconds in booked.items()],
            gpus=gpus,
            wall_seconds=wall,
            basis="measured",
            window=_window(log, run, wall),
            gpus_total=ranks,
            peak=useful.peak if isinstance(useful, _Useful) else None,
            unavailable=unavailable,
            booked_under=booked_under,
        )
    except LedgerError as error:
        return (
            None,
            f"the figures in the log are not plausible: {error}",
            [*notes, *_notes(log, run)],
        )
    return ledger, "", [*notes, *_notes(log, run)]


def _useful(log: RunLog, run: LoggedRun, request: SourceRequest) -> _Useful | str:
    """The model's part of the time of the steps, or the missing signal."""
    work, accelerator, gpus = request.work, request.accelerator, run.world_size or request.gpus
    if work is None:
        return "the model's FLOPs"
    if accelerator is None:
        return "the accelerator (--on)"
    if gpus is None:
        return "how many ranks ran (--on h100-sxm:64)"
    if run.unit != "steps" or not log.trained_steps:
        return f"step times: the log has {run.unit} without times"
    precision = log.settings.precision or _ASSUMED_PRECISION
    dense = accelerator.dense_flops.get(precision)
    if dense is None:
        return f"the catalog's dense peak of {accelerator.name} for {precision}"
    ratio = work.full_flops_per_step / work.flops_per_step
    peak = PeakFlops(flops=dense, precision=precision, palm_ratio=ratio)
    return _Useful(work=work, gpus=gpus, steps=log.trained_steps, peak=peak)


def _split_compute(booked: dict[str, float], useful: _Useful, run: LoggedRun) -> dict[str, float]:
    compute = booked.get("compute", 0.0)
    if useful.gpu_seconds > compute:
        per_step = compute / useful.steps / useful.gpus
        stated = "" if run.batch is None else f" (the log says {run.batch:,} samples a step)"
        raise InputError(
            f"{run.files[0]}: {useful.work.flops_per_step:.4g} FLOPs a step in {per_step:.4g} s of "
            f"{useful.gpus:,} GPUs are more than their dense {useful.peak.precision} peak of "
            f"{useful.peak.flops:.4g} FLOP/s: --model, --global-batch{stated}, --seq-len or --on does "
            "not match this run, or its matmuls use a lower precision"
        )
    parts = {"compute.model": useful.gpu_seconds, "compute.kernel": compute - useful.gpu_seconds}
    return parts | {name: seconds for name, seconds in booked.items() if name != "compute"}


def _unavailable(log: RunLog, useful: _Useful | str) -> tuple[dict[str, str], dict[str, str]]:
    """Accounts that a log cannot measure, and where their seconds are if not in the usual account."""
    timeline = log.timeline
    missing = dict.fromkeys(("host", "straggler", "imbalance", "bubble"), "a trace")
    within = ["host"]
    for name in _TIMED:
        if not any(is_within(account, name) for account in timeline.booked):
            missing[name] = "timers in the log"
            within.append(name)
    if "comm" in missing:
        within += ["imbalance", "straggler", "bubble"]
    if timeline.offset is None and "startup" not in timeline.booked:
        missing["startup"] = "times of day in the log"
    if log.spread:
        missing |= dict.fromkeys(("checkpoint", "restart"), "times in the log")
        within.append("checkpoint")
    if isinstance(useful, str):
        return {"compute.model": useful} | missing, dict.fromkeys(within, "compute")
    missing |= {"compute.clock": "readings of the device's clock", "compute.recompute": "a trace"}
    return missing, dict.fromkeys(within, "compute.kernel")


def _window(log: RunLog, run: LoggedRun, wall: float) -> Window:
    known = log.journal.dated and not log.timeline.left_out
    start = log.timeline.unix(0.0) if known else None
    return Window(
        label=f"the whole log, {run.steps:,} {run.unit}",
        first_step=run.first_step if not run.restarts else None,
        last_step=run.last_step if not run.restarts else None,
        start_seconds=start,
        end_seconds=None if start is None else start + wall,
    )


def _useful_notes(log: RunLog, useful: _Useful) -> Iterator[str]:
    stepping = sum(seconds for name, seconds in log.timeline.booked.items() if _is_of_steps(name))
    share = useful.gpu_seconds / (stepping * useful.gpus)
    yield f"MFU over its steps alone, without startup and pauses: {format_share(share)}"
    if log.settings.precision is None:
        yield (
            f"the log does not state its matmul precision: {_ASSUMED_PRECISION} is "
            "assumed for the peak"
        )
    for name, unit, scale in (
        ("gpu_tflops", "TFLOP/s per GPU", 1e12),
        ("mfu", "of the peak", useful.peak.flops),
    ):
        claim = log.throughput.claim(name)
        if claim is None:
            continue
        claimed, step_seconds = claim
        rate = useful.work.flops_per_step / step_seconds / useful.gpus / scale
        if abs(claimed / rate - 1) > _CLAIM_DIFFERS:
            whole = rate * (useful.peak.palm_ratio or 1.0)
            yield (
                f"the log claims {claimed:.3g} {unit}, the model's FLOPs over the same steps give "
                f"{rate:.3g}, or {whole:.3g} with full attention"
            )


def _is_of_steps(account: str) -> bool:
    return any(is_within(account, name) for name in _STEPS)


def _notes(log: RunLog, run: LoggedRun) -> list[str]:
    timeline, worlds = log.timeline, sorted(log.settings.worlds)
    timed = any(_is_of_steps(name) and name != "compute" for name in timeline.booked)
    form = _TIMER_FORMS.get(run.timers_form, "")
    claims = run.claimed_mfu is not None or run.claimed_gpu_tflops is not None
    clocked, dated = timeline.offset is not None, log.journal.dated
    notes = (
        (clocked and not dated, "times without a year: only the differences between them are used"),
        (clocked and dated, "times without a zone are read as UTC"),
        (
            log.ranks.copies,
            f"{log.ranks.copies:,} step lines of other ranks repeat the same steps: not counted",
        ),
        (
            len(worlds) > 1,
            f"the world size changes ({', '.join(map(str, worlds))}): GPU-seconds are "
            "counted with the largest",
        ),
        (
            timeline.left_out,
            f"{timeline.left_out:,.0f} s between launches are not in the ledger: the "
            "log does not say that the GPUs were held",
        ),
        (
            timeline.set_backs,
            f"the clock goes back {timeline.set_backs} times: time continues from there",
        ),
        (
            timeline.overbooked,
            f"timers of {timeline.overbooked:,} intervals exceed their step time: not used",
        ),
        (form and (timed or run.timers_form == "most"), f"timers are {form}"),
        (claims, "MFU and TFLOP/s are the log's own claims, by its own count of FLOPs"),
    )
    return [text for holds, text in notes if holds]
