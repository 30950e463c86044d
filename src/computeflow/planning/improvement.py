"""A path of changes from a plan to a faster one, one thing at a time, each predicted.

`improve_plan` takes the change with the largest predicted gain that fits, and again, until what is left
is small. Changes that leave the mathematics of the training as it is come before those that do not.
Where no single change helps any more, the best layout of a whole search is the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from computeflow.planning.explain import changed_fields
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.framework_space import FrameworkSpace
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.planning.plans import TIE, plan
from computeflow.planning.search import pessimistic
from computeflow.prediction import Prediction, load_parameters, predict
from computeflow.prediction.blocks import Floats
from computeflow.prediction.evidence import outlook_of
from computeflow.prediction.memory import HEADROOM, memory
from computeflow.prediction.stack import Stack
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import LOW_PRECISIONS, PEAKS, StepInputs, of_job, stack_rows
from computeflow.workload import Job, Layout, Layouts, refusals
from computeflow.workload.layout import RECOMPUTES, SHARDINGS

MIN_GAIN = 0.02
"""Share of a step below which a change is not proposed: the floor that `audit` has for findings, and
less than runs of one and the same layout differ by (`TIE`)."""
MAX_STEPS = 12
NO_RISK = "none that is known"
_TRIED = 5
EIGHTY = 1.2816
"""Deviations of a normal distribution between which 80 % lie on either side."""
UNDESCRIBED = 0.118
"""Deviation of the logarithm of a change's effect that no figure of the predictor describes: with it,
80 % of measured gains lie in their ranges (222 pairs of published runs that differ in one option, each
of 14 sources weighing the same; benchmarks/reports/improve.md)."""
_MAY_GAIN_NOTHING = "may gain nothing: measure before and after"
_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """A plan in which one thing is changed."""

    rule: str
    setup: Setup
    risk: str
    same_mathematics: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovementStep:
    change: str
    rule: str
    gain: float | None
    """Share of the step before it that it saves; None where that one could not run."""
    gain_range: tuple[float, float] | None
    """80 %: by the predictor's figures, and by how far measured gains lie from predicted ones."""
    prediction: Prediction
    setup: Setup
    risk: str
    same_mathematics: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """Where a plan stands, the changes one after another, and the reasons to stop there."""

    start: Prediction
    steps: tuple[ImprovementStep, ...]
    left_out: tuple[str, ...]
    """Faster changes that could not be written into the user's file."""

    @property
    def end(self) -> Prediction:
        return self.steps[-1].prediction if self.steps else self.start


Accept = Callable[[Setup, Setup], bool]
"""Whether a change from one plan to another can be written into the user's file."""


def improve_plan(
    setup: Setup,
    framework: FrameworkSpace,
    accept: Accept = lambda before, after: True,
    say: Callable[[str], None] | None = None,
) -> Improvement:
    """The path from a plan, among those that a framework can run."""
    start = _predicted(setup)
    walk = _Walk(framework=framework, accept=accept, now=setup, prediction=start)
    while len(walk.steps) < MAX_STEPS and walk.advance():
        if say is not None:
            say(f"{len(walk.steps)} changes, {walk.prediction.step_seconds:.3g} s a step")
    steps = _with_ranges(setup, _without_idle_end(setup, walk.steps))
    return Improvement(start=start, steps=steps, left_out=tuple(walk.left_out))


class _Walk:
    """The path so far, and the plan that it has led to."""

    def __init__(
        self, *, framework: FrameworkSpace, accept: Accept, now: Setup, prediction: Prediction
    ) -> None:
        self.framework = framework
        self.accept = accept
        self.now = now
        self.prediction = prediction
        self.steps: list[ImprovementStep] = []
        self.left_out: dict[str, None] = {}
        self.searched: list[tuple[Job, Stack]] = []

    def advance(self) -> bool:
        """Take the best change that there is; False where none is worth it."""
        single = list(moves(self.now, self.framework))
        for same in (True, False):
            if self._take([move for move in single if move.same_mathematics is same], MIN_GAIN):
                return True
            if same and self._search():
                return True
        return False

    def _search(self) -> bool:
        """Take the best layout of all; once for every job and stack, as a search takes seconds."""
        about = (self.now.job, self.now.stack)
        if about in self.searched:
            return False
        self.searched.append(about)
        return self._take(_best_layout(self.now, self.framework), TIE)

    def _take(self, candidates: Sequence[PlanChange], least: float) -> bool:
        gains = fitting_gains(self.now, [move.setup for move in candidates])
        ranked = [(gain, move) for gain, move in zip(gains, candidates, strict=True) if gain]
        for (gain, worst), move in sorted(ranked, key=lambda pair: -pair[0][0]):
            if self.prediction.fits and gain < least:
                return False
            if self.prediction.fits and worst < least / 2:
                continue
            if self.accept(self.now, move.setup):
                self._step(move, gain)
                return True
            if move.rule != "better-layout":
                self.left_out[change_text(self.now, move.setup)] = None
        return False

    def _step(self, move: PlanChange, gain: float) -> None:
        ran, after = self.prediction.fits, _predicted(move.setup)
        self.steps.append(
            ImprovementStep(
                change=change_text(self.now, move.setup),
                rule=move.rule if ran else "does-not-fit",
                gain=gain if ran else None,
                gain_range=None,
                prediction=after,
                setup=move.setup,
                risk=_risk(move, after),
                same_mathematics=move.same_mathematics,
            )
        )
        self.now, self.prediction = move.setup, after


