"""Tables of node outages: which node was out of service when, and why.

Start with `outage_source.OutageTables`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {"OutageFacts": "outage_source", "OutageTables": "outage_source"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
