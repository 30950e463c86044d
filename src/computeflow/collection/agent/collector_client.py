"""HTTP to a collector: `CollectorClient`, one connection that is kept, and what came back."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from computeflow.errors import InputError
from computeflow.files.names import shown

_TIMEOUT_SECONDS = 10.0
_MAX_ANSWER_BYTES = 4 << 20
_MAX_WAIT_SECONDS = 60.0
_MAX_TOKEN = 4096
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FAILURES = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorReply:
    """What a collector answered; `status` 0 where no answer came."""

    status: int
    next: dict[str, int] = field(default_factory=dict)
    """The record that it wants next, by `RANK.ATTEMPT`."""
    wait_seconds: float | None = None
    """How long it wants to be left alone."""
    reason: str = ""


class CollectorClient:
    def __init__(self, url: str, *, token_file: Path | None = None, ca: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise InputError(
                f"--collector {shown(url)}: write http://HOST:PORT or https://HOST:PORT"
            )
        if parts.username or parts.password:
            raise InputError(
                "--collector: a password in an address is seen by everybody who lists processes; "
                "use --token-file"
            )
        try:
            self._port = parts.port
        except ValueError:
            raise InputError(f"--collector {shown(url)}: no such port") from None
        self._host = parts.hostname
        self._prefix = parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._context = _context(ca) if self._secure else None
        if ca is not None and not self._secure:
            raise InputError(f"--ca {ca}: belongs to https://, the collector is {shown(url)}")
        self._token_file = token_file
        self._token = read_token(token_file)
        self._connection: http.client.HTTPConnection | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever starts the agent should know."""
        if self._token and not self._secure and self._host not in _LOOPBACK:
            return (f"the token goes to {self._host} unencrypted: use https:// with --ca FILE",)
        return ()

    def positions(self, run: str) -> CollectorReply:
        return self._ask("GET", f"/v1/positions?run={quote(run, safe='')}", None)

    def send(self, body: bytes) -> CollectorReply:
        return self._ask("POST", "/v1/batches", body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None) -> CollectorReply:
        kept = self._connection is not None
        try:
            return self._once(method, path, body)
        except _FAILURES as error:
            self.close()
            if not kept:
                return CollectorReply(status=0, reason=_worded(error))
        try:  # a connection that was kept may have been closed meanwhile
            return self._once(method, path, body)
        except _FAILURES as error:
            self.close()
            return CollectorReply(status=0, reason=_worded(error))

    def _once(self, method: str, path: str, body: bytes | None) -> CollectorReply:
        if self._connection is None:
            self._connection = self._connect()
        headers = {"Content-Type": "application/octet-stream"} if body is not None else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # a server that refuses a body before it has read it answers nevertheless
            self._connection.request(method, self._prefix + path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read(_MAX_ANSWER_BYTES)
        if answer.status in (401, 403):
            self._token = read_token(self._token_file)  # it may have been replaced
        if answer.will_close or not answer.isclosed():
            self.close()
        return CollectorReply(
            status=answer.status,
            next=_next(content),
            wait_seconds=_wait(answer.getheader("Retry-After")),
            reason=shown(f"{answer.status} {answer.reason}: {_said(content)}", 300),
        )

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=_TIMEOUT_SECONDS, context=self._context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_SECONDS)


def read_token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_bytes()[:_MAX_TOKEN].decode("ascii", "replace").strip()
    except OSError as error:
        raise InputError(f"--token-file {path}: {error.strerror or error}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"--token-file {path}: one line with the token, and nothing else")
    return token


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"--ca {ca}: {getattr(error, 'strerror', None) or error}") from None


def _worded(error: Exception) -> str:
    return shown(str(getattr(error, "strerror", None) or error) or type(error).__name__, 200)


def _data(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _next(content: bytes) -> dict[str, int]:
    table = _data(content).get("next")
    if not isinstance(table, dict):
        return {}
    return {
        key: number for key, number in table.items() if type(number) is int and 0 <= number < 2**53
    }


def _said(content: bytes) -> str:
    """The collector's own words: a line, or a field of its JSON."""
    data = _data(content)
    line = content[:300].decode("utf-8", "replace").partition("\n")[0]
    return str(data.get("error") or data.get("detail") or ("" if data else line))


def _wait(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return min(max(seconds, 0.0), _MAX_WAIT_SECONDS) if seconds == seconds else None
