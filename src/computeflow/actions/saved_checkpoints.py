"""Is there a checkpoint that a job can go on from? `latest_checkpoint` looks, `fault_of` checks one.

Known are files of `torch.save` (zip), safetensors, folders of `torch.distributed.checkpoint`, and
folders that hold any of these. A file is read, never executed: pickles are looked through, not loaded.
"""

from __future__ import annotations

import json
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ZIPPED = (".pt", ".pth", ".bin", ".ckpt", ".distcp")
_KNOWN = (*_ZIPPED, ".safetensors")
_UNFINISHED = (".tmp", ".part", ".partial", ".incomplete")
_METADATA = ".metadata"
MAX_CHECKED_BYTES = 4 << 30
"""Files beyond this are checked by their table of contents alone: reading them takes minutes."""
_MAX_HEADER = 100 << 20
"""Bytes of a safetensors header: its own limit."""
_MAX_METADATA = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    path: str
    saved: float
    """Unix seconds at which the last of its files was written."""
    fault: str = ""
    """Why a job cannot go on from it; "" where it can."""


def latest_checkpoint(folder: Path) -> SavedCheckpoint | None:
    """The newest that is whole; where none is, the newest with its fault; None where none is there."""
    newest: SavedCheckpoint | None = None
    for saved, path in sorted(_candidates(folder), reverse=True):
        found = SavedCheckpoint(path=str(path), saved=saved, fault=fault_of(path))
        if not found.fault:
            return found
        newest = newest or found
    return newest


def saved_times(folder: Path) -> list[float]:
    """When checkpoints were written, the oldest first."""
    return sorted(saved for saved, _ in _candidates(folder))


def _candidates(folder: Path) -> Iterator[tuple[float, Path]]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return
    for path in paths:
        if path.name.startswith(".") or path.suffix in _UNFINISHED:
            continue
        try:
            if path.is_dir():
                times = [each.stat().st_mtime for each in _parts(path)]
                if times:
                    yield max(times), path
            elif path.suffix in _KNOWN:
                yield path.stat().st_mtime, path
        except OSError:
            continue


def _parts(folder: Path) -> list[Path]:
    named = [path for path in folder.rglob("*") if path.suffix in _KNOWN and path.is_file()]
    metadata = folder / _METADATA
    return [*named, metadata] if metadata.is_file() else named


def fault_of(path: Path) -> str:
    """Why a checkpoint is no good; "" where it is whole and can be read."""
    try:
        if not path.is_dir():
            return _file_fault(path)
        faults = [_distributed_fault(path)] if (path / _METADATA).is_file() else []
        unfinished = [each.name for each in path.rglob("*") if each.suffix in _UNFINISHED]
        if unfinished:
            return f"{unfinished[0]}: not finished"
        faults += [_file_fault(each) for each in _parts(path) if each.name != _METADATA]
        return next((fault for fault in faults if fault), "") if faults else "no weights in it"
    except (OSError, ValueError) as error:
        return f"{path.name}: {error}"


def _file_fault(path: Path) -> str:
    size = path.stat().st_size
    if not size:
        return f"{path.name}: empty"
    if path.suffix == ".safetensors":
        return _safetensors_fault(path, size)
    if path.suffix == ".distcp":  # several archives one after the other: the metadata says where
        return ""
    return _zip_fault(path, size)


def _zip_fault(path: Path, size: int) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if not any(name.endswith("data.pkl") for name in names):
                return f"{path.name}: not of torch.save: no data.pkl in it"
            broken = archive.testzip() if size <= MAX_CHECKED_BYTES else None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        return f"{path.name}: cut off, or not of torch.save ({error})"
    return f"{path.name}: {broken} is damaged" if broken else ""


def _safetensors_fault(path: Path, size: int) -> str:
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 0 < length <= min(_MAX_HEADER, size - 8):
            return f"{path.name}: its header is cut off"
        tensors = json.loads(file.read(length))
    ends = [
        int(tensor["data_offsets"][1]) for name, tensor in tensors.items() if name != "__metadata__"
    ]
    wanted = 8 + length + max(ends, default=0)
    return "" if size == wanted else f"{path.name}: {size:,} bytes of {wanted:,}"


def _distributed_fault(folder: Path) -> str:
    """Whether all files that the metadata names are there; its pickle is looked through only."""
    metadata = folder / _METADATA
    if metadata.stat().st_size > _MAX_METADATA:
        return f"{_METADATA}: more than {_MAX_METADATA >> 20} MiB"
    named = {
        value
        for _, value, _ in pickletools.genops(metadata.read_bytes())
        if isinstance(value, str) and value.endswith(".distcp")
    }
    if not named:
        return f"{_METADATA}: names no files"
    for name in sorted(named):
        part = folder / Path(name).name
        if not part.is_file() or not part.stat().st_size:
            return f"{part.name}: missing or empty"
    return ""
