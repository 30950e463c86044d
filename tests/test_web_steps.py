"""Steps of a run on the page: the step that is clicked is the one that opens, in its attempt."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from batch_maker import batches_of
from computeflow.collection.store.journal import JournalWriter
from computeflow.collection.store.sealing_journals import seal_journal
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store
from computeflow.collection.wire.batches import pack_batch
from computeflow.recorder.frames import Record
from computeflow.web.sources.opening import AuditOptions, Opening, open_directory
from computeflow.web.sources.recordings.recorded_runs import RecordingOpening
from computeflow.web.sources.step_spans import WAIT, StepSpans
from computeflow.web.sources.step_table import StepTable
from computeflow.web.sources.store import stored_steps
from computeflow.web.sources.store.journal_rows import JournalRows
from computeflow.web.sources.store.step_cells import CellReader
from computeflow.web.sources.store.store_runs import StoreOpening
from live_store_maker import LATE, late_rank, node_batches, young_store
from live_value_maker import live_run
from page_client import page_client
from run_folder_maker import MS, Training

pytest.importorskip("duckdb")
SLOW_RANK, SLOW_STEP = 2, 17
RUN = "run-1"


def slow(rank: int, step: int) -> Mapping[str, int]:
    return {"f": 400 * MS} if (rank, step) == (SLOW_RANK, SLOW_STEP) else {}


@dataclass(frozen=True, kw_only=True)
class Unread(Training):
    """The flight recorder was not read after these steps."""

    read_steps: int = 0

    def records(self) -> list[list[Record]]:
        unread = self.read_steps * self.buckets
        return [
            [each for each in file if each["k"] != "c" or each["q"] < unread]
            for file in Training.records(self)
        ]


def two_attempts(folder: Path, ranks: int = 4) -> Path:
    """The first attempt has a slow step of one rank; both have a step of that number."""
    folder.mkdir(parents=True)
    Training(ranks=ranks, steps=40, extra=slow).write(folder)
    Training(ranks=ranks, steps=30, attempt=1, begins=60_000 * MS).write(folder)
    return folder


def stored(folder: Path, sealed: bool, ranks: int = 4) -> Path:
    store = open_store(folder / "store")
    writer = JournalWriter(store.journal, 1)
    batches = batches_of(two_attempts(folder / RUN, ranks))
    writer.append([(1_795_000_000_000_000 + n, pack_batch(b)) for n, b in enumerate(batches)])
    writer.close()
    state = StateDatabase(store.state)
    state.save_view([], [live_run(run=RUN)])
    if sealed:
        seal_journal(store, state, 1)
    state.close()
    return store.path


@pytest.fixture(params=["recording", "journal", "sealed"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "recording":
        return two_attempts(tmp_path / RUN)
    return stored(tmp_path, request.param == "sealed")


def test_a_step_opens_in_the_attempt_that_is_asked_for(source: Path) -> None:
    client = page_client(source)
    longest = {}
    for attempt in (None, 0, 1):
        query = f"step={SLOW_STEP}" + ("" if attempt is None else f"&attempt={attempt}")
        content = client.get(f"/timeline/{RUN}?{query}").json()
        step = content["timeline"]
        longest[attempt] = step["seconds"]
        assert step["attempt"] == (1 if attempt is None else attempt)
        assert content["attempts"] == [0, 1]
        assert (content["first_step"], content["last_step"]) == (1, 30 if attempt != 0 else 40)
        about = client.get(f"/trace/{RUN}?{query}").json()["otherData"]
        assert about["attempt"] == step["attempt"]
    assert longest[0] > 0.4 > longest[1] == longest[None]
    assert "empty" in client.get(f"/timeline/{RUN}?step=35&attempt=1").json()
    assert "empty" in client.get(f"/timeline/{RUN}?step=35&attempt=7").json()
    assert client.get(f"/timeline/{RUN}?step=35").json()["timeline"]["attempt"] == 0


def test_a_heat_map_says_the_attempt_of_each_column(source: Path) -> None:
    heat = page_client(source).get(f"/runs/{RUN}").json()["heat"]
    assert [(each["number"], each["column"]) for each in heat["attempts"]] == [(0, 0), (1, 40)]
    assert heat["steps"] == [*range(1, 41), *range(1, 31)] and heat["longest"] is None


def small(opening: Opening, source: Path) -> dict[str, Any]:
    """The heat map of a run in eight columns or so."""
    steps = opening.steps(RUN)
    assert steps is not None
    if isinstance(steps, StepTable):
        return steps.picture("seconds", 4, 8)
    files = [str(path) for path in source.glob("parquet/*/steps/*/*.parquet")]
    cells = CellReader(RUN, 4, 8).read(files, JournalRows(source / "journal").steps(RUN))
    assert cells is not None
    return cells.picture("seconds")


def test_of_a_cell_with_many_steps_the_longest_is_the_one_that_opens(source: Path) -> None:
    heat = small(open_directory(source, AuditOptions()), source)
    assert heat["steps_per_column"] == 9
    second = heat["attempts"][1]["column"]
    assert heat["steps"][second] == 1, "no cell has steps of two attempts"
    row = heat["micros"][SLOW_RANK]
    column = max(range(len(row)), key=lambda at: row[at] or 0)
    assert column < second
    assert heat["steps"][column] + heat["longest"][SLOW_RANK][column] == SLOW_STEP
    for number, line in enumerate(heat["longest"]):
        assert all(0 <= offset < 9 for offset in line), number


@pytest.mark.parametrize("sealed", [True, False])
def test_of_more_spans_than_can_be_read_the_longest_ranks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    opening = open_directory(stored(tmp_path, sealed, ranks=8), AuditOptions())
    whole = opening.spans(RUN, SLOW_STEP, 8, 0)
    assert whole is not None and [line.rank for line in whole.ranks] == [*range(8)]
    monkeypatch.setattr(stored_steps, "MAX_SPANS", 3 * len(whole.ranks[0].spans))
    found = opening.spans(RUN, SLOW_STEP, 8, 0)
    assert found is not None and 1 <= len(found.ranks) <= 3
    assert (found.ranks_total, found.seconds, found.began) == (8, whole.seconds, whole.began)
    longest = sorted(whole.ranks, key=lambda line: (-line.seconds, line.rank))
    chosen = {line.rank for line in longest[: len(found.ranks)]}
    assert {line.rank for line in found.ranks} == chosen
    assert "more ranks, phases" in found.waits_missing and not whole.waits_missing
    for line in found.ranks:
        there = whole.ranks[line.rank]
        phases = tuple(span for span in there.spans if span.name != WAIT)
        assert line == replace(there, spans=phases)


def waits_of(step: StepSpans) -> list[tuple[int, str, Any]]:
    return [
        (line.rank, span.detail, pytest.approx(span.seconds, abs=2e-6))
        for line in step.ranks
        for span in line.spans
        if span.name == WAIT
    ]


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("clock", [0, 40 * MS])
def test_a_store_knows_who_waited_for_whom_as_the_run_folder_does(
    tmp_path: Path, sealed: bool, clock: int
) -> None:
    ahead = {1: clock} if clock else {}
    made = Training(ranks=2, steps=60, extra=late_rank, clock_ahead=ahead)
    folder = open_directory(made.write(tmp_path / RUN), AuditOptions())
    store = open_directory(young_store(tmp_path, made, sealed=sealed), AuditOptions())
    for step in (1, 30, 60):
        kept, recorded = store.spans(RUN, step, 64), folder.spans(RUN, step, 64)
        assert kept is not None and recorded is not None
        assert waits_of(kept) == waits_of(recorded)
        assert (kept.waits_missing, recorded.waits_missing) == ("", "")
        assert kept.seconds == pytest.approx(recorded.seconds, abs=1e-4)
        ((rank, detail, seconds),) = waits_of(kept)
        assert (rank, detail, seconds) == (0, "for rank 1", LATE / 1e6)
        (backward,) = (span for span in kept.ranks[0].spans if span.name == "backward")
        (wait,) = (span for span in kept.ranks[0].spans if span.name == WAIT)
        assert backward.start_seconds < wait.start_seconds
        end = backward.start_seconds + backward.seconds
        assert wait.start_seconds + wait.seconds <= end + 1e-6


def test_a_step_whose_collectives_are_not_there_says_so(tmp_path: Path) -> None:
    store = young_store(tmp_path, sealed=True)
    client = page_client(store)
    content = client.get(f"/timeline/{RUN}?step=30").json()
    assert content["waits_missing"] == "" and "waits_missing" not in content["timeline"]
    for path in store.glob("parquet/*/collectives/*/*.parquet"):
        path.unlink()
    content = page_client(store).get(f"/timeline/{RUN}?step=30").json()
    assert content["waits_missing"] == "collectives that several ranks share"
    assert {span["name"] for line in content["timeline"]["ranks"] for span in line["spans"]} == {
        "input",
        "forward",
        "gap",
        "backward",
        "optimizer",
    }
    about = client.get(f"/trace/{RUN}?step=30").json()["otherData"]
    assert about["waits_missing"] == content["waits_missing"]


def test_a_step_whose_collectives_have_not_come_yet_says_so(tmp_path: Path) -> None:
    store = open_directory(
        young_store(tmp_path, Unread(ranks=2, steps=10, extra=late_rank, read_steps=8)),
        AuditOptions(),
    )
    known, unknown = store.spans(RUN, 8, 64), store.spans(RUN, 9, 64)
    assert known is not None and unknown is not None
    assert len(waits_of(known)) == 1 and not known.waits_missing
    assert not waits_of(unknown) and "come after their steps" in unknown.waits_missing


def test_collectives_beyond_those_that_are_read_leave_no_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = open_directory(stored(tmp_path, sealed=True), AuditOptions())
    monkeypatch.setattr(stored_steps, "MAX_ARRIVALS", 5)
    found = opening.spans(RUN, SLOW_STEP, 8, 0)
    assert found is not None and "or collectives than are read" in found.waits_missing
    assert not waits_of(found)


def test_a_run_of_one_rank_waits_for_nobody(tmp_path: Path) -> None:
    store = Path(__file__).parent / "data" / "gpu_store"
    client = page_client(Path(shutil.copytree(store, tmp_path / "store")))
    for line in client.get("/runs").json()["runs"]:
        content = client.get(f"/timeline/{line['id']}?step=57").json()
        assert content["waits_missing"] == ""
        (rank,) = content["timeline"]["ranks"]
        assert all(span["name"] != WAIT for span in rank["spans"])


def test_a_run_s_page_says_which_steps_are_without_waits(tmp_path: Path) -> None:
    """The map has whole steps; the collector's medians of the last ones are without waits."""
    content = page_client(young_store(tmp_path)).get(f"/runs/{RUN}?of=own").json()
    assert content["heat"]["of"] == "seconds"
    assert "for the last steps alone" in content["waits_missing"]
    (run,) = content["result"]["runs"]
    by_rank = {each["rank"]: each for each in run["slowest"]}
    assert by_rank[0]["own_seconds"] == pytest.approx(by_rank[1]["own_seconds"] - LATE / 1e6)
    assert by_rank[0]["step_seconds"] == pytest.approx(by_rank[1]["step_seconds"])


