"""Snapshots of PyTorch's caching allocator as columns; nothing in the file is executed.

The format is that of `torch.cuda.memory._snapshot` (docs.pytorch.org/docs/stable/torch_cuda_memory;
torch/csrc/cuda/memory_snapshot.cpp, torch 2.0 to 2.13): a dictionary of `segments` with their
blocks, `device_traces` with the history of each device where it was recorded, `allocator_settings`
and `external_annotations`. `torch.cuda.memory_snapshot()` gives the segments alone. No form in JSON
is documented; one with the same fields is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow import codec
from computeflow.errors import InputError
from computeflow.files.limits import (
    PICKLED_CHARACTERS,
    RECORDED_DEVICES,
    SNAPSHOT_BYTES,
    SNAPSHOT_FRAMES,
)
from computeflow.telemetry.opening import read_whole
from computeflow.telemetry.pickles import unpickle

_TOO_LARGE = (
    "not read as a snapshot; record fewer events (max_entries of "
    "torch.cuda.memory._record_memory_history)"
)
Ints = NDArray[np.int64]


class Action(IntEnum):
    OTHER = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    OOM = 8


_ACTIONS = {action.name.lower(): action for action in Action if action}
_ACTIONS["free"] = Action.FREE_COMPLETED


@dataclass(frozen=True, slots=True)
class Frame:
    name: str
    file: str
    line: int

    @property
    def label(self) -> str:
        where = f" ({self.file}:{self.line})" if self.line else ""
        return f"{self.name}{where}"


Stack = tuple[Frame, ...]
"""Frames, innermost first; () where none were recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorEvents:
    """The history of one device, in order."""

    action: NDArray[np.int8]
    address: Ints
    size: Ints
    """Bytes requested; for an OOM, those that could not be allocated."""
    time: Ints
    """Unix microseconds; 0 where unknown."""
    stack: NDArray[np.int32]
    device_free: Ints
    """Free memory of the driver at an OOM; -1 elsewhere."""

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySegment:
    address: int
    size: int
    expandable: bool
    frames: int
    """Number of the stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlock:
    """A block that is in use, or waiting to be free."""

    address: int
    size: int
    stack: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    number: int
    events: AllocatorEvents
    segments: tuple[MemorySegment, ...]
    blocks: tuple[MemoryBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A named interval of host time."""

    name: str
    start: int
    end: int
    """Unix microseconds, as `start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    path: str
    devices: tuple[DeviceSnapshot, ...]
    stacks: tuple[Stack, ...]
    settings: Mapping[str, str | float | bool]
    annotations: tuple[Annotation, ...]
    left_out: tuple[str, ...]


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot; `InputError` for anything else."""
    content = read_whole(path, SNAPSHOT_BYTES, _TOO_LARGE)
    if content.lstrip()[:1] in (b"{", b"["):
        data = codec.from_json(content, str(path), once=True)
    else:
        data = unpickle(content, str(path))
    del content
    try:
        return _Reading().snapshot(data, path)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        text = str(error)[:PICKLED_CHARACTERS]
        raise InputError(f"{path}: a memory snapshot that cannot be read: {text}") from None


