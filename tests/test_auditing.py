"""The audit as a library: options no source can use, comparison without FLOPs, reports of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import computeflow as cf
from computeflow.errors import InputError, UnknownNameError

LOG = "tests/data/logs/torchtitan.log"
TRACE = "tests/data/h200_traces/slow-loader-0.03.json.gz"
WORK: dict[str, Any] = {"model": "llama-3.1-8b", "global_batch": 16, "seq_len": 8192}


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        (LOG, {"steps": "1:2"}, "--steps is for traces, and there is only log"),
        (LOG, {"window": "whole"}, "--window is for traces"),
        (LOG, {"rank_from": "(\\d)"}, "--rank-from is for traces"),
        (LOG, {"baseline": "job"}, "--baseline is for traces"),
        (LOG, {"perfetto": "x.json"}, "--perfetto is for traces"),
        (LOG, {"calibrate": "x.json"}, "--calibrate is for traces"),
        (LOG, {"details": True}, "--details is for traces"),
        (TRACE, {"period": "30d"}, "--period is for accounting, kernel-log, log, metrics"),
        ("tests/data/gloo_hangs/ddp-4-ranks", {"on": "h100-sxm"}, "--on is for traces, log"),
        ("tests/data/gloo_hangs/ddp-4-ranks", WORK, "--model is for traces, log"),
    ],
)
def test_an_option_that_no_source_can_use_is_refused(
    path: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        cf.audit(path, no_cache=True, **options)
    assert said in str(refused.value)


def test_an_option_that_one_of_several_sources_can_use_is_taken() -> None:
    answer = cf.audit([LOG, TRACE], no_cache=True, steps="1:1", period="2020-01-01:2030-01-01")
    assert answer.report.traces is not None
    assert [each.kind for each in answer.report.recordings.observed] == ["log"]


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="banana"):
        cf.audit(LOG, on="banana", **WORK)


def test_a_log_with_the_model_and_the_device_has_an_mfu() -> None:
    ledger = cf.audit(LOG, on="h100-sxm", **WORK).report.recordings.ledger
    assert ledger.mfu is not None and 0.1 < ledger.mfu < 0.6
    assert ledger.booked("compute.model") > 0


def test_more_gpus_than_the_log_has_ranks_are_a_contradiction() -> None:
    with pytest.raises(InputError, match="8 ranks, --on names 16"):
        cf.audit(LOG, on="h100-sxm:16", **WORK)


def test_a_recording_without_flops_is_measured_against_a_plan_at_a_stated_ratio_of_work() -> None:
    expected = "examples/llama-3.1-405b.json"
    with pytest.raises(InputError, match="--work-ratio"):
        cf.audit(LOG, expect=expected)
    answer = cf.audit(LOG, expect=expected, work_ratio=1e-9)
    assert answer.report.compared is not None
    assert answer.report.compared.at == "a work ratio of 1e-09"
    assert answer.to_dict()["gaps"]


@pytest.mark.parametrize("path", [LOG, "tests/data/gloo_hangs/ddp-4-ranks", TRACE])
def test_every_source_has_a_report(path: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    cf.audit(path, no_cache=True).save_html(page)
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(("price", "usd"), [(2.5, 2.5), ("2.5", 2.5), ("$2.50", 2.5)])
def test_a_price_is_a_number_or_a_text(price: float | str, usd: float) -> None:
    report = cf.audit(TRACE, no_cache=True, price=price).report
    assert report.price is not None and report.price.usd == usd and not report.price.note
