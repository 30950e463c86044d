"""The page's server where much is asked of it: many runs, many viewers, faults of one page."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from computeflow.auditing import run_history
from computeflow.collection.collector.clients import RefusedError
from computeflow.collection.outputs.rank_places import read_rank_places
from computeflow.collection.outputs.snapshots import STATE_FILE
from computeflow.collection.store.journal import journal_path
from computeflow.errors import InputError
from computeflow.recorder.frames import Record
from computeflow.telemetry.run_folders import run_folder_source
from computeflow.web import events as page_events
from computeflow.web.application import PageServer
from computeflow.web.events import Broadcaster, tag_of
from computeflow.web.sources.opening import AuditOptions, RunLine, open_directory
from computeflow.web.sources.recordings import recorded_runs
from computeflow.web.sources.recordings.recorded_runs import RecordingOpening
from computeflow.web.sources.store import journal_rows
from computeflow.web.sources.store.journal_rows import JournalRows
from computeflow.web.workers.workbench import Lane, Workbench
from computeflow.web.workers.worker_process import RunHere
from computeflow.web.wrong_fields import WrongFieldError
from page_client import RUNS, doorkeeper, page_client, revision_of
from run_folder_maker import MS, Training


class Counted:
    """A function, and how often it was called."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        return self.function(*given, **named)


def test_many_runs_are_read_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than any list of what was computed last holds: a row is read again where it has changed."""
    for number in range(70):
        folder = tmp_path / f"run-{number:02}"
        folder.mkdir()
        for file in (RUNS / "clean").iterdir():
            (folder / file.name).symlink_to(file)
    counted = Counted(run_history.read_history)
    monkeypatch.setattr(recorded_runs, "read_history", counted)
    opening = open_directory(tmp_path, AuditOptions())
    for _ in range(3):
        assert len(opening.runs()) == 70
    assert counted.calls == 70


def test_what_every_rank_did_is_kept_of_few_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns of a large run are hundreds of megabytes; its small picture is what pages keep."""
    for number in range(6):
        shutil.copytree(RUNS / "clean", tmp_path / f"run-{number}")
    opening = open_directory(tmp_path, AuditOptions())
    counted = Counted(run_folder_source.read_run)
    monkeypatch.setattr(recorded_runs, "read_run", counted)
    for _ in range(2):
        assert opening.steps("run-0") is not None and opening.spans("run-0", 5, 2) is not None
    assert counted.calls == 1
    for number in range(6):
        opening.steps(f"run-{number}")
    assert counted.calls == 6
    opening.steps("run-0")
    assert counted.calls == 7


def test_a_worker_whose_server_has_ended_says_nothing() -> None:
    words = [sys.executable, "-m", "computeflow.web.workers.worker_process"]
    worker = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
    worker.stdin.close()
    worker.stdout.close()
    with worker.stderr as said:
        assert said.read() == b""
    assert worker.wait(300) == 0


# Events


