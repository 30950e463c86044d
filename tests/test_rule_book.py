"""The rule book: complete, documented, the only judge; and no source claims a GPU-second twice."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.diagnosis import RULES, diagnose_source
from computeflow.diagnosis.rule import TRACE, Rule
from computeflow.diagnosis.rules import find_rule
from computeflow.diagnosis.settle import lines_without_expectation, settle
from computeflow.errors import InputError
from computeflow.ledger import (
    ACCOUNTS,
    ClaimedSeconds,
    Entry,
    Evidence,
    Finding,
    Ledger,
    Remedy,
    Window,
    check_claimed_seconds,
)
from computeflow.telemetry.fleet.fleet_join import KIND as FLEET
from computeflow.telemetry.live.live_states import JOB, NODE
from computeflow.telemetry.source_registry import observe, sort_files, sources
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from metrics_servers import Synthetic

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
TELEMETRY = ROOT / "src" / "computeflow" / "telemetry"
ASKED = SourceRequest(catalog=load_catalog(()))
FOLDERS = ["logs", "memory", "gloo_hangs/ddp-4-ranks", "gloo_hangs/fsdp-2-ranks", "accounting"]
UNSETTLED = {"memory-pressure", "hang"}
"""Rules of sources that have no ledger."""


def test_ids_and_places_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert sorted(rule.order for rule in RULES) == list(range(1, len(RULES) + 1))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_complete_and_has_a_page(rule: Rule) -> None:
    whatever = rule.id == "regression"  # any account, and a comparison instead of a source
    assert rule.account in ACCOUNTS or whatever
    assert rule.needs and (rule.kinds or whatever)
    assert all(0 < look.confidence <= 1 and look.because for look in rule.sources.values())
    page = (ROOT / rule.page).read_text()
    assert page.startswith(f"# `{rule.id}`")
    assert f"accounts/{rule.account}.md" in page or whatever
    assert "**It needs**" in page and "**Limits.**" in page


def test_the_pages_list_every_rule_and_no_other() -> None:
    listed = re.findall(
        r"^\| \[`([a-z-]+)`\]\(\1\.md\) \| ", (ROOT / "docs/rules/README.md").read_text(), re.M
    )
    assert listed == [rule.id for rule in RULES]
    pages = {page.stem for page in (ROOT / "docs" / "rules").glob("*.md")} - {"README"}
    assert pages == set(listed)


def test_rules_look_at_kinds_that_there_are() -> None:
    kinds = {TRACE, FLEET, NODE, JOB} | {source.kind for source in sources()}
    assert {kind for rule in RULES for kind in rule.kinds} <= kinds


def test_an_unknown_rule_is_refused_with_its_nearest_name() -> None:
    with pytest.raises(InputError, match="straggler-rank"):
        find_rule("straggler-ranks")


def names_of_findings(source: str) -> set[str]:
    """Names of findings that a module imports, from the ledger or from the rules."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("computeflow."):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found & {"Finding", "Claim", "Remedy", "Evidence", "diagnosis"}


@pytest.mark.parametrize(
    "path", sorted(TELEMETRY.rglob("*.py")), ids=lambda path: str(path.relative_to(TELEMETRY))
)
def test_sources_read_and_judge_nothing(path: Path) -> None:
    assert not names_of_findings(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "from computeflow.ledger import Finding",
        "import computeflow.ledger as l\nl.Finding()",
        "def f():\n    from computeflow.ledger.findings import Claim as C",
    ],
)
def test_a_source_that_judges_is_caught(source: str) -> None:
    assert names_of_findings(source)


@cache
def observed(folder: str) -> tuple[SourceReport, ...]:
    return tuple(observe(sort_files([DATA / folder]).files, (), ASKED)[0])


def check_settled(found: SourceReport) -> None:
    findings = diagnose_source(found).findings
    if found.ledger is None:
        assert {finding.rule for finding in findings} <= UNSETTLED
        return
    check_claimed_seconds(findings, lines_without_expectation(found.ledger))
    assert sum(finding.gpu_seconds for finding in findings) <= found.ledger.gpu_seconds * (1 + 1e-9)


@pytest.mark.parametrize("folder", FOLDERS)
def test_claims_of_recorded_sources_are_settled_within_their_ledgers(folder: str) -> None:
    for each in observed(folder):
        check_settled(each)


def test_claims_of_a_sick_fleet_are_settled_within_its_ledger(tmp_path: Path) -> None:
    fleet = Synthetic(throttled=frozenset({5}), idle=frozenset({2, 12}), seconds=1200, step=30)
    (tmp_path / "fleet.prom").write_text(fleet.history())
    (found,) = observe(sort_files([tmp_path]).files, (), ASKED)[0]
    assert {one.rule for one in diagnose_source(found).findings} == {
        "clock-throttle",
        "idle-allocation",
    }
    check_settled(found)


BOOKED = ("compute", "idle", "comm.dp", "comm.pp", "restart", "host")
CLAIMED = (*BOOKED, "compute.clock", "comm", "lost")
SECONDS = st.floats(0, 100)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([rule.id for rule in RULES]),
            st.lists(st.tuples(st.sampled_from(CLAIMED), SECONDS), min_size=1, max_size=3),
        ),
        max_size=6,
    ),
    st.lists(st.floats(0.1, 100), min_size=len(BOOKED), max_size=len(BOOKED)),
)
def test_a_ledger_without_expectation_is_claimed_once(
    wanted: list[tuple[str, list[tuple[str, float]]]], booked: list[float]
) -> None:
    ledger = Ledger(
        gpus=1,
        wall_seconds=sum(booked),
        basis="measured",
        window=Window(label="all"),
        entries=tuple(
            Entry(account=name, gpu_seconds=s) for name, s in zip(BOOKED, booked, strict=True)
        ),
    )
    lines = lines_without_expectation(ledger)
    kept = settle([a_finding(*each) for each in wanted], lines)
    check_claimed_seconds(kept, lines)
    assert sum(one.gpu_seconds for one in kept) <= ledger.gpu_seconds * (1 + 1e-9)


def a_finding(rule: str, claims: list[tuple[str, float]]) -> Finding:
    return Finding(
        rule=rule,
        title=rule,
        account=claims[0][0],
        confidence=0.9,
        claims=tuple(ClaimedSeconds(account=name, gpu_seconds=s) for name, s in claims),
        evidence=(Evidence(what="seen", where="here"),),
        remedy=Remedy(change="change it"),
    )