def _predicted(setup: Setup) -> Prediction:
    return predict(setup.job, setup.cluster, setup.layout, setup.stack)


def fitting_gains(now: Setup, setups: Sequence[Setup]) -> list[tuple[float, float] | None]:
    """Share of the step that each plan saves, as predicted and where all that a plan could rely on is
    one deviation worse; None of a plan that is impossible or does not fit.
    """
    possible = [n for n, setup in enumerate(setups) if _is_possible(setup)]
    gains: list[tuple[float, float] | None] = [None] * len(setups)
    rows = stack_rows([_inputs(now), *(_inputs(setups[n]) for n in possible)])
    held, parameters = memory(rows), load_parameters()
    expected, worse = (
        1 - seconds / seconds[0]
        for seconds in (
            account_step(rows, figures).seconds for figures in (parameters, pessimistic(parameters))
        )
    )
    for row, n in enumerate(possible, start=1):
        cluster = setups[n].cluster
        device, host = cluster.accelerator, cluster.host_memory_bytes
        room = HEADROOM * (device.reported_bytes or device.hbm_bytes)
        if held.bytes[row] <= room and (host is None or held.host[row] <= host):
            gains[n] = float(expected[row]), float(worse[row])
    return gains


def _is_possible(setup: Setup) -> bool:
    device = setup.cluster.accelerator
    known = PEAKS.get(setup.job.precision, setup.job.precision) in device.dense_flops
    return known and not refusals(setup.job, Layouts.of([setup.layout]))


def _inputs(setup: Setup) -> StepInputs:
    rate = outlook_of(setup.job, setup.cluster.accelerator, setup.stack).rate
    return of_job(setup.job, setup.cluster, Layouts.of([setup.layout]), setup.stack, rate)


def change_text(before: Setup, after: Setup) -> str:
    """`recompute full to selective, micro batch 1 to 2`."""
    parts = [
        *changed_fields(before.layout, after.layout).items(),
        *changed_fields(before.stack, after.stack).items(),
    ]
    if before.job.precision != after.job.precision:
        parts.append(("precision", (before.job.precision, after.job.precision)))
    return ", ".join(f"{_word(name)} {_said(old)} to {_said(new)}" for name, (old, new) in parts)


def _word(name: str) -> str:
    return _WORDS.get(name, name.replace("_", "-"))


_WORDS = {
    "dp_overlap": "overlap of gradient reduction",
    "sequence_parallel": "sequence parallelism",
}


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def moves(setup: Setup, framework: FrameworkSpace) -> Iterator[PlanChange]:
    """Plans that differ in one thing, and that files of the framework could state."""
    known = FRAMEWORKS[framework.framework]
    for name, switched in framework.switches(setup.stack):
        rule, risk = _SWITCHES[name]
        yield PlanChange(rule=rule, risk=risk, setup=replace(setup, stack=switched))
    for rule, layout, risk in _layouts(setup):
        changed = changed_fields(setup.layout, layout)
        if all(_can_say(known, name, new) for name, (_, new) in changed.items() if new != 1):
            yield PlanChange(rule=rule, risk=risk, setup=replace(setup, layout=layout))
    for precision in known.choices.get("precision", ()):
        if _is_lower(precision, setup.job.precision):
            lower = replace(setup, job=replace(setup.job, precision=precision))
            yield PlanChange(
                rule="matmul-precision",
                risk="changes the numerics: compare the loss with the run before",
                setup=lower,
                same_mathematics=False,
            )


_SWITCHES = {
    "kernels": (
        "uncompiled",
        "compiling takes minutes at the start; a graph break loses part of the gain",
    ),
    "dp_overlap": ("exposed-comm", NO_RISK),
    "sequence_parallel": ("no-sequence-parallel", NO_RISK),
}
"""Fields of a stack to the rule of leaving them off, and the risk of the switch."""


def _can_say(known: Any, name: str, value: Any) -> bool:
    return name in known.expresses and value in known.choices.get(name, (value,))


def _is_lower(precision: str, now: str) -> bool:
    half = ("fp16", "bf16")
    if now in LOW_PRECISIONS:
        return False
    return precision in LOW_PRECISIONS or (now in ("fp32", "tf32") and precision in half)


