"""The first lines of an answer are the answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import computeflow as cf
from computeflow.views.tables import Table, columns, footnote, to_text

DATA = Path(__file__).parent / "data"
LOADER = DATA / "h200_traces" / "slow-loader-0.03.json.gz"


def test_an_audit_begins_with_what_can_be_won_back_and_for_how_much() -> None:
    audited = cf.audit(LOADER, price=2.5, no_cache=True)
    first, step, mfu, _ = re.split(r"(?<=[a-z%)])\. ?", audited.headline)
    assert first == (
        "66.2 % of this job's time ($1.65/h of $2.50) can be won back: input-stall, the step waits "
        "for data"
    )
    assert re.fullmatch(
        r"A step takes 151 ms as it runs(?: \([^)]* ms\))?, 150 ms while recorded "
        r"\(the device's queue ran down\)",
        step,
    )
    assert mfu.startswith("MFU 15.")
    assert [table.title for table in audited.tables()[:2]] == [
        "1 finding",
        "input-stall: evidence and remedy",
    ]
    assert "$" not in cf.audit(LOADER, no_cache=True).headline


def test_more_than_twice_the_predicted_time_is_a_factor_of_the_step_as_it_runs() -> None:
    plan = Path(__file__).parents[1] / "examples" / "lab-0.5b-predicted.json"
    audited = cf.audit(LOADER, expect=plan.resolve(), no_cache=True)
    assert (
        "Against lab-0.5b-predicted.json, at equal model FLOPs, it takes 2.9 times the predicted GPU "
        "time as it runs."
    ) in audited.headline
    report = audited.report
    assert report.compared is not None and report.shown_ledger is not None
    expected = sum(line.expected for line in report.compared.lines)
    assert report.shown_ledger.gpu_seconds / expected == pytest.approx(2.915, abs=0.005)
    assert str(plan.parent) not in " ".join(table.title for table in audited.tables())


def test_up_to_twice_the_time_is_a_percentage() -> None:
    healthy = DATA / "h200_traces" / "healthy-base.json.gz"
    text = cf.audit(healthy, against=LOADER, no_cache=True).headline
    assert "at equal steps, it takes 65.0 % less GPU time." in text
    text = cf.audit(healthy, against=healthy, no_cache=True).headline
    assert "at equal steps, it takes 0.0 % more GPU time." in text


def test_a_redacted_headline_keeps_its_figures() -> None:
    open_, closed = (
        cf.audit(LOADER, price=2500, no_cache=True, redact=redact) for redact in (False, True)
    )
    assert "/h of $2,500.00" in open_.headline
    assert closed.headline == open_.headline


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h200_traces/healthy-base.json.gz", "No finding: "),
        ("gloo_hangs/ddp-4-ranks", "The job hangs: rank 2 never arrived"),
        ("memory/oom-too-big.pickle.gz", "GPU 0 ran out of memory: "),
        ("logs/megatron_restart.log", "71.9 % of this run's time is lost: restarts, "),
        ("logs/nccl_tests.txt", "nccl-tests measured all_reduce"),
        ("accounting", "of this fleet's time goes to 2 causes"),
    ],
)
def test_every_kind_of_recording_has_a_headline(name: str, words: str) -> None:
    assert words in cf.audit(DATA / name, no_cache=name.startswith("h200")).headline


def test_a_check_begins_with_fit_step_and_best_change() -> None:
    file = DATA / "exports" / "megatron_gpt3_175b.sh"
    checked = cf.check(file, on="a100-80-sxm:1024", model="gpt3-175b", price=2)
    assert checked.headline.startswith("gpt3-175b fits: 50.7 GB of 85.9 GB; step 19.5 s, MFU ")
    assert "Best change: tp 4, pp 8, vp 6, zero1, micro-batch 1, 10.6 % less" in checked.headline


def test_a_claim_begins_with_its_verdict() -> None:
    assert cf.claims(["mfu-path"]).headline.startswith("mfu-path: holds in part. Our figure: ")


def test_notes_are_one_paragraph_of_sentences_under_the_table() -> None:
    notes = ("left out: a.json", "compute.clock: not read.", "/tmp/a: rank 0")
    assert footnote(notes) == "Left out: a.json. compute.clock: not read. /tmp/a: rank 0."
    table = Table(title="T", columns=columns("name"), rows=(("x",),), notes=notes)
    assert to_text(table).splitlines()[-1] == footnote(notes)