def test_a_run_whose_collectives_are_not_recorded_has_no_time_without_waits(tmp_path: Path) -> None:
    made = Unread(ranks=2, steps=60, extra=late_rank, ends=False)
    (run,) = page_client(young_store(tmp_path, made)).get(f"/runs/{RUN}").json()["result"]["runs"]
    for rank in run["slowest"]:
        assert rank["step_seconds"] and rank["own_seconds"] is rank["late_seconds"] is None


def opened_step(client: TestClient, query: str = "") -> tuple[int, int]:
    content = client.get(f"/timeline/{RUN}{query}").json()
    return content["timeline"]["attempt"], content["timeline"]["step"]


def two_slow(rank: int, step: int) -> Mapping[str, int]:
    """One slow step long ago, a slower one at the beginning, and one among the last."""
    slow = {1: 2_000 * MS, 12: 900 * MS, 145: 300 * MS}
    return {"f": slow.get(step, 0) + (LATE if rank else 0)}


def test_a_timeline_opens_the_slowest_of_the_steps_that_were_judged_last(tmp_path: Path) -> None:
    made = Training(ranks=2, steps=150, extra=two_slow, ends=False)
    store = young_store(tmp_path, made)
    client = page_client(store)
    (run,) = client.get("/runs").json()["result"]["runs"]
    assert 5 < run["window_seconds"] / run["step_seconds"] < 100
    assert opened_step(client) == (0, 145)
    (tmp_path / "recorded").mkdir()
    assert opened_step(page_client(made.write(tmp_path / "recorded" / RUN))) == (0, 12)


