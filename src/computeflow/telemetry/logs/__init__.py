"""Logs that training frameworks write; start with `log_source.LogSource`.

`log_lines` gives lines with their rank and time, `framework_lines` the event of a line, `run_log` the
state of the run, `log_timeline` where the time went.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Bandwidth": "log_facts",
    "LogSource": "log_source",
    "LoggedRun": "log_facts",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
