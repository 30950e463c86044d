"""Recordings are read through `audit`, as users call it: `audit_reader`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.readers.reader import Build, Reader
from computeflow.answers import audit
from computeflow.codec import to_json


def audited(content: bytes, folder: Path, name: str) -> object:
    """Audit a file, and render JSON and tables too, where odd input often fails."""
    path = folder / name
    path.write_bytes(content)
    answer = audit([path], no_cache=True)
    to_json(answer.to_dict())
    return answer.tables()


def audit_reader(
    name: str,
    file: str,
    shapes: dict[str, Build],
    recorded: Callable[[], Sequence[bytes]] = list,
    tokens: Sequence[bytes] = (),
) -> Reader:
    return Reader(
        name=name, read=partial(audited, name=file), shapes=shapes, recorded=recorded, tokens=tokens
    )