def test_a_timeline_of_a_recording_opens_a_step_that_was_not_done_before(tmp_path: Path) -> None:
    folder = tmp_path / RUN
    folder.mkdir()
    Training(steps=20, extra=slow).write(folder)
    again = Training(steps=30, attempt=1, begins=60_000 * MS, extra=two_slow)
    again.write(folder)
    client = page_client(folder)
    assert opened_step(client)[1] > 20, "step 12 was done before"
    assert opened_step(client, "?attempt=0")[0] == 0


def test_a_run_that_is_not_watched_opens_its_slowest_step(tmp_path: Path) -> None:
    """Nothing was judged: all steps but the first one are there to choose from."""
    store = stored(tmp_path, sealed=True)
    with closing(StateDatabase(store / "state.sqlite")) as state:
        state.save_view([], [live_run(run=RUN, window_seconds=0.0)])
    client = page_client(store)
    assert opened_step(client, "?attempt=0") == (0, SLOW_STEP)
    assert opened_step(client)[0] == 1


def test_the_last_step_of_a_run_that_goes_on_is_one_of_all_its_ranks(tmp_path: Path) -> None:
    """News of one rank come some steps later; another has been silent for long."""
    store, until = open_store(tmp_path / "store"), {0: 200, 1: 197, 2: 20}
    writer = JournalWriter(store.journal, 1)
    for batch in node_batches(tmp_path / "made", Training(ranks=3, steps=200, ends=False)):
        (rows,) = batch.ranks
        if int(batch.steps["number"].max(initial=0)) <= until[rows.rank]:
            writer.append([(1_795_000_000_000_000, pack_batch(batch))])
    writer.close()
    with closing(StateDatabase(store.state)) as state:
        state.save_view([], [live_run(run=RUN)])
    client = page_client(store.path)
    last = client.get(f"/timeline/{RUN}").json()["last_step"]
    assert 190 <= last <= 197
    (one, other) = client.get(f"/timeline/{RUN}?step={last}").json()["timeline"]["ranks"]
    assert one["spans"] and other["spans"]
    (alone,) = client.get(f"/timeline/{RUN}?step={last + 5}").json()["timeline"]["ranks"]
    assert alone["rank"] == 0


