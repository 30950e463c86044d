"""Batches between agents and collectors: `pack_batch`, `unpack_batch`."""
