"""Snapshots of PyTorch's GPU allocator: what held the memory, and what was short. Start with
`memory_source`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "DeviceMemory": "memory_facts",
    "ProcessMemory": "memory_facts",
    "MemorySnapshots": "memory_source",
    "OutOfMemory": "memory_facts",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
