"""Every reader of ComputeFlow, with its inputs: `all_readers`."""

from benchmarks.readers import (
    batches,
    fleets,
    kineto,
    logs,
    nsys,
    pickles,
    plans,
    sites,
    tables,
    topologies,
    typed,
    xplane,
)
from benchmarks.readers.reader import Reader

__all__ = ["Reader", "all_readers"]
_KINDS = (
    kineto,
    nsys,
    xplane,
    pickles,
    logs,
    fleets,
    topologies,
    tables,
    sites,
    plans,
    typed,
    batches,
)


def all_readers() -> list[Reader]:
    return [reader for kind in _KINDS for reader in kind.readers()]
