"""Act when a module has been imported: `when_imported("torch", install)`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

Act = Callable[[ModuleType], None]


class _Finder:
    """First on the meta path: lets the other finders find a watched module, and sees it loaded."""

    def __init__(self) -> None:
        self.acts: dict[str, list[Act]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.acts:
            return None
        spec = _found_by_others(self, name, path, target)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Loader, _Loader(spec.loader))
        return spec


class _Loader:
    """The module's own loader; what it loads is acted on before anybody else has it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        # Not when it is found: many ask whether a module is there and do not load it.
        for act in _FINDER.acts.pop(module.__name__, ()):
            _act(act, module)


_FINDER = _Finder()


def when_imported(name: str, act: Act) -> None:
    """Call `act` with the module: now, if it is there, else as soon as it has been loaded.

    What `act` raises is noted and dropped: who imports the module is not to see it.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _act(act, module)
        return
    _FINDER.acts.setdefault(name, []).append(act)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _act(act: Act, module: ModuleType) -> None:
    try:
        act(module)
    except Exception as error:
        with contextlib.suppress(Exception):
            from computeflow.recorder.process_recorder import failed

            failed(module.__name__, error)


def _found_by_others(
    ours: _Finder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = None if finder is ours else getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path, target) if find else None
        if spec is not None:
            return spec
    return None
