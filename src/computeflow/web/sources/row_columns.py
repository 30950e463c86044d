"""Rows of a table as columns, and parts of them put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Columns = dict[str, NDArray[Any]]


def join_columns(parts: Sequence[Columns], kinds: Mapping[str, DTypeLike]) -> Columns:
    """These columns of all parts, each of its kind; an empty part has none."""
    there = [part for part in parts if part]
    return {
        name: np.concatenate([np.zeros(0, kind), *(part[name] for part in there)]).astype(kind)
        for name, kind in kinds.items()
    }
