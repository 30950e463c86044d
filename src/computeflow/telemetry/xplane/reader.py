"""Opening a profile with JAX's own reader: `open_planes`. The one place that needs jax."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from computeflow.errors import InputError, UnavailableError
from computeflow.telemetry.inflate import BROKEN, inflating

MOST_BYTES = 512 << 20
"""Of a profile, inflated: the reader holds all of it."""
_GZIP = b"\x1f\x8b"


class Event(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def start_ns(self) -> float: ...
    @property
    def duration_ns(self) -> float: ...
    @property
    def stats(self) -> Iterable[tuple[str, Any]]: ...


class Line(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def events(self) -> Iterable[Event]: ...


class Plane(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def lines(self) -> Iterable[Line]: ...
    @property
    def stats(self) -> Iterable[tuple[str, Any]]: ...


def open_planes(path: Path) -> list[Plane]:
    """Of one file, compressed or not."""
    content = _content(path)
    try:
        reader: Any = import_module("jax.profiler").ProfileData
    except (ImportError, AttributeError):
        raise UnavailableError(
            f"{path}: a profile of JAX is read by JAX's own reader: pip install jax"
        ) from None
    try:
        return list(reader.from_serialized_xspace(content).planes)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a whole profile ({str(error)[:200]})") from None


def _content(path: Path) -> bytes:
    limit = f"{path}: more than {MOST_BYTES >> 20:,} MB: record fewer steps"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(limit)
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if content[:2] != _GZIP:
        return content
    stream = inflating()
    try:
        content = stream.decompress(content, MOST_BYTES + 1)
    except BROKEN:
        raise InputError(f"{path}: broken gzip") from None
    if len(content) > MOST_BYTES:
        raise InputError(limit)
    if not stream.eof:
        raise InputError(f"{path}: broken gzip: its end is missing")
    return bytes(content)