@pytest.mark.parametrize("query", ["?step=99", "?step=35&attempt=1"])
def test_a_step_that_is_not_there_names_those_that_are(source: Path, query: str) -> None:
    empty = page_client(source).get(f"/timeline/{RUN}{query}").json()["empty"]
    assert empty["commands"] == []
    assert "no rank has step" in empty["text"]
    assert "Its steps are 1 to 40; 1 to 30." in empty["text"]


def test_a_step_that_is_not_there_has_a_way_on(source: Path) -> None:
    content = page_client(source).get(f"/timeline/{RUN}?step=99").json()
    assert content["run"]["id"] == RUN
    assert (content["attempts"], content["attempt"]) == ([0, 1], 1)
    assert (content["first_step"], content["last_step"]) == (1, 30)
    other = page_client(source).get(f"/timeline/{RUN}?step=99&attempt=0").json()
    assert (other["attempt"], other["last_step"]) == (0, 40)


def test_a_step_whose_phases_cannot_be_read_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = page_client(source)
    for kind in (RecordingOpening, StoreOpening):
        monkeypatch.setattr(kind, "spans", lambda *_: None)
    said = {
        "": r"the phases of step \d+ of attempt 1 cannot be read\.",
        "?step=35": r"the phases of step 35 cannot be read\.",
        "?step=35&attempt=1": r"no rank has step 35 of attempt 1\.",
        "?attempt=7": r"there is no attempt 7\.",
    }
    for query, text in said.items():
        empty = client.get(f"/timeline/{RUN}{query}").json()["empty"]
        assert re.search(text, empty["text"]), query


def test_a_watched_run_without_a_step_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    with closing(StateDatabase(store.state)) as state:
        state.save_view([], [live_run(run=RUN)])
    empty = page_client(store.path).get(f"/timeline/{RUN}").json()["empty"]
    assert (empty["text"], empty["commands"]) == ("llama-7b: no step of it is known.", [])
