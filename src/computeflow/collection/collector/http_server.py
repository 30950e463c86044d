"""`serve`: an application behind uvicorn, its one home, until a signal or a given time.

Connections whose client does not send a whole request in time are closed, and so are those of requests
with a head, or trailers, of more than 64 KiB: these are in memory before anybody is asked for a token.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from computeflow.collection.collector.listening import Listening
from computeflow.errors import InputError, UnavailableError
from computeflow.files.names import shown

_KEEP_ALIVE_SECONDS = 75
_SHUTDOWN_SECONDS = 10
_BACKLOG = 4096
_CARE_SECONDS = 5.0
MAX_HEAD_BYTES = 64 << 10
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
Application = Callable[..., Any]


def bind(options: Listening) -> socket.socket:
    host, port = options.address
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise InputError(f"--listen {options.listen}: {error.strerror or error}") from None
    except (ValueError, TypeError):  # half a character, or a label that is too long
        bound.close()
        raise InputError(f"--listen {shown(options.listen)}: no name of a host") from None
    return bound


def address_of(options: Listening, bound: socket.socket) -> str:
    host, _ = options.address
    shown = f"[{host}]" if ":" in host else host
    kind = "https" if options.cert is not None else "http"
    return f"{kind}://{shown}:{bound.getsockname()[1]}"


def serve(
    application: Application,
    bound: socket.socket,
    options: Listening,
    ready: Callable[[], None],
    care: Callable[[], None],
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until told to stop; `care` is called every few seconds, `stopping` once before the end.

    Answers that never end by themselves have to be ended by `stopping`.
    """
    uvicorn, config = _configured(application, options)
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        ready()
        ends = None if options.seconds is None else time.monotonic() + options.seconds
        cared, told = time.monotonic(), False
        while not serving.done():
            await asyncio.wait([serving], timeout=0.1)
            if ends is not None and time.monotonic() >= ends:
                server.should_exit = True
            if server.should_exit and not told:
                told = True
                stopping()
            if time.monotonic() - cared >= _CARE_SECONDS:
                cared = time.monotonic()
                care()
        await serving

    with (
        _no_second_signal(),
        suppress(KeyboardInterrupt),
        asyncio.Runner(loop_factory=config.get_loop_factory()) as runner,
    ):
        runner.run(run())


def _configured(application: Application, options: Listening) -> tuple[Any, Any]:
    try:
        import uvicorn
    except ImportError:
        raise UnavailableError(
            f"{options.command} needs uvicorn: pip install 'computeflow[{options.command}]'"
        ) from None
    config = uvicorn.Config(
        application,
        http=_connection_class(options.request_seconds),
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="error",
        proxy_headers=options.behind_proxy,
        server_header=False,
        limit_concurrency=options.connections,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        backlog=_BACKLOG,
        ssl_certfile=options.cert,
        ssl_keyfile=options.key,
    )
    try:
        _check_key(options)
        config.load()
    except OSError as error:
        raise InputError(f"--cert {options.cert} --key {options.key}: {error}") from None
    logging.getLogger("uvicorn.error").addFilter(_is_fault)
    return uvicorn, config


def _check_key(options: Listening) -> None:
    """Refuse a key that is encrypted: its pass phrase would be asked for on the terminal."""

    def refuse() -> str:
        raise InputError(
            f"--key {options.key}: it is encrypted: openssl pkey -in {options.key} -out NEW writes it "
            "without its pass phrase (chmod 600 NEW)"
        )

    if options.cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.cert, options.key, password=refuse)


def _is_fault(record: logging.LogRecord) -> bool:
    """Not that a request is cut off because the server was told to stop, nor that a client has left: of
    several requests that came at once uvicorn knows of the last one alone that nobody waits for it.
    """
    error = record.exc_info[1] if record.exc_info else None
    is_gone = isinstance(error, RuntimeError) and "the handler is closed" in str(error)
    return not (is_gone or isinstance(error, asyncio.CancelledError))


def _connection_class(request_seconds: float) -> type[Any]:
    """uvicorn's connection, closed where a request takes longer to come, or has a larger head."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        raise UnavailableError(
            "a server needs httptools: pip install 'uvicorn[standard]'"
        ) from None

    class BoundedConnection(_with_bounded_heads(HttpToolsProtocol)):  # type: ignore[misc]
        """One timer looks at the connection now and then: one for each request costs more."""

        _began: float | None = None
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._began = self.loop.time()
            self._timer = self.loop.call_later(request_seconds / 2, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            self._began = self.loop.time()
            super().on_message_begin()

        def on_message_complete(self) -> None:
            self._began = None
            super().on_message_complete()

        def _look(self) -> None:
            if self._began is not None and self.loop.time() - self._began >= request_seconds:
                self.transport.abort()
                return
            self._timer = self.loop.call_later(request_seconds / 2, self._look)

    return BoundedConnection


class _HeadBytes:
    """Bytes of a request that are kept before its body, and after it: address, headers, trailers."""

    def __init__(self) -> None:
        self._fields = self._unread = 0
        self.in_body = False
        """Whether the bytes that came last are of a body."""
        self.is_over = False

    @property
    def is_too_large(self) -> bool:
        return max(self._fields, self._unread) > MAX_HEAD_BYTES

    def add_field(self, size: int) -> None:
        """One that is whole; ValueError, at which the parser stops, where all are too large."""
        self._fields += size
        if self.is_too_large:
            raise ValueError(f"a head of more than {MAX_HEAD_BYTES:,} bytes")

    def add_received(self, size: int) -> None:
        """Bytes that the parser has taken: a field that does not end is among them."""
        if not (self.in_body or self.is_over):
            self._unread += size


def _with_bounded_heads(base: Any) -> Any:
    class BoundedHead(base):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            self._head = _HeadBytes()
            super().connection_made(transport)

        def on_message_begin(self) -> None:
            self._head = _HeadBytes()
            super().on_message_begin()

        def on_message_complete(self) -> None:
            self._head.is_over = True
            super().on_message_complete()

        def data_received(self, data: bytes) -> None:
            self._head.in_body = False
            super().data_received(data)
            self._head.add_received(len(data))
            if self._head.is_too_large and not self.transport.is_closing():
                _refuse_head(self)

        def on_url(self, url: bytes) -> None:
            self._head.add_field(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._head.add_field(len(name) + len(value))
            super().on_header(name, value)

        def on_body(self, body: bytes) -> None:
            self._head.in_body = True
            super().on_body(body)

        def send_400_response(self, msg: str) -> None:
            if not self._head.is_too_large:
                super().send_400_response(msg)

    return BoundedHead


def _refuse_head(connection: Any) -> None:
    if connection.cycle is None or connection.cycle.response_complete:
        connection.transport.write(_TOO_LARGE)
        connection.transport.close()
    else:  # an answer is under way
        connection.transport.abort()


@contextmanager
def _no_second_signal() -> Iterator[None]:
    """uvicorn raises the signals that ended it again once it has ended: here they have done it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
