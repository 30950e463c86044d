"""Who may look and who may act: the door before every route.

`guard.Guard` stands before all routes; `security.Doorkeeper` knows tokens, sessions and origins.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {"Doorkeeper": "security", "Guard": "guard", "Viewer": "security"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
