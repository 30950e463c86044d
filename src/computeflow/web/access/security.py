"""Who may look and who may act: `Doorkeeper` knows tokens, sessions, hosts and origins.

    reader      the token that is printed at the start; sees everything, changes nothing
    operator    a token of --operator-token-file; approves, dismisses, undoes, under its name

A browser gives its token once (`/open?token=...`) and gets a session: a random number in a cookie that
scripts cannot read and other sites cannot send. Tokens are kept in no browser. Programs send
`Authorization: Bearer TOKEN` instead.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from computeflow.collection.collector.clients import Clients, RefusedError
from computeflow.collection.collector.collector_options import ClientLimits
from computeflow.units import DAY_SECONDS

Role = Literal["reader", "operator"]
Headers = Mapping[bytes, bytes]
ACTING_HEADER = b"x-computeflow"
"""A header that no form and no other site can send without asking first (CORS)."""
MAX_BODY_BYTES = 64 << 10
MAX_SESSIONS = 10_000
SESSION_SECONDS = 7 * DAY_SECONDS
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_UNKNOWN_PER_SECOND = 10.0
"""Requests of one address that carry no token: guessing one of 192 bits is hopeless all the same."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
RESPONSE_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    role: Role
    name: str
    session: str = ""
    """"" for a program that sends its token with every request."""

    @property
    def may_act(self) -> bool:
        return self.role == "operator"


@dataclass(slots=True, kw_only=True)
class Doorkeeper:
    """Times are those of a clock that only counts."""

    reader: bytes
    operators: Mapping[bytes, str]
    hosts: frozenset[str]
    """Names that browsers may ask for; addresses in digits are always taken."""
    cookie: str
    scheme: Literal["http", "https"] = "http"
    requests_per_second: float = 100.0
    """Requests of one session; a first view asks for about twenty small files at once."""
    _sessions: OrderedDict[str, tuple[Viewer, float]] = field(default_factory=OrderedDict)
    _known: Clients = field(init=False)
    _unknown: Clients = field(init=False)
    _opened: Clients = field(init=False)

    def __post_init__(self) -> None:
        fast = ClientLimits(batches_per_second=self.requests_per_second)
        slow = ClientLimits(batches_per_second=_UNKNOWN_PER_SECOND)
        self._known, self._unknown = Clients((), fast, "requests"), Clients((), slow, "requests")
        self._opened = Clients((), slow, "sessions")

    def check_host(self, headers: Headers) -> None:
        """Refuse a name that is not ours: a foreign page that made its name point to us sends it."""
        name = host_name(headers.get(b"host", b"").decode("latin-1"))
        if name not in self.hosts and not _is_address(name):
            raise RefusedError(421, "this host name is not served here: --host NAME allows it")

    def viewer(self, headers: Headers, address: str, now: float) -> Viewer:
        """Who asks; 401 where nobody is known, 429 for one who asks too often."""
        viewer = self._by_cookie(headers, now) or self._by_token(headers)
        if viewer is None:
            self._unknown.admit(-1, address, now)
            raise RefusedError(401, "a token is needed: open the address that serve printed")
        self._known.admit(-1, viewer.session or address, now)
        return viewer

    def look_up(self, token: str) -> Viewer | None:
        """The viewer whose token this is; every comparison takes the same time."""
        given = token.encode("utf-8", "replace")
        found = Viewer(role="reader", name="reader") if _equal(given, self.reader) else None
        for known, name in self.operators.items():
            if _equal(given, known):
                found = Viewer(role="operator", name=name)
        return found

    def open_session(self, token: str, address: str, now: float) -> Viewer:
        """A viewer with a new session; 403 for a token that is not known.

        Wrong tokens have a limit of their own: guessing locks nobody out who has one.
        """
        viewer = self.look_up(token)
        if viewer is None:
            self._unknown.admit(-1, address, now)
            raise RefusedError(403, "That token is not valid.")
        self._opened.admit(-1, address, now)
        session = secrets.token_urlsafe(24)
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[self._oldest_session()]
        known = Viewer(role=viewer.role, name=viewer.name, session=session)
        self._sessions[session] = (known, now + SESSION_SECONDS)
        return known

    def knows(self, viewer: Viewer, now: float) -> bool:
        """Whether a session goes on; a program's token does as long as the server."""
        known = self._sessions.get(viewer.session)
        return not viewer.session or (known is not None and now < known[1])

    def _oldest_session(self) -> str:
        """A reader's before an operator's: who opens many keeps nobody from acting."""
        readers = (key for key, (viewer, _) in self._sessions.items() if not viewer.may_act)
        return next(readers, next(iter(self._sessions)))

    def close_session(self, viewer: Viewer) -> None:
        self._sessions.pop(viewer.session, None)

    def cookie_line(self, session: str) -> str:
        secure = "; Secure" if self.scheme == "https" else ""
        age = "" if session else "; Max-Age=0"
        return f"{self.cookie}={session}; Path=/; HttpOnly; SameSite=Strict{secure}{age}"

    def check_acting(self, headers: Headers) -> None:
        """Refuse a request that changes something unless our own page, or a program, sent it."""
        if ACTING_HEADER not in headers:
            raise RefusedError(403, "an action needs the header X-ComputeFlow: 1")
        if headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
            raise RefusedError(403, "actions from another site are refused")
        origin = headers.get(b"origin")
        own = self.scheme.encode() + b"://" + headers.get(b"host", b"")
        if origin is not None and origin.lower() != own.lower():
            raise RefusedError(403, "actions from another origin are refused")
        size = headers.get(b"content-length", b"")
        if not size.isdigit():
            raise RefusedError(411, "an action needs its Content-Length")
        if len(size) > 9 or int(size) > MAX_BODY_BYTES:
            raise RefusedError(413, f"the request is larger than {MAX_BODY_BYTES:,} bytes")

    def _by_cookie(self, headers: Headers, now: float) -> Viewer | None:
        """Cookies are those of a host: other servers on it send theirs, odd ones and of our name."""
        for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = part.partition("=")
            known = self._sessions.get(value.strip().strip('"'))
            if name.strip() == self.cookie and known is not None and now < known[1]:
                return known[0]
        return None

    def _by_token(self, headers: Headers) -> Viewer | None:
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer":
            return None
        return self.look_up(given.strip().decode("latin-1"))


def _equal(given: bytes, known: bytes) -> bool:
    return hmac.compare_digest(given, known)


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port and in small letters; "" of what is no
    such header: what a URL may have beside them does not belong in one.
    """
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["ipv6"] or found["name"]).lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
