"""Calls of what `torch.compile` made: seen from outside, for inside of them no hook runs.

Dynamo calls hooks of its own when such a call begins and ends; nothing that it compiles changes. Our
functions are left out of what it compiles.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from computeflow.recorder.imports import when_imported
from computeflow.recorder.process_recorder import Recorder
from computeflow.recorder.steps import BACKWARD, FORWARD, OPTIMIZER, Span

_SAMPLE = 4
"""Parameters, at either end of an optimizer's, whose versions tell whether it has stepped."""


_MAX_OPTIMIZERS = 8
"""More of them step one parameter each, in backward."""


class CompiledCalls:
    """A forward, or a step, or both: a step has been made where parameters have changed."""

    def __init__(
        self, torch: Any, recorder: Recorder, count: Callable[[], int], stepped: Callable[..., Any]
    ) -> None:
        self._torch, self._recorder = torch, recorder
        self._count, self._stepped = count, stepped
        self._optimizers: list[Any] = []
        self._depth = 0
        self.has_optimizers = False
        """Whether the code has ever made an optimizer."""

    def install(self) -> None:
        optimizer = self._torch.optim.Optimizer
        initialise = optimizer.__init__

        @functools.wraps(initialise)
        def made(this: Any, *arguments: Any, **options: Any) -> None:
            initialise(this, *arguments, **options)
            self._recorder.guarded("optimizer", self._note, this)

        optimizer.__init__ = made
        when_imported("torch._dynamo.eval_frame", self._watch)

    def _note(self, optimizer: Any) -> None:
        alive = [each for each in self._optimizers if each() is not None]
        self._optimizers = [*alive, weakref.ref(optimizer)]
        self.has_optimizers = True

    def _watch(self, module: Any) -> None:
        leave_out_of_compilation(self._torch)
        context = module.OptimizeContext
        initialise = context.__init__

        @functools.wraps(initialise)
        def made(this: Any, *arguments: Any, **options: Any) -> None:
            initialise(this, *arguments, **options)
            this.enter_exit_hooks.append(self._enter)

        context.__init__ = made

    def _enter(self) -> Callable[[], None]:
        begun = self._recorder.guarded("compiled", self._begin)
        return functools.partial(self._recorder.guarded, "compiled", self._leave, begun)

    def _begin(self) -> tuple[Span | None, int, list[int]] | None:
        self._depth += 1
        watch, trains = self._recorder.watch, self._torch.is_grad_enabled()
        inside = (FORWARD, BACKWARD) if trains else (FORWARD, BACKWARD, OPTIMIZER)
        if self._depth > 1 or watch.is_in(*inside):
            return None
        return watch.begin(FORWARD) if trains else None, self._count(), self._versions()

    def _leave(self, begun: tuple[Span | None, int, list[int]] | None) -> None:
        self._depth = max(0, self._depth - 1)
        if begun is None:
            return
        span, count, versions = begun
        watch = self._recorder.watch
        watch.end(span)
        if self._count() != count or versions == (now := self._versions()):
            return
        if span is not None and not _name_optimizer(watch.step.spans, span):
            return
        for reference, before, after in zip(self._optimizers, versions, now, strict=False):
            if before != after and (optimizer := reference()) is not None:
                self._stepped(optimizer)

    def _versions(self) -> list[int]:
        return [_version(reference()) for reference in self._optimizers[:_MAX_OPTIMIZERS]]


def _version(optimizer: Any) -> int:
    if optimizer is None or not optimizer.param_groups:
        return 0
    first, last = (optimizer.param_groups[at]["params"] for at in (0, -1))
    return sum(each._version for each in (*first[:_SAMPLE], *last[-_SAMPLE:]))


def _name_optimizer(spans: list[Span], span: Span) -> bool:
    """The optimizer is what follows on the last backward in the call, or all of it; False without any
    backward: parameters that change in a forward are not trained by it.
    """
    ends = [each[2] for each in spans if each[0] == BACKWARD and each[2]]
    if not ends:
        return False
    if max(ends) > span[1]:
        spans.append([OPTIMIZER, max(ends), span[2], None])
        span[2] = max(ends)
    else:
        span[0] = OPTIMIZER
    return True


def leave_out_of_compilation(torch: Any) -> None:
    """Tell dynamo not to compile our functions where it meets them between two graphs."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        skip = functools.partial(_skip, frames.set_code_exec_strategy, strategy)
    else:
        skip = frames.skip_code
    for name, module in list(sys.modules.items()):
        if name.startswith(__package__ + "."):
            for code in _codes(module):
                skip(code)


def _skip(set_strategy: Callable[..., None], strategy: Any, code: CodeType) -> None:
    set_strategy(code, strategy)


def _codes(module: Any) -> Iterator[CodeType]:
    """The code of a module's functions and methods, and of the functions inside of them."""
    owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
    for owner in owners:
        if getattr(owner, "__module__", module.__name__) != module.__name__:
            continue
        for each in list(vars(owner).values()):
            function = each.fget if isinstance(each, property) else each
            if isinstance(function, FunctionType):
                yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
