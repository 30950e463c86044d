"""Ledgers as JSON, with a version inside.

`accounts` is the sum by account, for readers that want one number a line; `entries` carries causes
and joules. Both are written, and both are checked when read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from computeflow import codec
from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.ledger.book import Ledger

SCHEMA = "computeflow.ledger/1"
_DERIVED = ("schema", "accounts", "mfu", "mfu_palm")
_OLD_KEYS = {"fell_to": "booked_under"}
"""Keys of ledgers that were written before, and their names now."""


def ledger_to_data(ledger: Ledger) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "gpus": ledger.gpus,
        "gpus_total": ledger.gpus_total,
        "wall_seconds": ledger.wall_seconds,
        "basis": ledger.basis,
        "window": codec.encode(ledger.window),
        "accounts": ledger.accounts,
        "entries": [codec.encode(entry) for entry in ledger.entries],
        "peak": codec.encode(ledger.peak),
        "mfu": ledger.mfu,
        "mfu_palm": ledger.mfu_palm,
        "unavailable": dict(ledger.unavailable),
        "booked_under": dict(ledger.booked_under),
        "on_host": ledger.on_host,
    }


def ledger_from_data(data: Any, where: str = "ledger") -> Ledger:
    if not isinstance(data, Mapping) or "schema" not in data:
        raise InputError(f"{where}: not a ledger: no `schema`")
    if data["schema"] != SCHEMA:
        raise InputError(f"{where}: schema '{shown(str(data['schema']))}' is not {SCHEMA!r}")
    fields = {_OLD_KEYS.get(k, k): v for k, v in data.items() if k not in _DERIVED}
    ledger = codec.decode(Ledger, fields, where)
    stated = data.get("accounts", ledger.accounts)
    if not isinstance(stated, Mapping) or not _agree(stated, ledger.accounts):
        raise InputError(f"{where}: `accounts` and `entries` disagree")
    return ledger


def _agree(stated: Mapping[str, Any], summed: Mapping[str, float]) -> bool:
    return stated.keys() == summed.keys() and all(
        isinstance(stated[name], int | float)
        and math.isclose(stated[name], seconds, rel_tol=1e-9, abs_tol=1e-12)
        for name, seconds in summed.items()
    )
