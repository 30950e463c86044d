"""The shared language: accounts, a ledger that closes, the gaps between two, findings on them.

Start with `Ledger`; `gaps` compares two; `Finding` says what a gap means.
"""

from computeflow.ledger.accounts import ACCOUNTS, Account, account
from computeflow.ledger.book import Cause, Entry, Ledger, PeakFlops, Window, concatenate, merge
from computeflow.ledger.findings import (
    ClaimedSeconds,
    Evidence,
    Finding,
    Remedy,
    check_claimed_seconds,
)
from computeflow.ledger.gaps import Gap, gaps
from computeflow.ledger.goodput import goodput_of
from computeflow.ledger.ranks import RanksByAccount, RankSeconds, ranks_with_most
from computeflow.ledger.serialise import ledger_from_data, ledger_to_data

__all__ = [
    "ACCOUNTS",
    "Account",
    "Cause",
    "ClaimedSeconds",
    "Entry",
    "Evidence",
    "Finding",
    "Gap",
    "Ledger",
    "PeakFlops",
    "RankSeconds",
    "RanksByAccount",
    "Remedy",
    "Window",
    "account",
    "check_claimed_seconds",
    "concatenate",
    "gaps",
    "goodput_of",
    "ledger_from_data",
    "ledger_to_data",
    "merge",
    "ranks_with_most",
]
