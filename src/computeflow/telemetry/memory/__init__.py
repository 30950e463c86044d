"""Snapshots of PyTorch's GPU allocator: what held the memory, what was short; see `source`."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "DeviceMemory": "facts",
    "Memory": "facts",
    "MemorySnapshots": "source",
    "OutOfMemory": "facts",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
