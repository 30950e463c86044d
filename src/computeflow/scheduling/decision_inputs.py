"""`DecisionInputs`: all that a decision is made from, as plain values that a journal can keep."""

from __future__ import annotations

from dataclasses import dataclass, field

from computeflow.scheduling.deciding import decide
from computeflow.scheduling.job_state import JobState, PastMove
from computeflow.scheduling.move_policy import MovePolicy
from computeflow.scheduling.options import JobDecision
from computeflow.scheduling.troubles import Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInputs:
    state: JobState
    troubles: tuple[Trouble, ...]
    policy: MovePolicy = field(default_factory=MovePolicy)
    past: tuple[PastMove, ...] = ()
    """Moves that were made before, of any job."""

    def decide(self) -> JobDecision:
        """The same decision, however often it is asked for."""
        return decide(self.state, self.troubles, policy=self.policy, past=self.past)
