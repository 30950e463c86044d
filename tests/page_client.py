"""A page server without a socket: recordings or a made store, asked as a browser or a program would."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi.testclient import TestClient

from computeflow.actions.journal import ActionJournal, ActionOutcome, ActionRecord, StepRecord
from computeflow.actions.steps import Drain, Requeue, step_data
from computeflow.collection.online.live_values import LiveFinding
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store
from computeflow.web.access.security import Doorkeeper
from computeflow.web.sources.opening import AuditOptions, open_directory
from computeflow.web.workers.workbench import Workbench
from computeflow.web.workers.worker_process import RunHere
from live_value_maker import live_finding, live_run


class Unasked(RunHere):
    """Computes nothing: tests/test_web_pages.py asks for what is computed."""

    def run(self, *_: Any) -> bytes:
        return b'{"exports":[]}'


RUNS = Path(__file__).parent / "data" / "run_folders"
READER, OPERATOR = "reader-token-0123456789", "operator-token-0123456789"
ACTING = {"x-computeflow": "1", "origin": "http://localhost", "sec-fetch-site": "same-origin"}


_STEPS = (
    Drain(node="node-00", reason="straggler-rank"),
    Requeue(job="8", exclude=("node-00",)),
)
_EXAMPLES = {"kind": "accelerators", "name": "h100-sxm"}


def example_address(address: str, run: str = "slow") -> str:
    """An address of a page that is there: of one of the recordings, of a row of the catalog."""
    examples = _EXAMPLES | {"run": quote(run, safe="")}
    return re.sub(r"\{(\w+)[^}]*\}", lambda part: examples[part[1]], address)


def doorkeeper(**more: Any) -> Doorkeeper:
    return Doorkeeper(
        reader=READER.encode(),
        operators={OPERATOR.encode(): "ada"},
        hosts=frozenset({"localhost"}),
        cookie="computeflow-1",
        **more,
    )


def revision_of(revision: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    """The revision of a source as a `Broadcaster` asks for it."""

    async def ask() -> Any:
        return revision()

    return ask


def page_client(path: Path, token: str | None = READER, **options: Any) -> TestClient:
    """A client of the page of this folder; it has opened a session unless `token` is None."""
    from computeflow.web.application import PageServer

    opening = open_directory(path, AuditOptions(**options))
    server = PageServer(opening, doorkeeper(), Workbench(Unasked))
    client = TestClient(server.application, base_url="http://localhost")
    client.headers["accept"] = "application/json"
    if token is not None:
        assert client.get(f"/open?token={token}").status_code == 200
    return client


def made_store(folder: Path, **names: Any) -> tuple[Path, LiveFinding]:
    """A collector's store with one run, one finding on it, one action proposed and one that is done."""
    store = open_store(folder / "store")
    state, now = StateDatabase(store.state), time.time()
    words = {name: names[name] for name in ("title",) if name in names}
    finding = live_finding(onset=now - 120, opened=now - 110, seen=now, **words)
    known = ("name", "command", "planned", "kept_steps", "window_ranks", "ranks_by_account")
    run = live_run(
        updated=now + 1e6,  # or it were silent by the time that it is looked at
        started=now - 7200,
        **{key: value for key, value in names.items() if key in known},
    )
    state.save_view([finding], [run])
    journal = ActionJournal(state)
    old = ActionRecord(
        at=now - 7200,
        kind="restart",
        state="done",
        mode="ask",
        run=run.run,
        job="7",
        title="restart job 7 without node-09",
        approved_by="grace",
        approved_at=now - 7100,
    )
    outcome = ActionOutcome(at=now - 3600, measured_gain_seconds=1700.0)
    journal.add(_with(old, outcome))
    journal.add(
        ActionRecord(
            at=now,
            kind="restart",
            state="proposed",
            mode="ask",
            run=run.run,
            job="8",
            findings=(finding.key,),
            title=names.get("action", "restart job 8 without node-00"),
            reason="node-00 slows 255 ranks; a node is free",
            steps=tuple(StepRecord(step=step_data(step)) for step in _STEPS),
            predicted_gain_seconds=1800.0,
        )
    )
    state.close()
    return store.path, finding


def _with(record: ActionRecord, outcome: ActionOutcome) -> ActionRecord:
    from dataclasses import replace

    return replace(record, outcome=outcome, predicted_gain_seconds=1900.0)
