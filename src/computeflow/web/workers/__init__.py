"""What takes long to compute, in processes beside the server: `workbench` first.

`tasks` is what the processes compute.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {"Workbench": "workbench"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