def test_a_fault_of_one_page_ends_no_other_one(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> list[bytes]:
        revision = 0

        async def fetch(address: str) -> bytes:
            if address == "/fleet":
                raise OSError(116, "Stale file handle")
            return str(revision).encode()

        events = Broadcaster(fetch, revision_of(lambda: revision), look_seconds=0.001)
        stream = events.stream(["/fleet", "/runs"], [])
        got = [await anext(stream)]
        for revision in (1, 2, 3):  # noqa: B007
            got.append(await asyncio.wait_for(anext(stream), 60))
        events.close()
        return got

    assert len(asyncio.run(story())) == 4
    said = [record for record in caplog.records if "/fleet" in record.getMessage()]
    assert len(said) == 1 and "Stale file handle" in said[0].getMessage()


def test_an_answer_that_takes_long_delays_no_other_one() -> None:
    async def story() -> list[bool]:
        slow = asyncio.Event()
        revision = 0

        async def fetch(address: str) -> bytes:
            if address == "/fleet":
                await slow.wait()
            return str(revision).encode()

        events = Broadcaster(fetch, revision_of(lambda: revision), look_seconds=0.001)
        stream = events.stream(["/fleet", "/runs"], [])
        got = [await anext(stream)]
        for revision in (1, 2):  # noqa: B007
            got.append(await asyncio.wait_for(anext(stream), 60))
        slow.set()
        got.append(await asyncio.wait_for(anext(stream), 60))
        events.close()
        return [b"/fleet" in each for each in got]

    assert asyncio.run(story()) == [False, False, False, True]


def test_a_page_that_takes_long_is_made_once_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, end, made = threading.Event(), threading.Event(), []

    def slow_runs(self: RecordingOpening) -> list[RunLine]:
        made.append(self)
        began.set()
        end.wait(300)
        return []

    monkeypatch.setattr(RecordingOpening, "runs", slow_runs)
    client, soon = page_client(RUNS), {"prefer": "wait=0"}
    for _ in range(50):
        answer = client.get("/runs", headers=soon)
        assert answer.status_code == 202
        assert answer.json()["working"]["progress"] == "reading the recording"
    assert began.wait(300) and len(made) == 1
    for address in ("/catalog", "/session", "/static/api.js"):
        assert client.get(address, headers=soon if address == "/session" else {}).status_code == 200
    end.set()
    assert client.get("/runs").status_code == 200


def test_a_server_that_is_told_to_stop_waits_for_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    began, end = threading.Event(), threading.Event()

    def slow_runs(self: RecordingOpening) -> list[RunLine]:
        began.set()
        end.wait(300)
        return []

    monkeypatch.setattr(RecordingOpening, "runs", slow_runs)
    client, answers = page_client(RUNS), []
    asking = threading.Thread(target=lambda: answers.append(client.get("/runs")))
    asking.start()
    assert began.wait(300)
    client.app._application.state.bodies.close()  # type: ignore[attr-defined]
    asking.join(300)
    assert answers[0].status_code == client.get("/fleet").status_code == 503
    makers = [thread for thread in threading.enumerate() if thread.name.startswith("page-")]
    assert makers and all(thread.daemon for thread in makers)  # Python's exit waits for others
    end.set()


def test_a_query_that_no_page_has_makes_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(RecordingOpening.runs)
    monkeypatch.setattr(RecordingOpening, "runs", lambda self: counted(self))
    client = page_client(RUNS)
    client.get("/runs")
    calls = counted.calls
    for number in range(5):
        assert client.get(f"/runs?x={number}").status_code == 200
    assert counted.calls == calls


def test_a_folder_that_vanishes_while_it_is_read_takes_no_page_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        shutil.copytree(RUNS / "clean", tmp_path / "team" / name)
    client = page_client(tmp_path)
    listed = run_folder_source.find_run_folders

    def found(folder: Path, left_out: list[str]) -> list[Path]:
        return [*listed(folder, left_out), folder / "gone" / "c"]

    monkeypatch.setattr(recorded_runs, "find_run_folders", found)
    for page in ("/runs", "/flow", "/findings", "/fleet"):
        assert client.get(page).status_code == 200


def test_a_source_that_cannot_be_read_for_a_moment_ends_no_stream() -> None:
    async def story() -> list[bytes]:
        readable = True

        def revision() -> int:
            if not readable:
                raise OSError(116, "Stale file handle")
            return 1

        async def fetch(_: str) -> bytes:
            return b"{}"

        events = Broadcaster(fetch, revision_of(revision), look_seconds=0.001)
        stream = events.stream(["/runs"], [])
        got = []
        for readable in (True, True, False, True):  # noqa: B007
            got.append(await asyncio.wait_for(anext(stream), 60))
        events.close()
        return [each.splitlines()[0] for each in got]

    said = [b"retry: 2000", b"event: page", b"event: stale", b"event: fresh"]
    assert asyncio.run(story()) == said


def test_who_looks_at_a_page_that_is_refused_meanwhile_is_told() -> None:
    async def story() -> list[bytes]:
        content: bytes | None = b"{}"
        looked = 0

        def revision() -> int:
            nonlocal looked
            looked += 1
            return looked

        async def fetch(_: str) -> bytes | None:
            return content

        events = Broadcaster(fetch, revision_of(revision), look_seconds=0.001)
        first = events.stream(["/runs/gone"], [])
        got = [await anext(first), await asyncio.wait_for(anext(first), 60)]
        content = None
        got.append(await asyncio.wait_for(anext(first), 60))
        later = events.stream(["/runs/gone"], [tag_of(b"{}")])
        got += [await anext(later), await asyncio.wait_for(anext(later), 60)]
        events.close()
        return [each.splitlines()[0] for each in got]

    told = [b"retry: 2000", b"event: page", b"event: stale"]
    assert asyncio.run(story()) == [*told, told[0], told[2]]


def test_what_comes_back_as_it_was_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_events, "_REFUSED_SECONDS", 0.0)

    async def story() -> list[bytes]:
        there = [True]

        async def fetch(_: str) -> bytes | None:
            return b"{}" if there[-1] else None

        events = Broadcaster(fetch, revision_of(lambda: there[-1]), look_seconds=0.001)
        stream = events.stream(["/runs/gone"], [])
        got = [await anext(stream), await asyncio.wait_for(anext(stream), 60)]
        for now in (False, True):
            there.append(now)
            got.append(await asyncio.wait_for(anext(stream), 60))
        events.close()
        return [each.splitlines()[0] for each in got]

    told = [b"retry: 2000", b"event: page", b"event: stale", b"event: fresh"]
    assert asyncio.run(story()) == told


