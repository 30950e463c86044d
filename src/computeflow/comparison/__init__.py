"""What a job takes and where to run it: size, compare, sites, build or rent, claims.

`compare` goes from `request` over `offers`, `clusters` and `runs` to `costs` and `results`; `serving`
is apart. The names below are imported when they are first used: `size` answers in a second because it
does not load the simulator.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from computeflow._lazy import lazy_exports

if TYPE_CHECKING:
    from computeflow.comparison.advice import Advice as Advice
    from computeflow.comparison.advice import advise as advise
    from computeflow.comparison.comparisons import compare as compare
    from computeflow.comparison.costs import TermCost as TermCost
    from computeflow.comparison.offers import Offering as Offering
    from computeflow.comparison.offers import offerings as offerings
    from computeflow.comparison.planner import usual_job as usual_job
    from computeflow.comparison.request import Market as Market
    from computeflow.comparison.request import Request as Request
    from computeflow.comparison.results import Comparison as Comparison
    from computeflow.comparison.results import Result as Result
    from computeflow.comparison.sizes import Size as Size
    from computeflow.comparison.sizes import size as size

DATA = Path(__file__).with_name("data")
_EXPORTS = {
    "Advice": "advice",
    "Comparison": "results",
    "Market": "request",
    "Offering": "offers",
    "Request": "request",
    "Result": "results",
    "Size": "sizes",
    "TermCost": "costs",
    "advise": "advice",
    "compare": "comparisons",
    "offerings": "offers",
    "size": "sizes",
    "usual_job": "planner",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