def _layouts(setup: Setup) -> Iterator[tuple[str, Layout, str]]:
    """Layouts that differ in one thing, each with its rule and risk."""
    layout = setup.layout
    for recompute in RECOMPUTES[: RECOMPUTES.index(layout.recompute)]:
        yield "recompute-excess", replace(layout, recompute=recompute), ""  # type: ignore[arg-type]
    if layout.offload != "none":
        yield "needless-offload", replace(layout, offload="none"), ""
    for size in _others(layout.micro_batch):
        rule = "small-micro-batch" if size > layout.micro_batch else "bubble"
        yield rule, replace(layout, micro_batch=size), ""
    for sharding in SHARDINGS:
        if sharding not in (layout.sharding, "hsdp"):
            changed = replace(layout, sharding=sharding, replicas=1)  # type: ignore[arg-type]
            yield "sharding", changed, "checkpoints of the old sharding must be converted"
    yield from _cuts(layout)


def _cuts(layout: Layout) -> Iterator[tuple[str, Layout, str]]:
    risk = "checkpoints of the old layout must be converted"
    for size in _others(layout.tp):
        etp = size if layout.etp == layout.tp > 1 else layout.etp
        yield "layout", replace(layout, tp=size, etp=etp), risk
    for name in ("pp", "cp", "ep"):
        for size in _others(getattr(layout, name)):
            changes: dict[str, Any] = {name: size}
            if name == "pp" and size == 1:
                changes["vp"] = 1
            yield "layout", replace(layout, **changes), risk
    for size in _others(layout.vp) if layout.pp > 1 else ():
        yield "bubble", replace(layout, vp=size), risk


def _others(size: int) -> list[int]:
    """Powers of two, and halves and doubles of a size, without itself."""
    sizes = {*_SIZES, size * 2, *([size // 2] if size % 2 == 0 else [])}
    return sorted(sizes - {size})


def _best_layout(setup: Setup, framework: FrameworkSpace) -> list[PlanChange]:
    """The best of a whole search, among those that the framework can express."""
    space = replace(framework, setup=setup)
    plans = plan(
        setup.job,
        setup.cluster,
        setup.stack,
        space=space.space(setup.job, setup.layout),
        top=_TRIED,
    ).plans
    risk = "several things change at once; checkpoints of the old layout must be converted"
    found = (p.layout for p in plans if space.can_express(p.layout))
    return [
        PlanChange(rule="better-layout", risk=risk, setup=replace(setup, layout=layout))
        for layout in found
    ]


def _risk(move: PlanChange, after: Prediction) -> str:
    share = after.memory_bytes / after.memory_limit_bytes
    full = f"fills {100 * share:.0f} % of the memory" if share > 0.8 else ""
    return "; ".join(filter(None, (move.risk, full))) or NO_RISK


def _without_idle_end(start: Setup, steps: Sequence[ImprovementStep]) -> Sequence[ImprovementStep]:
    """Without last steps that by the figures alone perhaps gain nothing: nothing rests on them."""
    ranges = gain_ranges([start, *(step.setup for step in steps)], undescribed=0.0)
    last = len(steps)
    while last and steps[last - 1].gain is not None and ranges[last - 1][0] <= 0:
        last -= 1
    return steps[:last]


def _with_ranges(start: Setup, steps: Sequence[ImprovementStep]) -> tuple[ImprovementStep, ...]:
    ranges = gain_ranges([start, *(step.setup for step in steps)])
    return tuple(
        step
        if step.gain is None
        else replace(step, gain_range=ends, risk=_with_doubt(step.risk, ends[0]))
        for step, ends in zip(steps, ranges, strict=True)
    )


def _with_doubt(risk: str, low: float) -> str:
    if low > 0:
        return risk
    return _MAY_GAIN_NOTHING if risk == NO_RISK else f"{risk}; {_MAY_GAIN_NOTHING}"


def gain_ranges(
    setups: Sequence[Setup], undescribed: float = UNDESCRIBED
) -> list[tuple[float, float]]:
    """Ranges of the gain of each plan over the one before it: 80 % of gains lie between.

    Each figure of the predictor is varied alone by its own deviation, and all plans are predicted with
    the same figures, so that what two of them share cancels. What no figure describes (kernels for one
    shape, how runs of one plan differ) is added as measured pairs have it. Neglected: that figures are
    uncertain together.
    """
    if len(setups) < 2:
        return []
    rows, parameters = stack_rows([_inputs(setup) for setup in setups]), load_parameters()

    def gains(values: Floats) -> Floats:
        seconds = account_step(rows, parameters.with_values(values)).seconds
        return np.asarray(1 - seconds[1:] / seconds[:-1])

    nominal = gains(parameters.values)
    variance = ((1 - nominal) * undescribed) ** 2
    for index, deviation in enumerate(parameters.deviations):
        for sign in (1, -1):
            values = parameters.values.copy()
            values[index] *= np.exp(sign * deviation)
            variance += (gains(values) - nominal) ** 2 / 2
    spread = EIGHTY * np.sqrt(variance)
    return [
        (float(gain - more), float(min(gain + more, 1.0)))
        for gain, more in zip(nominal, spread, strict=True)
    ]
