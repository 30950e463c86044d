"""`serve`: the page of a folder of recordings or of a collector's store, until it is told to stop."""

from __future__ import annotations

import ctypes
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import File
from computeflow.answers.run_histories import own_runs
from computeflow.cluster.topology import Topology, read_topology
from computeflow.collection.collector.http_server import address_of, bind
from computeflow.collection.collector.http_server import serve as serve_application
from computeflow.collection.collector.listening import Listening, read_named_tokens
from computeflow.errors import InputError, UnavailableError
from computeflow.files.reading import read_text
from computeflow.units import format_seconds
from computeflow.views.tables import Table, columns
from computeflow.web.access.security import Doorkeeper
from computeflow.web.sources.opening import AuditOptions, open_directory
from computeflow.web.start_checks import check_directory, check_options

_CONNECTIONS = 4_096
_M_ARENA_MAX = -8
"""A number of glibc's malloc.h; other systems have no such call, or do not take it."""
_LOCAL_NAMES = ("localhost",)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServeAnswer(Answer):
    """What was served, and for how long."""

    address: str
    directory: str
    seconds: float

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.serve/1",
            "address": self.address,
            "directory": self.directory,
            "seconds": codec.encode(self.seconds),
        }

    @property
    def headline(self) -> str:
        return f"Served {self.directory} for {format_seconds(self.seconds)}."

    def tables(self) -> list[Table]:
        return [
            Table(
                title="served",
                columns=columns("folder", "address", "time"),
                rows=((self.directory, self.address, format_seconds(self.seconds)),),
            )
        ]


def _ignore(_: str) -> None:
    pass


@checked
def serve(
    directory: File | None = None,
    *,
    listen: str = "127.0.0.1:8470",
    operator_token_file: File | None = None,
    host: Sequence[str] = (),
    cert: File | None = None,
    key: File | None = None,
    behind_proxy: bool = False,
    price: float | None = None,
    on: str | None = None,
    model: str | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    expect: File | None = None,
    topology: File | None = None,
    seconds: float | None = None,
    ready: Callable[[str], None] = _ignore,
) -> ServeAnswer:
    """Serve the page of recordings or of a collector's store, until a signal or for so many seconds.

    `ready` is called once with the address to open, which holds the reader's token.
    """
    if seconds is not None and seconds <= 0:
        raise InputError(f"--seconds {seconds:g}: more than 0")
    if price is not None and price < 0:
        raise InputError(f"--price {price:g}: dollars per GPU and hour, not below 0")
    listening = Listening(
        listen=listen,
        command="serve",
        cert=_path(cert),
        key=_path(key),
        behind_proxy=behind_proxy,
        seconds=seconds,
        connections=_CONNECTIONS,
    )
    if behind_proxy and not host:
        raise InputError("--behind-proxy needs --host NAME: the name that browsers ask for")
    place = _recorded_runs() if directory is None else Path(directory)
    options = AuditOptions(
        price=price,
        on=on,
        model=model,
        global_batch=global_batch,
        seq_len=seq_len,
        expect=_path(expect),
    )
    opening = open_directory(place, options)
    check_directory(place)
    check_options(options)
    operators = _read_operators(_path(operator_token_file))
    cabling = _read_cabling(_path(topology))
    make_server = _server_class()
    began = time.monotonic()
    bound = bind(listening)
    try:
        address, token = _public_address(listening, bound, host), secrets.token_urlsafe(24)
        doorkeeper = Doorkeeper(
            reader=token.encode(),
            operators=operators,
            hosts=frozenset(name.lower() for name in (*_LOCAL_NAMES, *host, listening.address[0])),
            cookie=f"computeflow-{bound.getsockname()[1]}",
            scheme="https" if cert is not None or behind_proxy else "http",
        )
        _share_memory()
        server = make_server(opening, doorkeeper, topology=cabling)
        if opening.kind == "store":
            server.read_ahead()
        serve_application(
            server.application,
            bound,
            listening,
            lambda: ready(f"{address}/open?token={token}"),
            lambda: None,
            server.close,
        )
    finally:
        bound.close()
    return ServeAnswer(address=address, directory=str(place), seconds=time.monotonic() - began)


def _share_memory() -> None:
    """Threads that make pages share what they free (glibc: two arenas). With one for each thread, each
    grows to what the largest page takes.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _recorded_runs() -> Path:
    place = own_runs()
    if not place.exists():
        raise InputError(f"{place}: no run is recorded yet (computeflow record -- COMMAND)")
    return place


def _read_operators(path: Path | None) -> dict[bytes, str]:
    return {} if path is None else read_named_tokens(path, "--operator-token-file")


def _read_cabling(path: Path | None) -> Topology | None:
    return None if path is None else read_topology(read_text(path), str(path))


def _public_address(listening: Listening, bound: socket.socket, hosts: Sequence[str]) -> str:
    """The address that browsers open: a proxy's own, or one of `--host` where TLS is ours."""
    if listening.behind_proxy:
        return f"https://{hosts[0]}"
    if hosts and listening.cert is not None:
        return f"https://{hosts[0]}:{bound.getsockname()[1]}"
    return address_of(listening, bound)


def _server_class() -> Any:
    try:
        from computeflow.web.application import PageServer
    except ImportError as error:
        raise UnavailableError(f"serve: {error}: pip install 'computeflow[serve]'") from None
    return PageServer


def _path(value: File | None) -> Path | None:
    return None if value is None else Path(value)
