"""`WrongFieldError`: a refusal that says which field of a form is wrong, to be shown beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from computeflow.collection.collector.clients import RefusedError
from computeflow.errors import ComputeFlowError, UnknownNameError
from computeflow.units import format_count

_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
_KINDS = {"accelerator": "device", "model": "model", "precision": "precision"}
_OPTIONS = {"global-batch": "batch", "seq-len": "sequence", "on": "device"}
"""Options of the command whose fields have another name on the page."""
_LABELS = {
    "global-batch": "batch",
    "seq-len": "sequence length",
    "on": "device type and number of devices",
    "gpus": "number of devices",
    "price": "price",
    "tokens": "tokens",
    "deadline": "deadline",
    "precision": "precision",
    "budget": "budget",
    "interval": "checkpoint interval",
    "spares": "spare nodes",
    "failures": "failure rates",
    "simulations": "number of simulations",
    "sensitivity": "varied inputs",
}
"""Options that are fields of a form, as the form calls them."""
_WORDS = {"seq_len": "sequence", "global_batch": "batch", "tokens": "tokens", "device's": "device"}
_FIELDS = ("model", "device", "gpus", "precision", "tokens", "deadline", "budget", "price")
_LIMITS = {
    "greater_than_equal": "at least {ge:,.16g}",
    "greater_than": "more than {gt:,.16g}",
    "less_than_equal": "at most {le:,.16g}",
    "less_than": "less than {lt:,.16g}",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "string_type": "text",
    "literal_error": "{expected}",
}
"""What a value must be, by pydantic's type of the error and with its numbers."""
_LENGTHS = {
    "string_too_long": ("at most", "max_length", "character"),
    "string_too_short": ("at least", "min_length", "character"),
    "too_long": ("at most", "max_length", "value"),
    "too_short": ("at least", "min_length", "value"),
}
_LONGEST_VALUE = 40


class WrongFieldError(RefusedError):
    def __init__(self, status: int, text: str, field: str = "") -> None:
        super().__init__(status, text)
        self.field = field


def form_text(text: str) -> str:
    """An error's text as a form says it: fields by their labels, not by options of the command."""
    told = _OPTION.sub(lambda option: _LABELS.get(option[1], option[0]), text)
    return told[:1].upper() + told[1:] if text.startswith("--") and told != text else told


def field_of(error: ComputeFlowError) -> str:
    """The field of a form that an error is about; "" where it is about all of it."""
    if isinstance(error, UnknownNameError) and (kind := error.kind.partition(" of ")[0]) in _KINDS:
        return _KINDS[kind]
    text = str(error)
    named = _OPTION.search(text)
    if named is not None:
        option = _OPTIONS.get(named[1], named[1])
        return option if option in (*_FIELDS, *_OPTIONS.values()) else ""
    words = text.split()
    if "unit of tokens" in text:
        return "tokens"
    return next((field for word, field in _WORDS.items() if word in words[:4]), "")


def limit_words(fault: Mapping[str, Any]) -> str:
    """`gpus: at least 1, not -3`: a fault of FastAPI's validation, as our own errors say it."""
    field, kind, numbers = fault["loc"][-1], fault["type"], fault.get("ctx", {})
    if kind == "missing":
        return f"{field}: no value given"
    if kind == "json_invalid":
        return "the body of the request is not JSON"
    if kind in _LENGTHS:
        least, number, what = _LENGTHS[kind]
        return (
            f"{field}: {least} {format_count(numbers[number], what)}, not {len(fault['input']):,}"
        )
    if kind in _LIMITS:
        return f"{field}: {_LIMITS[kind].format(**numbers)}, not {_shown(fault['input'])}"
    return f"{field}: {fault['msg']}"


def _shown(value: object) -> str:
    """A number as it was written, other text in quotes, both cut short."""
    text = str(value)
    cut = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
    return cut if re.fullmatch(r"[-+]?[0-9][0-9.e+-]*", text) else repr(cut)
