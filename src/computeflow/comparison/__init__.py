"""Size of a job and where to run it: size, compare, site limits, build or rent, claims.

`compare` goes from `request` over `offers`, `clusters` and `runs` to `costs` and `results`; `serving`
is apart. The names below are imported when they are first used: `size` answers in a second because it
does not load the simulator.
"""

from pathlib import Path

from computeflow._lazy import lazy_exports

DATA = Path(__file__).with_name("data")
_EXPORTS = {
    "Advice": "advice",
    "Comparison": "results",
    "Market": "request",
    "Offering": "offers",
    "ComparisonRequest": "request",
    "Result": "results",
    "JobSize": "sizes",
    "TermCost": "costs",
    "advise": "advice",
    "compare": "comparisons",
    "offerings": "offers",
    "size": "sizes",
    "usual_job": "planner",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
