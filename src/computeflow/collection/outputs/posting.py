"""`Address` and `post`: one HTTP POST to an address whose path may be a secret.

An address is shown as scheme, host and port only: a webhook's path is its password. Redirects are not
followed, proxies are not used, answers are read up to a few kilobytes.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from computeflow.errors import InputError
from computeflow.files.names import shown

_ANSWER_BYTES = 4096
_MAX_WAIT_SECONDS = 60.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same body may be taken later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    scheme: str
    host: str
    port: int | None
    path: str = field(repr=False)
    token: str = field(default="", repr=False)

    def __str__(self) -> str:
        """The address without its path, which may be a secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port is None else f":{self.port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What came of a POST."""

    status: int | None
    """None where nobody answered."""
    error: str = ""
    wait_seconds: float | None = None
    """How long the other side asks to be left alone."""

    @property
    def is_done(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_worth_another_try(self) -> bool:
        return self.status is None or self.status in _AGAIN


def read_address(url: str, option: str, *, path: str = "", token: str = "") -> Address:
    """The parts of an address; `path` is added to it. Nothing is sent yet."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"{option}: not an address: write http://host:port or https://host/path")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InputError(f"{option}: an address is written in ASCII without blanks")
    if parts.username is not None or parts.fragment:
        raise InputError(f"{option}: write the address without user and fragment")
    if not (token.isascii() and token.isprintable()):
        raise InputError(f"{option}: its token holds characters that no token has")
    query = f"?{parts.query}" if parts.query else ""
    return Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        path=(parts.path.rstrip("/") + path or "/") + query,
        token=token,
    )


def post(
    address: Address,
    body: bytes,
    kind: str = "application/json",
    *,
    seconds: float = 10.0,
    headers: Mapping[str, str] | None = None,
) -> Posted:
    """Send a body; whatever goes wrong is in the answer, without the address's path."""
    sent = {"Content-Type": kind, "User-Agent": "computeflow", **(headers or {})}
    if address.token:
        sent["Authorization"] = f"Bearer {address.token}"
    connection = connection_to(address, seconds)
    try:
        connection.request("POST", address.path, body=body, headers=sent)
        response = connection.getresponse()
        text = response.read(_ANSWER_BYTES).decode("utf-8", "replace")
        wait = _wait_seconds(response.headers.get("Retry-After"))
    except (OSError, http.client.HTTPException) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Posted(status=None, error=f"{address}: {shown(str(words))}")
    finally:
        connection.close()
    if 200 <= response.status < 300:
        return Posted(status=response.status)
    said = f"{address}: answered {response.status}: {shown(text)}"
    return Posted(status=response.status, error=said, wait_seconds=wait)


def connection_to(address: Address, seconds: float) -> http.client.HTTPConnection:
    if address.scheme == "https":
        return http.client.HTTPSConnection(
            address.host, address.port, timeout=seconds, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(address.host, address.port, timeout=seconds)


def _wait_seconds(text: str | None) -> float | None:
    """`Retry-After` in seconds; its other form, a date, is not used by those we send to."""
    if text is None or not text.strip().isdigit():
        return None
    return min(float(text), _MAX_WAIT_SECONDS)
