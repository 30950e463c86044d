"""Pages that take long: how many wait, what nobody waits for any more, what has changed meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from computeflow.collection.collector.clients import RefusedError
from computeflow.errors import InputError
from computeflow.web import events as page_events
from computeflow.web import page_bodies, page_making, page_routes
from computeflow.web.events import _MAX_LOOKS, MAX_SESSION_STREAMS, Broadcaster
from computeflow.web.page_bodies import PageBodies, PageBody
from computeflow.web.page_making import Making, SharedCall
from computeflow.web.page_threads import MAX_WAITING, PageThreads
from computeflow.web.sources.recordings.recorded_runs import RecordingOpening
from computeflow.web.sources.store import sound_segments
from computeflow.web.sources.store.sound_segments import SoundSegments
from page_client import ACTING, OPERATOR, RUNS, page_client, revision_of

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
    monkeypatch.setattr(page_making, "_ABANDONED_SECONDS", 0.0)
    return PageBodies()


def body(content: bytes, kept: bool = True) -> PageBody:
    return PageBody(content=content, kept=kept)


def busy(bodies: PageBodies) -> Gate:
    """Its only thread, until the gate opens."""
    gate = Gate()
    bodies.ask("busy", None, lambda: body(gate().encode()))
    assert gate.began.wait(LONGEST)
    return gate


def test_a_page_whose_readers_have_left_is_not_begun(one_thread: PageBodies) -> None:
    gate, begun = busy(one_thread), list[bytes]()

    def make(name: bytes) -> PageBody:
        begun.append(name)
        return body(name)

    left = one_thread.ask("left", None, lambda: make(b"left"))
    kept = one_thread.ask("kept", None, lambda: make(b"kept"))
    left.leave(comes_back=False)
    gate.go.set()
    assert kept.made.result(LONGEST).content == b"kept"
    assert begun == [b"kept"]
    with pytest.raises(RefusedError, match="try again"):
        left.made.result(LONGEST)


def test_a_page_that_was_left_is_made_for_who_asks_for_it_again(one_thread: PageBodies) -> None:
    gate = busy(one_thread)
    one_thread.ask("page", None, lambda: body(b"page")).leave(comes_back=False)
    again = one_thread.ask("page", None, lambda: body(b"another"))
    gate.go.set()
    assert again.made.result(LONGEST).content == b"page"


def test_a_page_that_was_given_up_is_made_anew_for_who_comes_then() -> None:
    making = Making[int]()
    assert making.join() and making.is_wanted()
    making.leave(comes_back=True)
    assert making.is_wanted()  # for a while: a browser asks every half second
    other = Making[int]()
    assert other.join()
    other.leave(comes_back=False)
    assert not other.is_wanted() and not other.join()


def test_what_is_incomplete_is_made_for_each_question(one_thread: PageBodies) -> None:
    contents = [b"whole", b"a part"]
    for _ in range(2):
        part = one_thread.ask("page", None, lambda: body(contents.pop(), kept=False))
        content = part.made.result(LONGEST).content
    assert content == b"whole"


def test_a_body_that_is_not_kept_is_freed_with_its_last_reader(one_thread: PageBodies) -> None:
    gc.disable()  # without waiting for the collector of cycles: bodies are large, and made every second
    try:
        made = one_thread.ask("page", None, lambda: body(b"page", kept=False))
        made.made.result(LONGEST)
        future = weakref.ref(made.made)
        del made
        next_one = one_thread.ask("next", None, lambda: body(b"next"))
        next_one.made.result(LONGEST)  # the thread has let go of the first
        assert future() is None
    finally:
        gc.enable()


def test_who_asks_while_a_call_goes_on_has_the_answer_of_the_next_one() -> None:
    gate, numbers = Gate(), iter(range(10))

    def call() -> int:
        number = next(numbers)
        if number == 0:
            gate()
        return number

    shared = SharedCall(call)
    first = shared.ask()
    assert gate.began.wait(LONGEST)
    later = [shared.ask() for _ in range(5)]
    gate.go.set()
    assert first.made.result(LONGEST) == 0
    assert [each.made.result(LONGEST) for each in later] == [1] * 5
    assert shared.ask().made.result(LONGEST) == 2
    shared.close()


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


def test_pages_one_after_the_other_are_made_by_one_thread() -> None:
    threads, made = PageThreads(8), set[str]()
    for _ in range(20):
        future = Future[None]()
        threads.submit(future, lambda: made.add(threading.current_thread().name), lambda: True)
        future.result(LONGEST)
        while threads._begun:  # until it is idle again
            time.sleep(0.001)
    assert len(made) == 1
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


def test_a_page_that_only_events_ask_for_is_given_up_with_its_last_viewer() -> None:
    """A stream that opens and closes again must not leave pages behind that nobody reads."""

    async def story() -> list[str]:
        ended, begun = list[str](), asyncio.Event()

        async def fetch(address: str) -> bytes:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(address)
            return b""

        events = Broadcaster(fetch, revision_of(lambda: 1), look_seconds=0.001)
        streams = [events.stream(["/runs"], []) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        await asyncio.wait_for(begun.wait(), LONGEST)
        for stream in streams:
            assert not ended
            await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        events.close()
        return ended

    assert asyncio.run(story()) == ["/runs"]


def test_a_change_of_everything_asks_for_a_few_addresses_at_a_time() -> None:
    async def story() -> int:
        asked, most = set[str](), 0

        async def fetch(address: str) -> bytes:
            nonlocal most
            asked.add(address)
            most = max(most, len(asked))
            await asyncio.sleep(0)
            asked.discard(address)
            return b"{}"

        events = Broadcaster(fetch, revision_of(lambda: 1), look_seconds=0.001)
        streams = [events.stream([f"/runs/{at}-{n}" for n in range(8)], []) for at in range(8)]
        for stream in streams:
            for _ in range(9):
                await asyncio.wait_for(anext(stream), LONGEST)
        events.close()
        return most

    assert asyncio.run(story()) <= _MAX_LOOKS


def test_streams_that_are_let_in_at_once_are_counted_before_they_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = Broadcaster(lambda _: asyncio.sleep(0, b""), revision_of(lambda: 1))
    for _ in range(MAX_SESSION_STREAMS):
        events.stream(["/runs"], [], "mine")
    with pytest.raises(RefusedError):
        events.stream(["/runs"], [], "mine")
    monkeypatch.setattr(page_events, "_COMING_SECONDS", -1.0)  # their clients left before that
    events.stream(["/runs"], [], "mine")


def _slow_spans(monkeypatch: pytest.MonkeyPatch) -> tuple[Gate, list[int]]:
    gate, asked = Gate(), list[int]()
    spans = RecordingOpening.spans

    def slow(self: RecordingOpening, run: str, step: int, *more: Any) -> Any:
        asked.append(step)
        gate()
        return spans(self, run, step, *more)

    monkeypatch.setattr(RecordingOpening, "spans", slow)
    return gate, asked


def test_one_client_waits_for_a_few_pages_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, _ = _slow_spans(monkeypatch)
    monkeypatch.setattr(page_routes, "MAX_CLIENT_WAITS", 1)
    client, given = page_client(RUNS), list[int]()

    def ask() -> None:
        given.append(client.get("/timeline/slow?step=3").status_code)

    first = threading.Thread(target=ask)
    first.start()
    assert gate.began.wait(LONGEST)
    refused = client.get("/timeline/slow?step=4")
    assert refused.status_code == 429 and "one client" in refused.json()["error"]
    assert client.get("/static/api.js").status_code == 200
    gate.go.set()
    first.join(LONGEST)
    assert given == [200] and client.get("/timeline/slow?step=4").status_code == 200


def test_a_file_that_many_ask_for_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, asked = _slow_spans(monkeypatch)
    client, given = page_client(RUNS), list[tuple[str, bytes]]()

    def ask() -> None:
        answer = client.get("/trace/slow?step=3")
        given.append((answer.headers["content-disposition"], answer.content))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert gate.began.wait(LONGEST)
    waits = client.app._application.state.waits  # type: ignore[attr-defined]
    while waits.total() < len(threads):
        time.sleep(0.01)
    gate.go.set()
    for thread in threads:
        thread.join(LONGEST)
    assert len(given) == 4 and len(set(given)) == 1 and asked == [3]


def test_a_body_that_cannot_be_parsed_is_refused_in_one_line() -> None:
    client = page_client(RUNS, OPERATOR)
    headers = {**ACTING, "content-type": "application/json"}
    given = client.post("/session", headers=headers, content=b"[" * 60_000)
    assert given.status_code == 400 and given.json()["error"]


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
