"""Whether a node that makes everybody wait, or that fails again and again, is taken out of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError, UnknownNameError

Rule = Literal["worth", "always", "never"]
RULES: tuple[str, ...] = get_args(Rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    stragglers: Rule = "worth"
    """worth: where the slow steps to come cost more than the restart."""
    lemon_failures: int | None = None
    """Failures of one node after which it is not taken back; None: it always is."""

    def __post_init__(self) -> None:
        if self.stragglers not in RULES:
            raise UnknownNameError("rule for stragglers", self.stragglers, RULES)
        if self.lemon_failures is not None and self.lemon_failures < 1:
            raise InputError(f"lemon_failures = {self.lemon_failures}: one or more")

    def evicts(
        self,
        slowdown: NDArray[np.float64],
        remaining_seconds: NDArray[np.float64],
        restart_seconds: NDArray[np.float64],
    ) -> NDArray[np.bool_]:
        """Of stragglers that lengthen a step by `slowdown` for `remaining_seconds` more."""
        if self.stragglers == "worth":
            wasted = remaining_seconds * slowdown / (1 + slowdown)
            return np.asarray(wasted > restart_seconds)
        return np.full(np.shape(slowdown), self.stragglers == "always")

    def drops(self, failures: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of nodes that have failed so often, those that are not taken back."""
        if self.lemon_failures is None:
            return np.zeros(np.shape(failures), dtype=np.bool_)
        return np.asarray(failures >= self.lemon_failures)
