"""`CollectorOptions`: how a collector runs, and what one client may ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from computeflow.collection.collector.listening import (
    Listening,
    is_loopback,
    split_address,
)
from computeflow.collection.outputs.posting import read_address
from computeflow.collection.outputs.webhook import read_webhook
from computeflow.collection.store.journal import JOURNAL_BYTES, JOURNAL_SECONDS
from computeflow.collection.wire.batches import MAX_BODY_BYTES
from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS


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
        if self.alertmanager is not None:
            read_address(self.alertmanager, "--alertmanager")
        if self.push_metrics is not None:
            read_address(self.push_metrics, "--push-metrics")
        if self.webhook_file is not None:
            read_webhook(self.webhook_file)
        if self.token_file is None and not is_loopback(split_address(self.listen)[0]):
            raise InputError(
                f"--listen {self.listen}: others can reach it: --token-file FILE says who may"
            )
        assert self.listening  # raises where the rest of it does not hold together

    @property
    def listening(self) -> Listening:
        return Listening(
            listen=self.listen,
            cert=self.cert,
            key=self.key,
            behind_proxy=self.behind_proxy,
            seconds=self.seconds,
            request_seconds=self.limits.request_seconds,
            connections=self.limits.connections,
        )
