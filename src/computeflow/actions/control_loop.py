"""`run_controller`: a controller with its lock, its store and its engine, until it is told to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from computeflow.actions.controller import (
    BUSY_SECONDS,
    IDLE_SECONDS,
    Controller,
    ControlOptions,
)
from computeflow.actions.controller_lock import (
    ClusterLock,
    SecondControllerError,
    controller_lock,
)
from computeflow.actions.engine import EngineError
from computeflow.actions.journal import ActionJournal
from computeflow.actions.slurm.command_line import CommandLine
from computeflow.actions.slurm.slurm_engine import PROBE, SlurmEngine
from computeflow.actions.slurm.slurm_session import StateReader
from computeflow.collection.outputs.snapshots import read_store
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import store_id
from computeflow.errors import ComputeFlowError, OutputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReport:
    """What a controller did from its start to its end."""

    store: str
    mode: str
    seconds: float
    looks: int
    failed_looks: int
    """Looks that came to nothing: the engine did not answer."""
    actions: dict[str, int]
    """Actions of the journal by state, at the end."""


def run_controller(
    store: Path,
    options: ControlOptions,
    *,
    say: Callable[[str], None],
    once: bool = False,
    seconds: float | None = None,
    reader: StateReader | None = None,
) -> ControlReport:
    """`reader`: where the state of Slurm is read; None: its command line."""
    read_store(store)  # says what is wrong with it
    began, looks, failed = time.monotonic(), 0, 0
    stopped = threading.Event()
    with ExitStack() as stack:
        locks = [stack.enter_context(controller_lock(store))]
        state = StateDatabase(store / "state.sqlite")
        stack.callback(state.close)
        stack.callback(_stopping(stopped))
        journal = ActionJournal(state)
        probe = PROBE if options.limits is None else options.limits.probe
        line, folder = CommandLine(locks=locks), _folder(store)
        engine = SlurmEngine(line, folder, time.time, reader=reader, probe=probe)
        cluster = ClusterLock(engine.cluster_name, locks, stack)
        controller = Controller(
            engine,
            journal,
            options,
            store=store_id(store),
            read=lambda: read_store(store),
            now=time.time,
            say=say,
        )
        said = ""
        while not stopped.is_set():
            looks += 1
            wait = IDLE_SECONDS
            try:
                if options.mode != "advise":
                    cluster.take()
                wait = controller.tick()
                said = ""
            except SecondControllerError:
                raise
            except ComputeFlowError as error:
                failed += 1
                if once:
                    raise
                if str(error) != said:
                    silent = isinstance(error, EngineError)
                    say(f"{'slurm does not answer: ' * silent}{error}; it is tried again")
                said = str(error)
            over = seconds is not None and time.monotonic() - began >= seconds
            if (once and wait > BUSY_SECONDS) or over:
                break
            stopped.wait(wait)
        counts: dict[str, int] = {}
        for action in journal.all():
            counts[action.state] = counts.get(action.state, 0) + 1
    return ControlReport(
        store=str(store),
        mode=options.mode,
        seconds=time.monotonic() - began,
        looks=looks,
        failed_looks=failed,
        actions=counts,
    )


def _folder(store: Path) -> Path:
    """Where scripts and lists of hosts are kept."""
    folder = store / "actions"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}") from None
    return folder


def _stopping(stopped: threading.Event) -> Callable[[], None]:
    """SIGTERM and Ctrl-C end the loop after the look that goes on; gives what restores the signals."""

    def stop(_: int, __: FrameType | None) -> None:
        stopped.set()

    try:
        before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not on the main thread
        before = {}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    return restore
