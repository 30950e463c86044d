"""Planes of an `xplane.pb`: `open_planes`. The one place that needs protobuf, by its own reader.

Fields are those of openxla/xla, `xla/tsl/profiler/protobuf/xplane.proto`. Planes, lines, names and
events are declared as bytes, which is the same on the wire, and parsed one at a time: as a message
an event takes many times its bytes. Texts are bytes, too, so that invalid UTF-8 does not make a
file unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from computeflow.errors import InputError, UnavailableError
from computeflow.files.limits import XPLANE_BYTES, XPLANE_LINE_BYTES
from computeflow.telemetry.opening import read_whole
from computeflow.telemetry.xplane.plane_names import known_plane
from computeflow.telemetry.xplane.planes import STATS, Plane, PlaneEvent, PlaneLine

_PICOSECONDS = 1000
_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "Space": {"planes": (1, "bytes*")},
    "Plane": {
        "name": (2, "bytes"), "lines": (3, "bytes*"), "events": (4, "bytes*"),
        "stat_names": (5, "bytes*"), "stats": (6, "Stat*"),
    },
    "Line": {
        "timestamp_ns": (3, "int64"), "events": (4, "bytes*"),
    },
    "LineName": {"name": (2, "bytes"), "display_name": (11, "bytes")},
    "Event": {
        "metadata": (1, "int64"), "offset_ps": (2, "int64"), "duration_ps": (3, "int64"),
        "stats": (4, "Stat*"),
    },
    "Stat": {
        "metadata": (1, "int64"), "double": (2, "double"), "uint64": (3, "uint64"),
        "int64": (4, "int64"), "text": (5, "bytes"), "raw": (6, "bytes"), "ref": (7, "uint64"),
    },
    "EventEntry": {"key": (1, "int64"), "value": (2, "EventName")},
    "EventName": {"name": (2, "bytes"), "stats": (5, "Stat*")},
    "StatEntry": {"key": (1, "int64"), "value": (2, "StatName")},
    "StatName": {"name": (2, "bytes")},
}  # fmt: skip
"""Numbers and types of the fields that are read, by message; a star marks a repeated field."""


@cache
def _messages() -> tuple[dict[str, Any], type[Exception]]:
    """Message classes by name, and the exception that they raise on invalid bytes."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError:
        raise UnavailableError(
            "a profile of JAX needs protobuf: pip install 'computeflow[xplane]'"
        ) from None
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="xplane", package="xplane", syntax="proto3")
    for title, fields in _FIELDS.items():
        message_type = file.message_type.add(name=title)
        for name, (number, kind) in fields.items():
            field = message_type.field.add(name=name, number=number)
            plain = kind.rstrip("*")
            field.label = kinds.LABEL_REPEATED if plain != kind else kinds.LABEL_OPTIONAL
            if plain in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".xplane.{plain}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{plain.upper()}")
            if title == "Stat" and name != "metadata":
                field.oneof_index = 0
        if title == "Stat":
            message_type.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"xplane.{name}"))
        for name in _FIELDS
    }
    return classes, message.DecodeError


def open_planes(path: Path) -> list[Plane]:
    """The planes with a known name in one file, compressed or not."""
    content = read_whole(path, XPLANE_BYTES, "record fewer steps")
    try:
        return _Profile(path).planes(content)
    except UnavailableError as error:
        raise UnavailableError(f"{path}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Profile:
    path: Path

    def parse(self, message: str, content: bytes) -> Any:
        messages, broken = _messages()
        try:
            return messages[message].FromString(content)
        except (broken, ValueError, MemoryError) as error:
            raise InputError(f"{self.path}: not a whole profile ({str(error)[:200]})") from None

    def planes(self, content: bytes) -> list[Plane]:
        planes = []
        for part in self.parse("Space", content).planes:
            plane = self.parse("Plane", part)
            name = _text(plane.name)
            if known_plane(name):
                planes.append(_Plane(self, plane).read(name))
        return planes


class _Plane:
    """A plane's names, and its lines, read on demand."""

    def __init__(self, profile: _Profile, plane: Any) -> None:
        self.profile, self.plane = profile, plane
        entries = (profile.parse("StatEntry", part) for part in plane.stat_names)
        self.stat_names = {entry.key: _text(entry.value.name) for entry in entries}
        self.wanted = {key: name for key, name in self.stat_names.items() if name in STATS}

    def read(self, name: str) -> Plane:
        lines = []
        for part in self.plane.lines:
            line = self.profile.parse("LineName", part)
            text = _text(line.name) or _text(line.display_name)
            lines.append(PlaneLine(name=text, events=_Events(self, part)))
        return Plane(name=name, lines=lines, stats=self.stats(self.plane.stats, every=True))

    @cached_property
    def names(self) -> dict[int, tuple[str, dict[str, Any]]]:
        """Names of events by number, with the stats that all events of a name have."""
        entries = (self.profile.parse("EventEntry", part) for part in self.plane.events)
        return {e.key: (_text(e.value.name), self.stats(e.value.stats)) for e in entries}

    def stats(self, stats: Iterable[Any], *, every: bool = False) -> dict[str, Any]:
        values: dict[str, Any] = {}
        names = self.stat_names if every else self.wanted
        for stat in stats:
            name = names.get(stat.metadata)
            kind = stat.WhichOneof("value") if name else None
            if name is None or kind is None:
                continue
            value = getattr(stat, kind)
            if kind == "ref":
                value = self.stat_names.get(value, "")
            values[name] = _text(value) if isinstance(value, bytes) else value
        return values


@dataclass(frozen=True, slots=True)
class _Events:
    """The events of a line, parsed once, when they are iterated over."""

    plane: _Plane
    content: bytes

    def __iter__(self) -> Iterator[PlaneEvent]:
        profile, names = self.plane.profile, self.plane.names
        if len(self.content) > XPLANE_LINE_BYTES:
            limit = f"a line of more than {XPLANE_LINE_BYTES >> 20} MiB: record fewer steps"
            raise InputError(f"{profile.path}: {limit}")
        line = profile.parse("Line", self.content)
        zero = line.timestamp_ns
        for part in line.events:
            event = profile.parse("Event", part)
            name, stats = names.get(event.metadata, ("", {}))
            if own := self.plane.stats(event.stats):
                stats = stats | own
            start = zero + round(event.offset_ps / _PICOSECONDS)
            yield PlaneEvent(name, start, event.duration_ps / _PICOSECONDS, stats)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
