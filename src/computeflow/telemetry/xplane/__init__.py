"""Profiles of JAX and XLA (`*.xplane.pb`, `*.trace.json.gz`): `read` gives a trace for every device."""

from computeflow._lazy import lazy_exports

_EXPORTS = {"read": "reading", "recognises": "reading"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
