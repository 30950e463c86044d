"""`WrongFieldError`: a refusal that says which field of a form is wrong, to be shown beside it."""

from __future__ import annotations

import re

from computeflow.collection.collector.clients import RefusedError
from computeflow.errors import ComputeFlowError, UnknownNameError

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
