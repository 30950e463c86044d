"""Logs that training frameworks write; start with `source.LogSource`.

`reading` gives lines with their rank and time, `frameworks` what a line says, `run_log` what happened,
`timeline` where the time went.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Bandwidth": "facts",
    "LogSource": "source",
    "Run": "facts",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
