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
    "source": "Src Rank",
    "target": "Dst Rank",
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
    source: Whole = -1
    target: Whole = -1
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
_skim = msgspec.json.Decoder(list[msgspec.Raw]).decode


def is_truncated(array: bytes) -> bool:
    """Whether a JSON array is correct as far as it goes but not closed: 1 ns for each byte, where
    parsing takes 50.
    """
    try:
        _skim(array)
    except UNREADABLE as error:
        return "truncated" in str(error)
    return False


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


_POINT_TO_POINT = frozenset({"c10d::send", "c10d::recv_"})
"""Operators whose third and fourth arguments are the partner and the tag (torch's native functions)."""
_MAX_CHARACTERS = 4096
_MAX_NUMBER = 2**31 - 1
_decode = msgspec.json.Decoder(list[Any]).decode


def message_details(name: str, arguments: Arguments) -> tuple[int, int, int]:
    """Partner (-1 where unknown), tag and number of elements (0 where unknown)."""
    peer, tag = -1, 0
    if name in _POINT_TO_POINT:
        concrete = _values(arguments.concrete)
        if len(concrete) >= 4:
            peer, tag = _number(concrete[2], -1), _number(concrete[3], 0)
    elements = sum(_elements(shape, lists=2) for shape in _values(arguments.dims))
    return peer, tag, min(elements, 2**59)


def _values(raw: msgspec.Raw) -> list[Any]:
    text = bytes(raw)
    if not text or len(text) > _MAX_CHARACTERS:
        return []
    try:
        return _decode(text)
    except UNREADABLE:
        return []


def _number(value: object, otherwise: int) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= _MAX_NUMBER else otherwise


def _elements(shape: object, *, lists: int) -> int:
    """Elements of a tensor, or of lists of tensors so deep; 0 for an argument that is no tensor."""
    if not isinstance(shape, list) or not shape or not lists:
        return 0
    if isinstance(shape[0], list):
        return sum(_elements(part, lists=lists - 1) for part in shape)
    count = 1
    for side in shape:
        count *= side if isinstance(side, int) and 0 <= side <= _MAX_NUMBER else 0
    return min(count, 2**59)
