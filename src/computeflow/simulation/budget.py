"""Limits on the simulations of one call, and on those of one command together.

Work is counted in events: of all simulations of all runs, and `ROUND` more for each event that the
longest run goes through, which all of a chunk wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from computeflow.errors import InputError

MAX_WORK = 20_000_000
"""Events of one call, of all replicas together: some 25 s of a processor and 1.3 GB."""
MAX_COMMAND_WORK = 4 * MAX_WORK
"""Events of all calls of one command; `compare` with its defaults has a tenth of them."""
ROUND = 400
"""Cost of a round of events beside its replicas, in replicas."""


@dataclass(slots=True)
class _Spent:
    work: float = 0.0


_spent: ContextVar[_Spent | None] = ContextVar("spent", default=None)


@contextmanager
def one_budget() -> Iterator[None]:
    """Count all simulations inside together; inside another budget, in that one."""
    if _spent.get() is not None:
        yield
        return
    token = _spent.set(_Spent())
    try:
        yield
    finally:
        _spent.reset(token)


def spend(work: float) -> None:
    """Count what is about to be simulated; refuse what the command has no room for."""
    spent = _spent.get()
    if spent is None:
        return
    spent.work += work
    if spent.work > MAX_COMMAND_WORK:
        raise InputError(
            f"the simulations of this command take more than {MAX_COMMAND_WORK:,} events, some "
            f"{25 * MAX_COMMAND_WORK // MAX_WORK} s of a processor: fewer simulations, draws or "
            "offers, a shorter run, or fewer GPUs"
        )