def test_who_has_a_content_gets_it_again_after_another_one() -> None:
    async def story() -> list[bytes]:
        contents = [b'"a"']
        looked = 0

        def revision() -> int:
            nonlocal looked
            looked += 1
            return looked

        async def fetch(_: str) -> bytes:
            return contents[-1]

        events = Broadcaster(fetch, revision_of(revision), look_seconds=0.001)
        stream = events.stream(["/runs"], [tag_of(b'"a"')])
        await anext(stream)
        got = []
        for content in (b'"b"', b'"a"'):
            contents.append(content)
            got.append((await asyncio.wait_for(anext(stream), 60)).splitlines()[2])
        events.close()
        return got

    assert [line[-4:] for line in asyncio.run(story())] == [b'"b"}', b'"a"}']


def test_folders_are_gone_through_as_often_for_many_runs_as_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = Counted(run_folder_source.find_run_folders)
    monkeypatch.setattr(recorded_runs, "find_run_folders", walks)
    counts = []
    for number in range(9):
        shutil.copytree(RUNS / "clean", tmp_path / f"run-{number}")
        if number in (1, 8):
            client, walks.calls = page_client(tmp_path), 0
            assert client.get("/fleet").status_code == 200
            counts.append(walks.calls)
    assert counts[0] == counts[1]


def test_an_attempt_without_a_step_yet_takes_no_page_down(tmp_path: Path) -> None:
    run = Training(ranks=2, steps=10).write(tmp_path / "run")
    Training(ranks=2, steps=0, ends=False, attempt=1, begins=60_000 * MS).write(run)
    client = page_client(tmp_path)
    page = client.get("/runs/run").json()
    assert page["run"]["restarts"] == 1 and [a["number"] for a in page["heat"]["attempts"]] == [0]
    for address in ("/timeline/run", "/timeline/run?step=5&attempt=0", "/trace/run", "/flow"):
        assert client.get(address).status_code == 200, address
    first = Training(ranks=2, steps=0, ends=False).write(tmp_path / "new")
    assert first.name == "new"
    assert client.get("/runs/new").json()["steps_missing"] == "no steps yet"
    assert client.get("/timeline/new").status_code in (200, 404)


class Apart(Training):
    """No two ranks make the same step."""

    def records(self) -> list[list[Record]]:
        files = super().records()
        for rank, file in enumerate(files):
            for record in file:
                if "n" in record:
                    record["n"] += rank * self.steps
        return files


