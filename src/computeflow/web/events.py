"""`Broadcaster`: what changed, to all who look, by server-sent events.

A viewer subscribes to addresses of pages. Each address is asked for once, however many look at it, when
the source has changed; its JSON goes out if it differs from what was sent before. Where it cannot be
read, `stale` says so, and `fresh` that what was sent last holds again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field

from computeflow.collection.collector.clients import RefusedError
from computeflow.files.names import shown

LOOK_SECONDS = 1.0
MAX_VIEWERS = 2_000
MAX_ADDRESSES = 8
"""Addresses of one stream."""
MAX_TOPICS = 256
"""Different addresses that are looked at: each is asked for whenever the source has changed."""
MAX_SESSION_STREAMS = 32
MAX_CLIENT_ADDRESSES = 64
"""Different addresses of one client, which must not take all the topics there are: of a session, or of
all programs at one network address.
"""
_MAX_LOOKS = 16
"""Addresses that are asked for at a time: those of a large change leave room for who opens a page."""
_COMING_SECONDS = 10.0
"""A stream that was let in and has not begun after so long never will: its client has left."""
_BEAT_SECONDS = 15.0
_PATIENCE = 10
"""An address is asked for again after so many times what its answer takes to compute; after its first
answer at once, which takes longer than the next ones."""
_REFUSED_SECONDS = 5.0
"""After a refusal it is asked for again, whether the source changes or not."""
Fetch = Callable[[str], Awaitable[bytes | None]]
_SHOWN = 200
_LOG = logging.getLogger("computeflow.web")


def tag_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(slots=True, eq=False)
class _Viewing:
    """One viewer: the events that wait for it, the latest of each address."""

    known: frozenset[str]
    """Tags of contents that it had when it came."""
    client: str = ""
    """Streams of one client are counted together."""
    addresses: tuple[str, ...] = ()
    given: set[str] = field(default_factory=set)
    """Addresses of which it has heard since."""
    waiting: dict[str, bytes] = field(default_factory=dict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, address: str, topic: _Topic) -> None:
        first = address not in self.given
        self.given.add(address)
        if first and topic.tag in self.known:
            return
        self.waiting[address] = topic.event
        self.woken.set()

    def tell(self, address: str, *, stale: bool) -> None:
        """Whether an address can be read; the last word counts."""
        event = (
            f"event: {'stale' if stale else 'fresh'}\ndata: {json.dumps({'address': address})}\n\n"
        )
        self.waiting[f"stale {address}"] = event.encode()
        self.woken.set()


@dataclass(slots=True)
class _Topic:
    viewings: set[_Viewing] = field(default_factory=set)
    revision: Hashable = None
    tag: str = ""
    event: bytes = b""
    due: float = 0.0
    look: asyncio.Task[None] | None = None
    """While it is asked for."""
    stale: bool = False
    """Whether it could not be read the last time: what its viewers see is from before."""


def _mark(address: str, topic: _Topic, *, stale: bool) -> None:
    if stale:
        topic.revision = None  # it may come back as it was
    if topic.stale != stale:
        topic.stale = stale
        for viewing in topic.viewings:
            viewing.tell(address, stale=stale)


class Broadcaster:
    def __init__(
        self,
        fetch: Fetch,
        revision: Callable[[], Awaitable[Hashable]],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._fetch, self._revision, self._look_seconds = fetch, revision, look_seconds
        self._topics: dict[str, _Topic] = {}
        self._viewings: set[_Viewing] = set()
        self._coming: dict[_Viewing, float] = {}
        """Those that were let in and have not begun, and when."""
        self._task: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Semaphore(_MAX_LOOKS)
        self._closed = False
        self._faults: dict[str, str] = {}
        """What went wrong last, by address."""

    @property
    def viewers(self) -> int:
        return len(self._viewings)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for viewing in self._viewings:
            viewing.woken.set()
        for task in (self._task, *self._looks):
            if task is not None:
                task.cancel()

    def stream(
        self,
        addresses: Sequence[str],
        known: Sequence[str],
        client: str = "",
        max_streams: int = MAX_SESSION_STREAMS,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[bytes]:
        """Events of these addresses while the session goes on; `known` are tags of contents that the
        viewer has.

        Refused here, before an answer has begun, where too much is looked at already.
        """
        viewing = _Viewing(frozenset(known), client, tuple(dict.fromkeys(addresses)))
        self._check_room(viewing, max_streams)
        self._coming[viewing] = time.monotonic()
        return self._stream(viewing, goes_on)

    def _check_room(self, viewing: _Viewing, max_streams: int) -> None:
        since = time.monotonic() - _COMING_SECONDS
        self._coming = {each: at for each, at in self._coming.items() if at > since}
        viewings = [*self._viewings, *self._coming]
        if len(viewings) >= MAX_VIEWERS:
            raise RefusedError(503, f"more than {MAX_VIEWERS:,} viewers", 10.0)
        coming = (address for each in self._coming for address in each.addresses)
        if len({*self._topics, *coming, *viewing.addresses}) > MAX_TOPICS:
            raise RefusedError(503, f"more than {MAX_TOPICS} addresses are looked at", 10.0)
        mine = [each for each in viewings if viewing.client and each.client == viewing.client]
        held = {address for each in (*mine, viewing) for address in each.addresses}
        if len(mine) >= max_streams or len(held) > MAX_CLIENT_ADDRESSES:
            raise RefusedError(
                429,
                f"more than {max_streams:,} streams or {MAX_CLIENT_ADDRESSES} addresses of one client: "
                "close a page",
                10.0,
            )

    async def _stream(self, viewing: _Viewing, goes_on: Callable[[], bool]) -> AsyncIterator[bytes]:
        self._subscribe(viewing)
        try:
            yield b"retry: 2000\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(viewing.woken.wait(), _BEAT_SECONDS)
                except TimeoutError:
                    viewing.waiting[""] = b": beat\n\n"
                if not goes_on():
                    return
                viewing.woken.clear()
                waiting, viewing.waiting = viewing.waiting, {}
                for event in waiting.values():
                    yield event
        finally:
            self._unsubscribe(viewing)

    def _subscribe(self, viewing: _Viewing) -> None:
        self._coming.pop(viewing, None)
        self._viewings.add(viewing)
        for address in viewing.addresses:
            topic = self._topics.setdefault(address, _Topic())
            topic.viewings.add(viewing)
            if topic.tag:
                viewing.give(address, topic)
            if topic.stale:
                viewing.tell(address, stale=True)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _unsubscribe(self, viewing: _Viewing) -> None:
        self._viewings.discard(viewing)
        for address in viewing.addresses:
            topic = self._topics.get(address)
            if topic is not None:
                topic.viewings.discard(viewing)
                if not topic.viewings:
                    if topic.look is not None:
                        topic.look.cancel()  # nobody waits for it any more
                    del self._topics[address]
                    self._faults.pop(address, None)

    async def _run(self) -> None:
        while self._viewings and not self._closed:
            try:
                revision = await self._revision()
            except Exception as error:  # moved away, or not readable for a moment
                self._say_fault("the source", error)
                for address, topic in self._topics.items():
                    _mark(address, topic, stale=True)
            else:
                self._faults.pop("the source", None)
                self._look_at_all(revision)
            await asyncio.sleep(self._look_seconds)

    def _look_at_all(self, revision: Hashable) -> None:
        """Side by side, so that an answer that takes long delays no other; the addresses with the most
        viewers first.
        """
        for address, topic in sorted(self._topics.items(), key=lambda each: -len(each[1].viewings)):
            if topic.look is not None or topic.revision == revision or time.monotonic() < topic.due:
                continue
            look = topic.look = asyncio.create_task(self._look_once(address, topic, revision))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _look_once(self, address: str, topic: _Topic, revision: Hashable) -> None:
        try:
            async with self._looking:
                await self._look(address, topic, revision)
            self._faults.pop(address, None)
        except Exception as error:  # a fault of one page must not end those of all
            if topic.viewings:
                self._say_fault(address, error)
            _mark(address, topic, stale=True)
        finally:
            topic.look = None

    def _say_fault(self, address: str, error: Exception) -> None:
        """Once, until it goes well or wrong in another way; it is tried again at the next look."""
        text = repr(error)
        if self._faults.get(address) != text:
            self._faults[address] = text
            _LOG.warning("%s could not be shown: %s", shown(address, _SHOWN), text[:300])

    async def _look(self, address: str, topic: _Topic, revision: Hashable) -> None:
        began = time.monotonic()
        try:
            content = await self._fetch(address)
        finally:
            now = time.monotonic()
            topic.due = now + _PATIENCE * (now - began) if topic.tag else now
        _mark(address, topic, stale=content is None)  # refused: of a run that is gone, say
        if content is None:
            topic.due = max(topic.due, now + _REFUSED_SECONDS)
            return
        topic.revision = revision
        if tag_of(content) == topic.tag:
            return
        topic.tag = tag_of(content)
        head = json.dumps({"address": address, "tag": topic.tag}).encode()
        start = f"event: page\nid: {topic.tag}\ndata: ".encode()
        topic.event = start + head[:-1] + b', "content": ' + content + b"}\n\n"
        for viewing in topic.viewings:
            viewing.give(address, topic)
