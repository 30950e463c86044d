"""`Workbench`: what takes long to compute, beside the server and in bounds.

    quick   tens of milliseconds: a plan for one position of the sliders
    long    seconds: whole searches, decisions, simulations

Each lane has one worker process, so that no question keeps the page of others waiting and none can take
the server down: a question that runs too long ends with its worker, and so does one that nobody waits
for any more while others do; more than a few that wait are refused. Answers are kept by question.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from computeflow.collection.collector.clients import RefusedError
from computeflow.web.workers.worker_process import WorkerProcess
from computeflow.web.wrong_fields import WrongFieldError

LaneName = Literal["quick", "long"]
LIMIT_SECONDS: dict[LaneName, float] = {"quick": 20.0, "long": 120.0}
"""Seconds of a core. A comparison of all offers takes 17, the longest quick plan 0.1."""
MAX_WAITING = 8
_MAX_KEPT = 128
_MAX_KEPT_BYTES = 64 << 20
_ABANDONED_SECONDS = 5.0
"""A question that waits is dropped where nobody asks for so long; the page asks every half second."""
_BUSY_SECONDS = 2.0
Progress = Callable[[str], None]


class Runner(Protocol):
    def run(
        self,
        task: str,
        parameters: Mapping[str, Any],
        progress: Progress,
        wanted: Callable[[], bool],
    ) -> bytes:
        """The JSON of the answer; RefusedError where there is none, or nobody wants it any more."""

    def close(self) -> None: ...

    def start(self) -> None:
        """Get ready before the first question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """A question that is not answered yet."""

    progress: str
    seconds: float
    """Since its work began; 0 while it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """What is kept of an error: each who asks gets one of its own, which keeps its request's frames."""

    status: int
    text: str
    retry_seconds: float | None = None
    field: str | None = None

    def error(self) -> RefusedError:
        if self.field is None:
            return RefusedError(self.status, self.text, self.retry_seconds)
        return WrongFieldError(self.status, self.text, self.field)


_STOPPING = _Refusal(status=503, text="the server is stopping")


@dataclass(slots=True)
class _Question:
    task: str
    parameters: Mapping[str, Any]
    asked: float
    began: float | None = None
    progress: str = ""
    body: bytes = b""
    refusal: _Refusal | None = None
    waiters: int = 0
    answered: threading.Event = field(default_factory=threading.Event)

    @property
    def wanted(self) -> bool:
        return self.waiters > 0 or time.monotonic() - self.asked < _ABANDONED_SECONDS


class Lane:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._known: OrderedDict[str, _Question] = OrderedDict()
        self._waiting: OrderedDict[str, _Question] = OrderedDict()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, task: str, parameters: Mapping[str, Any], wait_seconds: float) -> bytes | Working:
        question = self._find(task, parameters)
        answered = question.answered.wait(wait_seconds)
        with self._changed:
            question.waiters -= 1
        if not answered:
            began = question.began
            seconds = 0.0 if began is None else time.monotonic() - began
            return Working(progress=question.progress, seconds=seconds)
        if question.refusal is not None:
            raise question.refusal.error()
        return question.body

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for question in self._waiting.values():
                question.refusal = _STOPPING
                question.answered.set()
            self._waiting.clear()
            self._changed.notify_all()
        self._runner.close()

    def _find(self, task: str, parameters: Mapping[str, Any]) -> _Question:
        key = json.dumps([task, parameters], sort_keys=True)
        with self._changed:
            question = self._known.get(key)
            if question is None and self._closed:
                raise _STOPPING.error()
            if question is None:
                self._drop_abandoned()
                if len(self._waiting) >= MAX_WAITING:
                    raise RefusedError(
                        429, "too many requests are waiting: try again", _BUSY_SECONDS
                    )
                question = _Question(task, parameters, time.monotonic())
                self._known[key] = self._waiting[key] = question
                self._changed.notify_all()
            question.asked = time.monotonic()
            question.waiters += 1
            self._known.move_to_end(key)
        self.start()
        return question

    @property
    def _is_free(self) -> bool:
        """No wanted question is queued."""
        with self._changed:
            self._drop_abandoned()
            return not self._waiting

    def start(self) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def _drop_abandoned(self) -> None:
        for key in [key for key, question in self._waiting.items() if not question.wanted]:
            del self._waiting[key], self._known[key]

    def _work(self) -> None:
        with suppress(OSError):  # no process to be had for now: the first question tries again
            self._runner.start()
        while True:
            with self._changed:
                self._drop_abandoned()
                while not self._waiting and not self._closed:
                    self._changed.wait()
                    self._drop_abandoned()
                if self._closed:
                    return
                key, question = self._waiting.popitem(last=False)
                question.began = time.monotonic()
            self._answer(key, question)

    def _answer(self, key: str, question: _Question) -> None:
        def say(text: str) -> None:
            question.progress = text

        try:
            question.body = self._runner.run(
                question.task, question.parameters, say, lambda: question.wanted or self._is_free
            )
        except RefusedError as error:
            question.refusal = _Refusal(
                status=error.status,
                text=error.text,
                retry_seconds=error.retry_seconds,
                field=error.field if isinstance(error, WrongFieldError) else None,
            )
        except Exception as error:  # a fault of ours must not end the lane of all
            text = f"not computed: {error!r}"[:300]
            question.refusal = _Refusal(status=503, text=text, retry_seconds=_BUSY_SECONDS)
        with self._changed:
            if question.refusal is not None and question.refusal.status >= 500:
                self._known.pop(key, None)  # it may go well the next time
            self._forget_oldest()
        question.answered.set()

    def _forget_oldest(self) -> None:
        answered = [key for key, each in self._known.items() if each.body or each.refusal]
        size = sum(len(self._known[key].body) for key in answered)
        while len(answered) > _MAX_KEPT or (size > _MAX_KEPT_BYTES and len(answered) > 1):
            size -= len(self._known.pop(answered.pop(0)).body)


class Workbench:
    def __init__(self, make_runner: Callable[[float], Runner] = WorkerProcess) -> None:
        self._lanes = {name: Lane(make_runner(limit)) for name, limit in LIMIT_SECONDS.items()}

    def ask(
        self, lane: LaneName, task: str, parameters: Mapping[str, Any], wait_seconds: float
    ) -> bytes | Working:
        """The answer's JSON, or how far it is after so long."""
        return self._lanes[lane].ask(task, parameters, wait_seconds)

    def start(self, lane: LaneName) -> None:
        """Get a lane ready: somebody looks at a form."""
        self._lanes[lane].start()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
