"""Where JAX tells what happens: installed as soon as JAX has been imported.

JAX has no optimizers that step: a step ends where the code says so (`recorder.step`), else where a
`StepTraceAnnotation` does, else with each call of the jitted function that trains. That is the one
whose results come back as its arguments (parameters, optimizer states), the more bytes the better;
where no function has such, the one that takes the most time.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from types import MethodType
from typing import Any

from computeflow.recorder.frames import Record
from computeflow.recorder.process_recorder import Recorder, current
from computeflow.recorder.steps import FORWARD, MAX_SPANS, NAMED, Span

_LOOKED_AT = 4
"""JittedCalls of a function whose arguments are compared with what it gave before."""
_TAKES_OVER = 3
"""JittedCalls of another function that trains since the leading one's last, after which it leads."""
_SHORT_NS = 20_000
"""Shorter waits are not noted: a value that was there."""
_COMPILE = "/jax/core/compile/"
_COMPILE_NS = 1_000_000


def install(jax: Any) -> None:
    recorder = current()
    assert recorder is not None
    from jax._src import core

    calls = JittedCalls(jax, recorder)
    recorder.on_start.append(calls.describe)
    recorder.guarded("jax.monitoring", _watch_compiling, jax, recorder)
    recorder.guarded("jax.profiler", _watch_annotations, jax, calls)
    recorder.guarded("jax.Array", _watch_waits, jax, recorder)
    for name in ("jit", "pmap"):
        setattr(jax, name, _jitting(getattr(jax, name), calls, core.trace_state_clean))


class Seen:
    """What is known of a jitted function."""

    def __init__(self) -> None:
        self.calls = 0
        self.nanoseconds = 0
        self.ends: list[int] = []
        """When its first calls ended."""
        self.given: list[weakref.ref[Any]] = []
        self.given_bytes = 0
        self.carried_bytes = 0
        """Bytes of its results that have come back as its arguments."""


class JittedCalls:
    """Top-level calls of jitted functions, and which of them end a step."""

    def __init__(self, jax: Any, recorder: Recorder) -> None:
        self._leaves = jax.tree_util.tree_leaves
        self._jax, self._recorder = jax, recorder
        self._seen: dict[Any, Seen] = {}
        self._leader: Seen | None = None
        self._since_leader = 0
        self.annotation: str | None = None
        """The name of the annotation that ends steps."""

    def before(self, key: Any, arguments: Any) -> tuple[Seen, Span | None]:
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = Seen()
        if seen is not self._leader and not self._told():
            self._look_at_arguments(seen, arguments)
            if self._should_lead(seen):
                self._lead(seen)
        return seen, self._recorder.watch.begin(FORWARD)

    def after(self, seen: Seen, span: Span | None, results: Any) -> None:
        self._recorder.watch.end(span)
        seen.calls += 1
        if self._told():
            return
        if seen is self._leader:
            self._since_leader = 0
            self._recorder.watch.boundary()
            return
        self._since_leader += seen.carried_bytes > 0
        if span is not None:
            seen.nanoseconds += span[2] - span[1]
        if len(seen.ends) <= _LOOKED_AT:
            seen.ends.append(perf_counter_ns())
            self._look_at_results(seen, results)

    def _told(self) -> bool:
        """Whether something else says where steps end."""
        return self._recorder.user_steps or self.annotation is not None

    def _look_at_results(self, seen: Seen, results: Any) -> None:
        given = [leaf for leaf in self._leaves(results) if isinstance(leaf, self._jax.Array)]
        seen.given = [weakref.ref(leaf) for leaf in given]
        seen.given_bytes = sum(int(leaf.nbytes) for leaf in given)

    def _look_at_arguments(self, seen: Seen, arguments: Any) -> None:
        if not seen.given:
            return
        given = {id(leaf) for ref in seen.given if (leaf := ref()) is not None}
        seen.given = []
        carried = (leaf for leaf in self._leaves(arguments) if id(leaf) in given)
        seen.carried_bytes = max(seen.carried_bytes, sum(int(leaf.nbytes) for leaf in carried))

    def _should_lead(self, seen: Seen) -> bool:
        others = [each for each in self._seen.values() if each is not seen]
        if self._leader is not None:
            enough = 2 * seen.carried_bytes >= self._leader.carried_bytes > 0
            return enough and self._since_leader > _TAKES_OVER
        if seen.carried_bytes:
            if seen.calls < _LOOKED_AT - 1:  # another may turn out to carry more
                return all(seen.carried_bytes >= each.given_bytes for each in others)
            return all(seen.carried_bytes >= each.carried_bytes for each in others)
        return seen.calls >= _LOOKED_AT and not any(
            each.carried_bytes or each.nanoseconds > seen.nanoseconds for each in others
        )

    def _lead(self, seen: Seen) -> None:
        """From now on; the steps that it has made already are told where it is the first to lead."""
        first = self._leader is None
        self._leader, self._since_leader = seen, 0
        self._recorder.guarded("start", self._recorder.start)
        if first:
            self._recorder.watch.boundaries(seen.ends)
        seen.given = []

    def annotated(self, name: str) -> None:
        """An annotation begins; the first name is that of the steps."""
        if self.annotation is None and not self._recorder.watch.steps:
            self.annotation = name
            self._recorder.guarded("start", self._recorder.start)

    def annotation_ended(self, name: str) -> None:
        if name == self.annotation and not self._recorder.user_steps:
            self._recorder.watch.boundary()

    def describe(self, first: Record) -> None:
        """The first record of a process that trains with JAX."""
        if not self._seen and self.annotation is None:
            return
        device = self._jax.local_devices()[0]
        first["device"] = {"gpu": "cuda"}.get(device.platform, device.platform)
        if device.platform != "cpu":
            first["gpu"] = device.device_kind
        if self._jax.process_count() > 1:
            first["rank"], first["world"] = self._jax.process_index(), self._jax.process_count()


