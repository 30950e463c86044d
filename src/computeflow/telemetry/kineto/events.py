"""An event of a trace as it is decoded: the fields that are read, and nothing of the others.

Kineto writes the Trace Event Format. Only complete events ("X") carry time; of the other phases there
is nothing to keep, so they decode to empty objects, which costs a third of a dictionary. Of a key that
stands twice in one event the last counts, as in the viewers of these files: to look for it would take
longer than to read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

_ARGUMENTS = {
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "collective": "Collective name",
    "group": "Process Group Name",
    "group_doc": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "dims": "Input Dims",
    "types": "Input type",
    "concrete": "Concrete Inputs",
}


Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""What an array of 64-bit numbers can hold; an argument beyond is none."""


class Arguments(
    msgspec.Struct, frozen=True, gc=False, rename=lambda name: _ARGUMENTS.get(name, name)
):
    correlation: Whole = -1
    stream: int | str = -1
    bytes: int | str = -1
    sequence: Whole = -1
    forward_thread: Whole = -1
    collective: str = ""
    group: str = ""
    group_doc: str = ""
    group_ranks: msgspec.Raw = msgspec.Raw()
    elements_in: Whole = 0
    elements_out: Whole = 0
    dtype: str = ""
    dims: msgspec.Raw = msgspec.Raw()
    types: msgspec.Raw = msgspec.Raw()
    concrete: msgspec.Raw = msgspec.Raw()


_NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One with a duration. Times in microseconds, as written; one without a start has none."""

    name: str = ""
    cat: str = ""
    ts: float = math.nan
    dur: float = 0.0
    tid: int | str = 0
    args: Arguments = _NO_ARGUMENTS


_PHASES = "BEbneistfMCIPNODSTpFcvVRa("
"""Of the Trace Event Format, beside "X"."""

if TYPE_CHECKING:
    Events = list[Any]
else:
    _others = tuple(
        msgspec.defstruct(f"Phase{number}", [], tag_field="ph", tag=phase, gc=False)
        for number, phase in enumerate(_PHASES)
    )
    _union = Event
    for _other in _others:
        _union = _union | _other
    Events = list[_union]

decode_events = msgspec.json.Decoder(Events).decode
"""A JSON array of events; those that are no `Event` carry nothing. Raises `UNREADABLE`."""
decode_keys = msgspec.json.Decoder(dict[str, Any]).decode
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_forgiving = msgspec.json.Decoder(Event, strict=False).decode


def event_of(data: Any) -> Event | None:
    """An event that the fast decoder refused, as far as it can be understood; None where it cannot.

    Numbers in quotes become numbers; arguments of a wrong kind are left out.
    """
    if not isinstance(data, dict) or data.get("ph") != "X":
        return None
    event = _understood(data)
    if event is not None:
        return event
    arguments = data.get("args")
    kept = {
        name: value
        for name, value in (arguments.items() if isinstance(arguments, dict) else ())
        if _understood({"ph": "X", "args": {name: value}}) is not None
    }
    return _understood({**data, "args": kept})


def _understood(data: dict[str, Any]) -> Event | None:
    try:
        return _forgiving(msgspec.json.encode(data))
    except (msgspec.MsgspecError, TypeError, OverflowError, RecursionError, UnicodeError):
        return None
