"""Throughput of a data pipeline: how fast the files of a training set can be read on this machine.

Reads a sample of the files, past the page cache: in order, at random, and through the decoder that
the format needs. The answer is tokens per second of one process and of all cores, and what would
raise it: repacking into larger shards, a cache on local NVMe, more workers.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from computeflow.catalog import Catalog
from computeflow.errors import InputError

_FORMATS = {
    ".bin": "tokens", ".u16": "tokens", ".u32": "tokens", ".npy": "tokens",
    ".jsonl": "jsonl", ".json": "jsonl", ".gz": "jsonl.gz", ".txt": "text",
}  # fmt: skip
_CHUNK = 1 << 20
_TOKEN_BYTES = 4.0
"""Bytes of a token number, for vocabularies of more than 65,536."""
_BYTES_PER_TOKEN_TEXT = 4.0
"""Bytes per token of English text with a 100k-word vocabulary, a common rule of thumb; stated in
the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetProbe:
    folder: str
    format: str
    files: int
    total_bytes: int
    median_file_bytes: float
    smallest_file_bytes: int
    largest_file_bytes: int
    sequential_bytes_per_second: float
    random_bytes_per_second: float
    """Rate of reading whole samples (64 KiB) at random positions."""
    decode_bytes_per_second: float
    """File bytes decoded in one process, with the data already in memory."""
    bytes_per_token: float
    tokens_per_second_per_worker: float
    tokens_per_second: float
    """Rate with one worker on each CPU, limited by the disk."""
    workers: int
    left_out: dict[str, int] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    """What would raise the rate, each with what it buys, and whether the rate is enough."""


def probe_dataset(
    path: Path, *, needed: float | None = None, sample_bytes: int = 64 << 20
) -> DatasetProbe:
    """Examine a file or folder of training data; `needed` is the plan's tokens per second."""
    files, kind, left_out = _inventory(path)
    sizes = [file.stat().st_size for file in files]
    token_bytes = 4.0 if files[0].suffix == ".u32" else 2.0
    per_token = token_bytes if kind == "tokens" else _BYTES_PER_TOKEN_TEXT
    chosen = random.Random(0).sample(files, min(len(files), 32))
    sequential = _sequential(chosen, sample_bytes)
    at_random = _at_random(chosen)
    decode = _decode_rate(chosen[0], kind)
    workers = len(os.sched_getaffinity(0))
    per_worker = 1 / (1 / sequential + 1 / decode)
    all_workers = min(sequential, workers * per_worker)
    expansion = _expansion(chosen[0], kind)
    probe = DatasetProbe(
        folder=str(path),
        format=kind,
        files=len(files),
        total_bytes=sum(sizes),
        median_file_bytes=statistics.median(sizes),
        smallest_file_bytes=min(sizes),
        largest_file_bytes=max(sizes),
        sequential_bytes_per_second=sequential,
        random_bytes_per_second=at_random,
        decode_bytes_per_second=decode,
        bytes_per_token=per_token,
        workers=workers,
        left_out=left_out,
        tokens_per_second_per_worker=per_worker * expansion / per_token,
        tokens_per_second=all_workers * expansion / per_token,
    )
    return advise(probe, needed)


