"""`PricedOption`: one possible move with its price and its gain; `JobDecision`: the one that is chosen.

All seconds are of the job's wall time; gains and prices are against doing nothing, which has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from computeflow.errors import InputError, UnknownNameError

ActionKind = Literal[
    "nothing",
    "checkpoint-now",
    "checkpoint-interval",
    "restart-on-spare",
    "restart-after-checkpoint",
    "swap-ranks",
    "shrink",
    "cap-power",
]
ACTION_KINDS: tuple[str, ...] = get_args(ActionKind)
RESTARTS: frozenset[str] = frozenset(
    {"restart-on-spare", "restart-after-checkpoint", "swap-ranks", "shrink"}
)
"""Actions that stop the job and start it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePrice:
    """What a move costs, by part; seconds of the job."""

    lost_seconds: float = 0.0
    """Steps since the last good checkpoint, done again."""
    save_seconds: float = 0.0
    """A save on request, until it is safe."""
    wait_seconds: float = 0.0
    """What slow steps lose until the next checkpoint, where it is waited for."""
    drain_seconds: float = 0.0
    restart_seconds: float = 0.0
    queue_seconds: float = 0.0
    neighbour_seconds: float = 0.0
    """What other jobs lose, as seconds of this job's GPUs."""

    def __post_init__(self) -> None:
        for name, seconds in self.parts.items():
            if not 0 <= seconds < math.inf:
                raise InputError(f"{name} = {seconds:g}: zero or more, and finite")

    @property
    def parts(self) -> dict[str, float]:
        return {part.name: getattr(self, part.name) for part in fields(MovePrice)}

    @property
    def seconds(self) -> float:
        return math.fsum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOption:
    action: ActionKind
    price: MovePrice = field(default_factory=MovePrice)
    price_range: tuple[float, float] = (0.0, 0.0)
    """Seconds of all parts together."""
    gain_seconds: float = 0.0
    """Expected: what the job will not lose."""
    gain_range: tuple[float, float] = (0.0, 0.0)
    """With the cause lasting as its 10th or its 90th percentile, as little or as much as it slows."""
    lasting_gain_seconds: float = 0.0
    """What is gained if the cause would have lasted to the end of the job: what can be measured
    afterwards as (step before - step after) x remaining steps."""
    usd: float | None = None
    """Net gain in dollars of the job's GPUs, energy included; None without a price."""
    nodes_out: tuple[str, ...] = ()
    """Nodes that the job leaves."""
    nodes_in: tuple[str, ...] = ()
    """Nodes that take their place."""
    new_interval_seconds: float | None = None
    """For `checkpoint-interval`."""
    watts: float | None = None
    """For `cap-power`: the cap of each GPU."""
    ranks: tuple[int, ...] = ()
    """For `swap-ranks` and `cap-power`."""
    not_before_seconds: float = 0.0
    """Seconds from now at which the move begins: at the next checkpoint, for one that waits for it."""
    impossible: str = ""
    """Why it cannot be done; "" where it can."""

    def __post_init__(self) -> None:
        if self.action not in ACTION_KINDS:
            raise UnknownNameError("action", self.action, ACTION_KINDS)

    @property
    def is_possible(self) -> bool:
        return not self.impossible

    @property
    def net_seconds(self) -> float:
        return self.gain_seconds - self.price.seconds

    @property
    def lasting_net_seconds(self) -> float:
        """To be set beside what is measured afterwards, less the seconds spent on the move."""
        return self.lasting_gain_seconds - self.price.seconds

    @property
    def net_range(self) -> tuple[float, float]:
        """The least gain at the highest price, and the most at the lowest."""
        return self.gain_range[0] - self.price_range[1], self.gain_range[1] - self.price_range[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDecision:
    run: str
    job: str
    at: float
    """`now` of the state that it was made from."""
    chosen: PricedOption
    options: tuple[PricedOption, ...]
    """All that were looked at, the best first; doing nothing is always among them."""
    reason: str
    """One sentence, with the numbers that decided."""
    troubles: tuple[str, ...] = ()
    """Keys of the findings that it rests on; it is void when one of them has expired."""
    valid_until: float = math.inf
    """When the first of them expires."""
    rests_on: tuple[str, ...] = ()
    """Every figure that was used: "measured: ..." or "assumed: ..."."""
    held: str = ""
    """Why a better move than the chosen one is not made yet: too early, or too soon after the last."""

    def __post_init__(self) -> None:
        if self.chosen not in self.options:
            raise InputError("a decision chooses one of its options")
        if not any(option.action == "nothing" for option in self.options):
            raise InputError("doing nothing is always an option")

    @property
    def acts(self) -> bool:
        return self.chosen.action != "nothing"

    def is_void(self, now: float) -> bool:
        return now > self.valid_until
