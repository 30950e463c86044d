"""What the device does, from the host's spans and how far behind them it came to their end."""

from __future__ import annotations

import numpy as np

from computeflow.telemetry.run_folders.device_time import device_pieces
from computeflow.telemetry.run_folders.phases import BACKWARD, DATA, FORWARD, OPTIMIZER
from computeflow.telemetry.run_folders.rank_file import Pieces

OUTSIDE = -1


def pieces(*rows: tuple[int, int, int]) -> Pieces:
    """Rows of start, end and kind."""
    start, end, kind = (np.array(column) for column in zip(*rows, strict=True))
    return Pieces(start=start, end=end, kind=kind)


def seconds_by_kind(found: Pieces) -> dict[int, int]:
    kinds = np.unique(found.kind).tolist()
    return {k: int((found.end - found.start)[found.kind == k].sum()) for k in kinds}


def test_the_device_works_on_while_the_host_waits_for_a_batch() -> None:
    host = pieces((0, 3, FORWARD), (3, 9, BACKWARD), (9, 30, DATA))
    leads = pieces((0, 5, FORWARD), (3, 20, BACKWARD))
    assert seconds_by_kind(device_pieces(host, leads)) == {FORWARD: 5, BACKWARD: 15, DATA: 10}


def test_an_optimizer_that_calls_forward_and_backward_does_not_take_their_time() -> None:
    """As Lightning's closures do: the span of the optimizer holds those of the passes."""
    host = pieces(
        (0, 1, OPTIMIZER),
        (1, 3, FORWARD),
        (3, 9, BACKWARD),
        (9, 10, OPTIMIZER),
        (10, 40, OUTSIDE),
    )
    leads = pieces((1, 5, FORWARD), (3, 29, BACKWARD), (0, 32, OPTIMIZER))
    found = seconds_by_kind(device_pieces(host, leads))
    assert found == {OPTIMIZER: 1 + 3, FORWARD: 4, BACKWARD: 24, OUTSIDE: 8}
