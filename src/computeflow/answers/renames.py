"""Names that have changed: the old ones are still taken, with a note, for one version.

The command line has the same names with dashes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from computeflow.errors import InputError

FUNCTIONS = {"site": "site_limits", "sites": "compare_sites"}
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "compare": {
        "least_gpus": "min_gpus",
        "line": "transfer_rate",
        "most_gpus": "max_gpus",
        "onramp": "access_latency",
        "repeats": "simulations",
        "replace": "replacement_time",
        "sure": "conservative",
    },
    "probe": {"calibration": "write_calibration", "repeats": "passes"},
    "simulate": {"lemons": "retire_after", "repeats": "simulations", "shrink": "shrink_to"},
}
"""By function: old keyword -> new."""
VALUES: Mapping[str, Mapping[str, Mapping[str, str]]] = {"simulate": {"evict": {"worth": "auto"}}}
"""By function and keyword: old value -> new."""


def rename_keywords(function: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call under their present names, with a warning for every old one."""
    names, values = KEYWORDS.get(function, {}), VALUES.get(function, {})
    renamed: dict[str, Any] = {}
    for name, value in keywords.items():
        new = names.get(name, name)
        if new != name:
            if new in keywords:
                raise InputError(f"{name} is now {new}: leave {name} out")
            _warn(name, new)
        known = values.get(new, {})
        if isinstance(value, str) and value in known:
            _warn(f"{new}={value!r}", f"{new}={known[value]!r}")
            value = known[value]
        renamed[new] = value
    return renamed


def _warn(old: str, new: str) -> None:
    # The levels below are rename_keywords and the checked function; the next is the caller.
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=4)
