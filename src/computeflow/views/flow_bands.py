"""`flow_bands`: a ledger as the bands of a flow, from what was contracted to the model's FLOPs.

The page draws them; the report draws the same numbers by `flows.flow_figure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from computeflow.ledger import ACCOUNTS, Gap, Ledger, RanksByAccount, RankSeconds
from computeflow.views.figures import OWNERS

LEAST_SHARE = 0.0005
"""Share below which an account is shown as 0.0 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowBand:
    account: str
    owner: str
    doc: str
    share: float
    gpu_seconds: float
    expected_gpu_seconds: float | None = None
    """For the same work; None where nothing is expected, or not of this account alone."""
    expected_with: tuple[str, ...] = ()
    """Accounts that can only be compared together with it."""
    ranks: tuple[RankSeconds, ...] = ()
    """Those that have most of it; empty where ranks are not told apart."""
    ranks_of: str = ""
    """The account that ranks are told apart by: its own, or the one that it is a part of."""


def flow_bands(
    ledger: Ledger,
    lines: Sequence[Gap] = (),
    ranks: RanksByAccount | None = None,
) -> tuple[FlowBand, ...]:
    """Bands by owner, useful first; `lines` compare the ledger with what was expected. Accounts that
    would be shown as 0.0 %, measured and expected, are `left_out_accounts`.
    """
    booked = {name: seconds for name, seconds in ledger.accounts.items() if seconds > 0}
    small = left_out_accounts(ledger, lines)
    expected = {name: line for line in lines if (name := _only_booked(line, booked))}
    joined = {
        name: line.accounts
        for line in lines
        for name in line.accounts
        if len(line.accounts) > 1 and name not in expected
    }
    extra = [
        name
        for name, line in expected.items()
        if name not in booked and line.expected > 0 and name in ACCOUNTS
    ]
    return tuple(
        FlowBand(
            account=name,
            owner=ACCOUNTS[name].owner,
            doc=ACCOUNTS[name].doc,
            share=booked.get(name, 0.0) / ledger.gpu_seconds,
            gpu_seconds=booked.get(name, 0.0),
            expected_gpu_seconds=expected[name].expected if name in expected else None,
            expected_with=joined.get(name, ()),
            ranks=(ranks or {}).get(told, ()),
            ranks_of=told,
        )
        for name in _in_order([*booked, *extra], booked)
        if name not in small
        for told in (_told_by(name, ranks or {}),)
    )


def left_out_accounts(ledger: Ledger, lines: Sequence[Gap] = ()) -> dict[str, float]:
    """GPU-seconds of the accounts that are too small to be drawn."""
    least = LEAST_SHARE * ledger.gpu_seconds
    large = {name for line in lines if line.expected >= least for name in line.accounts}
    booked = {name: seconds for name, seconds in ledger.accounts.items() if seconds > 0}
    predicted = [
        line.accounts[0] for line in lines if len(line.accounts) == 1 and line.expected > 0
    ]
    return {
        name: booked.get(name, 0.0)
        for name in dict.fromkeys([*booked, *predicted])
        if booked.get(name, 0.0) < least and name not in large
    }


def _only_booked(line: Gap, booked: Mapping[str, float]) -> str:
    """The account that a line is of: its only one, or the only one that has seconds."""
    found = [name for name in line.accounts if name in booked]
    return line.accounts[0] if len(line.accounts) == 1 else found[0] if len(found) == 1 else ""


def _in_order(names: Sequence[str], sizes: Mapping[str, float]) -> list[str]:
    owners = list(OWNERS)
    return sorted(
        names, key=lambda name: (owners.index(ACCOUNTS[name].owner), -sizes.get(name, 0.0))
    )


def _told_by(account: str, ranks: RanksByAccount) -> str:
    """The account itself, or the nearest above it that ranks are known of; "" where none is."""
    while account and account not in ranks:
        account = account.rpartition(".")[0]
    return account
