"""What each page answers: a function for each, whose parameters are those of its address.

`page_list.PAGES` lists them.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "findings_page": "findings",
    "flow_page": "flow",
    "run_page": "single_run",
    "runs_page": "single_run",
    "timeline_page": "timeline",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
