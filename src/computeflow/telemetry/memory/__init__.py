"""Snapshots of PyTorch's GPU allocator: what held the memory, what was short; see `source`."""
