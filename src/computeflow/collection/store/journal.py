"""The journal: batches as they came, in files that only grow; `JournalWriter`, `read_frames`.

A file is `CFJRN`, the version byte and `\\r\\n`, then frames: length (u32), CRC-32 (u32) of what
follows, the moment the batch came (Unix microseconds, u64), the batch's own bytes; little-endian. A
file may end in the middle of a frame, which was never acknowledged.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from computeflow.collection.wire.batches import MAX_BODY_BYTES
from computeflow.errors import InputError

MAGIC = b"CFJRN\x01\r\n"
_HEAD = struct.Struct("<IIQ")
_LARGEST = MAX_BODY_BYTES + 8
_BLOCK = 1 << 20
_MAX_VECTORS = 512
"""Pieces that one `writev` takes; the kernel's limit is 1024."""
_MAX_OPEN = 64
JOURNAL_BYTES = 24 << 20
JOURNAL_SECONDS = 300.0
JOURNAL_RECORDS = 250_000
"""A file is closed, and then sealed, when it has so many bytes or records, or is so old: packed well, a
few bytes are a step, and sealing takes memory by the step.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFrame:
    received: int
    """Unix microseconds."""
    body: bytes
    end: int
    """Where in its file the next one begins."""


class JournalWriter:
    """Appends to the newest file; what `append` returned from is on the disk."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self.number = number
        self.size = self.records = 0
        self._file = -1
        self._opened = 0.0
        self._torn = False

    def append(self, frames: Sequence[tuple[int, bytes]], records: int = 0) -> None:
        """Write and sync; `OSError` where that failed, and then nothing of it is in the file.

        A tail that cannot be cut off blocks every later call: what stands in it was not acknowledged,
        and what came behind it could not be told from it.
        """
        if self._torn:
            self._cut()
        if self._file < 0:
            self.open()
        pieces: list[bytes] = []
        for received, body in frames:
            stamp = received.to_bytes(8, "little")
            check = zlib.crc32(body, zlib.crc32(stamp))
            pieces += (_HEAD.pack(len(body) + 8, check, received), body)
        self._torn = True
        try:
            written = _write_all(self._file, pieces)
            os.fdatasync(self._file)
        except OSError:
            self._cut()
            raise
        self._torn = False
        self.size += written
        self.records += records

    def is_due(self, most_bytes: int = JOURNAL_BYTES, seconds: float = JOURNAL_SECONDS) -> bool:
        """Whether the file is full or old enough to be closed; never one without a batch."""
        if self._file < 0 or self.size <= len(MAGIC) or self._torn:
            return False
        is_full = self.size >= most_bytes or self.records >= JOURNAL_RECORDS
        return is_full or time.monotonic() - self._opened >= seconds

    def roll(self) -> None:
        """Close the file and open the next one, or leave that to the next batch."""
        self.close()
        self.number += 1
        with suppress(OSError):
            self.open()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def open(self) -> None:
        path = journal_path(self._folder, self.number)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o644)
        try:
            _write_all(descriptor, [MAGIC])
            os.fsync(descriptor)
            sync_folder(self._folder)
        except OSError:
            os.close(descriptor)
            raise
        self._file, self.size, self.records = descriptor, len(MAGIC), 0
        self._opened = time.monotonic()

    def _cut(self) -> None:
        os.ftruncate(self._file, self.size)
        os.lseek(self._file, self.size, os.SEEK_SET)
        os.fsync(self._file)
        self._torn = False


def journal_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.cfj"


