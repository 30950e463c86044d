"""Where torch tells what happens: installed as soon as torch has been imported.

Optimizer hooks give the steps, autograd and the model's hooks the phases, `DataLoader` the wait for
data. Libraries on top of torch are known by these, whatever their loop looks like.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from computeflow.recorder import collectives, device_marks, windows
from computeflow.recorder.clipping import watch_clipping
from computeflow.recorder.compiled import CompiledCalls
from computeflow.recorder.evaluations import EvaluationWatch
from computeflow.recorder.imports import when_imported
from computeflow.recorder.losses import LossReadings
from computeflow.recorder.models import Models
from computeflow.recorder.places import watch_places, wrap
from computeflow.recorder.process_recorder import Recorder, current, spanning
from computeflow.recorder.savings import watch_saving
from computeflow.recorder.steps import BACKWARD, DATA, OPTIMIZER, Span

_TAKES_OVER = 3
"""Steps of another optimizer since the leading one's last, after which it leads."""
_BACKWARDS = 8
"""Backwards without any optimizer, after which each is taken for a step."""


def install(torch: Any) -> None:
    recorder = current()
    assert recorder is not None
    models = Models(torch, recorder)
    optimizers = Optimizers(torch, recorder, models)
    evaluations = EvaluationWatch(recorder, models)
    compiled = CompiledCalls(torch, recorder, lambda: optimizers.count, optimizers.note_step)
    device_marks.install(torch, recorder)
    collectives.install(torch, recorder)
    windows.install(torch, recorder)
    hooks = sys.modules["torch.optim.optimizer"]
    hooks.register_optimizer_step_pre_hook(optimizers.before)
    hooks.register_optimizer_step_post_hook(optimizers.after)
    compiled.install()
    backwards = Backwards(recorder, optimizers, compiled)
    _watch_backward(torch, recorder, evaluations, backwards)
    _watch_loading(torch, recorder, models)
    _watch_scaler(torch, recorder, optimizers)
    watch_clipping(torch, recorder)
    _watch_graphs(torch, recorder, optimizers)
    evaluations.install(torch)
    watch_saving(torch, recorder)
    watch_places()
    wrap(torch.jit, "script", functools.partial(_scripting, models))
    when_imported("deepspeed.runtime.engine", lambda module: _watch_deepspeed(module, optimizers))