class _Jitted:
    """A jitted function that notes its calls; in all else it is the function that it stands for."""

    def __init__(self, jitted: Any, calls: JittedCalls, at_top: Callable[[], bool]) -> None:
        functools.update_wrapper(self, jitted)
        self._jitted, self._calls, self._at_top = jitted, calls, at_top
        inner = getattr(jitted, "__wrapped__", jitted)
        self._key = (
            getattr(inner, "__code__", None) or inner
        )  # jitted anew, it is the same function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not self._at_top():
            return self._jitted(*arguments, **options)
        noted = _quietly(self._calls.before, self._key, (arguments, options))
        results = None
        try:
            results = self._jitted(*arguments, **options)
            return results
        finally:
            if noted is not None:
                _quietly(self._calls.after, *noted, results)

    def __getattr__(self, name: str) -> Any:
        if name == "_jitted":  # not made yet
            raise AttributeError(name)
        return getattr(self._jitted, name)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._jitted.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(self._jitted)


def _quietly(act: Callable[..., Any], *arguments: Any) -> Any:
    recorder = current()
    return None if recorder is None else recorder.guarded("jitted", act, *arguments)


def _jitting(jit: Callable[..., Any], calls: JittedCalls, at_top: Callable[[], bool]) -> Any:
    @functools.wraps(jit)
    def noting(*functions: Any, **options: Any) -> Any:
        jitted = jit(*functions, **options)
        if hasattr(jitted, "lower"):
            return _Jitted(jitted, calls, at_top)
        if functions or not callable(jitted):
            return jitted
        return lambda function: _Jitted(jitted(function), calls, at_top)  # a decorator with options

    return noting


def _watch_compiling(jax: Any, recorder: Recorder) -> None:
    """Compiling is a phase of the step, and an event."""

    def took(name: str, seconds: float, **more: Any) -> None:
        if name.startswith(_COMPILE) and seconds * 1e9 >= _COMPILE_NS:
            recorder.guarded("compile", note, seconds, str(more.get("fun_name", ""))[:60])

    def note(seconds: float, function: str) -> None:
        end = perf_counter_ns()
        begin = end - round(seconds * 1e9)
        watch = recorder.watch
        if watch.now_in[0] == FORWARD and len(watch.step.spans) < MAX_SPANS:
            watch.step.spans.append([NAMED, begin, end, "compile"])
        recorder.event("compile", begin, end, text=function)

    jax.monitoring.register_event_duration_secs_listener(took)


def _watch_annotations(jax: Any, calls: JittedCalls) -> None:
    annotation = jax.profiler.StepTraceAnnotation
    make, enter, leave = annotation.__init__, annotation.__enter__, annotation.__exit__

    @functools.wraps(make)
    def __init__(self: Any, name: str, **options: Any) -> None:  # noqa: N807
        make(self, name, **options)
        self._computeflow_name = name

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807
        _quietly(calls.annotated, self._computeflow_name)
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807
        answer = leave(self, *error)
        _quietly(calls.annotation_ended, self._computeflow_name)
        return answer

    annotation.__init__, annotation.__enter__, annotation.__exit__ = __init__, __enter__, __exit__


def _watch_waits(jax: Any, recorder: Recorder) -> None:
    """Waiting for the device's results is the device's work: noted as the compiled step is."""
    from jax._src.array import ArrayImpl

    def waiting(wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait, assigned=("__doc__",), updated=())  # some are not Python's functions
        def waited(*arguments: Any, **options: Any) -> Any:
            span = recorder.watch.begin(FORWARD)
            try:
                return wait(*arguments, **options)
            finally:
                short = span is not None and perf_counter_ns() - span[1] < _SHORT_NS
                (recorder.watch.drop if short else recorder.watch.end)(span)

        return waited

    array: Any = ArrayImpl
    jax.block_until_ready = waiting(jax.block_until_ready)
    array.block_until_ready = waiting(array.block_until_ready)
    array.item = waiting(array.item)
    array._value = property(waiting(array._value.fget))
