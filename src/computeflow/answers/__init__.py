"""The library function behind every command, and what each returns.

A function's keywords are the command's long options; what it returns is an `Answer`. The names below
are imported when they are first used.
"""

from typing import TYPE_CHECKING

from computeflow._lazy import lazy_exports
from computeflow.answers.renames import FUNCTIONS

if TYPE_CHECKING:
    from computeflow.answers.agents import AgentAnswer as AgentAnswer
    from computeflow.answers.agents import ManifestAnswer as ManifestAnswer
    from computeflow.answers.agents import agent as agent
    from computeflow.answers.answer import Answer as Answer
    from computeflow.answers.audits import AuditAnswer as AuditAnswer
    from computeflow.answers.audits import audit as audit
    from computeflow.answers.builds import BuildAnswer as BuildAnswer
    from computeflow.answers.builds import BuildsAnswer as BuildsAnswer
    from computeflow.answers.builds import build as build
    from computeflow.answers.calibrations import CalibrateAnswer as CalibrateAnswer
    from computeflow.answers.calibrations import calibrate as calibrate
    from computeflow.answers.checks import CheckAnswer as CheckAnswer
    from computeflow.answers.checks import check as check
    from computeflow.answers.claim_checks import ClaimsAnswer as ClaimsAnswer
    from computeflow.answers.claim_checks import claims as claims
    from computeflow.answers.collectors import CollectAnswer as CollectAnswer
    from computeflow.answers.collectors import collect as collect
    from computeflow.answers.comparisons import CompareAnswer as CompareAnswer
    from computeflow.answers.comparisons import compare as compare
    from computeflow.answers.controls import ControlAnswer as ControlAnswer
    from computeflow.answers.controls import control as control
    from computeflow.answers.decisions import DecideAnswer as DecideAnswer
    from computeflow.answers.decisions import decide as decide
    from computeflow.answers.exports import ExportAnswer as ExportAnswer
    from computeflow.answers.exports import export as export
    from computeflow.answers.improvements import ImproveAnswer as ImproveAnswer
    from computeflow.answers.improvements import improve as improve
    from computeflow.answers.live_tops import TopAnswer as TopAnswer
    from computeflow.answers.live_tops import top as top
    from computeflow.answers.placements import PlaceAnswer as PlaceAnswer
    from computeflow.answers.placements import place as place
    from computeflow.answers.plans import BatchesAnswer as BatchesAnswer
    from computeflow.answers.plans import FrontAnswer as FrontAnswer
    from computeflow.answers.plans import PlanAnswer as PlanAnswer
    from computeflow.answers.plans import PoolsAnswer as PoolsAnswer
    from computeflow.answers.plans import plan as plan
    from computeflow.answers.predictions import PredictAnswer as PredictAnswer
    from computeflow.answers.predictions import predict as predict
    from computeflow.answers.probes import ProbeAnswer as ProbeAnswer
    from computeflow.answers.probes import probe as probe
    from computeflow.answers.records import AttachAnswer as AttachAnswer
    from computeflow.answers.records import RecordAnswer as RecordAnswer
    from computeflow.answers.records import record as record
    from computeflow.answers.run_histories import RunsAnswer as RunsAnswer
    from computeflow.answers.run_histories import runs as runs
    from computeflow.answers.serving import ServingAnswer as ServingAnswer
    from computeflow.answers.simulations import SimulateAnswer as SimulateAnswer
    from computeflow.answers.simulations import simulate as simulate
    from computeflow.answers.site_capacity import SiteLimitsAnswer as SiteLimitsAnswer
    from computeflow.answers.site_capacity import site_limits as site_limits
    from computeflow.answers.site_comparisons import CompareSitesAnswer as CompareSitesAnswer
    from computeflow.answers.site_comparisons import compare_sites as compare_sites
    from computeflow.answers.sizes import SizeAnswer as SizeAnswer
    from computeflow.answers.sizes import size as size
    from computeflow.answers.validations import ValidateAnswer as ValidateAnswer
    from computeflow.answers.validations import ValidateRunsAnswer as ValidateRunsAnswer
    from computeflow.answers.validations import validate as validate

_EXPORTS = {
    "AgentAnswer": "agents",
    "Answer": "answer",
    "AttachAnswer": "records",
    "AuditAnswer": "audits",
    "BatchesAnswer": "plans",
    "BuildAnswer": "builds",
    "BuildsAnswer": "builds",
    "CalibrateAnswer": "calibrations",
    "CheckAnswer": "checks",
    "ClaimsAnswer": "claim_checks",
    "CollectAnswer": "collectors",
    "CompareAnswer": "comparisons",
    "ControlAnswer": "controls",
    "DecideAnswer": "decisions",
    "ExportAnswer": "exports",
    "FrontAnswer": "plans",
    "ImproveAnswer": "improvements",
    "ManifestAnswer": "agents",
    "PlaceAnswer": "placements",
    "PlanAnswer": "plans",
    "PoolsAnswer": "plans",
    "PredictAnswer": "predictions",
    "ProbeAnswer": "probes",
    "RecordAnswer": "records",
    "RunsAnswer": "run_histories",
    "ServingAnswer": "serving",
    "SimulateAnswer": "simulations",
    "SiteLimitsAnswer": "site_capacity",
    "CompareSitesAnswer": "site_comparisons",
    "SizeAnswer": "sizes",
    "TopAnswer": "live_tops",
    "ValidateAnswer": "validations",
    "ValidateRunsAnswer": "validations",
    "agent": "agents",
    "audit": "audits",
    "build": "builds",
    "calibrate": "calibrations",
    "check": "checks",
    "claims": "claim_checks",
    "collect": "collectors",
    "compare": "comparisons",
    "compare_sites": "site_comparisons",
    "control": "controls",
    "decide": "decisions",
    "export": "exports",
    "improve": "improvements",
    "place": "placements",
    "plan": "plans",
    "predict": "predictions",
    "probe": "probes",
    "record": "records",
    "runs": "run_histories",
    "simulate": "simulations",
    "site_limits": "site_capacity",
    "size": "sizes",
    "top": "live_tops",
    "validate": "validations",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, FUNCTIONS)