def _scripting(models: Models, script: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(script)
    def scripted(*arguments: Any, **options: Any) -> Any:
        with models.without_hooks():
            return script(*arguments, **options)

    return scripted


class Optimizers:
    """Which of a loop's optimizer steps end a step: those of the one that steps most often."""

    def __init__(self, torch: Any, recorder: Recorder, models: Models) -> None:
        self._torch, self._recorder, self.models = torch, recorder, models
        self._leader: Callable[[], Any] = lambda: None
        self._others: dict[int, list[int]] = {}
        self._spans: list[Span | None] = []
        self.capturing: Any = None
        """The CUDA graph that is being captured, if any."""
        self.graphs_with_steps: set[int] = set()
        self.engine = False
        """Whether an engine around the optimizers says when a step ends."""
        self.stepped = False
        """Whether an optimizer has stepped since the last boundary."""
        self.count = 0
        """Steps of all optimizers that were seen."""

    def before(self, optimizer: Any, *_: Any) -> None:
        if self._torch.compiler.is_compiling():
            return
        self._spans.append(self._recorder.watch.begin(OPTIMIZER))

    def after(self, optimizer: Any, *_: Any) -> None:
        if self._torch.compiler.is_compiling():
            return
        recorder = self._recorder
        if self._spans:
            recorder.watch.end(self._spans.pop())
        recorder.guarded("optimizer", self.note_step, optimizer)

    def note_step(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self.count += 1
        if self.capturing is not None:
            self.graphs_with_steps.add(id(self.capturing))
            return
        self.stepped = True
        if self._recorder.user_steps or self.engine:
            return
        leads = self._leads(optimizer)
        self._recorder.guarded("model", self.models.see, optimizer)
        if leads:
            self.boundary(optimizer)

    def boundary(self, optimizer: Any = None) -> None:
        if self._recorder.user_steps:
            return
        step = self._recorder.watch.step
        if optimizer is not None and self._recorder.watch.steps < 2:
            count = _own_count(self._torch, optimizer)
            if count is not None:
                step.extra["o"] = count
        self.stepped = False
        self._recorder.watch.boundary()

    def _leads(self, optimizer: Any) -> bool:
        leader = self._leader()
        if leader is None:
            self._leader = weakref.ref(optimizer)
        if leader is None or optimizer is leader:
            self._others.clear()
            return True
        moments = self._others.setdefault(id(optimizer), [])
        if len(moments) >= _TAKES_OVER:
            self._leader = weakref.ref(optimizer)
            self._others.clear()
            self._recorder.watch.boundaries(moments)
            return True
        moments.append(perf_counter_ns())
        return False


class Backwards:
    """Steps of code that updates its parameters itself: it has no optimizer."""

    def __init__(self, recorder: Recorder, optimizers: Optimizers, compiled: CompiledCalls) -> None:
        self._recorder, self._optimizers, self._compiled = recorder, optimizers, compiled
        self._ends: list[int] = []
        self._counts = False

    def ended(self) -> None:
        """An outermost backward has ended."""
        recorder = self._recorder
        if self._compiled.has_optimizers or self._optimizers.engine or recorder.user_steps:
            self._counts = False
        elif self._counts:
            recorder.watch.boundary()
        else:
            self._ends.append(perf_counter_ns())
            if len(self._ends) >= _BACKWARDS:
                self._counts = True
                recorder.watch.boundaries(self._ends)
                recorder.guarded("model", self._optimizers.models.see_gradients)


def _own_count(torch: Any, optimizer: Any) -> int | None:
    """The optimizer's own number of steps, where it can be read without waiting for a device."""
    for state in optimizer.state.values():
        count = state.get("step") if isinstance(state, dict) else None
        if isinstance(count, torch.Tensor):
            return int(count) if count.device.type == "cpu" and count.numel() == 1 else None
        return int(count) if isinstance(count, (int, float)) else None
    return None


def _watch_backward(
    torch: Any, recorder: Recorder, evaluations: EvaluationWatch, backwards: Backwards
) -> None:
    losses = LossReadings(torch, recorder)

    def around(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def backward(*arguments: Any, **options: Any) -> Any:
            evaluations.training_goes_on()
            if recorder.tape is None:
                recorder.guarded("start", recorder.start)
            span = recorder.watch.begin(BACKWARD)
            try:
                return run(*arguments, **options)
            finally:
                recorder.watch.end(span)
                if span is not None:
                    recorder.guarded("loss", losses.note, arguments)
                    if not recorder.watch.is_in(BACKWARD):
                        recorder.guarded("backward", backwards.ended)

        return backward

    wrap(torch.autograd, "_engine_run_backward", around)


def _watch_loading(torch: Any, recorder: Recorder, models: Models) -> None:
    batches = Batches(recorder)
    models.evaluated = batches.not_trained

    def around(load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def __next__(self: Any) -> Any:  # noqa: N807
            span = recorder.watch.begin(DATA)
            try:
                batch = load(self)
            finally:
                recorder.watch.end(span)
            if span is not None:
                recorder.guarded("batch", batches.note, batch)
            return batch

        return __next__

    starting = functools.partial(spanning, DATA)
    wrap(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", around)
    wrap(torch.utils.data.DataLoader, "__iter__", starting)

    def stateful(module: Any) -> None:
        wrap(module._StatefulBaseDataLoaderIter, "__next__", around)
        wrap(module.StatefulDataLoader, "__iter__", starting)

    when_imported("torchdata.stateful_dataloader.stateful_dataloader", stateful)


class Batches:
    """Samples, and tokens where a batch has token ids, by the shapes of its tensors alone."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last = (0, 0)

    def note(self, batch: Any) -> None:
        shape, tokens = _shape_of(batch)
        samples = int(shape[0]) if shape else 0
        length = int(shape[1]) if len(shape) > 1 else 1
        self._last = (samples, samples * length if tokens else 0)
        self._add(*self._last)

    def not_trained(self) -> None:
        """The last batch was evaluated."""
        samples, tokens = self._last
        self._last = (0, 0)
        self._add(-samples, -tokens)

    def _add(self, samples: int, tokens: int) -> None:
        extra = self._recorder.watch.step.extra
        for name, count in (("smp", samples), ("tok", tokens)):
            if count:
                extra[name] = extra.get(name, 0) + count


def _shape_of(batch: Any) -> tuple[Any, bool]:
    """The shape of a batch's inputs and whether they are token ids."""
    if hasattr(batch, "items"):
        ids = batch.get("input_ids") if hasattr(batch, "get") else None
        if ids is not None and hasattr(ids, "shape"):
            return ids.shape, True
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        batch = next((each for each in batch if getattr(each, "shape", None)), ())
    shape = getattr(batch, "shape", ())
    integers = not getattr(getattr(batch, "dtype", None), "is_floating_point", True)
    return shape, integers and len(shape) == 2


def _watch_scaler(torch: Any, recorder: Recorder, optimizers: Optimizers) -> None:
    """A step that the scaler leaves out, for its gradients overflow, is a step too."""

    def around(update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def updated(self: Any, *arguments: Any, **options: Any) -> Any:
            answer = update(self, *arguments, **options)
            if not optimizers.stepped and not optimizers.engine:
                recorder.guarded("scaler", _skipped, recorder)
            optimizers.stepped = False
            return answer

        return updated

    wrap(torch.amp.grad_scaler.GradScaler, "update", around)


def _skipped(recorder: Recorder) -> None:
    spans = recorder.watch.step.spans
    if any(span[0] == BACKWARD for span in spans):
        now = perf_counter_ns()
        recorder.event("skipped-step", now, now)
        recorder.watch.boundary()


def _watch_graphs(torch: Any, recorder: Recorder, optimizers: Optimizers) -> None:
    """A whole step in a CUDA graph: its replays are the steps."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is None or not isinstance(graph, type):
        return

    def begin(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def capture_begin(self: Any, *arguments: Any, **options: Any) -> Any:
            optimizers.capturing = self
            return run(self, *arguments, **options)

        return capture_begin

    def end(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def capture_end(self: Any, *arguments: Any, **options: Any) -> Any:
            optimizers.capturing = None
            return run(self, *arguments, **options)

        return capture_end

    def replay(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def replayed(self: Any) -> Any:
            answer = run(self)
            if id(self) in optimizers.graphs_with_steps:
                recorder.guarded("graph", optimizers.boundary)
            return answer

        return replayed

    wrap(graph, "capture_begin", begin)
    wrap(graph, "capture_end", end)
    wrap(graph, "replay", replay)


def _watch_deepspeed(module: Any, optimizers: Optimizers) -> None:
    """The engine steps its optimizer in parts, and only where accumulation ends."""

    def around(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def stepped(self: Any, *arguments: Any, **options: Any) -> Any:
            recorder = current()
            assert recorder is not None
            optimizers.engine = True
            skipped = self.skipped_steps
            span = recorder.watch.begin(OPTIMIZER)
            try:
                return step(self, *arguments, **options)
            finally:
                recorder.watch.end(span)
                recorder.guarded("deepspeed", _engine_stepped, self, skipped, optimizers, recorder)

        return stepped

    wrap(module.DeepSpeedEngine, "_take_model_step", around)


def _engine_stepped(engine: Any, skipped: int, optimizers: Optimizers, recorder: Recorder) -> None:
    if engine.skipped_steps > skipped:
        now = perf_counter_ns()
        recorder.event("skipped-step", now, now)
    recorder.guarded("model", optimizers.models.see_root, engine, type(engine.optimizer).__name__)
    optimizers.boundary()
