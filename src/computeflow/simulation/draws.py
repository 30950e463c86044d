"""Random numbers by replica and by number of the event, not by the order in which they are asked
for.

The j-th event of a kind in a replica has the same marks whatever the policy or the conditions make
of it, so two runs can be compared replica by replica (common random numbers). Replicas come in
chunks of a fixed size, each with its own seed, so the answer does not depend on how many workers
share the chunks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CHUNK = 1000
"""Replicas with one seed."""
_UNIFORMS = 4
GAP, NORMAL = _UNIFORMS, _UNIFORMS + 1
"""Places of an event's marks: uniforms first, then the gap before it, then a normal number."""
_BLOCK = 32
"""Events drawn at a time; part of what the seed means."""
KINDS = ("failure", "straggler", "outage")


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise InputError(f"seed {seed}: from 0 to 2^63")


class Stream:
    """Events of one kind, of one chunk; `copies` lanes share a replica's marks."""

    def __init__(self, seed: int, chunk: int, kind: str, replicas: int, copies: int) -> None:
        sequence = np.random.SeedSequence([seed, chunk, KINDS.index(kind)])
        self._random = np.random.Generator(np.random.Philox(sequence))
        self._columns: Ints = np.tile(np.arange(replicas), copies)
        self._next: Ints = np.zeros(replicas * copies, dtype=np.int64)
        self._marks: Floats = np.empty((_BLOCK, replicas, _UNIFORMS + 2))
        self._drawn = 0

    def take(self, lanes: Ints) -> Floats:
        """The marks of the next event of each lane, one row a lane."""
        rows = self._next[lanes]
        self._next[lanes] += 1
        while rows.size and rows.max() >= self._drawn:
            self._draw()
        return np.asarray(self._marks[rows, self._columns[lanes]])

    def _draw(self) -> None:
        if self._drawn == len(self._marks):
            self._marks = np.concatenate([self._marks, np.empty_like(self._marks)])
        block = self._marks[self._drawn : self._drawn + _BLOCK]
        shape = block.shape[:2]
        block[..., :_UNIFORMS] = self._random.random((*shape, _UNIFORMS))
        block[..., GAP] = self._random.standard_exponential(shape)
        block[..., NORMAL] = self._random.standard_normal(shape)
        self._drawn += _BLOCK
