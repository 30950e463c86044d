"""Recordings in folders, as `benchmarks.foreign.record` packs them: `traces_of` and `unpacked`."""

from __future__ import annotations

import lzma
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def traces_of(folders: Sequence[Path]) -> dict[str, Path]:
    """The traces (xz or gzip) by name; of two of one name, that of the first folder."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json.*z")):
            found.setdefault(path.name.partition(".")[0], path)
    return found


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A trace that can be read: those packed with xz are written to a folder that is then deleted."""
    if path.suffix != ".xz":
        yield path
        return
    with tempfile.TemporaryDirectory() as work:
        opened = Path(work) / path.stem
        opened.write_bytes(lzma.decompress(path.read_bytes()))
        yield opened
