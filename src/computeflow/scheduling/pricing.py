"""The one formula of a move, for numbers and for arrays of them: `slow_cost`, `worth_moving`.

A step that is longer by `slowdown` loses slowdown / (1 + slowdown) of its wall time. A cause that has
lasted for a while goes on for `Persistence.expected_seconds`; None in place of a `Persistence`: it
lasts until the end. A move pays if what slow steps would lose is more than its price; and it is made
when waiting pays no longer: a moment of waiting loses the slow part of that moment, and saves the
price if the cause goes away in it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.scheduling.persistence import Persistence

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Numbers = Floats | float


def slow_share(slowdown: Numbers) -> Floats:
    """Share of its wall time that a slowed step loses."""
    return np.asarray(np.asarray(slowdown) / (1 + np.asarray(slowdown)))


def slow_cost(slowdown: Numbers, slow_seconds: Numbers) -> Floats:
    """What so many seconds of slow steps lose."""
    return np.asarray(slow_share(slowdown) * slow_seconds)


def expected_cost(
    slowdown: Numbers,
    lasted_seconds: Numbers,
    left_seconds: Numbers,
    persistence: Persistence | None,
) -> Floats:
    """What slow steps will lose until the cause goes away or the work is done.

    `left_seconds` is the time that the work takes if all of it is slow.
    """
    if persistence is None:
        return slow_cost(slowdown, left_seconds)
    return slow_cost(slowdown, persistence.expected_seconds(lasted_seconds, left_seconds))


def patience_seconds(
    slowdown: Numbers, price_seconds: Numbers, persistence: Persistence | None, trust: float = 1.0
) -> Floats:
    """How long a cause must have lasted before waiting pays no longer: where the price times the rate
    at which such causes go away has fallen to the share that slow steps lose. Infinite without a
    slowdown.
    """
    if persistence is None:
        return np.zeros(np.broadcast(slowdown, price_seconds).shape)
    share = trust * slow_share(slowdown)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(share > 0, persistence.shape * np.asarray(price_seconds) / share, np.inf)
    return np.asarray(np.maximum(needed - persistence.scale_seconds, 0.0))


def worth_moving(
    slowdown: Numbers,
    lasted_seconds: Numbers,
    left_seconds: Numbers,
    price_seconds: Numbers,
    persistence: Persistence | None,
    trust: float = 1.0,
) -> Bools:
    """Whether to move now: it pays, and waiting pays no longer. `trust`: share of the gain that is
    believed.
    """
    gain = trust * expected_cost(slowdown, lasted_seconds, left_seconds, persistence)
    patience = patience_seconds(slowdown, price_seconds, persistence, trust)
    return np.asarray((gain > price_seconds) & (np.asarray(lasted_seconds) >= patience))
