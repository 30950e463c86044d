"""Stretches in which the model that is trained is in `eval()`."""

from __future__ import annotations

import functools
from typing import Any

from computeflow.recorder.models import Models
from computeflow.recorder.process_recorder import Recorder
from computeflow.recorder.steps import EVALUATION, Span


class EvaluationWatch:
    """From `eval()` of the trained model to its `train()`. A model that goes on training in `eval()`
    (frozen statistics) is not evaluated, and not asked again.
    """

    def __init__(self, recorder: Recorder, models: Models) -> None:
        self._recorder, self._models = recorder, models
        self._module: Any = None
        self._train: Any = None
        self._span: Span | None = None
        self._trains_in_eval = False
        models.trains = self._over

    def install(self, torch: Any) -> None:
        self._module = torch.nn.Module
        evaluate = torch.nn.Module.eval

        @functools.wraps(evaluate)
        def switched(this: Any) -> Any:
            answer = evaluate(this)
            if self._span is None and self._recorder.watch.steps and not self._trains_in_eval:
                self._recorder.guarded("evaluation", self._begin, this)
            return answer

        torch.nn.Module.eval = switched

    def _begin(self, module: Any) -> None:
        if not self._models.is_trained(module):
            return
        self._span = self._recorder.watch.begin(EVALUATION)
        if self._span is not None:
            self._watch_train()

    def _watch_train(self) -> None:
        """Only while a stretch is open: `train` calls itself for each module of a model."""
        train = self._train = self._module.train

        @functools.wraps(train)
        def switched(this: Any, mode: bool = True) -> Any:
            if mode and self._span is not None:
                self._recorder.guarded("evaluation", self._ends_with, this)
            return train(this, mode)

        self._module.train = switched

    def _ends_with(self, module: Any) -> None:
        if self._models.is_trained(module):
            self._over()

    def _over(self) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        self._recorder.watch.end(span)
        self._unwatch_train()

    def _unwatch_train(self) -> None:
        if getattr(self._module.train, "__wrapped__", None) is self._train:
            self._module.train = self._train

    def training_goes_on(self) -> None:
        """A backward begins: what is still in `eval()` is trained in it."""
        span, self._span = self._span, None
        if span is None:
            return
        self._unwatch_train()
        if self._models.in_training():
            self._recorder.watch.end(span)
        else:
            self._trains_in_eval = True
            self._recorder.watch.drop(span)