def test_ranks_without_common_steps_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Apart(ranks=4, steps=20).write(tmp_path / "odd")
    monkeypatch.setattr(recorded_runs, "_CELLS", 100)
    monkeypatch.setattr(recorded_runs, "_CELLS_A_ROW", 1)
    answer = page_client(tmp_path).get("/runs/odd")
    assert answer.status_code == 400 and "too few steps in common" in answer.json()["error"]


def test_a_run_with_a_space_in_its_name_is_live(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "slow", tmp_path / "my run")
    opening = open_directory(tmp_path, AuditOptions())
    server = PageServer(opening, doorkeeper(), Workbench(RunHere))
    body = asyncio.run(server._fetch("/runs/my%20run?of=own"))
    assert body is not None and b'"id":"my run"' in body and b'"of":"own"' in body
    server.close()


def test_too_many_viewers_get_a_503_and_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("computeflow.web.events.MAX_VIEWERS", 0)
    answer = page_client(RUNS).get("/events?of=/runs")
    assert answer.status_code == 503 and answer.headers["retry-after"] == "10"


@pytest.mark.parametrize(
    ("number", "says"), [(errno.ESTALE, ""), (errno.EIO, "Input/output error")]
)
def test_a_journal_that_is_gone_on_a_network_file_system_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    journal_path(tmp_path, 1).touch()

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(journal_rows, "read_frames", fail)
    journal = JournalRows(tmp_path)
    assert journal.steps("run-1") == []
    assert journal.left_out() == [f"left out: 000001.cfj: {says}, 0 bytes"] * bool(says)


def test_a_state_that_is_no_database_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(InputError, match="not a database"):
        read_rank_places(tmp_path, ["run-1"])


# The workbench


class Refusing(RunHere):
    def run(self, *_: Any) -> bytes:
        raise WrongFieldError(400, "no", "name")


class Crowded(RunHere):
    """No process can be started the first time."""

    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    def run(self, *_: Any) -> bytes:
        return b"{}"


def test_a_lane_goes_on_where_no_process_could_be_started_once() -> None:
    runner = Crowded()
    lane = Lane(runner)
    assert lane.ask("x", {}, 300.0) == b"{}" and runner.starts == 1
    lane.close()


def test_a_refusal_is_a_new_error_for_everybody_who_asks() -> None:
    """One error for all would keep the frames, and so the requests, of everybody who got it."""
    lane, raised = Lane(Refusing()), list[RefusedError]()
    for _ in range(3):
        with pytest.raises(WrongFieldError, match="no") as refused:
            lane.ask("x", {"name": "a"}, 300.0)
        raised.append(refused.value)
    assert len({*map(id, raised)}) == 3
    assert {(each.status, each.text, each.field) for each in raised} == {(400, "no", "name")}  # type: ignore[attr-defined]
    assert len({len(traceback.extract_tb(each.__traceback__)) for each in raised}) == 1
    lane.close()


def test_questions_that_wait_when_the_server_stops_are_refused_at_once() -> None:
    runner = Stopped()
    lane, codes = Lane(runner), list[int]()

    def ask(name: str) -> None:
        with pytest.raises(RefusedError) as refused:
            lane.ask("x", {"name": name}, 300.0)
        codes.append(refused.value.status)

    askers = [threading.Thread(target=ask, args=(name,)) for name in "abc"]
    for asker in askers:
        asker.start()
    assert runner.began.wait(300)
    lane.close()
    for asker in askers:
        asker.join(300)
    assert codes == [503, 503, 503] and runner.runs == 1


class Stopped(RunHere):
    """A runner whose question ends when it is closed."""

    def __init__(self) -> None:
        self.began, self.end, self.runs = threading.Event(), threading.Event(), 0

    def run(self, *_: Any) -> bytes:
        self.runs += 1
        self.began.set()
        self.end.wait(300)
        raise RefusedError(503, "the computation ended early: try again", 1.0)

    def close(self) -> None:
        self.end.set()
