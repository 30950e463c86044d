"""Stacks of an operation: `own_frame` is the line of the user's code, not torch's."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LIBRARY = re.compile(
    r"[(/](?:site-packages|dist-packages|lib(?:64)?/python3\.\d{1,3})/|\((?:torch/|<)"
)
"""Where installed packages and the standard library lie; `torch/` where a dump was shortened."""


def own_frame(frames: Sequence[str]) -> str:
    """The innermost frame outside installed packages; else the innermost; "" without a stack."""
    own = (frame for frame in frames if not _LIBRARY.search(frame))
    return next(own, frames[0] if frames else "")