def check_exists(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")


def _inventory(path: Path) -> tuple[list[Path], str, dict[str, int]]:
    check_exists(path)
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    known = [_FORMATS[p.suffix] for p in files if p.suffix in _FORMATS]
    if not known:
        raise InputError(
            f"{path}: no training files ({', '.join(sorted(_FORMATS))}) among {len(files)}"
        )
    kind = statistics.mode(known)
    reasons = {file: _left_out(file, kind) for file in files}
    chosen = [file for file, reason in reasons.items() if not reason]
    if not chosen:
        raise InputError(f"{path}: all {kind} files are empty")
    return chosen, kind, dict(Counter(filter(None, reasons.values())))


def _left_out(file: Path, kind: str) -> str:
    """Why a file is not read; "" where it is."""
    if _FORMATS.get(file.suffix) != kind:
        return f"{file.suffix or 'no suffix'}: another format"
    return "" if file.stat().st_size else "empty"


def _sequential(files: list[Path], limit: int) -> float:
    done, seconds = 0, 0.0
    for file in files:
        with file.open("rb", buffering=0) as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while done < limit and (data := opened.read(_CHUNK)):
                done += len(data)
            seconds += time.perf_counter() - began
        if done >= limit:
            break
    return done / max(seconds, 1e-9)


def _at_random(files: list[Path], reads: int = 200, size: int = 1 << 16) -> float:
    draw, done, seconds = random.Random(1), 0, 0.0
    for _ in range(reads):
        with draw.choice(files).open("rb", buffering=0) as opened:
            length = os.fstat(opened.fileno()).st_size
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            done += len(os.pread(opened.fileno(), size, draw.randrange(max(length - size, 1))))
            seconds += time.perf_counter() - began
    return done / max(seconds, 1e-9)


def _decode_rate(file: Path, kind: str) -> float:
    """File bytes per CPU-second through the decoder; tokens need only a copy."""
    with file.open("rb") as opened:
        data = opened.read(8 << 20)
    decode = _DECODERS[kind]
    used = time.process_time()
    rounds = 0
    while rounds < 3 or time.process_time() - used < 0.1:
        decode(data)
        rounds += 1
    return rounds * len(data) / max(time.process_time() - used, 1e-9)


def _decode_jsonl(data: bytes) -> None:
    for line in data.split(b"\n")[:-1]:
        try:
            json.loads(line)
        except ValueError:
            continue


def _decode_gzip(data: bytes) -> None:
    _decode_jsonl(_unzipped(data))


def _unzipped(data: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=47).decompress(data)
    except zlib.error:
        return b""


_DECODERS: dict[str, Callable[[bytes], object]] = {
    "tokens": bytearray,
    "jsonl": _decode_jsonl,
    "jsonl.gz": _decode_gzip,
    "text": lambda data: data.decode("utf-8", "replace"),
}


def _expansion(file: Path, kind: str) -> float:
    """Text bytes per file byte: a compressed shard holds more than its size."""
    if kind != "jsonl.gz":
        return 1.0
    with file.open("rb") as opened:
        data = opened.read(1 << 20)
    return max(len(_unzipped(data)) / len(data), 1.0)


def advise(probe: DatasetProbe, needed: float | None) -> DatasetProbe:
    enough = [_enough(probe, needed)] if needed else []
    return replace(probe, advice=(*_remedies(probe), *enough))


def _remedies(probe: DatasetProbe) -> Iterator[str]:
    """Shards, order, format, workers and tier, each where it buys something, with what it buys."""
    sequential, at_random = probe.sequential_bytes_per_second, probe.random_bytes_per_second
    if probe.files > 1000 and probe.median_file_bytes < 16 << 20:
        yield (
            f"shards: repack {probe.files:,} files of {probe.median_file_bytes / 2**20:.1f} MiB into "
            "shards of 64 MiB or more: opening files costs more than reading them"
        )
    if at_random < 0.3 * sequential:
        yield (
            "order and cache: read shards in order and shuffle in memory, or cache "
            f"{probe.total_bytes / 1e9:.1f} GB on local NVMe: up to {sequential / at_random:.1f} times "
            f"the bytes of random reads ({_rate(at_random)} to {_rate(sequential)})"
        )
    if probe.format != "tokens" and probe.decode_bytes_per_second < sequential:
        ahead = sequential / _TOKEN_BYTES / probe.tokens_per_second_per_worker
        yield (
            f"format: tokenise ahead into a flat token file: up to {ahead:.1f} times the tokens of one "
            "worker; decoding, not the disk, limits it "
            f"({_rate(probe.decode_bytes_per_second)} of {_rate(sequential)})"
        )
    gain = probe.tokens_per_second / probe.tokens_per_second_per_worker
    if probe.workers > 1 and gain > 1.1:
        yield (f"workers: {probe.workers} instead of one: {gain:.1f} times the tokens")
    drive = Catalog().storage["nvme-gen4"].read_bytes_per_second or 0.0
    if sequential < 0.5 * drive:
        yield (
            f"tier: this storage gives {_rate(sequential)}; one local NVMe drive of the catalog "
            f"{_rate(drive)}, {drive / sequential:.1f} times as much, where the disk limits"
        )


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:,.0f} MB/s"


def _enough(probe: DatasetProbe, needed: float) -> str:
    workers = needed / probe.tokens_per_second_per_worker
    verb = "is enough" if probe.tokens_per_second >= needed else "is NOT enough"
    return (
        f"{probe.tokens_per_second:,.0f} tokens/s from this machine {verb} for the {needed:,.0f} "
        f"needed; that takes {workers:.1f} workers if the disk keeps up"
    )
