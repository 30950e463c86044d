# ruff: noqa: PTH100, PTH118, PTH120, PTH123 - pathlib would be a large part of the cost
"""Started with every Python process under `computeflow record`: brings the recorder with torch or JAX.

The user's own `sitecustomize`, if there is one, runs first, and fails as it would alone. A process
that never looks for torch or JAX pays for this small file and nothing else.
"""

import sys
from os.path import abspath, dirname

TYPE_CHECKING = False  # `typing` would be half of the cost
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = dirname(abspath(__file__))
_AWAITED = ("torch", "jax")


class _Awaiting:
    """First on the meta path until somebody looks for a framework: then the recorder takes over."""

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if name not in _AWAITED:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _record()
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                return spec
        return None


def _record() -> None:
    """Start the recorder that lies beside this file, whether or not this Python has it installed."""
    home = dirname(dirname(dirname(_HERE)))
    sys.path.insert(0, home)
    try:
        from computeflow.recorder.starting import start

        start()
    except Exception as error:
        _say(error)
    finally:
        sys.path.remove(home)


def _say(error: Exception) -> None:
    """Leave the reason in the run folder: standard error is the user's."""
    import os

    try:
        path = os.path.join(os.environ["COMPUTEFLOW_RECORD"], "not-recorded.txt")
        version = ".".join(map(str, sys.version_info[:3]))
        with open(path, "a") as file:
            file.write("python %s: %s: %s\n" % (version, type(error).__name__, error))  # noqa: UP031
    except Exception:
        pass


def _chain() -> None:
    """Run the `sitecustomize` that this one stands in front of."""
    others = [path for path in sys.path if abspath(path or ".") != _HERE]
    finders = [each for each in sys.meta_path if getattr(each, "__name__", "") == "PathFinder"]
    spec = finders[0].find_spec("sitecustomize", others) if finders else None
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _chain()
finally:
    sys.meta_path.insert(0, _Awaiting())
