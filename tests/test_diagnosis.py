"""Findings on real recordings: the planted fault and nothing else, its cost, and no second twice."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from benchmarks.corpus import Recording, recordings
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.diagnosis import Diagnosis, diagnose
from computeflow.diagnosis.diagnose import make_case
from computeflow.diagnosis.model_from_shapes import NotInferredError, infer
from computeflow.diagnosis.regression import regressions
from computeflow.diagnosis.rules import RULES
from computeflow.diagnosis.settle import settle
from computeflow.ledger import (
    ClaimedSeconds,
    Evidence,
    Finding,
    Gap,
    Remedy,
    check_claimed_seconds,
    gaps,
    ledger_to_data,
)
from computeflow.prediction.calibration.factors import Factors
from computeflow.telemetry.source_reports import Event, SourceReport
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from kineto_maker import data_parallel_job

Capture = pytest.CaptureFixture[str]
DATA = Path(__file__).parent / "data"
TRACES = DATA / "h200_traces"
CATALOG = load_catalog(())
CORPUS = [
    replace(one, rule="underfilled") if one.rule == "small-micro-batch" else one
    for one in recordings()
]
"""Without the replay, passes that are too small are told by the predictor."""


@cache
def audited(path: Path) -> TracedJob:
    """Without the replay, whose findings tests/test_replay.py judges."""
    return audit([path], CATALOG, cache=False, options=TraceOptions(replay=False))


@cache
def diagnosed(path: Path) -> Diagnosis:
    return diagnose(audited(path), CATALOG)


def trace(name: str) -> Path:
    return TRACES / f"{name}.json.gz"


@pytest.mark.parametrize("one", CORPUS, ids=lambda one: one.name)
def test_a_recording_gets_its_finding_and_no_other(one: Recording) -> None:
    rules = {finding.rule for finding in diagnosed(one.path).findings}
    assert rules == ({one.rule} if one.rule else set())


def test_the_corpus_is_what_was_asked_for() -> None:
    by_label: dict[str, int] = {}
    for one in CORPUS:
        by_label[one.rule or "healthy"] = by_label.get(one.rule or "healthy", 0) + 1
    assert by_label.pop("healthy") >= 10
    assert len(by_label) == 13
    assert all(count >= 3 for count in by_label.values())
    assert sum(count >= 5 for count in by_label.values()) >= 6


def test_claims_are_near_what_removing_the_fault_gained() -> None:
    errors = []
    for one in CORPUS:
        if one.rule is None or one.saved is None:
            continue
        claimed = sum(f.gpu_seconds for f in diagnosed(one.path).findings if f.rule == one.rule)
        errors.append(abs(claimed / one.saved - 1))
    errors.sort()
    assert errors[len(errors) // 2] < 0.10
    assert sum(error <= 0.25 for error in errors) >= 0.85 * len(errors)


@pytest.mark.parametrize("one", CORPUS, ids=lambda one: one.name)
def test_no_second_is_claimed_twice(one: Recording) -> None:
    found = diagnosed(one.path)
    claimed = math.fsum(finding.gpu_seconds for finding in found.findings)
    if found.expected is not None:
        check_claimed_seconds(found.findings, found.gaps)
        assert claimed <= sum(line.gpu_seconds for line in found.gaps) * (1 + 1e-9) + 1e-9
    assert claimed <= audited(one.path).job.ledger.gpu_seconds


def test_every_finding_says_where_to_look_and_what_to_change() -> None:
    for one in CORPUS:
        for finding in diagnosed(one.path).findings:
            assert finding.evidence and all(each.where for each in finding.evidence)
            assert finding.remedy is not None and finding.remedy.change
            gain = finding.remedy.gain_gpu_seconds
            assert gain is not None and 0 < gain <= finding.gpu_seconds * (1 + 1e-9)
            assert 0 < finding.confidence < 1


@pytest.mark.parametrize("name", ["healthy-base", "healthy-wide-compiled", "recompute-full-deep"])
def test_the_job_is_read_from_the_shapes(name: str) -> None:
    run = json.loads((TRACES / "index.json").read_text())[name]["summary"]["settings"]
    seen = infer(audited(trace(name)).ranks)
    block = seen.job.model.blocks[0]
    assert block.attention is not None and block.dense is not None
    assert (
        block.count,
        seen.job.model.hidden,
        block.attention.heads,
        block.attention.kv_heads,
        block.dense.width,
        seen.job.model.vocab,
    ) == (run["layers"], run["hidden"], run["heads"], run["kv_heads"], run["ffn"], run["vocab"])
    assert (seen.job.seq_len, seen.layout.micro_batch) == (run["seq_len"], run["micro_batch"])
    assert seen.layout.recompute == run["recompute"]
    assert seen.stack.kernels == ("eager" if run["compile"] == "off" else "compiled")


def test_a_job_without_shapes_is_not_guessed() -> None:
    ranks = [
        replace(r, signals=replace(r.signals, shapes=()))
        for r in audited(trace("healthy-base")).ranks
    ]
    with pytest.raises(NotInferredError, match="record_shapes"):
        infer(ranks)


def test_rules_without_their_signal_abstain_and_say_what_to_enable() -> None:
    whole = audited(trace("healthy-base"))
    blind = [replace(r, signals=replace(r.signals, shapes=()), types={}) for r in whole.ranks]
    found = diagnose(replace(whole, ranks=tuple(blind)), CATALOG)
    missing = {one.rule: one.missing for one in found.abstained}
    assert "record_shapes" in missing["unfused-attention"]
    assert "gc.callbacks" in missing["gc-pause"]
    assert "other ranks" in missing["straggler-rank"]
    assert found.expected is None and "record_shapes" in found.expected_reason


def test_a_loader_in_worker_processes_is_told_from_one_in_the_process() -> None:
    titles = {
        name: diagnosed(trace(name)).findings[0].title
        for name in ("slow-loader-workers", "slow-loader-0.03")
    }
    assert "workers" in titles["slow-loader-workers"]
    assert "reading and decoding" in titles["slow-loader-0.03"]


def test_a_slow_rank_is_named_with_its_reason() -> None:
    (finding,) = diagnosed(DATA / "gloo_traces" / "slow-rank-0.3").findings
    assert finding.ranks == (1,)
    assert any("rank 1 spent more than the others" in one.what for one in finding.evidence)


def test_a_made_job_with_one_slow_rank_among_eight(tmp_path: Path) -> None:
    data_parallel_job(tmp_path, ranks=8, slow={5: 1.3})
    found = diagnose(audit([tmp_path], CATALOG, cache=False), CATALOG)
    stragglers = [finding for finding in found.findings if finding.rule == "straggler-rank"]
    assert [finding.ranks for finding in stragglers] == [(5,)]


def test_what_other_sources_saw_of_a_slow_rank_stands_beside_it(tmp_path: Path) -> None:
    data_parallel_job(tmp_path, ranks=8, slow={5: 1.3})
    found = audit([tmp_path], CATALOG, cache=False)
    start = found.ranks[0].window_start / 1e9
    seen = [
        Event(seconds=start, what="throttled: heat", rank=5, node="n5", fault=True),
        Event(seconds=start, what="xid 48", rank=2, fault=True),
        Event(seconds=start + 7200, what="xid 79", rank=5, fault=True),
    ]
    logs = SourceReport(kind="metrics", sources=("m",), facts=None, happenings=tuple(seen))
    (finding,) = [
        f for f in diagnose(found, CATALOG, observed=[logs]).findings if f.rule == "straggler-rank"
    ]
    texts = [one.what for one in finding.evidence]
    assert "throttled: heat" in texts
    assert not {"xid 48", "xid 79"} & set(texts)
    assert "1.30 times as long" in finding.title


@pytest.mark.parametrize("slow", [{3: 1.5, 9: 1.5}, {3: 1.5, 9: 1.3}, dict.fromkeys(range(8), 1.4)])
def test_several_slow_ranks_are_one_finding(tmp_path: Path, slow: dict[int, float]) -> None:
    data_parallel_job(tmp_path, ranks=16, slow=slow)
    found = diagnose(audit([tmp_path], CATALOG, cache=False), CATALOG)
    (finding,) = [f for f in found.findings if f.rule == "straggler-rank"]
    assert finding.ranks == tuple(sorted(slow))
    assert finding.remedy is not None and "all of them" in finding.remedy.risk


def test_one_rank_of_many_is_not_told_that_its_links_are_slow(tmp_path: Path) -> None:
    files = data_parallel_job(tmp_path, ranks=4, slow={3: 2.0})
    found = diagnose(audit(files[:1], CATALOG, cache=False), CATALOG)
    assert not [f for f in found.findings if f.rule in ("exposed-comm", "slow-link")]
    missing = {one.rule for one in found.abstained}
    assert {"straggler-rank", "exposed-comm", "slow-link"} <= missing


def test_what_happens_once_has_no_price_by_the_hour(capsys: Capture) -> None:
    words = (str(trace("checkpoint-stall-0.5")), "--no-cache", "--price", "2", "-o", "json")
    (finding,) = json.loads(answer(capsys, *words, "--fail-on", "50"))["findings"]
    assert finding["rule"] == "checkpoint-stall"
    assert "in 1 of 2 steps" in finding["title"]
    assert finding["usd_per_hour"] is None and not finding["steady"]


def test_equal_ranks_are_no_stragglers(tmp_path: Path) -> None:
    data_parallel_job(tmp_path, ranks=8)
    found = diagnose(audit([tmp_path], CATALOG, cache=False), CATALOG)
    assert not [f for f in found.findings if f.rule in ("straggler-rank", "imbalance")]


def a_finding(rule: str, claims: Sequence[tuple[str, float]]) -> Finding:
    return Finding(
        rule=rule,
        title=rule,
        account=claims[0][0],
        claims=tuple(ClaimedSeconds(account=name, gpu_seconds=s) for name, s in claims),
        evidence=(Evidence(what="seen", where="here"),),
        confidence=0.9,
        remedy=Remedy(change="change it", gain_gpu_seconds=sum(s for _, s in claims)),
    )


NAMES = ("host", "input", "copy", "compute.kernel", "optimizer")


@given(
    st.lists(
        st.tuples(
            st.sampled_from([rule.id for rule in RULES]),
            st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0, 100)), min_size=1, max_size=3),
        ),
        max_size=6,
    ),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=5, max_size=5),
)
def test_settled_findings_never_exceed_the_gaps(
    wanted: list[tuple[str, list[tuple[str, float]]]], sizes: list[tuple[float, float]]
) -> None:
    lines = [
        Gap(accounts=(name,), measured=measured, expected=expected)
        for name, (measured, expected) in zip(NAMES, sizes, strict=True)
    ]
    kept = settle([a_finding(rule, claims) for rule, claims in wanted], lines)
    check_claimed_seconds(kept, lines)
    for finding in kept:
        assert finding.remedy is not None
        assert (finding.remedy.gain_gpu_seconds or 0.0) <= finding.gpu_seconds + 1e-9


def test_a_regression_is_what_grew_and_nobody_else_claims() -> None:
    worse, before = (audited(trace(n)).job.ledger for n in ("slow-loader-0.03", "healthy-base"))
    lines = gaps(worse, before)
    (grown,) = regressions(worse, lines, (), "an earlier recording")
    assert grown.account == "input"
    assert not regressions(worse, lines, diagnosed(trace("slow-loader-0.03")).findings, "earlier")
    assert not regressions(before, gaps(before, before), (), "itself")


def answer(capsys: Capture, *words: str, code: int = 0) -> str:
    """Output of `audit`, or its one-line error."""
    assert run(["audit", *words]) == code
    printed = capsys.readouterr()
    return printed.err if code == 2 else printed.out


def test_the_command_prices_findings_and_fails_where_it_is_told_to(capsys: Capture) -> None:
    words = (str(trace("slow-loader-0.1")), "--no-cache", "--price", "2", "-o", "json")
    data = json.loads(answer(capsys, *words, "--fail-on", "50", code=3))
    (finding,) = data["findings"]
    assert finding["rule"] == "input-stall"
    assert finding["usd_per_hour"] == pytest.approx(2 * finding["share"])
    assert {
        "rule",
        "title",
        "ranks",
        "account",
        "share",
        "gpu_seconds",
        "usd_per_hour",
        "confidence",
        "evidence",
        "remedy",
    } <= finding.keys()
    assert data["expected"]["ledger"]["accounts"]
    answer(capsys, str(trace("healthy-base")), "--no-cache", "--fail-on", "1")


def test_a_price_can_be_an_offer_of_the_catalog(capsys: Capture) -> None:
    offer = next(offer for offer in CATALOG.offers if offer.accelerator == "h200-sxm")
    other = next(offer for offer in CATALOG.offers if offer.accelerator == "a100-40-sxm")
    words = (str(trace("slow-loader-0.1")), "--no-cache", "--price")
    data = json.loads(answer(capsys, *words, offer.name, "-o", "json"))
    assert "as of" in data["price"]["source"]
    assert "no price for h200-sxm" in answer(capsys, *words, other.name, code=2)
    assert "nobody's cloud" in answer(capsys, *words, "nobody's cloud", code=2)
    assert "above zero" in answer(capsys, *words, "-2", code=2)


def test_a_baseline_is_kept_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rest = ("--no-cache", "--baseline", "mine", "-o", "json")
    first = json.loads(answer(capsys, str(trace("healthy-base")), *rest))
    assert any("this recording is it now" in note for note in first["notes"])
    second = json.loads(answer(capsys, str(trace("slow-loader-0.03")), *rest))
    assert [finding["rule"] for finding in second["findings"]] == ["input-stall"]
    assert max(second["gaps"], key=lambda line: line["measured"] - line["expected"])[
        "accounts"
    ] == ["input"]
    assert "Baseline mine: compared" in answer(capsys, str(trace("healthy-base")), *rest[:-2])
    both = ("--baseline", "mine", "--against", str(trace("healthy-base")))
    assert "cannot be combined" in answer(capsys, str(trace("healthy-base")), *both, code=2)
    refused = answer(capsys, str(trace("healthy-base")), "--baseline", "../escape", code=2)
    assert "letters, digits" in refused


def test_a_calibration_goes_from_a_recording_to_a_prediction(
    tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "site.json"
    answer(capsys, str(trace("healthy-base")), "--no-cache", "--calibrate", str(file))
    words = [
        "predict",
        "llama-3.1-8b",
        "--on",
        "h200-sxm:8",
        "--global-batch",
        "64",
        "--seq-len",
        "4096",
        "--calibration",
        str(file),
        "-o",
        "json",
    ]
    assert run(words) == 0
    calibrated = json.loads(capsys.readouterr().out)["calibrated"]
    assert any("factors of a recording" in line for line in calibrated)


def test_factors_hold_only_for_jobs_like_the_recorded_one() -> None:
    factors = Factors(precision="fp32", kernels="eager", matmul=0.8, other=1.5, host=1.2)
    assert factors.matching("fp32", "eager", "latest") == factors
    assert factors.matching("bf16", "eager", "latest").matmul == 1.0
    compiled = factors.matching("fp32", "compiled", "latest")
    assert (compiled.matmul, compiled.other, compiled.host) == (0.8, 1.0, 1.0)


def test_a_plan_that_expects_a_loss_says_that_it_was_seen(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(ledger_to_data(audited(trace("slow-loader-0.03")).job.ledger)))
    words = (str(trace("slow-loader-0.03")), "--no-cache", "--expect", str(file), "-o", "json")
    data = json.loads(answer(capsys, *words))
    assert not data["findings"]
    assert any("input-stall: seen" in note for note in data["diagnosis_notes"])


def test_what_was_calibrated_on_replays_itself() -> None:
    case = make_case(audited(trace("healthy-base")), CATALOG)
    assert case.replay is not None
    assert case.replay.predict().step_seconds == pytest.approx(case.replay.step_seconds, rel=0.03)


def test_a_trace_that_cannot_calibrate_says_why(tmp_path: Path, capsys: Capture) -> None:
    words = (str(DATA / "gloo_traces" / "healthy-ddp"), "--no-cache", "--calibrate")
    assert "--calibrate" in answer(capsys, *words, str(tmp_path / "x.json"), code=2)


def test_a_plan_can_be_the_expectation(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(ledger_to_data(audited(trace("healthy-base")).job.ledger)))
    words = (str(trace("slow-loader-0.03")), "--no-cache", "--expect", str(file), "-o", "json")
    data = json.loads(answer(capsys, *words))
    assert data["expected"]["source"] == str(file)
    assert [finding["rule"] for finding in data["findings"]] == ["input-stall"]
