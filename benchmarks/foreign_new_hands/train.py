"""Train one case as its script does: `python3 -m benchmarks.foreign_new_hands.train CASE SECONDS GO`.

It imports what it needs, waits for the file GO, and ends after so many seconds of steps. Without a GPU
it trains in sizes that mean nothing.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from pathlib import Path

import torch

from benchmarks.foreign.loops import EnoughError
from benchmarks.foreign_more_styles.common import be_tiny
from benchmarks.foreign_more_styles.record import load
from benchmarks.foreign_new_hands.record import NEW_HANDS

_POLL_SECONDS = 0.05


class Timer:
    """Counts from the first step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: float | None = None

    def step(self) -> None:
        now = time.monotonic()
        self._ends = self._ends or now + self._seconds
        if now >= self._ends:
            raise EnoughError


def main() -> None:
    name, seconds, go = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    warnings.filterwarnings("ignore")
    if not torch.cuda.is_available():
        be_tiny()
    script = load(NEW_HANDS)[name.partition("_")[0]]
    case = next(case for case in script.CASES if case.name == name)
    while not go.exists():
        time.sleep(_POLL_SECONDS)
    torch.manual_seed(1234)
    with contextlib.suppress(EnoughError):
        script.train(Timer(seconds), case.wrong)


if __name__ == "__main__":
    main()
