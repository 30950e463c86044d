"""`read_batch`: a batch that a stranger posted, with every number in the bounds of its column.

What is beyond them could be acknowledged and then not be sealed.
"""

from __future__ import annotations

from collections.abc import Iterator

from computeflow.collection.wire.batches import Batch, RankNews, unpack_batch
from computeflow.errors import InputError

_MAX_RANK = 2**31 - 1
_MAX_MICROS = 2**53
_UNREADABLE = (ArithmeticError, LookupError, MemoryError, SyntaxError, TypeError, ValueError)
"""Errors of numpy for a type or a shape that nobody writes."""


def read_batch(body: bytes) -> Batch:
    """The batch; `InputError` says what is wrong with it."""
    try:
        batch = unpack_batch(body)
    except _UNREADABLE as error:
        raise InputError(f"batch: not readable: {type(error).__name__}") from None
    for rows in batch.ranks:
        if rows.rank > _MAX_RANK or rows.attempt > _MAX_RANK:
            raise InputError("batch: a rank or an attempt beyond 31 bits")
    if any(not 0 <= moment <= _MAX_MICROS for moment in _moments(batch)):
        raise InputError("batch: a moment or a size that cannot be")
    return batch


def _moments(batch: Batch) -> Iterator[int]:
    yield batch.number
    yield batch.sent
    for reading in batch.readings:
        yield reading.at
    for signal in batch.signals:
        yield signal.at
    for rows in batch.ranks:
        if rows.news is not None:
            yield from _rare_moments(rows.news)


def _rare_moments(news: RankNews) -> Iterator[int]:
    if news.start is not None:
        yield news.start.epoch
        yield -news.start.began
    for event in news.events:
        yield from (event.start, event.end, event.bytes or 0)
    for beat in news.beats:
        yield from (beat.at, beat.since)
