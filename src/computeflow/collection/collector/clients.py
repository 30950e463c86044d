"""`Clients`: who may send, how fast, and how many runs and ranks."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from computeflow.collection.collector.collector_options import ClientLimits
from computeflow.units import HOUR_SECONDS

_BURST_SECONDS = 2.0


class RefusedError(Exception):
    """A request that is not taken: the status, one line, and when to come again."""

    def __init__(self, status: int, text: str, retry_seconds: float | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.retry_seconds = status, text, retry_seconds


@dataclass(slots=True)
class Client:
    allowance: float
    """Batches that it may send at once."""
    at: float
    ranks: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Ranks of each run that it sent first, and when it last sent of the run."""


class Clients:
    """Times are those of a clock that only counts."""

    def __init__(
        self, tokens: Sequence[bytes], limits: ClientLimits, sends: str = "batches"
    ) -> None:
        self._tokens, self._limits, self._sends = tokens, limits, sends
        self._clients: OrderedDict[tuple[int, str], Client] = OrderedDict()

    def authorise(self, header: bytes | None) -> int:
        """The place of the token that a request carries; 401 without one, 403 for a wrong one."""
        if not self._tokens:
            return -1
        kind, _, given = (header or b"").partition(b" ")
        if kind.lower() != b"bearer" or not given:
            raise RefusedError(401, "a token is needed: Authorization: Bearer TOKEN")
        matches = [hmac.compare_digest(given.strip(), token) for token in self._tokens]
        if not any(matches):
            raise RefusedError(403, "no such token")
        return matches.index(True)

    def admit(self, token: int, address: str, now: float) -> Client:
        """Count a batch of a client; 429 for one that is too fast."""
        limits = self._limits
        burst = limits.batches_per_second * _BURST_SECONDS
        key = (token, address)
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= limits.clients:
                self._clients.popitem(last=False)
            client = self._clients[key] = Client(burst, now)
        else:
            self._clients.move_to_end(key)
        elapsed = max(now - client.at, 0.0)
        client.allowance = min(client.allowance + elapsed * limits.batches_per_second, burst)
        client.at = now
        if client.allowance < 1.0:
            raise RefusedError(
                429,
                f"more than {limits.batches_per_second:g} {self._sends} a second from one client",
                1.0,
            )
        client.allowance -= 1.0
        return client

    def count(self, client: Client, run: str, new_ranks: int, now: float) -> None:
        """Count ranks that are new; 429 for more runs or ranks than a client has."""
        if run in client.ranks and not new_ranks:
            client.ranks[run] = (client.ranks[run][0], now)
            return
        before = client.ranks.get(run, (0, now))[0]
        limits = self._limits
        total = sum(count for count, _ in client.ranks.values()) + new_ranks
        if total > limits.ranks or len(client.ranks) + (run not in client.ranks) > limits.runs:
            self._forget_idle(client, now)
            total = sum(count for count, _ in client.ranks.values()) + new_ranks
        if total > limits.ranks:
            raise RefusedError(429, f"more than {limits.ranks:,} ranks from one client", 60.0)
        if len(client.ranks) + (run not in client.ranks) > limits.runs:
            raise RefusedError(429, f"more than {limits.runs:,} runs from one client", 60.0)
        client.ranks[run] = (before + new_ranks, now)

    def _forget_idle(self, client: Client, now: float) -> None:
        client.ranks = {
            run: (count, at) for run, (count, at) in client.ranks.items() if now - at < HOUR_SECONDS
        }