def journal_numbers(folder: Path) -> list[int]:
    """Numbers of the files that are there, oldest first."""
    return sorted(int(path.stem) for path in folder.glob("*.cfj") if path.stem.isdecimal())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_frames(file: BinaryIO, start: int = 0) -> Iterator[JournalFrame]:
    """Whole frames from `start` on, up to the first that is not whole."""
    at = start
    file.seek(at)
    buffer = bytearray()
    if at < len(MAGIC):
        head = file.read(len(MAGIC))
        if len(head) < len(MAGIC):
            return
        if head != MAGIC:
            raise InputError("not a journal of this version")
        at = len(MAGIC)
    place = 0
    while True:
        while (needed := _needed(buffer, place)) > len(buffer) - place:
            del buffer[:place]
            place = 0
            block = file.read(max(_BLOCK, needed - len(buffer)))
            if not block:
                return
            buffer += block
        if needed < _HEAD.size:
            return
        length, check, received = _HEAD.unpack_from(buffer, place)
        begin = place + _HEAD.size
        body = bytes(memoryview(buffer)[begin : begin + length - 8])
        if zlib.crc32(body, zlib.crc32(received.to_bytes(8, "little"))) != check:
            return
        place += needed
        at += needed
        yield JournalFrame(received=received, body=body, end=at)


def _needed(buffer: bytearray, place: int) -> int:
    """Bytes of the frame that begins at `place`; 0 where no frame can begin."""
    if len(buffer) - place < _HEAD.size:
        return _HEAD.size
    (length,) = struct.unpack_from("<I", buffer, place)
    return _HEAD.size - 8 + length if 8 <= length <= _LARGEST else 0


def is_cut_off(path: Path, end: int) -> bool:
    """Whether what stands behind the last whole frame can be the begin of another one, as while it is
    written; else it is damaged.
    """
    with path.open("rb") as file:
        file.seek(end)
        needed = _needed(bytearray(file.read(_HEAD.size)), 0)
        return needed > file.seek(0, os.SEEK_END) - end


def cut_torn_tail(path: Path) -> str:
    """Cut off what is behind the last whole frame; say what that was, "" where nothing was.

    The begin of a frame was never acknowledged. What is damaged may have been: it is kept beside.
    """
    end = min(len(MAGIC), path.stat().st_size)
    with path.open("rb") as file:
        for frame in read_frames(file):
            end = frame.end
    torn = path.stat().st_size - end
    if not torn:
        return ""
    said = f"{path.name}: cut {torn:,} bytes"
    if is_cut_off(path, end):
        said += " that were never acknowledged"
    else:
        kept = damaged_path(path)
        shutil.copyfile(path, kept)
        sync_folder(path.parent)
        said += f" behind a damaged batch; as it was: {kept.name}"
    with path.open("r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())
    return said


def damaged_path(path: Path) -> Path:
    """Where a journal is kept that is damaged: whoever mends it may want it."""
    return path.with_suffix(".damaged")


class JournalFollower:
    """Reads a journal while it is written, file after file.

    Files are opened as soon as they are seen: one that is sealed and deleted meanwhile is still read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: deque[tuple[int, BinaryIO]] = deque()
        self._seen = 0
        self._at = 0
        self.skipped = 0
        """Files that were gone before they could be opened, or too far behind to be read."""

    def look(self) -> None:
        """Open the files that are new."""
        for number in journal_numbers(self._folder):
            if number > self._seen:
                self._seen = number
                try:
                    file = journal_path(self._folder, number).open("rb", buffering=0)
                except FileNotFoundError:
                    self.skipped += 1
                    continue
                self._files.append((number, file))
        while len(self._files) > _MAX_OPEN:
            self._drop()
            self.skipped += 1

    def read(self, most: int) -> list[JournalFrame]:
        """The next frames, `most` of them at the most."""
        self.look()
        frames: list[JournalFrame] = []
        while self._files and len(frames) < most:
            is_closed = len(self._files) > 1
            for frame in read_frames(self._files[0][1], self._at):
                frames.append(frame)
                self._at = frame.end
                if len(frames) >= most:
                    return frames
            if not is_closed:
                break
            self._drop()
        return frames

    def _drop(self) -> None:
        self._files.popleft()[1].close()
        self._at = 0

    def close(self) -> None:
        while self._files:
            self._drop()


def _write_all(descriptor: int, pieces: Sequence[bytes]) -> int:
    """Write all pieces, however many calls that takes; return the bytes."""
    total = 0
    for start in range(0, len(pieces), _MAX_VECTORS):
        some = pieces[start : start + _MAX_VECTORS]
        size = sum(map(len, some))
        done = os.writev(descriptor, some)
        if done < size:
            rest = memoryview(b"".join(some))[done:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        total += size
    return total
