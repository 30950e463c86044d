"""Pages that take long: how many wait, what nobody waits for any more, what has changed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from computeflow.collection.collector.clients import RefusedError
from computeflow.errors import InputError
from computeflow.web import page_bodies
from computeflow.web.page_bodies import PageBodies
from computeflow.web.page_threads import MAX_WAITING, PageThreads
from computeflow.web.sources.recordings.recorded_runs import RecordingOpening
from computeflow.web.sources.store import sound_segments
from computeflow.web.sources.store.sound_segments import SoundSegments
from page_client import RUNS, page_client

LONGEST = 300


class Gate:
    """What a thread makes once it is let through."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        self.go.wait(LONGEST)
        return "made"


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> PageBodies:
    monkeypatch.setattr(page_bodies, "_THREADS", 1)
    monkeypatch.setattr(page_bodies, "_ABANDONED_SECONDS", 0.0)
    return PageBodies()


def test_a_page_whose_readers_have_left_is_not_begun(one_thread: PageBodies) -> None:
    gate, begun = Gate(), list[bytes]()

    def make(name: bytes) -> bytes:
        begun.append(name)
        return name

    with one_thread.run(gate).waited():
        assert gate.began.wait(LONGEST)
        left = one_thread.ask("left", None, lambda: make(b"left"))
        kept = one_thread.ask("kept", None, lambda: make(b"kept"))
        with left.waited():
            pass
        with kept.waited():
            gate.go.set()
            assert kept.made.result(LONGEST) == b"kept"
    assert begun == [b"kept"]
    with pytest.raises(RefusedError, match="try again"):
        left.made.result(LONGEST)


def test_a_page_that_was_left_is_made_for_who_asks_for_it_again(one_thread: PageBodies) -> None:
    gate = Gate()
    with one_thread.run(gate).waited():
        assert gate.began.wait(LONGEST)
        one_thread.ask("page", None, lambda: b"page")
        again = one_thread.ask("page", None, lambda: b"another")
        with again.waited():
            gate.go.set()
            assert again.made.result(LONGEST) == b"page"


def test_more_pages_than_can_wait_are_refused_and_those_that_were_left_make_room() -> None:
    threads, gate = PageThreads(1), Gate()
    wanted = dict.fromkeys(range(MAX_WAITING), True)
    threads.submit(Future(), gate, lambda: True)
    assert gate.began.wait(LONGEST)
    waiting: list[Future[int]] = [Future() for _ in wanted]
    for number, future in enumerate(waiting):
        threads.submit(future, partial(int, number), partial(wanted.__getitem__, number))
    refused, more = Future[int](), Future[int]()
    threads.submit(refused, lambda: -1, lambda: True)
    error = refused.exception(0)
    assert isinstance(error, RefusedError) and error.status == 429 and error.retry_seconds
    wanted[3] = False
    threads.submit(more, lambda: 64, lambda: True)
    gate.go.set()
    assert more.result(LONGEST) == 64
    assert isinstance(waiting.pop(3).exception(LONGEST), RefusedError)
    assert [future.result(LONGEST) for future in waiting] == [*range(3), *range(4, MAX_WAITING)]
    threads.close()


def test_what_is_asked_of_a_server_that_stops_is_refused_as_such() -> None:
    threads, future = PageThreads(1), Future[str]()
    threads.close()
    threads.submit(future, lambda: "made", lambda: True)
    error = future.exception(0)
    assert isinstance(error, RefusedError) and error.status == 503


# A browser that loses its connection


def test_a_browser_that_comes_back_is_not_told_again_what_it_has_seen() -> None:
    """It sends the id of its last event; `known` in its address is of when it connected first."""
    client = page_client(RUNS)
    tag = client.get("/runs").headers["etag"].strip('"')
    events = client.app._application.state.events  # type: ignore[attr-defined]
    known = []

    def stream(_: list[str], tags: list[str], *__: object) -> Iterator[bytes]:
        known.append(tags)
        return iter([b""])

    events.stream = stream
    for headers in ({}, {"last-event-id": tag}):
        client.get("/events?of=/runs&known=old", headers=headers)
    assert known == [["old"], [tag]]


def test_a_fault_of_the_server_is_not_a_page_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: RecordingOpening) -> None:
        raise ZeroDivisionError

    client = page_client(RUNS)
    client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    monkeypatch.setattr(RecordingOpening, "readings", broken)
    answer = client.get("/readings/slow", headers={"accept": "text/html"})
    assert answer.status_code == 500
    assert "its log says why" in answer.text and "no such page" not in answer.text


# Files of a store that are merged while they are read


def _segment(store: Path, number: int) -> Path:
    file = store / "parquet" / "host" / "steps" / "20261118" / f"segment-{number:06}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    return file


def test_a_question_is_asked_again_where_files_are_merged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sound_segments, "_check", lambda *_: pytest.fail("no file is damaged"))
    sound, asked = SoundSegments(tmp_path), list[int]()
    small = [_segment(tmp_path, number) for number in (1, 2)]

    def question() -> list[str]:
        files = sound.files("steps")
        asked.append(len(files))
        if len(asked) == 1:
            _segment(tmp_path, 3)
            for file in small:
                file.unlink()
            raise InputError("No such file")
        return files

    assert [Path(path).name for path in sound.ask(("steps",), question)] == [
        "segment-000003.parquet"
    ]
    assert asked == [2, 1]


def test_a_question_that_fails_without_a_cause_in_the_files_is_an_error(tmp_path: Path) -> None:
    def question() -> None:
        raise InputError("it is the question")

    with pytest.raises(InputError, match="it is the question"):
        SoundSegments(tmp_path).ask(("steps",), question)
