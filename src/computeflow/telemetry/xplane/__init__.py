"""Profiles of JAX and XLA (`*.xplane.pb`, `*.trace.json.gz`): `read` gives a trace for every
device.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {"read": "xplane_reader", "recognises": "xplane_reader"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
