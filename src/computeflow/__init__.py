"""ComputeFlow: where every GPU-second, joule and dollar of training goes, and what to change.

    import computeflow as cf
    cf.predict("llama-3.1-70b", on="h100-sxm:512", global_batch=1024, seq_len=8192, tp=4, pp=4)

Every command is a function of its name; its long options are the keywords. The names below are
imported when they are first used, so that `import computeflow` costs nothing and a part that runs in a
training process pulls in nothing else.
"""

from typing import TYPE_CHECKING

from computeflow._lazy import lazy_exports
from computeflow.answers import __all__ as _answers
from computeflow.answers.renames import FUNCTIONS as _RENAMED

if TYPE_CHECKING:
    from computeflow.answers import AgentAnswer as AgentAnswer
    from computeflow.answers import Answer as Answer
    from computeflow.answers import AttachAnswer as AttachAnswer
    from computeflow.answers import AuditAnswer as AuditAnswer
    from computeflow.answers import BatchesAnswer as BatchesAnswer
    from computeflow.answers import BuildAnswer as BuildAnswer
    from computeflow.answers import BuildsAnswer as BuildsAnswer
    from computeflow.answers import CalibrateAnswer as CalibrateAnswer
    from computeflow.answers import CheckAnswer as CheckAnswer
    from computeflow.answers import ClaimsAnswer as ClaimsAnswer
    from computeflow.answers import CollectAnswer as CollectAnswer
    from computeflow.answers import CompareAnswer as CompareAnswer
    from computeflow.answers import CompareSitesAnswer as CompareSitesAnswer
    from computeflow.answers import ControlAnswer as ControlAnswer
    from computeflow.answers import DecideAnswer as DecideAnswer
    from computeflow.answers import ExportAnswer as ExportAnswer
    from computeflow.answers import FrontAnswer as FrontAnswer
    from computeflow.answers import ImproveAnswer as ImproveAnswer
    from computeflow.answers import ManifestAnswer as ManifestAnswer
    from computeflow.answers import PlaceAnswer as PlaceAnswer
    from computeflow.answers import PlanAnswer as PlanAnswer
    from computeflow.answers import PoolsAnswer as PoolsAnswer
    from computeflow.answers import PredictAnswer as PredictAnswer
    from computeflow.answers import ProbeAnswer as ProbeAnswer
    from computeflow.answers import RecordAnswer as RecordAnswer
    from computeflow.answers import RunsAnswer as RunsAnswer
    from computeflow.answers import ServingAnswer as ServingAnswer
    from computeflow.answers import SimulateAnswer as SimulateAnswer
    from computeflow.answers import SiteLimitsAnswer as SiteLimitsAnswer
    from computeflow.answers import SizeAnswer as SizeAnswer
    from computeflow.answers import TopAnswer as TopAnswer
    from computeflow.answers import ValidateAnswer as ValidateAnswer
    from computeflow.answers import ValidateRunsAnswer as ValidateRunsAnswer
    from computeflow.answers import agent as agent
    from computeflow.answers import audit as audit
    from computeflow.answers import build as build
    from computeflow.answers import calibrate as calibrate
    from computeflow.answers import check as check
    from computeflow.answers import claims as claims
    from computeflow.answers import collect as collect
    from computeflow.answers import compare as compare
    from computeflow.answers import compare_sites as compare_sites
    from computeflow.answers import control as control
    from computeflow.answers import decide as decide
    from computeflow.answers import export as export
    from computeflow.answers import improve as improve
    from computeflow.answers import place as place
    from computeflow.answers import plan as plan
    from computeflow.answers import predict as predict
    from computeflow.answers import probe as probe
    from computeflow.answers import record as record
    from computeflow.answers import runs as runs
    from computeflow.answers import simulate as simulate
    from computeflow.answers import site_limits as site_limits
    from computeflow.answers import size as size
    from computeflow.answers import top as top
    from computeflow.answers import validate as validate
    from computeflow.catalog import Catalog as Catalog
    from computeflow.catalog import find_model as find_model
    from computeflow.catalog import load_catalog as load_catalog
    from computeflow.errors import ComputeFlowError as ComputeFlowError
    from computeflow.errors import InputError as InputError
    from computeflow.ledger import Entry as Entry
    from computeflow.ledger import Finding as Finding
    from computeflow.ledger import Ledger as Ledger
    from computeflow.ledger import Window as Window
    from computeflow.ledger.gaps import gaps as gaps

__version__ = "0.1.0"

_EXPORTS = dict.fromkeys(_answers, "answers") | {
    "Catalog": "catalog",
    "ComputeFlowError": "errors",
    "Entry": "ledger",
    "Finding": "ledger",
    "InputError": "errors",
    "Ledger": "ledger",
    "Window": "ledger",
    "actions": "",
    "catalog": "",
    "cluster": "",
    "find_model": "catalog",
    "gaps": "ledger",
    "ledger": "",
    "load_catalog": "catalog",
}
__all__ = ["__version__", *_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, _RENAMED)
