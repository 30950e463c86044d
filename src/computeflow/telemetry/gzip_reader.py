"""Gzip decompression: by ISA-L where it is installed (extra `fast`; a third of the time), else by
zlib.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_library: Any = import_module("isal.isal_zlib") if find_spec("isal") else zlib
BROKEN: tuple[type[Exception], ...] = (_library.error, zlib.error)
_GZIP = 31


def inflating() -> Any:
    """A decompressor of one gzip member, with zlib's attributes; raises one of `BROKEN`."""
    return _library.decompressobj(_GZIP)
