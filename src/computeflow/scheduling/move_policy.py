"""`MovePolicy`: when a move is made; the same value for a simulated run and for a live controller."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.scheduling.job_state import PastMove
from computeflow.scheduling.options import RESTARTS
from computeflow.scheduling.persistence import COMMUNICATION, COMPUTATION, Persistence
from computeflow.scheduling.pricing import Numbers, patience_seconds, worth_moving
from computeflow.units import DAY_SECONDS

_MAX_RATIO = 2.0
"""Most that one move may count for, over what was predicted of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePolicy:
    debounce_seconds: float = 300.0
    """A slowdown that has not lasted so long moves nothing: Kueue took blips of 1 to 3 minutes for
    failures with a rule of 30 s (kubernetes-sigs/kueue#12735)."""
    dead_after_seconds: float = 30.0
    """A rank or node that has been silent for so long is dead."""
    min_between_seconds: float = 1_800.0
    """Between two moves of one job."""
    max_moves_per_day: int = 6
    """Moves of one job; a dead job is started again all the same, up to twice as often."""
    min_gain_share: float = 0.0
    """A move must gain more than this share of its price beyond the price."""
    computation: Persistence = COMPUTATION
    """How long slow nodes, ranks and clocks stay slow."""
    communication: Persistence = COMMUNICATION
    """The same for links."""
    prior_moves: float = 4.0
    """How many earlier moves the trust in our own predictions is worth before there are any."""

    def __post_init__(self) -> None:
        for name in (
            "debounce_seconds",
            "dead_after_seconds",
            "min_between_seconds",
            "min_gain_share",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} = {getattr(self, name):g}: zero or more, and finite")
        if self.max_moves_per_day < 0:
            raise InputError(f"max_moves_per_day = {self.max_moves_per_day}: zero or more")
        if not 0 < self.prior_moves < math.inf:
            raise InputError(f"prior_moves = {self.prior_moves:g}: more than zero")

    def persistence(self, kind: str) -> Persistence | None:
        """How long a trouble of this kind goes on; None: until somebody mends it."""
        if kind == "degraded-hardware":
            return None
        return self.communication if kind == "slow-link" else self.computation

    def moves_now(
        self,
        slowdown: Numbers,
        lasted_seconds: Numbers,
        left_seconds: Numbers,
        price_seconds: Numbers,
        kind: str = "slow-node",
        trust: float = 1.0,
    ) -> NDArray[np.bool_]:
        """Whether to move, for a slowdown that has lasted so long, with so much slow time to come."""
        pays = worth_moving(
            slowdown,
            lasted_seconds,
            left_seconds,
            self.demanded(price_seconds),
            self.persistence(kind),
            trust,
        )
        return np.asarray(pays & (np.asarray(lasted_seconds) >= self.debounce_seconds))

    def earliest_move(
        self,
        slowdown: Numbers,
        left_seconds: Numbers,
        price_seconds: Numbers,
        kind: str = "slow-node",
    ) -> NDArray[np.float64]:
        """Seconds after its onset at which a slowdown is first worth a move; infinite: never.

        `left_seconds` is the slow time to come at the onset. Before its patience is over a move is
        not made, and one that does not pay then never does: what is left shrinks faster than the
        expected rest grows.
        """
        patience = patience_seconds(slowdown, self.demanded(price_seconds), self.persistence(kind))
        when = np.maximum(patience, self.debounce_seconds)
        finite = np.where(np.isfinite(when), when, 0.0)
        left = np.maximum(np.asarray(left_seconds) - finite, 0.0)
        moves = self.moves_now(slowdown, finite, left, price_seconds, kind)
        return np.asarray(np.where(moves & np.isfinite(when), when, np.inf))

    def demanded(self, price_seconds: Numbers) -> NDArray[np.float64]:
        """The gain that a move of this price must promise."""
        return np.asarray(np.asarray(price_seconds) * (1 + self.min_gain_share))

    def trust(self, past: Iterable[PastMove]) -> float:
        """Share of a claimed gain that earlier moves say to believe; 1 without any, never above it."""
        ratios = [
            min(max(move.measured_seconds / move.predicted_seconds, 0.0), _MAX_RATIO)
            for move in past
            if move.measured_seconds is not None
            and move.predicted_seconds is not None
            and move.predicted_seconds > 0
        ]
        mean = (self.prior_moves + math.fsum(ratios)) / (self.prior_moves + len(ratios))
        return min(mean, 1.0)

    def too_soon(
        self, job: str, action: str, now: float, past: Iterable[PastMove], *, dead: bool = False
    ) -> str:
        """Why the job may not be moved again yet; "" where it may. Restarts of any kind count together,
        other actions each by itself.
        """
        like = RESTARTS if action in RESTARTS else frozenset({action})
        mine = [move.at for move in past if move.job == job and move.action in like]
        mine = [at for at in mine if at <= now]
        today = sum(at > now - DAY_SECONDS for at in mine)
        most = self.max_moves_per_day * (2 if dead else 1)
        if action in RESTARTS and today >= most:
            return f"{today} moves of this job in 24 h, at most {most}"
        since = now - max(mine, default=-math.inf)
        if not dead and since < self.min_between_seconds:
            return f"{since:,.0f} s since its last move, at least {self.min_between_seconds:,.0f} s"
        return ""
