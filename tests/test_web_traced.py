"""One step of profilers' traces along time: every rank on one clock, and no more than can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import computeflow as cf
from computeflow.errors import InputError
from computeflow.telemetry.trace_formats import read_rank
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from computeflow.telemetry.traces.step_timelines import step_timeline
from computeflow.web.sources.recordings import traced_spans as module
from page_client import page_client

TRACES = Path(__file__).parent / "data" / "gloo_traces" / "slow-rank-0.3"
LOADER = Path(__file__).parent / "data" / "h200_traces" / "slow-loader-0.03.json.gz"
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def client() -> Any:
    return page_client(TRACES)


def timeline(client: Any, step: int) -> dict[str, Any]:
    content: dict[str, Any] = client.get(f"/timeline/{TRACES.name}?step={step}").json()
    found: dict[str, Any] = content["timeline"]
    return found


def test_every_rank_of_a_step_is_drawn_and_fills_its_time(client: Any) -> None:
    found = timeline(client, 2)
    assert [line["rank"] for line in found["ranks"]] == [0, 1] and found["ranks_total"] == 2
    for line in found["ranks"]:
        assert sum(span["seconds"] for span in line["spans"]) == pytest.approx(line["seconds"])
        assert line["start_seconds"] + line["seconds"] <= found["seconds"] + 1e-9


def test_a_profiled_step_is_shown_as_it_runs_on_every_page() -> None:
    plan = (EXAMPLES / "lab-0.5b-predicted.json").resolve()
    client = page_client(LOADER, price=2.5, expect=plan)
    (line,) = client.get("/runs.json").json()["runs"]
    run = client.get(f"/runs/{LOADER.name}.json").json()
    flow = client.get("/flow.json").json()
    found = run["result"]
    assert run["run"] == flow["run"] == line
    assert line["started"] != LOADER.stat().st_mtime and line["started"] > 1e9
    assert flow["left_out_accounts"] == ["copy", "unexplained"]
    assert line["basis"] == "as it runs, without the profiler"
    assert line["step_seconds"] == found["step_seconds_unprofiled"]
    assert line["step_seconds_recorded"] == found["step_seconds_recorded"]
    assert line["mfu"] == pytest.approx(found["ledger_unprofiled"]["mfu"])
    (model,) = (band for band in flow["bands"] if band["account"] == "compute.model")
    assert model["share"] == pytest.approx(line["mfu"])
    assert flow["wall_seconds"] == pytest.approx(found["ledger_unprofiled"]["wall_seconds"])
    predicted = sum(each["expected"] for each in flow["lines"])
    drawn = sum(sum(each["x"]) for each in run["figures"][0]["data"] if each["xaxis"] == "x2")
    assert drawn / 1e3 == pytest.approx(predicted)
    assert flow["wall_seconds"] / predicted == pytest.approx(2.9, abs=0.05)
    assert run["headline"] == flow["headline"] and "2.9 times the predicted GPU" in run["headline"]
    assert run["steps_basis"] == "as recorded, with the profiler"
    assert flow["expected_from"] == plan.name
    assert str(plan.parent) not in run["headline"]


def test_the_late_rank_stands_out(client: Any) -> None:
    """Rank 1 sleeps on the host, and rank 0 waits for it in a collective."""
    most = [
        max(
            {span["account"] for span in line["spans"]},
            key=lambda account, line=line: sum(  # type: ignore[misc]
                span["seconds"] for span in line["spans"] if span["account"] == account
            ),
        )
        for line in timeline(client, 2)["ranks"]
    ]
    assert most == ["comm", "host"]


def test_ranks_are_on_one_clock(client: Any) -> None:
    """Steps of ranks that meet in a collective end within milliseconds of each other."""
    ends = [line["start_seconds"] + line["seconds"] for line in timeline(client, 2)["ranks"]]
    assert abs(ends[0] - ends[1]) < 0.01


def test_the_file_for_perfetto_has_every_rank(client: Any) -> None:
    events = client.get(f"/trace/{TRACES.name}?step=2").json()["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}


def test_pieces_that_are_drawn_as_one_keep_their_place(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that they fill is what is added up; the drawing goes from the first to the last."""
    monkeypatch.setattr(module, "_MAX_SEGMENTS", 1)
    monkeypatch.setattr(module, "_MIN_SEGMENTS", 20)
    client = page_client(TRACES)
    traces = cf.audit(TRACES).report.traces
    assert traces is not None
    segments = step_timeline(read_rank(traces.ranks[0]), TraceOptions(), step=2, most=20).segments
    line = timeline(client, 2)["ranks"][0]
    drawn = [
        (span["start_seconds"] - line["start_seconds"], span["length_seconds"], span["seconds"])
        for span in line["spans"]
    ]
    expected = sorted(
        (each.start_seconds, each.end_seconds - each.start_seconds, each.seconds)
        for each in segments
    )
    assert np.allclose(sorted(drawn), expected)
    assert any(length > 1.1 * seconds for _, length, seconds in drawn)
    events = client.get(f"/trace/{TRACES.name}?step=2").json()["traceEvents"]
    lengths = [
        each["dur"] / 1e6
        for each in events
        if (each["ph"], each["pid"]) == ("X", 0) and "args" in each
    ]
    assert np.allclose(sorted(lengths), sorted(length for _, length, _ in drawn))
    assert any("filled" in each.get("args", {}) for each in events)


def test_of_more_than_can_be_read_the_longest_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 10)
    found = timeline(page_client(TRACES), 2)
    assert len(found["ranks"]) == 1 and found["ranks_total"] == 2
    (rank,) = found["ranks"]
    assert rank["seconds"] == pytest.approx(found["seconds"], rel=0.01)


def test_a_step_that_no_rank_has_is_empty(client: Any) -> None:
    assert "empty" in client.get(f"/timeline/{TRACES.name}?step=99").json()


@pytest.mark.parametrize("most", [1, 20, 600])
def test_a_step_is_drawn_in_few_segments_with_all_of_its_time(most: int) -> None:
    traces = cf.audit(TRACES).report.traces
    assert traces is not None
    trace = read_rank(traces.ranks[0])
    found = step_timeline(trace, TraceOptions(), step=3, most=most)
    assert found.step == 3 and len(found.segments) <= max(most, len(found.accounts))
    total = sum(segment.seconds for segment in found.segments)
    assert total == pytest.approx(found.step_seconds)
    with pytest.raises(InputError, match="step 9 is not in the trace"):
        step_timeline(trace, TraceOptions(), step=9)
