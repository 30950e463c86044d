"""A snapshot of PyTorch's caching allocator as columns; nothing in the file is executed.

The format is that of `torch.cuda.memory._snapshot` (docs.pytorch.org/docs/stable/torch_cuda_memory;
torch/csrc/cuda/memory_snapshot.cpp, torch 2.0 to 2.13): a dictionary of `segments` with their blocks,
`device_traces` with the history of each device where it was recorded, `allocator_settings` and
`external_annotations`. `torch.cuda.memory_snapshot()` gives the segments alone. No form in JSON is
documented; one with the same fields is read.
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
from computeflow.telemetry.opening import read_whole
from computeflow.telemetry.pickles import unpickled

MOST_BYTES = 128 << 20
_TOO_LARGE = (
    "not read as a snapshot; record fewer events (max_entries of "
    "torch.cuda.memory._record_memory_history)"
)
"""Of a snapshot, decompressed: some 1.4 million events."""
MOST_FRAMES = 64
_MOST_TEXT = 300
_MOST_DEVICES = 1024
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
"""Innermost first; () where none was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The history of one device, in order."""

    action: NDArray[np.int8]
    address: Ints
    size: Ints
    """As asked for; of an OOM, what did not succeed."""
    time: Ints
    """Unix microseconds; 0 where none is said."""
    stack: NDArray[np.int32]
    device_free: Ints
    """Of an OOM, what the driver still had; -1 elsewhere."""

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    address: int
    size: int
    expandable: bool
    frames: int
    """The stack's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """In use, or waiting to be free."""

    address: int
    size: int
    stack: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    number: int
    events: Events
    segments: tuple[Segment, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A stretch of host time with a name."""

    name: str
    start: int
    end: int
    """Unix microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    path: str
    devices: tuple[Device, ...]
    stacks: tuple[Stack, ...]
    settings: Mapping[str, str | float | bool]
    annotations: tuple[Annotation, ...]
    left_out: tuple[str, ...]


def read_snapshot(path: Path) -> Snapshot:
    """Raises `InputError` for anything that is no snapshot."""
    content = read_whole(path, MOST_BYTES, _TOO_LARGE)
    if content.lstrip()[:1] in (b"{", b"["):
        data = codec.from_json(content, str(path), once=True)
    else:
        data = unpickled(content, str(path))
    del content
    try:
        return _Reading().snapshot(data, path)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        text = str(error)[:_MOST_TEXT]
        raise InputError(f"{path}: a memory snapshot that cannot be read: {text}") from None


class _Reading:
    """Stacks are numbered as they come; torch shares the dictionaries of frames, not their lists."""

    def __init__(self) -> None:
        self.stacks: dict[Stack, int] = {(): 0}
        self._known: dict[tuple[int, ...], int] = {}
        self._left_out: list[str] = []

    def snapshot(self, data: Any, path: Path) -> Snapshot:
        if isinstance(data, list):
            data = {"segments": data}
        if not isinstance(data, Mapping) or not ({"segments", "device_traces"} & data.keys()):
            raise InputError(f"{path}: no memory snapshot: no segments and no device_traces in it")
        segments, traces = data.get("segments") or [], data.get("device_traces") or []
        if not isinstance(segments, list) or not isinstance(traces, list):
            raise ValueError("segments or device_traces is no list")
        if len(traces) > _MOST_DEVICES:
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

    def _device(self, number: int, segments: list[Any], traces: list[Any]) -> Device:
        own = [s for s in segments if _whole(s.get("device", 0)) == number]
        blocks = []
        for segment in own:
            address = _whole(segment["address"])
            for block in segment.get("blocks", ()):
                size = _size(block["size"])
                if str(block.get("state", "")).startswith("active"):
                    place = _whole(block.get("address", address))
                    blocks.append(
                        Block(address=place, size=size, stack=self._stack(_frames(block)))
                    )
                address += size
        return Device(
            number=number,
            events=self._events(traces[number] if number < len(traces) else []),
            segments=tuple(
                Segment(
                    address=_whole(s["address"]),
                    size=_size(s["total_size"]),
                    expandable=bool(s.get("is_expandable")),
                    frames=self._stack(_frames(s)),
                )
                for s in own
            ),
            blocks=tuple(blocks),
        )

    def _events(self, trace: Sequence[Mapping[str, Any]]) -> Events:
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
        return Events(
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
            raise ValueError("frames is no list")
        frames = frames[:MOST_FRAMES]
        key = tuple(map(id, frames))
        found = self._known.get(key)
        if found is None:
            stack = tuple(
                Frame(
                    str(f.get("name", ""))[:_MOST_TEXT],
                    str(f.get("filename", ""))[:_MOST_TEXT],
                    _whole(f.get("line", 0)),
                )
                for f in frames
            )
            found = self._known[key] = self.stacks.setdefault(stack, len(self.stacks))
        return found


def _frames(thing: Mapping[str, Any]) -> Any:
    """Before torch 2.1 a block had them in a history."""
    history = thing.get("history")
    if "frames" not in thing and isinstance(history, list) and history:
        return history[0].get("frames")
    return thing.get("frames")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{type(value).__name__} where a number belongs")
    number = int(value)
    if not -(2**62) < number < 2**62:
        raise ValueError("a number that no memory has")
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
        str(name)[:_MOST_TEXT]: part[:_MOST_TEXT] if isinstance(part, str) else part
        for name, part in value.items()
        if isinstance(part, str | int | float | bool)
    }


def _annotations(value: Any) -> tuple[Annotation, ...]:
    """Pairs of START and END; the last START of a name is the one that ends. What does not read is
    left out: they only help.
    """
    found, begun = [], dict[str, int]()
    for part in value if isinstance(value, list) else ():
        try:
            name, stage = str(part["name"])[:_MOST_TEXT], part["stage"]
            time = _whole(part["time_us"])
        except (TypeError, ValueError, KeyError):
            continue
        if stage == "START":
            begun[name] = time
        elif name in begun:
            found.append(Annotation(name=name, start=begun.pop(name), end=time))
    return tuple(sorted(found, key=lambda one: one.start))
