"""Findings carry proof, and no GPU-second is claimed twice."""

from __future__ import annotations

import pytest

from computeflow.errors import InputError, LedgerError
from computeflow.ledger import ClaimedSeconds, Evidence, Finding, Gap, Remedy, check_claimed_seconds

EVIDENCE = (Evidence(what="idle before the first kernel", where="rank 3, step 12", value=0.4),)
LINES = [
    Gap(accounts=("input",), measured=6.0, expected=1.0),
    Gap(accounts=("comm", "straggler"), measured=5.0, expected=2.0),
    Gap(accounts=("host",), measured=1.0, expected=2.0),
]


def finding(rule: str, *claims: tuple[str, float]) -> Finding:
    return Finding(
        rule=rule,
        title=rule,
        account=claims[0][0],
        claims=tuple(ClaimedSeconds(account=a, gpu_seconds=s) for a, s in claims),
        evidence=EVIDENCE,
        confidence=0.95,
    )


def test_claims_within_the_gaps_pass() -> None:
    check_claimed_seconds([finding("input-stall", ("input", 4.0), ("straggler", 3.0))], LINES)


def test_a_gpu_second_claimed_twice_names_both_findings() -> None:
    both = [finding("input-stall", ("input", 4.0)), finding("pageable-copy", ("input", 2.0))]
    with pytest.raises(LedgerError, match="beyond a gap of 5; claimed by input-stall, pageable"):
        check_claimed_seconds(both, LINES)


def test_all_claims_together_stay_below_the_total_gap() -> None:
    with pytest.raises(LedgerError, match="claim 8 GPU-seconds of a total gap of 7"):
        check_claimed_seconds([finding("input-stall", ("input", 5.0), ("comm.dp", 3.0))], LINES)


def test_an_account_that_ran_as_expected_cannot_be_claimed() -> None:
    with pytest.raises(LedgerError, match="host: host-sync claims 1 GPU-seconds beyond a gap of 0"):
        check_claimed_seconds([finding("host-sync", ("host", 1.0))], LINES)


def test_a_claim_on_a_parent_draws_on_its_childrens_lines() -> None:
    split = [
        Gap(accounts=("comm.tp",), measured=3.0, expected=1.0),
        Gap(accounts=("comm.dp",), measured=4.0, expected=1.0),
    ]
    check_claimed_seconds([finding("exposed-comm", ("comm", 5.0))], split)
    with pytest.raises(LedgerError, match="slow-link"):
        check_claimed_seconds(
            [finding("slow-link", ("comm.tp", 2.0)), finding("exposed-comm", ("comm", 4.0))], split
        )


def test_a_claim_of_nothing_is_no_claim() -> None:
    check_claimed_seconds([finding("checkpoint-stall", ("checkpoint", 0.0))], LINES)


def test_a_claim_outside_the_comparison_is_refused() -> None:
    with pytest.raises(LedgerError, match="no line of the comparison holds it"):
        check_claimed_seconds([finding("checkpoint-stall", ("checkpoint", 1.0))], LINES)


def test_no_evidence_is_no_finding() -> None:
    with pytest.raises(InputError, match="no evidence"):
        Finding(
            rule="hang",
            title="x",
            account="idle",
            claims=(ClaimedSeconds(account="idle", gpu_seconds=1.0),),
            evidence=(),
            confidence=1.0,
        )


def test_a_remedy_lies_within_its_own_range() -> None:
    with pytest.raises(InputError, match="outside its own range"):
        Remedy(change="more workers", gain_low=2.0, gain_gpu_seconds=1.0, gain_high=3.0)
