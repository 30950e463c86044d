"""`Listening`: where a server of ours listens, over what, for how long; `read_tokens`: who may come.

The collector and the page (`computeflow.web`) share them.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.names import shown

MIN_TOKEN_CHARACTERS = 16
_MAX_TOKEN_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    listen: str
    """HOST:PORT; port 0 takes a free one."""
    command: str = "collect"
    """The command, which is also the name of its extra."""
    cert: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False
    seconds: float | None = None
    """Stop after so long; None: when told to."""
    request_seconds: float = 30.0
    """Time for a whole request; then the connection is closed."""
    connections: int = 20_000

    def __post_init__(self) -> None:
        host, _ = self.address
        if (self.cert is None) != (self.key is None):
            raise InputError("--cert and --key belong together: both files of a TLS server")
        if not is_loopback(host) and self.cert is None and not self.behind_proxy:
            raise InputError(
                f"--listen {self.listen}: tokens must not travel in the clear: --cert and --key, or "
                "--behind-proxy where a proxy does TLS"
            )

    @property
    def address(self) -> tuple[str, int]:
        return split_address(self.listen)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.address[0])


def split_address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InputError(f"--listen {listen}: HOST:PORT, as in 127.0.0.1:8471; ports end at 65535")
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_tokens(path: Path, option: str = "--token-file") -> tuple[bytes, ...]:
    """Tokens of a file, one in a line; lines that begin with # are notes."""
    tokens = _lines(path, option)
    _check_lengths(tokens, path, option)
    return tokens


def read_named_tokens(path: Path, option: str) -> dict[bytes, str]:
    """Whose each token is: lines of NAME TOKEN, in a file that only its owner can read.

    Stricter than `read_tokens`: who holds one of these acts in the name that stands beside it.
    """
    names: dict[bytes, str] = {}
    where = f"{option} {shown(str(path))}"
    for line in _lines(path, option, private=True):
        name, _, token = line.replace(b"\t", b" ").rpartition(b" ")
        text = name.decode("utf-8", "replace").strip()
        if not text:
            raise InputError(f"{where}: lines are NAME TOKEN: the name is kept with what is done")
        if not text.isprintable() or not token.isascii() or not token.decode().isprintable():
            raise InputError(f"{where}: names can be printed, and tokens are ASCII")
        if token in names:
            raise InputError(f"{where}: one token of two names: openssl rand -hex 32 makes another")
        names[token] = text
    _check_lengths(tuple(names), path, option)
    return names


def _lines(path: Path, option: str, *, private: bool = False) -> tuple[bytes, ...]:
    where = f"{option} {shown(str(path))}"
    try:
        content = _read(path, where, private=private)
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}") from None
    if len(content) > _MAX_TOKEN_BYTES:
        raise InputError(f"{where}: more than {_MAX_TOKEN_BYTES:,} bytes")
    lines = [line.strip() for line in content.splitlines()]
    kept = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not kept:
        raise InputError(f"{where}: no token in it: one in a line")
    return kept


def _read(path: Path, where: str, *, private: bool) -> bytes:
    """Its content, from the file that was looked at: opened without waiting, as a pipe would."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise InputError(f"{where}: not a file")
        if facts.st_mode & (0o077 if private else 0o007):
            who = "others" if private else "all users"
            raise InputError(f"{where}: {who} can read it: chmod 600 {shown(str(path))}")
        if private and facts.st_uid not in (os.geteuid(), 0):
            raise InputError(f"{where}: it belongs to another user, who can put tokens in it")
        return file.read(_MAX_TOKEN_BYTES + 1)


def _check_lengths(tokens: tuple[bytes, ...], path: Path, option: str) -> None:
    if any(len(token) < MIN_TOKEN_CHARACTERS for token in tokens):
        raise InputError(
            f"{option} {path}: a token of less than {MIN_TOKEN_CHARACTERS} characters: "
            "openssl rand -hex 32"
        )
