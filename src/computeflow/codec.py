"""Plain data to checked values and back: the one place that imports msgspec, beside the decoder of
traces (`telemetry.kineto.kineto_events`).

Values inside ComputeFlow are frozen dataclasses; files and the wire carry TOML, JSON and CSV. This
module turns one into the other and words the errors, so that a wrong field in a user's file is
one line that names the file, the row and the field. msgspec is imported when something is read,
not when the package is: computing with values needs numpy only.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, TypeVar

from computeflow.errors import InputError, nearest
from computeflow.files.names import shown

T = TypeVar("T")
_UTF8 = ("utf-8", "surrogatepass")


def decode(kind: type[T], data: Any, where: str) -> T:
    """Build a `kind` (a dataclass) from plain data; `where` opens the message if it cannot be."""
    import msgspec

    try:
        value = msgspec.convert(data, kind)
    except InputError as error:  # from the value's own __post_init__
        raise InputError(f"{where}: {error}") from None
    except msgspec.ValidationError as error:
        _refuse_unknown(data, getattr(kind, "__dataclass_fields__", None), where)
        raise InputError(f"{where}: {shown(_worded(str(error)), 300)}") from None
    _refuse_unread(data, value, where)
    return value


def encode(value: Any) -> Any:
    """Plain data of a value: dicts, lists, strings and numbers, ready for JSON."""
    import msgspec

    return msgspec.to_builtins(value, str_keys=True, enc_hook=_python_number)


def _python_number(value: Any) -> float | int:
    """A number of NumPy as Python's; nothing else is encoded."""
    import numpy as np

    if not isinstance(value, np.number):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    number: float | int = value.item()
    return number


def with_lists(data: Any) -> Any:
    """Plain data with lists for tuples, as JSON has it."""
    if isinstance(data, dict):
        return {key: with_lists(value) for key, value in data.items()}
    return [with_lists(value) for value in data] if isinstance(data, list | tuple) else data


def to_json(data: Any, *, ascii_only: bool = False) -> str:
    """One JSON text, readable, stable, without NaN (a NaN is a bug: absence is null).

    What cannot be printed is escaped, so that a terminal obeys nothing and any encoding takes it.
    """
    import msgspec

    # `json` takes four times as long when it indents
    lines = json.dumps(data, allow_nan=False, ensure_ascii=ascii_only).encode(*_UTF8)
    lines = msgspec.json.format(lines, indent=2)
    text = lines.decode(*_UTF8)
    del lines  # a gigabyte where the answer is as large as it can be
    odd = [sign for sign in set(text) if not (sign.isprintable() or sign == "\n")]
    escapes = {ord(sign): json.dumps(sign)[1:-1] for sign in odd}
    return text.translate(escapes) if escapes else text


def from_json(text: str | bytes, where: str, *, once: bool = False) -> Any:
    """JSON of a recording, where speed counts; files that people write go through `files.parsing`.
    `once`: an object that has a key twice is refused, at twice the time; else the last counts.
    """
    import msgspec

    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: not read: JSON nested too deeply") from None
    if once:
        refuse_repeats(text, where)
    return value


def refuse_repeats(text: str | bytes, where: str) -> None:
    """Refuse valid JSON in which an object has a key twice: readers differ in which one they take."""

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            twice = next(
                key for key, count in Counter(key for key, _ in pairs).items() if count > 1
            )
            raise InputError(f"{where}: the key '{shown(twice)}' appears twice in one object")

    try:
        json.loads(text, object_pairs_hook=look, parse_int=float)
    except RecursionError:
        raise InputError(f"{where}: not read: JSON nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {shown(str(error))}") from None


def to_bytes(value: Any) -> bytes:
    """A value as MessagePack, arrays of numpy as their type, shape and bytes."""
    import msgspec
    import numpy as np

    def packed(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            return [part.dtype.str, part.shape, part.tobytes()]
        raise NotImplementedError(f"{type(part).__name__} cannot be packed")

    return msgspec.msgpack.encode(value, enc_hook=packed)


def from_bytes(kind: type[T], data: bytes, where: str) -> T:
    """The value again; nothing in the bytes is executed."""
    import msgspec
    import numpy as np

    def unpacked(_: type, part: Any) -> Any:
        name, shape, content = part
        if np.dtype(name).hasobject:
            raise ValueError("arrays of objects are not read")
        return np.frombuffer(content, name).reshape(shape)

    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=unpacked)
    except (msgspec.DecodeError, ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise InputError(f"{where}: not a packed {kind.__name__}: {error}") from None


def _refuse_unread(data: Any, value: Any, where: str) -> None:
    """A field that no dataclass took is a misspelling, at any depth."""
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        _refuse_unknown(data, fields, where)
        for key, part in data.items():
            _refuse_unread(part, getattr(value, key), where)
    elif isinstance(value, tuple | list):
        for part, item in zip(data, value, strict=True):
            _refuse_unread(part, item, where)


def _refuse_unknown(data: Any, fields: Any, where: str) -> None:
    """A misspelt field is named before the one that is missing for it."""
    for key in data if isinstance(data, dict) and fields is not None else ():
        if key not in fields:
            near = nearest(key, fields)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise InputError(f"{where}: unknown field '{shown(key)}'{hint}")


def _worded(message: str) -> str:
    """msgspec says "Expected `float`, got `str` - at `$.x.y`"; ours puts the field first."""
    text, _, path = message.partition(" - at ")
    text = text.replace("`", "")
    path = path.strip("`").removeprefix("$").removeprefix(".")
    return f"{path}: {text}" if path else text
