"""Runs on the host have ranks and plain time; gains are told for a step where steps are marked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import computeflow as cf
from computeflow.ledger import Entry, Ledger, Window, describe, ledger_from_data, ledger_to_data
from computeflow.ledger.book import merge
from computeflow.views.gains import GainText
from kineto_maker import data_parallel_job

GLOO = Path(__file__).parent / "data" / "gloo_traces"
GPU_WORDS = re.compile(r"\bGPUs?\b(?!: this run computes on the host)")


def ledger(*, gpus: int = 2, on_host: bool = True) -> Ledger:
    return Ledger.closed(
        [Entry(account="host", gpu_seconds=0.5)],
        gpus=gpus,
        wall_seconds=2.0,
        basis="measured",
        window=Window(label="two steps"),
        on_host=on_host,
    )


def test_no_gpu_is_named_where_the_host_computed(tmp_path: Path) -> None:
    answer = cf.audit(
        GLOO / "slow-rank-0.3", against=GLOO / "healthy-ddp", price=2.0, no_cache=True
    )
    texts = [answer.headline, answer.title]
    for part in answer.tables():
        texts += [part.title, *part.notes, *(column.header for column in part.columns)]
        texts += [cell for row in part.rows for cell in row]
    assert [text for text in texts if GPU_WORDS.search(text)] == []
    answer.save_html(tmp_path / "report.html")
    page = re.sub(r"<script.*?</script>", "", (tmp_path / "report.html").read_text(), flags=re.S)
    assert GPU_WORDS.findall(re.sub(r"<[^>]+>", " ", page)) == []
    assert any("2 ranks on the CPU" in table.title for table in answer.tables())


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_ledger_of_the_host_says_so_and_keeps_it_as_json(gpus: int) -> None:
    own = ledger(gpus=gpus)
    assert describe.ranks_text(own) == ("1 rank" if gpus == 1 else "2 ranks") + " on the CPU"
    assert describe.ledger_unit(own) == ("ms", 1e-3)
    assert describe.ledger_unit(ledger(on_host=False)) == ("GPU-ms", 1e-3)
    data = ledger_to_data(own)
    assert ledger_from_data(data) == own
    data.pop("on_host")
    assert not ledger_from_data(data).on_host
    assert merge([own, own]).on_host and own.scale(2.0).on_host
    assert not merge([own, ledger(gpus=gpus, on_host=False)]).on_host


def test_gains_are_those_of_a_step_where_steps_are_marked(tmp_path: Path) -> None:
    data_parallel_job(tmp_path, 4, slow={2: 1.5}, steps=6)
    answer = cf.audit(tmp_path, no_cache=True)
    data = answer.to_dict()
    (finding,) = data["findings"]
    steps = [step["seconds"] for rank in data["per_rank"] for step in rank["steps"]]
    mean = sum(steps) / len(steps)
    for end in ("", "_low", "_high"):
        expected = finding[f"gain_share{end}"] * mean
        assert finding[f"gain_seconds_per_step{end}"] == pytest.approx(expected)
    assert finding["gain_seconds_per_step"] == pytest.approx(1e-3, rel=0.2)  # 10 products of 200 us
    assert data["combined_gain_seconds_per_step"] > 0
    assert any(" a step" in row[1] for table in answer.tables() for row in table.rows[-1:])
    answer.save_html(tmp_path / "report.html")
    assert "<dt>a step</dt>" in (tmp_path / "report.html").read_text()
    whole = cf.audit(tmp_path, window="whole", no_cache=True).to_dict()
    assert all(each["gain_seconds_per_step"] is None for each in whole["findings"])


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (GainText(ledger=ledger()), "400 ms of the window, summed over ranks (200 ms to 800 ms)"),
        (
            GainText(ledger=ledger(gpus=1), step_seconds=1.0),
            "400 ms of the window (200 ms to 800 ms), 200 ms a step (100 to 400 ms)",
        ),
        (
            GainText(ledger=ledger(on_host=False), step_seconds=1.0, replayed=True),
            "10.0 % of the time (5.0 % to 20.0 %), 100 ms a step (50 to 200 ms)",
        ),
    ],
)
def test_a_gain_is_told_for_the_window_and_for_a_step(gain: GainText, text: str) -> None:
    assert gain.text(0.4, 0.2, 0.8) == text
    assert gain.text(0.4, None, None) == re.sub(r" \([^)]*\)", "", text)
