"""A server that is told to stop while it answers, and clients that leave or never end."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from computeflow.collection.collector import http_server
from computeflow.collection.collector.listening import Listening


@pytest.mark.live
def test_a_request_that_is_cut_off_at_the_end_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server, "_SHUTDOWN_SECONDS", 0.2)
    options = Listening(listen="127.0.0.1:0", command="serve", seconds=0.5)
    bound = http_server.bind(options)
    asked = threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await asyncio.sleep(300)

    def ask() -> None:
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(http_server.address_of(options, bound), timeout=300)

    asking = threading.Thread(target=ask)
    http_server.serve(application, bound, options, asking.start, lambda: None)
    bound.close()
    asking.join(300)
    assert asked.is_set() and "Traceback" not in capfd.readouterr().err


@pytest.mark.live
def test_a_client_that_leaves_before_its_answers_prints_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    options = Listening(listen="127.0.0.1:0", command="serve", seconds=3.0)
    bound = http_server.bind(options)
    answers = 0

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answers
        answers += 1
        await asyncio.sleep(0.1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 1000})

    def ask() -> None:
        with socket.create_connection(bound.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 8)
            assert client.recv(1)

    asking = threading.Thread(target=ask)
    http_server.serve(application, bound, options, asking.start, lambda: None)
    bound.close()
    asking.join(300)
    assert 2 <= answers < 8 and "Traceback" not in capfd.readouterr().err


_HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\n"


def _connection() -> tuple[Any, Any, list[int]]:
    """A connection of the server without a socket, what it writes to, and lengths of bodies."""
    asked: list[int] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        body = await receive()
        asked.append(len(body["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    options = Listening(listen="127.0.0.1:0", command="serve")
    uvicorn, config = http_server._configured(application, options)
    state = uvicorn.server.ServerState()
    made = config.http_protocol_class(config=config, server_state=state, app_state={})
    transport = Written()
    made.connection_made(transport)
    return made, transport, asked


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.data, self.closed = b"", False

    def write(self, data: Any) -> None:
        self.data += bytes(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def is_closing(self) -> bool:
        return self.closed


@pytest.mark.parametrize(
    "pieces",
    [
        [_HEAD, *[b"x-%d: %s\r\n" % (number, b"a" * 1000) for number in range(70)]],
        [_HEAD + b"".join(b"x-%d: %s\r\n" % (number, b"a" * 1000) for number in range(70))],
        [_HEAD + b"x-big: ", *[b"a" * 20_000] * 4],
        [b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [_HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ", *[b"a" * 20_000] * 4],
    ],
)
def test_a_head_that_does_not_end_is_refused(pieces: list[bytes]) -> None:
    """Nobody is asked for a token before the head is there: it must not fill the memory."""

    async def story() -> None:
        made, transport, asked = _connection()
        for piece in pieces:
            if not transport.closed:
                made.data_received(piece)
        assert transport.closed and not asked
        assert transport.data.startswith(b"HTTP/1.1 431") or b"chunked" in pieces[0]
        made.connection_lost(None)

    asyncio.run(story())


def test_a_long_body_after_a_short_head_is_taken() -> None:
    async def story() -> None:
        made, transport, asked = _connection()
        made.data_received(_HEAD + b"content-length: 300000\r\nx: " + b"a" * 60_000 + b"\r\n\r\n")
        for _ in range(30):
            made.data_received(b"b" * 10_000)
        await asyncio.sleep(0.01)
        assert asked == [300_000] and not transport.closed
        made.connection_lost(None)

    asyncio.run(story())
