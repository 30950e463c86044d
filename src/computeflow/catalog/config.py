"""Checked access to the values of a JSON config: right type, right range, or an `InputError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from computeflow.errors import InputError
from computeflow.files.limits import LAYERS
from computeflow.files.names import shown

_MAX_SIZE = 2**31


class Config:
    """Checked access to the values of a config. Null is absent; of `a|b` the first there counts."""

    def __init__(
        self, values: Mapping[str, Any], name: str = "", family: str = "", as_of: str = ""
    ) -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self.name = name
        self.family = family
        self.as_of = as_of

    def text_model(self, defaults: Mapping[str, Any], name: str, family: str, as_of: str) -> Config:
        """The part that describes the text model, over `defaults`."""
        inner = self.inside("text_config") if "text_config" in self._values else self
        return Config({**defaults, **inner._values}, name, family, as_of)

    def inside(self, key: str) -> Config:
        part = self._values.get(key, {})
        if not isinstance(part, dict):
            raise InputError(f"{key} = {short(part)} is not an object")
        return Config(part)

    def optional(self, keys: str) -> int | None:
        key = next((key for key in keys.split("|") if key in self._values), None)
        if key is None:
            return None
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{key} = {short(value)} is not a whole number")
        if not 0 <= value <= _MAX_SIZE:
            raise InputError(f"{key} = {short(value)} is outside 0..{_MAX_SIZE}")
        return value

    def size(self, keys: str, default: int | None = None) -> int:
        value = self.optional(keys)
        value = default if value is None else value
        if value is None:
            raise InputError(f"the key {keys.replace('|', ' or ')} is missing")
        if value < 1:
            raise InputError(f"{keys.replace('|', ' or ')} = {value} must be positive")
        return value

    def layers(self, keys: str = "num_hidden_layers") -> range:
        count = self.size(keys)
        if count > LAYERS:
            raise InputError(f"{keys.replace('|', ' or ')} = {count} is above {LAYERS}")
        return range(count)

    def flag(self, key: str) -> bool:
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise InputError(f"{key} = {short(value)} is not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key, default)
        if value is None:
            raise InputError(f"the key {key} is missing")
        if not isinstance(value, str):
            raise InputError(f"{key} = {short(value)} is not text")
        return value

    def items(self, key: str) -> list[Any]:
        value = self._values.get(key, [])
        if not isinstance(value, list) or len(value) > LAYERS:
            raise InputError(f"{key} = {short(value)} is not a list of at most {LAYERS}")
        return value

    def per_layer(self, key: str, usual: list[Any]) -> list[Any]:
        """A list with one entry per layer; `usual` where the config has none."""
        entries = self.items(key) or usual
        if len(entries) != len(usual):
            raise InputError(f"{key} has {len(entries)} entries for {len(usual)} layers")
        return entries


def short(value: object) -> str:
    """A value from a file, shortened for a message."""
    try:
        return shown(value if isinstance(value, str) else repr(value), 37)
    except (RecursionError, ValueError):  # nested too deeply; an integer of too many digits
        return f"<{type(value).__name__}>"
