"""Throughput of a disk: sequential and random reads, and a checkpoint's write, past the page cache.

Pages are dropped from the cache before they are read (`posix_fadvise`), and a write counts when
`fsync` returns. Where a file system keeps its data in memory anyway (tmpfs), that is what is
measured.
"""

from __future__ import annotations

import mmap
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import InputError

BLOCK = 1 << 20
PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTiming:
    folder: str
    size_bytes: int
    write_bytes_per_second: float
    read_bytes_per_second: float
    random_read_seconds: float
    """Median time of one 4 KiB read at a random position."""


def check_writable(folder: Path) -> None:
    descriptor, name = _new_file(folder)
    os.close(descriptor)
    Path(name).unlink()


def storage_rates(folder: Path, size_bytes: int, reads: int = 200) -> StorageTiming:
    """Write, read back and read at random one file of `size_bytes` in `folder`, then remove it."""
    descriptor, name = _new_file(folder)
    try:
        written = _write(descriptor, size_bytes)
        _forget(descriptor)
        read = _read(descriptor, size_bytes)
        _forget(descriptor)
        latency = _random_read_seconds(descriptor, size_bytes, reads)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)
    return StorageTiming(
        folder=str(folder),
        size_bytes=size_bytes,
        write_bytes_per_second=written,
        read_bytes_per_second=read,
        random_read_seconds=latency,
    )


def _new_file(folder: Path) -> tuple[int, str]:
    try:
        return tempfile.mkstemp(prefix="computeflow-probe-", dir=folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there: {error.strerror or error}") from None


def _write(descriptor: int, size: int) -> float:
    block = os.urandom(BLOCK)  # compressible data would flatter some file systems
    began = time.perf_counter()
    for _ in range(size // BLOCK):
        view = memoryview(block)
        while view:
            view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    return size / (time.perf_counter() - began)


def _read(descriptor: int, size: int) -> float:
    buffer = mmap.mmap(-1, BLOCK)
    os.lseek(descriptor, 0, os.SEEK_SET)
    began = time.perf_counter()
    while os.readv(descriptor, [buffer]):
        pass
    return size / (time.perf_counter() - began)


def _random_read_seconds(descriptor: int, size: int, reads: int) -> float:
    draw = random.Random(0)
    times = []
    for _ in range(reads):
        position = draw.randrange(size // PAGE) * PAGE
        began = time.perf_counter()
        os.pread(descriptor, PAGE, position)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _forget(descriptor: int) -> None:
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
