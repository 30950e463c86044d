"""How CPU time grows with the input, within one run: `growth`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def growth(work: Callable[[int], object], size: int) -> float:
    """Ratio of least CPU times for four times the input: 4 if linear, 16 if quadratic. On a busy
    machine a time can be several times too long, so it is measured until the ratio is near 4.
    """

    def seconds(size: int) -> float:
        before = time.process_time()
        work(size)
        return time.process_time() - before

    large = small = math.inf
    for _ in range(30):
        large, small = min(large, seconds(4 * size)), min(small, seconds(size))
        if large < 6 * small:
            break
    return large / small
