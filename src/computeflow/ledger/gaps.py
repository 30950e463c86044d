"""Two ledgers, line by line: where the measured run differs from the expected one.

Both are brought to the same useful work first (equal `compute.model`), because a longer window is
not a slower one. Lines are compared at the deepest level that both ledgers know: where one booked
`compute` whole, the other's split is summed; where one could not tell an account apart, that
account is compared together with the one its seconds fell to. The gaps sum to the total gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from computeflow.errors import LedgerError
from computeflow.ledger.accounts import ACCOUNTS, PARENTS
from computeflow.ledger.book import Ledger, is_within


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One line of the comparison, in GPU-seconds of the measured window."""

    accounts: tuple[str, ...]
    """One account, or several that a ledger could not tell apart."""
    measured: float
    expected: float

    @property
    def gpu_seconds(self) -> float:
        return self.measured - self.expected

    @property
    def label(self) -> str:
        return "+".join(self.accounts)


def gaps(measured: Ledger, expected: Ledger, *, work_ratio: float | None = None) -> list[Gap]:
    """The lines of `measured` against `expected`, in the order of the tree.

    `work_ratio` is measured work over expected work. Left out, it is taken from `compute.model`;
    where a ledger does not know that, it must be given (as a ratio of steps or tokens).
    """
    ratio = model_work_ratio(measured, expected) if work_ratio is None else work_ratio
    if not (math.isfinite(ratio) and ratio > 0):
        raise LedgerError(f"a work ratio of {ratio:g}: must be above zero")
    lines = []
    for group in _groups(measured, expected):
        lines.append(
            Gap(
                accounts=_label(group),
                measured=_booked(measured, group),
                expected=_booked(expected, group) * ratio,
            )
        )
    return lines


def model_work_ratio(measured: Ledger, expected: Ledger) -> float:
    """Measured work over expected work, by the model's FLOPs."""
    for ledger, which in ((measured, "measured"), (expected, "expected")):
        if "compute.model" in ledger.unavailable or not ledger.booked("compute.model"):
            missing = ledger.unavailable.get("compute.model", "no entry on it")
            raise LedgerError(
                f"the {which} ledger has no compute.model ({missing}): give the work ratio, "
                "measured steps or tokens over expected ones"
            )
        if "lost" in ledger.unavailable:
            raise LedgerError(
                f"the {which} ledger cannot tell steps done again from new ones "
                f"({ledger.unavailable['lost']}): give the work ratio"
            )
    return measured.booked("compute.model") / expected.booked("compute.model")


def _groups(measured: Ledger, expected: Ledger) -> list[list[str]]:
    """Accounts that must be compared together, by union-find over the tree."""
    top = {name: name for name in ACCOUNTS}
    for ledger in (measured, expected):
        for name, other in _inseparable(ledger):
            top[_find(top, name)] = _find(top, other)
    groups: dict[str, list[str]] = {}
    for name in ACCOUNTS:
        groups.setdefault(_find(top, name), []).append(name)
    booked = {entry.account for ledger in (measured, expected) for entry in ledger.entries}
    return [group for group in groups.values() if booked & set(group)]


def _find(top: dict[str, str], name: str) -> str:
    while top[name] != name:
        name = top[name]
    return name


def _inseparable(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Pairs of accounts that the ledger does not tell apart."""
    whole = {entry.account for entry in ledger.entries} & set(PARENTS)
    for name in ledger.unavailable.keys() & ACCOUNTS.keys():
        fallen = ledger.booked_under.get(name, ACCOUNTS[name].falls_to)
        yield name, fallen
        whole |= {name, fallen} & set(PARENTS)
    for parent in whole:
        yield from ((name, parent) for name in ACCOUNTS if is_within(name, parent))


def _label(group: list[str]) -> tuple[str, ...]:
    """A whole subtree goes by its parent's name."""
    parents = [name for name in group if name in PARENTS]
    return tuple(n for n in group if not any(n != p and is_within(n, p) for p in parents))


def _booked(ledger: Ledger, group: list[str]) -> float:
    return math.fsum(entry.gpu_seconds for entry in ledger.entries if entry.account in group)
