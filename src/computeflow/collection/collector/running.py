"""`run_collector`: everything of a collector started, and stopped in the reverse order."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from computeflow.collection.collector.collector_options import CollectorOptions
from computeflow.collection.collector.following import FolderFollower
from computeflow.collection.collector.http_server import address_of, bind, serve
from computeflow.collection.collector.intake import Intake
from computeflow.collection.collector.listening import read_tokens
from computeflow.collection.collector.service import CollectorService, make_application
from computeflow.collection.collector.watch_process import WATCHER, WatchSettings
from computeflow.collection.collector.watching import LiveWatch
from computeflow.collection.store.journal import (
    cut_torn_tail,
    journal_numbers,
    journal_path,
    read_frames,
)
from computeflow.collection.store.keeper import KeepOptions
from computeflow.collection.store.positions import Positions
from computeflow.collection.store.processes import HelperProcess, say_line
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import StoreFolder, lock_store, open_store
from computeflow.collection.wire.batches import unpack_known

_KEEPER = "computeflow.collection.store.keeper"
_LOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorReport:
    """What a collector did from its start to its end."""

    address: str
    store: str
    seconds: float
    batches: int
    known: int
    refused: int
    records: int
    bytes: int
    open_findings: int


def run_collector(
    options: CollectorOptions, ready: Callable[[str], None], *, watcher: str = WATCHER
) -> CollectorReport:
    """Run until a signal or `options.seconds`; `ready` gets the address once it listens."""
    tokens = () if options.token_file is None else read_tokens(options.token_file)
    began = time.monotonic()
    with ExitStack() as stack:
        store = open_store(options.store, options.shared)
        stack.enter_context(lock_store(store, "collector"))
        with lock_store(store, "keeper", wait_seconds=_LOCK_SECONDS):
            state = StateDatabase(store.state)
            stack.callback(state.close)
            positions, number = recover(store, state)
        bound = bind(options.listening)
        stack.callback(bound.close)
        watch = LiveWatch(_watch_settings(options, watcher))
        watch.start()
        stack.callback(watch.stop)
        intake = _start_intake(options, store, positions, number)
        stack.callback(intake.stop)
        keeper = _Kept(_keep_options(options))
        stack.callback(keeper.stop)
        if options.follow:
            follower = FolderFollower(options.follow, intake, f"collector-{store.collector}")
            follower.start()
            stack.callback(follower.stop)
        service = CollectorService(intake, state, watch, tokens, options.limits)
        address = address_of(options.listening, bound)

        def care() -> None:
            keeper.care()
            intake.forget_sealed(state.last_journal())

        listening = options.listening
        serve(make_application(service), bound, listening, lambda: ready(address), care)
        stack.callback(say_line, "stopping: what was acknowledged is on the disk")
        view = watch.view()
    counts = intake.counts
    return CollectorReport(
        address=address,
        store=str(options.store),
        seconds=time.monotonic() - began,
        batches=counts.batches,
        known=counts.known,
        refused=counts.refused + service.batches.refused,
        records=counts.records,
        bytes=counts.bytes,
        open_findings=sum(finding.is_open for finding in view.findings),
    )


def recover(store: StoreFolder, state: StateDatabase) -> tuple[Positions, int]:
    """Positions as the journal has them, torn tails cut off; and the number of the next file."""
    positions = Positions(load=state.positions, last=state.last_batches())
    numbers = journal_numbers(store.journal)
    for number in numbers:
        if state.is_sealed(number):
            continue
        path = journal_path(store.journal, number)
        if number == numbers[-1] and (cut := cut_torn_tail(path)):
            say_line(cut)
        with path.open("rb") as file:
            for frame in read_frames(file):
                batch = unpack_known(frame.body)
                if positions.judge(batch)[0] != "known":
                    positions.take(batch, number)
    return positions, max([state.last_journal(), *numbers], default=0) + 1


class _Kept:
    """The keeper, started again where it ended by itself."""

    def __init__(self, options: KeepOptions) -> None:
        self._options = options
        self._helper = HelperProcess(_KEEPER, options)

    def care(self) -> None:
        if not self._helper.is_running:
            say_line(f"the keeper ended with {self._helper.process.returncode} and starts again")
            self._helper = HelperProcess(_KEEPER, self._options)

    def stop(self) -> None:
        self._helper.stop()


def _start_intake(
    options: CollectorOptions, store: StoreFolder, positions: Positions, number: int
) -> Intake:
    intake = Intake(
        store,
        positions,
        number,
        queue_bytes=options.limits.queue_bytes,
        journal_bytes=options.journal_bytes,
        journal_seconds=options.journal_seconds,
    )
    intake.start()
    return intake


def _watch_settings(options: CollectorOptions, watcher: str) -> WatchSettings:
    return WatchSettings(
        store=str(options.store.resolve()),
        shared=_text(options.shared),
        price_usd_per_gpu_hour=options.price_usd_per_gpu_hour,
        alertmanager=options.alertmanager,
        webhook_file=None if options.webhook_file is None else str(options.webhook_file.resolve()),
        push_metrics=options.push_metrics,
        watcher=watcher,
    )


def _keep_options(options: CollectorOptions) -> KeepOptions:
    return KeepOptions(
        store=str(options.store.resolve()),
        shared=_text(options.shared),
        keep_seconds=options.keep_seconds,
        keep_bytes=options.keep_bytes,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())
