"""`CollectorOptions`: how a collector runs, and what one client may ask of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from computeflow.collection.outputs.posting import read_address
from computeflow.collection.outputs.webhook import read_webhook
from computeflow.collection.store.journal import JOURNAL_BYTES, JOURNAL_SECONDS
from computeflow.collection.wire.batches import MAX_BODY_BYTES
from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS

MIN_TOKEN_CHARACTERS = 16
_MAX_TOKEN_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What one client, by token and address, may send; beyond it the answer is 413, 429 or 503."""

    body_bytes: int = MAX_BODY_BYTES
    batches_per_second: float = 10_000.0
    """A thousand nodes may come through one proxy."""
    runs: int = 1_000
    ranks: int = 200_000
    queue_bytes: int = 64 << 20
    """Bodies that are read or wait for the disk, of all clients together."""
    request_seconds: float = 30.0
    """Time for a whole request; then the connection is closed."""
    clients: int = 20_000
    """Clients that are told apart at once."""
    connections: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorOptions:
    store: Path
    listen: str = "127.0.0.1:8471"
    shared: Path | None = None
    follow: tuple[Path, ...] = ()
    price_usd_per_gpu_hour: float | None = None
    token_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False
    alertmanager: str | None = None
    webhook_file: Path | None = None
    """A file with the address of a Slack webhook, which is a secret."""
    push_metrics: str | None = None
    keep_seconds: float = 30 * DAY_SECONDS
    keep_bytes: float | None = None
    seconds: float | None = None
    """Stop after so long; None: when told to."""
    journal_bytes: int = JOURNAL_BYTES
    journal_seconds: float = JOURNAL_SECONDS
    limits: ClientLimits = field(default_factory=ClientLimits)

    def __post_init__(self) -> None:
        host, _ = self.address
        if self.alertmanager is not None:
            read_address(self.alertmanager, "--alertmanager")
        if self.push_metrics is not None:
            read_address(self.push_metrics, "--push-metrics")
        if self.webhook_file is not None:
            read_webhook(self.webhook_file)
        if (self.cert is None) != (self.key is None):
            raise InputError("--cert and --key belong together: both files of a TLS server")
        if is_loopback(host):
            return
        if self.token_file is None:
            raise InputError(
                f"--listen {self.listen}: others can reach it: --token-file FILE says who may"
            )
        if self.cert is None and not self.behind_proxy:
            raise InputError(
                f"--listen {self.listen}: tokens must not travel in the clear: --cert and --key, or "
                "--behind-proxy where a proxy does TLS"
            )

    @property
    def address(self) -> tuple[str, int]:
        host, colon, port = self.listen.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise InputError(f"--listen {self.listen}: HOST:PORT, as in 127.0.0.1:8471")
        return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Tokens of a file, one in a line; lines that begin with # are notes."""
    try:
        if path.stat().st_mode & 0o007:
            raise InputError(f"--token-file {path}: all users can read it: chmod 600 {path}")
        with path.open("rb") as file:
            content = file.read(_MAX_TOKEN_BYTES)
    except OSError as error:
        raise InputError(f"--token-file {path}: {error.strerror}") from None
    lines = [line.strip() for line in content.splitlines()]
    tokens = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not tokens:
        raise InputError(f"--token-file {path}: no token in it: one in a line")
    if any(len(token) < MIN_TOKEN_CHARACTERS for token in tokens):
        raise InputError(
            f"--token-file {path}: a token of less than {MIN_TOKEN_CHARACTERS} characters: "
            "openssl rand -hex 32"
        )
    return tokens