class _Reading:
    """Reads a snapshot, numbering stacks as they come; torch shares the dictionaries of frames, not
    their lists.
    """

    def __init__(self) -> None:
        self.stacks: dict[Stack, int] = {(): 0}
        self._known: dict[tuple[int, ...], int] = {}
        self._left_out: list[str] = []

    def snapshot(self, data: Any, path: Path) -> Snapshot:
        if isinstance(data, list):
            data = {"segments": data}
        if not isinstance(data, Mapping) or not ({"segments", "device_traces"} & data.keys()):
            raise InputError(
                f"{path}: not a memory snapshot: no segments and no device_traces in it"
            )
        segments, traces = data.get("segments") or [], data.get("device_traces") or []
        if not isinstance(segments, list) or not isinstance(traces, list):
            raise ValueError("segments or device_traces is not a list")
        if len(traces) > RECORDED_DEVICES:
            raise ValueError(f"{len(traces):,} devices")
        numbers = {number for number, trace in enumerate(traces) if trace}
        numbers |= {_size(segment.get("device", 0)) for segment in segments}
        return Snapshot(
            path=str(path),
            devices=tuple(self._device(number, segments, traces) for number in sorted(numbers)),
            settings=_settings(data.get("allocator_settings")),
            annotations=_annotations(data.get("external_annotations")),
            stacks=tuple(self.stacks),
            left_out=tuple(dict.fromkeys(self._left_out)),
        )

    def _device(self, number: int, segments: list[Any], traces: list[Any]) -> DeviceSnapshot:
        own = [segment for segment in segments if _whole(segment.get("device", 0)) == number]
        blocks = []
        for segment in own:
            address = _whole(segment["address"])
            for block in segment.get("blocks", ()):
                size = _size(block["size"])
                if str(block.get("state", "")).startswith("active"):
                    block_address = _whole(block.get("address", address))
                    blocks.append(
                        MemoryBlock(
                            address=block_address, size=size, stack=self._stack(_frames(block))
                        )
                    )
                address += size
        return DeviceSnapshot(
            number=number,
            events=self._events(traces[number] if number < len(traces) else []),
            segments=tuple(
                MemorySegment(
                    address=_whole(segment["address"]),
                    size=_size(segment["total_size"]),
                    expandable=bool(segment.get("is_expandable")),
                    frames=self._stack(_frames(segment)),
                )
                for segment in own
            ),
            blocks=tuple(blocks),
        )

    def _events(self, trace: Sequence[Mapping[str, Any]]) -> AllocatorEvents:
        rows = []
        unknown: dict[str, int] = {}
        for entry in trace:
            name = str(entry["action"])
            action = _ACTIONS.get(name, Action.OTHER)
            if action is Action.OTHER:
                unknown[name[:40]] = unknown.get(name[:40], 0) + 1
                continue
            rows.append(
                (
                    action,
                    _whole(entry.get("addr", 0)),
                    _whole(entry.get("size", 0)),
                    _whole(entry.get("time_us", 0)),
                    self._stack(entry.get("frames")),
                    _whole(entry.get("device_free", -1)),
                )
            )
        unknown.pop("snapshot", None)
        self._left_out += [f"{count:,} events {name!r}" for name, count in unknown.items()]
        table = np.array(rows, np.int64).reshape(len(rows), 6)
        return AllocatorEvents(
            action=table[:, 0].astype(np.int8),
            address=table[:, 1].copy(),
            size=np.maximum(table[:, 2], 0),
            time=table[:, 3].copy(),
            stack=table[:, 4].astype(np.int32),
            device_free=table[:, 5].copy(),
        )

    def _stack(self, frames: Any) -> int:
        if not frames:
            return 0
        if not isinstance(frames, list):
            raise ValueError("frames is not a list")
        frames = frames[:SNAPSHOT_FRAMES]
        key = tuple(map(id, frames))
        number = self._known.get(key)
        if number is None:
            stack = tuple(
                Frame(
                    str(frame.get("name", ""))[:PICKLED_CHARACTERS],
                    str(frame.get("filename", ""))[:PICKLED_CHARACTERS],
                    _whole(frame.get("line", 0)),
                )
                for frame in frames
            )
            number = self._known[key] = self.stacks.setdefault(stack, len(self.stacks))
        return number


def _frames(thing: Mapping[str, Any]) -> Any:
    """The frames of a block; before torch 2.1 they were in its history."""
    history = thing.get("history")
    if "frames" not in thing and isinstance(history, list) and history:
        return history[0].get("frames")
    return thing.get("frames")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{type(value).__name__} where a number belongs")
    number = int(value)
    if not -(2**62) < number < 2**62:
        raise ValueError("a number out of range")
    return number


def _size(value: Any) -> int:
    number = _whole(value)
    if number < 0:
        raise ValueError(f"{number:,} where a size or a device belongs")
    return number


def _settings(value: Any) -> dict[str, str | float | bool]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name)[:PICKLED_CHARACTERS]: part[:PICKLED_CHARACTERS] if isinstance(part, str) else part
        for name, part in value.items()
        if isinstance(part, str | int | float | bool)
    }


def _annotations(value: Any) -> tuple[Annotation, ...]:
    """Annotations from pairs of START and END; the last START of a name is the one that ends.
    Invalid entries are skipped: annotations only help.
    """
    annotations, begun = [], dict[str, int]()
    for part in value if isinstance(value, list) else ():
        try:
            name, stage = str(part["name"])[:PICKLED_CHARACTERS], part["stage"]
            time = _whole(part["time_us"])
        except (TypeError, ValueError, KeyError):
            continue
        if stage == "START":
            begun[name] = time
        elif name in begun:
            annotations.append(Annotation(name=name, start=begun.pop(name), end=time))
    return tuple(sorted(annotations, key=lambda annotation: annotation.start))
