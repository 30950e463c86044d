"""What each page answers: a function for each, whose parameters are those of its address.

`page_list.PAGES` lists them.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "accuracy_page": "accuracy",
    "catalog_page": "catalog",
    "decide_page": "decide",
    "findings_page": "findings",
    "fleet_page": "fleet",
    "flow_page": "flow",
    "kind_page": "catalog",
    "plan_page": "plan",
    "row_page": "catalog",
    "run_page": "single_run",
    "runs_page": "single_run",
    "simulate_page": "simulate",
    "timeline_page": "timeline",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
