"""Batches that strangers post to a collector, and the collector's journal."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from benchmarks.readers.reader import Build, Reader
from computeflow.collection.collector.batch_bounds import read_batch
from computeflow.collection.store.journal import MAGIC as JOURNAL
from computeflow.collection.store.journal import read_frames
from computeflow.collection.store.segment_tables import SegmentTables
from computeflow.collection.wire.batches import MAGIC, MAX_RANKS, pack_batch

_RANK_BYTES = 600
"""A rank with one step, unpacked."""


def _batch(content: bytes, _: Path) -> object:
    """Read a batch that is not compressed, so that a fuzzer changes what is inside."""
    tables = SegmentTables()
    tables.take(read_batch(MAGIC + zlib.compress(content, 1)))
    return tables.tables()


def _body(content: bytes, _: Path) -> object:
    return read_batch(content)


def _journal(content: bytes, _: Path) -> object:
    return list(read_frames(BytesIO(content)))


def _made(seconds: int) -> bytes:
    import numpy as np

    from benchmarks.measure_ingestion import make_batch_of

    noise = np.random.default_rng(seconds)
    return pack_batch(make_batch_of(seconds % 7, seconds, 8, noise))


def _plain() -> list[bytes]:
    return [zlib.decompress(_made(second)[len(MAGIC) :]) for second in (0, 1, 2)]


def _grown(pack: Callable[[bytes], bytes]) -> dict[str, Build]:
    shapes = {
        "nested": b"\x91",
        "maps": b"\x81",
        "arrays": b"\xdc\xff",
    }

    def build(piece: bytes) -> Build:
        return lambda size: pack(piece * (size // len(piece)))

    def natural(size: int) -> bytes:
        return pack(_sized(size))

    return {"natural": natural} | {name: build(piece) for name, piece in shapes.items()}


def _sized(size: int) -> bytes:
    """A batch of about so many bytes before it is compressed."""
    import numpy as np

    from benchmarks.measure_ingestion import make_batch_of

    ranks = min(max(size // _RANK_BYTES, 1), MAX_RANKS)
    body = pack_batch(make_batch_of(0, 1, ranks, np.random.default_rng(size)))
    return zlib.decompress(body[len(MAGIC) :])


def readers() -> list[Reader]:
    return [
        Reader(name="batch", read=_batch, shapes=_grown(bytes), recorded=_plain),
        Reader(
            name="batch body",
            read=_body,
            shapes=_grown(lambda content: MAGIC + zlib.compress(content)),
            recorded=lambda: [_made(1)],
        ),
        Reader(
            name="journal",
            read=_journal,
            shapes=_grown(lambda content: JOURNAL + content),
            recorded=lambda: [JOURNAL],
        ),
    ]
