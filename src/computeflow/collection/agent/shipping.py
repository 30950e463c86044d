"""Batches to a collector, so that every record arrives once and in order: `Shipper`.

The files are the buffer: a batch that is not acknowledged is kept and sent again, and nothing more is
read meanwhile. Where the collector wants another record than the next one, the file is read again
from there. So an agent that is killed, and a collector that was away, lose and double nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from computeflow.collection.agent.collector_client import CollectorClient, CollectorReply
from computeflow.collection.agent.followed_runs import FollowedRun
from computeflow.collection.agent.node_sources import NodeLook
from computeflow.collection.wire.batches import (
    MAX_RANKS,
    MAX_READINGS,
    NodeSignal,
    RankPart,
    make_batch,
    pack_batch,
)

MAX_RECORDS = 4096
"""Records of one batch, of all its ranks."""
MAX_BYTES = 512 << 10
"""Bytes of files in one batch."""
_FIRST_WAIT = 0.5
_MAX_WAIT = 30.0
_SAID_SECONDS = 60.0
"""The same trouble is said once in this time."""
_MAX_SIGNALS = 500
"""Signals of the node that are kept while the collector is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A batch that waits for its acknowledgement."""

    body: bytes
    run: FollowedRun
    about: dict[str, Any]
    ranks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """First record, and the one after the last, by `RANK.ATTEMPT`."""


class Shipper:
    """Sends what runs and the node have to say; `say` gets a line when something is wrong."""

    def __init__(
        self,
        client: CollectorClient,
        *,
        agent: str,
        node: str,
        say: Callable[[str], None],
        noise: random.Random | None = None,
    ) -> None:
        self._client, self._agent, self._node, self._say = client, agent, node, say
        self._noise = noise or random.Random()
        self._number = 0
        self._pending: _Pending | None = None
        self._records = MAX_RECORDS
        self._bytes = MAX_BYTES
        self._single = False
        """Whether ranks are sent one by one, because a batch of several was refused."""
        self._failures = 0
        self._resume = 0.0
        self._said: dict[str, float] = {}
        self._signals: list[NodeSignal] = []
        self.counts: Counter[str] = Counter()

    @property
    def connected(self) -> bool:
        return self._failures == 0

    def ship_run(self, run: FollowedRun, now: float, sent: Callable[[], int]) -> bool:
        """Send a batch of a run; whether there is more to send now. `now` is on a steady clock."""
        if now < self._resume:
            return False
        if self._pending is None:
            if not run.known and not self._ask_positions(run, now):
                return False
            self._pending = self._next_batch(run, sent())
        if self._pending is None or self._pending.run is not run:
            return False
        reply = self._client.send(self._pending.body)
        return self._take_reply(self._pending, reply, now)

    @property
    def waiting_run(self) -> FollowedRun | None:
        """The run whose batch is to be acknowledged before any other is sent."""
        return self._pending.run if self._pending else None

    def ship_node(self, look: NodeLook, now: float, sent: int) -> bool:
        """Send readings and signals of the node; True where they have arrived.

        Readings are worth little later and are not kept; signals are.
        """
        self._signals = [*self._signals, *look.signals][-_MAX_SIGNALS:]
        if now < self._resume:
            return False
        batch = make_batch(
            (),
            agent=self._agent,
            number=self._count(),
            node=self._node,
            sent=sent,
            readings=look.readings[:MAX_READINGS],
            missing=look.missing,
            signals=self._signals,
        )
        reply = self._client.send(pack_batch(batch))
        if reply.status != 200:
            self._back_off(reply, now)
            return False
        self._arrived()
        self._signals = []
        return True

    def forget(self, run: FollowedRun) -> None:
        """A run's folder is gone: what of it was to be sent cannot be asked for again."""
        if self._pending is not None and self._pending.run is run:
            self._pending = None

    def _count(self) -> int:
        self._number += 1
        return self._number - 1

    def _arrived(self) -> None:
        if self._failures:
            self._say("the collector answers again")
        self._failures = 0
        self._resume = 0.0
        self.counts["batches"] += 1

    def _ask_positions(self, run: FollowedRun, now: float) -> bool:
        reply = self._client.positions(run.run)
        if reply.status == 404:  # it has never heard of the run
            reply = CollectorReply(status=200)
        if reply.status != 200:
            self._back_off(reply, now)
            return False
        for key, tail in run.tails.items():
            tail.go_to(reply.next.get(key, 0))
        run.known = True
        run.positions = reply.next
        return True

    def _next_batch(self, run: FollowedRun, sent: int) -> _Pending | None:
        parts: list[RankPart] = []
        ranks: dict[str, tuple[int, int]] = {}
        records, size = self._records, self._bytes
        tails = run.ready_tails()
        share = max(1, len(tails))
        for key, tail in tails:
            if records <= 0 or len(parts) >= (1 if self._single else MAX_RANKS):
                break
            part = tail.read(max(records // share, 1), max(size // share, 1))
            if tail.refused:
                self._say(f"{tail.path} is not shipped: {tail.refused}")
            if tail.is_short and not tail.warned:
                tail.warned = True
                self._say(f"{tail.path} has fewer records than the collector has of {key}")
            if part is not None:
                parts.append(part)
                ranks[key] = (part.first, part.first + part.records)
        about = run.about if run.about != run.about_sent else {}
        signals, run.signals = run.signals, []
        if not parts and not about and not signals:
            return None
        batch = make_batch(
            parts,
            agent=self._agent,
            number=self._count(),
            node=self._node,
            sent=sent,
            run=run.run,
            about=about,
            signals=signals,
        )
        return _Pending(body=pack_batch(batch), run=run, about=about, ranks=ranks)

    def _take_reply(self, pending: _Pending, reply: CollectorReply, now: float) -> bool:
        if reply.status == 200:
            self._acknowledge(pending, reply)
            return bool(pending.ranks)
        if reply.status == 409:
            self.counts["rewinds"] += 1
            self._pending = None
            for key in pending.ranks:
                if key in pending.run.tails:
                    pending.run.tails[key].go_to(reply.next.get(key, 0))
            return self._again_after(pending, reply, now)
        if reply.status == 413 and self._halve(pending):
            return True
        if reply.status in (400, 413, 415, 422):
            return self._refused(pending, reply)
        self._back_off(reply, now)
        return False

    def _acknowledge(self, pending: _Pending, reply: CollectorReply) -> None:
        self._pending = None
        self._arrived()
        if pending.about:
            pending.run.about_sent = pending.about
        for key, (_, after) in pending.ranks.items():
            wanted = reply.next.get(key, after)
            tail = pending.run.tails.get(key)
            if tail is not None and wanted != tail.next:
                tail.go_to(wanted)
        self.counts["records"] += sum(after - first for first, after in pending.ranks.values())

    def _again_after(self, pending: _Pending, reply: CollectorReply, now: float) -> bool:
        """Whether to go on at once after a gap; a collector that wants the same again is left alone."""
        moved = any(reply.next.get(key, 0) != first for key, (first, _) in pending.ranks.items())
        if not moved:
            self._back_off(reply, now)
        return moved

    def _rewind(self, pending: _Pending) -> None:
        self._pending = None
        for key, (first, _) in pending.ranks.items():
            if key in pending.run.tails:
                pending.run.tails[key].go_to(first)

    def _halve(self, pending: _Pending) -> bool:
        """Make batches smaller; False where they cannot be."""
        taken = sum(after - first for first, after in pending.ranks.values())
        if taken <= 1:
            return False
        self._rewind(pending)
        self._records = max(min(self._records, taken) // 2, 1)
        self._bytes = max(self._bytes // 2, 1)
        self._single = self._single or self._records <= len(pending.ranks)
        return True

    def _refused(self, pending: _Pending, reply: CollectorReply) -> bool:
        """Leave out the rank whose records a collector will never take; others are sent alone."""
        self.counts["refused"] += 1
        if len(pending.ranks) > 1:
            self._rewind(pending)
            self._single = True
            return True
        self._pending = None
        self._single = False
        pending.run.about_sent = pending.about or pending.run.about_sent
        for key in pending.ranks:
            tail = pending.run.tails.get(key)
            if tail is not None:
                tail.refused = f"the collector refuses its records: {reply.reason}"
                self._say(f"{tail.path} is not shipped: {tail.refused}")
        return True

    def _back_off(self, reply: CollectorReply, now: float) -> None:
        """Wait as long as the collector asks, or twice as long as the last time."""
        self._failures += 1
        self.counts["failures"] += 1
        wait = min(_FIRST_WAIT * 2 ** min(self._failures - 1, 10), _MAX_WAIT)
        if reply.wait_seconds is not None:
            wait = reply.wait_seconds
        self._resume = now + wait * self._noise.uniform(0.75, 1.25)
        self._say_once(f"the collector does not take batches: {reply.reason}", now)

    def _say_once(self, text: str, now: float) -> None:
        if now - self._said.get(text, -_SAID_SECONDS) >= _SAID_SECONDS:
            self._said = {text: now} if len(self._said) > 64 else self._said | {text: now}
            self._say(text)
