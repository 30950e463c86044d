"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, str], renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: name -> the module inside it that
    defines the name, or "" for a module of that name. Old names are in `renamed`.
    """

    def get(name: str) -> Any:
        if renamed and name in renamed:
            new = renamed[name]
            warnings.warn(f"{package}.{name} is now {new}", DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[package], new)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{modules[name] or name}")
        value = getattr(module, name) if modules[name] else module
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *modules})
