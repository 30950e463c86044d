"""The file of one rank: frames with a length and a checksum, each one JSON object.

    b"CFREC\\x01\\r\\n", then for each record: length (u32), CRC-32 (u32), the record as UTF-8 JSON

Little-endian. A file may end in the middle of a frame (its process was killed, its disk is full):
what stands before it counts. The records are described in docs/sources/run-folder.md.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

MAGIC = b"CFREC\x01\r\n"
"""The sixth byte is the version of the format."""
MAX_RECORD = 1 << 20
"""Most bytes of one record: a longer length is damage."""
_HEAD = struct.Struct("<II")
_MARK = b'{"k":'
"""How every record begins: what is looked for behind damage."""
_FIRST_LOOK = 4096
"""Bytes that are searched first behind damage, then twice as many: most of it is small."""
_TRIED_PER_BYTE = 16
"""Bytes of false beginnings that are checksummed for each byte that is searched: keeps a search
through a file of nothing but beginnings linear."""

Record = dict[str, Any]


class DamagedError(Exception):
    """A frame whose bytes are not what was written."""


def packed(record: Record) -> bytes:
    """A frame; numbers that JSON does not have (nan, inf) become text, which `float` reads."""
    record = {"k": record["k"], **record}  # first, as the search behind damage expects it
    try:
        text = json.dumps(record, separators=(",", ":"), default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), separators=(",", ":"), default=str)
    body = text.encode()
    if len(body) > MAX_RECORD:
        raise ValueError(f"a record of {len(body)} bytes: at most {MAX_RECORD}")
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value


def packed_all(records: Iterable[Record]) -> bytes:
    return b"".join(map(packed, records))


class FrameReader:
    """Reads records as they are appended: `read` again gives what has come since."""

    def __init__(self, file: BinaryIO, offset: int = 0) -> None:
        """From the beginning, or from the first whole frame behind an offset."""
        self._file = file
        self._offset = offset
        self._budget = 4 * MAX_RECORD
        self.damaged_bytes = 0
        """Bytes that were passed over."""

    def read(self) -> Iterator[Record]:
        """All whole records that have not been read; damage is skipped up to the next whole frame."""
        if self._offset == 0 and not self._opened():
            return
        while True:
            self._file.seek(self._offset)
            head = self._file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, checksum = _HEAD.unpack(head)
            body = self._file.read(length) if length <= MAX_RECORD else b""
            record = _record(body, checksum) if len(body) == length else None
            if record is not None:
                self._offset += _HEAD.size + length
                yield record
            elif not self._resume():
                return

    @property
    def unread_bytes(self) -> int:
        """Bytes behind the last whole record: a frame that is being written, or damage at the end."""
        return max(0, self._file.seek(0, 2) - self._offset)

    def _opened(self) -> bool:
        self._file.seek(0)
        head = self._file.read(len(MAGIC))
        if len(head) < len(MAGIC) and MAGIC.startswith(head):
            return False  # not written yet
        if head[:5] != MAGIC[:5]:
            raise DamagedError("not a file of the recorder")
        if head != MAGIC:
            version = head[5] if len(head) > 5 else "?"
            raise DamagedError(f"format version {version}, this reader knows {MAGIC[5]}")
        self._offset = len(MAGIC)
        return True

    def _resume(self) -> bool:
        """Move to the next whole frame after a broken one, if there is one."""
        begin, size = self._offset + 1, _FIRST_LOOK
        while True:
            self._file.seek(begin)
            window = self._file.read(size + _HEAD.size + len(_MARK) - 1)
            at = window.find(_MARK, _HEAD.size)
            while at >= 0:
                start = at - _HEAD.size
                if self._is_frame(begin + at, *_HEAD.unpack_from(window, start)):
                    self.damaged_bytes += begin + start - self._offset
                    self._offset = begin + start
                    return True
                at = window.find(_MARK, at + 1)
            if len(window) < size:
                return False
            self._budget += size * _TRIED_PER_BYTE
            begin += size
            size = min(2 * size, MAX_RECORD)

    def _is_frame(self, at: int, length: int, checksum: int) -> bool:
        if not len(_MARK) <= length <= min(MAX_RECORD, self._budget):
            return False
        self._file.seek(at)
        body = self._file.read(length)
        if len(body) == length and _record(body, checksum) is not None:
            return True
        self._budget -= length
        return False


def _record(body: bytes, checksum: int) -> Record | None:
    if zlib.crc32(body) != checksum:
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "k" in record else None
