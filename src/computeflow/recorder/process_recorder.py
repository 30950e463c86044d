"""The recorder of this process: `current()`; hooks of frameworks tell it what happens.

Nothing here may raise into training or wait for anything: every hook goes through `guarded`, which
counts an error, and gives a place up that fails again and again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from computeflow.recorder import identity
from computeflow.recorder.commands import Command, Commands, carry_out, taken
from computeflow.recorder.frames import Record
from computeflow.recorder.steps import CHECKPOINT, Span, Step, StepWatch
from computeflow.recorder.tape import Tape, described

Answer = TypeVar("Answer")
_GIVE_UP = 20
"""Errors after which a hook is left out."""
_BEAT_SECONDS = 1.0
_MEMORY_SECONDS = 5.0


class Recorder:
    """All that one process records. Made when a framework is imported, active from the first step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.watch: StepWatch = _GuardedWatch(self)
        self.tape: Tape | None = None
        self.user_steps = False
        """Whether the code says itself where steps end."""
        self._failures: dict[str, int] = {}
        self._given_up = False
        self.commands = self._new_commands()
        self.on_step: list[Callable[[Step], None]] = []
        """Called on the training thread with each ended step."""
        self.on_start: list[Callable[[Record], None]] = []
        """Completes the first record: the device, its name."""
        self.on_idle: list[Callable[[float], list[Record]]] = []
        """Called on the writer's thread now and then; gives records."""
        self.on_close: list[Callable[[], list[Record]]] = []
        """Called on the writer's thread at the end; gives the last records."""
        self.on_command: dict[str, Callable[[Command], str]] = {}
        self._unix_ns = 0
        self._epoch = 0
        self._last_step = time.perf_counter()
        self._beaten = 0.0
        self._memory_at = 0.0
        self._taken = ""
        self._collection = 0
        gc.callbacks.append(self._collected)
        os.register_at_fork(after_in_child=lambda: self.guarded("fork", self._forked))

    def _new_commands(self) -> Commands:
        return Commands(self.folder / "control", identity.began_ns())

    # What hooks call

    def guarded(self, place: str, act: Callable[..., Answer], *arguments: Any) -> Answer | None:
        """Call `act`; what it raises is counted, and a place that fails again and again given up."""
        try:
            if self._failures and self._failures.get(place, 0) >= _GIVE_UP:
                return None
            return act(*arguments)
        except Exception as error:
            self.failed(place, error)
            return None

    def failed(self, place: str, error: Exception) -> None:
        self._failures[place] = self._failures.get(place, 0) + 1
        if self.tape is not None:
            self.tape.error(place, error)
        elif self._failures[place] == 1:
            note_failure(self.folder, place, error)

    def start(self, begin: int = 0) -> None:
        """Begin this rank's file, at the first sign of training; `begin` is that of its first step."""
        if self.tape is not None or self._given_up:
            return
        self._given_up = True  # unless all that follows goes well
        rank, world, local_rank = identity.rank_and_world()
        first = identity.start_record(rank, world, local_rank, identity.attempt_number())
        for complete in self.on_start:
            self.guarded("start", complete, first)
        self._set_epoch(first, begin or self.watch.step.begin)
        tape = Tape(self.folder, first, self.record_of, self._idle, self._last)
        tape.start()
        self.tape, self._given_up = tape, False
        self._close_at_exit()

    def _set_epoch(self, first: Record, begin: int) -> None:
        """Count times from where the first step began, which may be known only after its end."""
        now = time.perf_counter_ns()
        self._epoch = begin or now
        first["unix_ns"] -= now - self._epoch
        first["began_us"] = min(0, first["began_us"] + (now - self._epoch) // 1000)
        self._unix_ns = first["unix_ns"]

    def _close_at_exit(self) -> None:
        atexit.register(self.close)
        processes = sys.modules.get("multiprocessing.util")
        if processes is not None:  # a forked process of it ends without `atexit`
            processes.Finalize(None, self.close, exitpriority=100)

    def event(self, what: str, begin: int, end: int, **more: Any) -> None:
        """Note a single event between two moments of `perf_counter_ns`."""
        if self.tape is not None:
            kept = {"k": "e", "t": self.since(begin), "w": what, "d": (end - begin) // 1000}
            self.tape.put(kept | {name: value for name, value in more.items() if value is not None})

    def since(self, moment: int) -> int:
        """Microseconds from this file's epoch to a moment of `perf_counter_ns`."""
        return (moment - self._epoch) // 1000

    def since_now(self) -> int:
        return self.since(time.perf_counter_ns())

    def since_unix(self, unix_ns: int) -> int:
        return (unix_ns - self._unix_ns) // 1000

    def close(self) -> None:
        """Write what is left; called when the interpreter ends."""
        if self.tape is not None:
            how = "exception" if getattr(sys, "last_type", None) is not None else "exit"
            self.tape.close({"k": "end", "t": self.since_now(), "how": how})

    # The training thread

    def step_ended(self, step: Step) -> None:
        self._last_step = time.perf_counter()
        self.start(step.begin)
        if self.tape is None:
            return
        for act in self.on_step:
            self.guarded(getattr(act, "__qualname__", "step"), act, step)
        if "pending" not in step.extra:
            self.tape.put(step)
        for command in self.commands.due(step.number):
            self._obey(command)

    def _obey(self, command: Command) -> None:
        begin = time.perf_counter_ns()
        act = self.on_command.get(str(command.get("do")))
        span = self.watch.begin(CHECKPOINT) if command.get("do") == "checkpoint" else None
        try:
            answer = act(command) if act else carry_out(command)
        except Exception as error:
            answer = f"failed: {type(error).__name__}: {error}"[:300]
        self.watch.end(span)
        end = time.perf_counter_ns()
        self.event("command", begin, end, text=f"{command.get('name')}: {answer}")

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() != self.watch.thread:
            return
        if phase == "start":
            self._collection = time.perf_counter_ns()
        elif self._collection:
            begin, self._collection = self._collection, 0
            self.guarded("gc", self.watch.collected, begin, time.perf_counter_ns())

    def _forked(self) -> None:
        """A child does not write its parent's file; if it trains, it opens its own."""
        if self.tape is not None:
            self.tape.abandon()
            self.tape = None
        self.watch = _GuardedWatch(self)
        self.commands = self._new_commands()

    # The writer's thread

    def record_of(self, step: Step) -> Record:
        begin = step.begin
        record: Record = {
            "k": "s",
            "n": step.number,
            "t": self.since(step.end),
            "d": (step.end - begin) // 1000,
        }
        spans, names = [], []
        for letter, start, end, name in step.spans:
            if end:
                spans += [letter, (start - begin) // 1000, (end - start) // 1000]
                if name is not None:
                    names.append(name)
        record["p"] = spans
        if names:
            record["u"] = names
        if step.more:
            record["more"] = {k: [n, ns // 1000] for k, (n, ns) in step.more.items()}
        if step.collected[0]:
            record["gc"] = [step.collected[0], step.collected[1] // 1000]
        if step.profiled:
            record["w"] = 1
        return record | {name: value for name, value in step.extra.items() if name != "pending"}

    def _last(self) -> list[Record]:
        rest = self.guarded("rest", self.watch.rest)
        records = [self.record_of(rest) | {"k": "rest"}] if rest is not None and rest.spans else []
        return records + [r for act in self.on_close for r in self.guarded("close", act) or ()]

    def _idle(self) -> list[Record]:
        """Heart beat, memory, and what hooks want to note on the writer's thread."""
        now = time.perf_counter()
        records: list[Record] = []
        self.guarded("commands", self.commands.look)
        if taken() != self._taken:
            self._taken = taken()
            records.append(
                {"k": "e", "t": self.since_now(), "w": "takes", "d": 0, "text": self._taken}
            )
        quiet = now - self._last_step
        if quiet > _BEAT_SECONDS and now - self._beaten > _BEAT_SECONDS:
            self._beaten = now
            phase, since = self.watch.now_in
            lasting = (time.perf_counter_ns() - since) // 1000 if since else 0
            at = self.since_now()
            beat = {"k": "b", "t": at, "n": self.watch.steps, "in": phase, "for": lasting}
            records.append(beat)
        for act in self.on_idle:
            records += self.guarded("idle", act, now) or ()
        if now - self._memory_at > _MEMORY_SECONDS:
            self._memory_at = now
            records.append({"k": "m", "t": self.since_now()} | _host_memory())
        return records


def _host_memory() -> dict[str, int]:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"host": pages * os.sysconf("SC_PAGE_SIZE")}
    except (OSError, ValueError, IndexError):
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"host": kilobytes * (1 if sys.platform == "darwin" else 1024)}


class _GuardedWatch(StepWatch):
    """A watch that raises nothing: it is called from the middle of others' code."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.step_ended)
        self._failed = recorder.failed

    def begin(self, letter: str, name: str | None = None) -> Span | None:
        try:
            return super().begin(letter, name)
        except Exception as error:
            self._failed("begin", error)
            return None

    def resume(self, letter: str) -> Span | None:
        try:
            return super().resume(letter)
        except Exception as error:
            self._failed("resume", error)
            return None

    def end(self, span: Span | None) -> None:
        try:
            super().end(span)
        except Exception as error:
            self._failed("end", error)

    def drop(self, span: Span | None) -> None:
        try:
            super().drop(span)
        except Exception as error:
            self._failed("drop", error)

    def boundary(self) -> None:
        try:
            super().boundary()
        except Exception as error:
            self._failed("boundary", error)


def note_failure(folder: Path, place: str, error: Exception) -> None:
    """Say in the folder why a process is not recorded: there is no file of its rank."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "not-recorded.txt").open("a", errors="replace") as file:
            file.write(f"pid {os.getpid()}: {place}: {described(error)}\n")


_CURRENT: list[Recorder] = []


def current() -> Recorder | None:
    """The recorder of this process, if it records."""
    return _CURRENT[0] if _CURRENT else None


def make(folder: Path) -> Recorder:
    if not _CURRENT:
        _CURRENT.append(Recorder(folder))
    return _CURRENT[0]


def failed(place: str, error: Exception) -> None:
    """Note what went wrong outside of a hook."""
    recorder = current()
    if recorder is not None:
        recorder.failed(place, error)


def spanning(letter: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, its calls on the training thread noted as spans."""

    @functools.wraps(function)
    def noted(*arguments: Any, **options: Any) -> Any:
        recorder = current()
        if recorder is None:
            return function(*arguments, **options)
        span = recorder.watch.begin(letter)
        try:
            return function(*arguments, **options)
        finally:
            recorder.watch.end(span)

    return noted
