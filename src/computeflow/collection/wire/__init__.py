"""Batches between agents and collectors: `pack_batch`, `unpack_batch`."""

from computeflow.collection.wire.batches import Batch, make_batch, pack_batch, unpack_batch

__all__ = ["Batch", "make_batch", "pack_batch", "unpack_batch"]
