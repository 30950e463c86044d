"""Events of a trace, decoded: only the fields that are needed.

Kineto writes the Trace Event Format. Only complete events ("X") carry time; the other phases decode
to empty objects, which costs a third of a dictionary. Where a key stands twice in one event the
last counts, as in the viewers of these files: checking for it would take longer than reading.
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
"""An integer that fits an array of 64-bit numbers; a larger argument is left out."""


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


class KinetoEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration. Times in microseconds, as written; NaN without a start."""

    name: str = ""
    cat: str = ""
    ts: float = math.nan
    dur: float = 0.0
    tid: int | str = 0
    args: Arguments = _NO_ARGUMENTS


_PHASES = "BEbneistfMCIPNODSTpFcvVRa("
"""Phases of the Trace Event Format, besides "X"."""

if TYPE_CHECKING:
    Events = list[Any]
else:
    _others = tuple(
        msgspec.defstruct(f"Phase{number}", [], tag_field="ph", tag=phase, gc=False)
        for number, phase in enumerate(_PHASES)
    )
    _union = KinetoEvent
    for _other in _others:
        _union = _union | _other
    Events = list[_union]

decode_events = msgspec.json.Decoder(Events).decode
"""Decode a JSON array of events; those that are no `KinetoEvent` carry no data. Raises `UNREADABLE`."""
decode_keys = msgspec.json.Decoder(dict[str, Any]).decode
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_forgiving = msgspec.json.Decoder(KinetoEvent, strict=False).decode


def event_of(data: Any) -> KinetoEvent | None:
    """An event that the fast decoder refused, as far as it can be decoded; None where it cannot.

    Numbers in quotes become numbers; arguments of a wrong type are left out.
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


def _understood(data: dict[str, Any]) -> KinetoEvent | None:
    try:
        return _forgiving(msgspec.json.encode(data))
    except (msgspec.MsgspecError, TypeError, OverflowError, RecursionError, UnicodeError):
        return None
