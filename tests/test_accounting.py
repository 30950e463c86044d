"""Job accounting: every scheduler's format, a ledger that closes, failures attributed to faults."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.errors import ComputeFlowError, InputError
from computeflow.ledger import Ledger
from computeflow.telemetry.accounting.accounting_source import AccountingSource, read_jobs
from computeflow.telemetry.accounting.attempts_by_node import pairs_of
from computeflow.telemetry.accounting.cluster_ledger import account_usage
from computeflow.telemetry.accounting.fault_attribution import attribute_faults
from computeflow.telemetry.accounting.jobs import AttemptRows, JobAttempt, JobAttempts
from computeflow.telemetry.accounting.scheduler_values import (
    duration_seconds,
    gpus_of,
    outcome_of,
    parse_joules,
    state_of,
    unix_seconds,
)
from computeflow.telemetry.accounting.slurm_text import NodeState
from computeflow.telemetry.accounting.suspect_nodes import find_suspect_nodes
from computeflow.telemetry.accounting.usage import Accounting
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest
from computeflow.views.sources.accounting import attribution_table, tables
from computeflow.views.tables import to_text

DATA = Path(__file__).parent / "data" / "accounting"
FACTS = load_catalog()
DAY = 86400.0


def observe(*paths: Path, gpus: int | None = None, **asked: Any) -> SourceReport:
    source = AccountingSource(gpus=gpus)
    assert all(source.recognises(path, head_of(path)) for path in paths)
    (observed,) = source.observe(paths, SourceRequest(catalog=FACTS, **asked))
    return observed


def ledger_of(observed: SourceReport) -> Ledger:
    assert observed.ledger is not None, observed.ledger_reason
    return observed.ledger


def written(folder: Path, text: str, name: str = "jobs.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def rows_of(*jobs: tuple[str, str, float, float, float]) -> JobAttempts:
    """Rows of ID, state, GPUs, start and end."""
    rows = AttemptRows()
    for job, state, gpus, start, end in jobs:
        rows.add(job, state=state, gpus=gpus, start=start, end=end)
    return rows.finish()[0]


# What the recorded jobs did, by hand: GPUs x seconds of each state (tests/data/accounting).
COMPUTE = 16 * 12 + (4 * 13 - 20) + (2 + 3 + 5) + 5 + 15 + 2 * 8
LOST = 8 * 36 + 2 * 4 + 4
RESTART = 4 * 5


@pytest.mark.parametrize("name", ["sacct.txt", "sacct.json.gz"])
def test_a_recorded_cluster_gives_its_ledger_as_counted_by_hand(name: str) -> None:
    observed = observe(DATA / name)
    ledger = ledger_of(observed)
    assert ledger.wall_seconds == 52
    assert ledger.gpus == 30  # 16 + 2 + 4 + 3 + 1 + 4 at the start
    assert ledger.accounts == {
        "compute": COMPUTE,
        "restart": RESTART,
        "lost": LOST,
        "idle": 30 * 52 - COMPUTE - RESTART - LOST,
    }
    facts: Accounting = observed.facts
    assert facts.unsure_gpu_seconds == 15
    assert facts.stopped_gpu_seconds == 5
    assert {row.name: row.gpu_seconds for row in facts.by_team} == {
        "llm": 192 + 52 + 15 + 288 + 16,
        "vision": 8 + 14 + 5,
    }
    assert {row.name: row.failed for row in facts.by_state}["NODE_FAIL"] == 1
    assert [event.what for event in observed.happenings] == ["job ended: NODE_FAIL"]


def test_listed_nodes_say_how_many_gpus_there_are_and_which_are_out() -> None:
    observed = observe(DATA / "sacct.txt", DATA / "scontrol_node.txt")
    assert ledger_of(observed).gpus == 32
    assert observed.facts.gpus_from == "nodes"
    out = {node.name: node for node in observed.facts.nodes_out}
    assert out["n2"].reason == "xid 79 on gpu 3"
    assert out["n3"].state == "DOWN+NOT_RESPONDING"
    assert out["n2"].since == unix_seconds("2026-11-15T10:10:39")
    assert {event.node for event in observed.happenings} == {"", "n2", "n3"}


def test_scontrol_shows_jobs_and_the_end_it_foresees_is_none() -> None:
    observed = observe(DATA / "scontrol_job.txt")
    facts: Accounting = observed.facts
    assert facts.running == 1
    assert ledger_of(observed).accounts["lost"] == LOST
    assert {row.name for row in facts.by_job} >= {"4_2", "11"}  # tasks of an array by both numbers


def test_a_period_cuts_jobs_at_its_ends() -> None:
    start = unix_seconds("2026-11-15T10:10:00")
    ledger = ledger_of(observe(DATA / "sacct.txt", gpus=64, start=start, end=start + 8))
    assert ledger.gpu_seconds == 64 * 8
    assert ledger.accounts["restart"] == 4 * 5
    assert ledger.accounts["lost"] == 8 * 6  # of the job whose node failed


def test_more_jobs_at_once_than_gpus_stated_are_believed_and_said() -> None:
    observed = observe(DATA / "sacct.txt", gpus=8)
    assert ledger_of(observed).gpus == 30
    assert any("8 GPUs (stated), but jobs had 30 at once" in note for note in observed.notes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784),
        ("02:03:04", 7384),
        ("03:04.5", 184.5),
        ("36", 36),
        ("x", math.nan),
        ("1-00:00:00", 86400),
        ("", math.nan),
        ("-5", math.nan),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_seconds(text) == pytest.approx(seconds, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:00", 1767225600),
        ("2026-01-01 01:00:00+01:00", 1767225600),
        ("1767225600", 1767225600),
        ("1767225600000", 1767225600),
        ("1767225600000000", 1767225600),
        ("Unknown", math.nan),
        ("None", math.nan),
        ("", math.nan),
        ("9" * 400, math.nan),
        ("0001-01-01T00:00:00", math.nan),
        ("2026-13-01T00:00:00", math.nan),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert unix_seconds(text) == pytest.approx(seconds, nan_ok=True)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=64,cpu=64,gres/gpu:h100=8,gres/gpu=8,mem=2T,node=1", 8),
        ("gres/gpu:a100=4", 4),
        ("gres/gpu:a100=4,gres/gpu:v100=2", 6),
        ("cpu=4,mem=8G", None),
        ("gpu:tesla:2(IDX:0-1)", 2),
        ("gpu:8(S:0-1)", 8),
        ("cpu=1,gres/gpumem=40G,gres/gpuutil=90", None),
        ("", None),
        ("gres:gpu:4", 4),
        ("gres/shard=4", None),
    ],
)
def test_gpus_of_a_tres_text(tres: str, gpus: float | None) -> None:
    assert gpus_of(tres) == gpus


def test_states_and_energies_as_slurm_writes_them() -> None:
    assert [state_of(text) for text in ("CANCELLED by 1000", "COMPLETED", "", "NODE_FAIL+")] == [
        "CANCELLED",
        "COMPLETED",
        "UNKNOWN",
        "NODE_FAIL",
    ]
    assert outcome_of("OUT_OF_MEMORY") == "failed"
    assert outcome_of("TIMEOUT") == "stopped"
    assert outcome_of("Succeeded") == "done"
    assert outcome_of("SOMETHING_NEW") == "unknown"
    assert parse_joules("1.5M") == 1.5e6
    # zero, and the mark for "no value", are no energies
    assert math.isnan(parse_joules("0"))
    assert math.isnan(parse_joules("18446744073709551614"))
    assert math.isnan(parse_joules("17179869184.00G"))


HEAD = "JobID|JobName|User|State|Start|End|AllocTRES|ConsumedEnergy\n"


def test_what_was_taken_up_again_is_not_called_lost(tmp_path: Path) -> None:
    text = HEAD + (
        "1|a|u|NODE_FAIL|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=8|\n"
        "1|a|u|COMPLETED|2026-01-01T01:10:00|2026-01-01T02:00:00|gres/gpu=8|\n"  # requeued
        "2|b|u|FAILED|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=4|\n"
        "3|b|u|COMPLETED|2026-01-01T01:30:00|2026-01-01T02:00:00|gres/gpu=4|\n"  # by name
        "4|b|u|FAILED|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=2|\n"  # other size
        "5_1|s|u|FAILED|2026-01-01T00:00:00|2026-01-01T00:30:00|gres/gpu=1|\n"
        "5_2|s|u|COMPLETED|2026-01-01T01:00:00|2026-01-01T01:30:00|gres/gpu=1|\n"  # other task
    )
    observed = observe(written(tmp_path, text))
    assert observed.facts.unsure_gpu_seconds == 3600 * 12
    assert observed.facts.requeues == 1
    ledger = ledger_of(observed)
    assert ledger.accounts["lost"] == 3600 * 2 + 1800
    assert "checkpoints" in ledger.unavailable["lost"]
    assert ledger.mfu is None


def test_energy_is_booked_where_every_job_of_an_account_has_it(tmp_path: Path) -> None:
    text = HEAD + (
        "1|a|u|COMPLETED|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=8|30M\n"
        "1.batch||u|COMPLETED|2026-01-01T00:00:00|2026-01-01T01:00:00||20M\n"
        "2|b|v|COMPLETED|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=8|\n"
        "2.0||v|COMPLETED|2026-01-01T00:00:00|2026-01-01T01:00:00||7M\n"
        "2.1||v|COMPLETED|2026-01-01T00:00:00|2026-01-01T01:00:00||3M\n"
        "3|c|v|FAILED|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=8|\n"
    )
    observed = observe(written(tmp_path, text))
    joules = {entry.account: entry.joules for entry in ledger_of(observed).entries}
    assert joules == {"compute": 40e6, "lost": None}
    assert {row.name: row.joules for row in observed.facts.by_user} == {"u": 30e6, "v": None}
    first = unix_seconds("2026-01-01T00:00:00")
    half = observe(written(tmp_path, text), start=first, end=first + 1800)
    joules = {entry.account: entry.joules for entry in ledger_of(half).entries}
    assert joules["compute"] == pytest.approx(20e6)


def test_steps_of_a_job_that_cannot_be_read_are_nobody_s(tmp_path: Path) -> None:
    text = HEAD + (
        "1|a|u|COMPLETED|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=8|\n"
        "2|a|b|u|COMPLETED|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=8|\n"
        "2.0||u|FAILED|2026-01-01T00:00:00|2026-01-01T00:10:00||7M\n"
        "2.1||u|COMPLETED|2026-01-01T00:20:00|2026-01-01T01:00:00||7M\n"
    )
    observed = observe(written(tmp_path, text))
    assert ledger_of(observed).accounts == {"compute": 8 * 3600}
    assert ledger_of(observed).entries[0].joules is None
    assert observed.left_out == ("1 lines that are not jobs",)


def test_jobs_of_two_exports_that_overlap_count_once(tmp_path: Path) -> None:
    observed = observe(DATA / "sacct.txt", written(tmp_path, (DATA / "sacct.txt").read_text()))
    assert ledger_of(observed).accounts["lost"] == LOST
    assert any("repeated jobs" in text for text in observed.left_out)


CSV = """\
job_id,user_name,project,submitted_at,started_at,finished_at,num_gpus,status,host
a-1,ann,vision,2026-01-01T00:00:00Z,2026-01-01T00:10:00Z,2026-01-01T02:10:00Z,8,Succeeded,n1
a-2,bob,llm,2026-01-01T00:00:00Z,2026-01-01T01:10:00Z,2026-01-01T02:10:00Z,16,Failed,"n1,n2"
a-3,bob,llm,2026-01-01T00:00:00Z,,,16,Pending,
oops,bob
"""


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_of_another_scheduler_is_read_by_its_columns(
    tmp_path: Path, delimiter: str
) -> None:
    observed = observe(written(tmp_path, CSV.replace(",", delimiter), "jobs.csv"))
    ledger = ledger_of(observed)
    assert ledger.accounts == {"compute": 8 * 7200, "lost": 16 * 3600, "idle": 16 * 3600}
    assert observed.facts.waits.median_seconds == (600 + 4200) / 2
    assert {row.name for row in observed.facts.by_team} == {"vision", "llm"}
    assert any("1 lines" in text for text in observed.left_out)


def test_durations_without_starts_give_gpu_hours_and_no_ledger(tmp_path: Path) -> None:
    text = "job,gpus,submit_time,duration,vc\n1,8,0,3600,x\n2,4,10,7200,y\n"
    observed = observe(written(tmp_path, text))
    assert observed.ledger is None
    assert "no start times" in observed.ledger_reason
    assert observed.facts.used_gpu_seconds == 8 * 3600 + 4 * 7200
    assert tables(observed)


def test_what_cannot_be_read_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    text = "JobID|State|AllocCPUS\n1|COMPLETED|4\n"
    with pytest.raises(InputError, match="AllocTRES"):
        AccountingSource().observe([written(tmp_path, text)], SourceRequest(catalog=FACTS))
    with pytest.raises(InputError, match="neither"):
        read_jobs([written(tmp_path, "hello")])
    observed = observe(written(tmp_path, "JobID|State|Start|End|AllocTRES\n1|FAILED|x|y|cpu=4\n"))
    assert "AccountingStorageTRES" in observed.ledger_reason
    with pytest.raises(InputError, match="cannot be read as Slurm's JSON"):
        read_jobs([written(tmp_path, '{"jobs": [{"job_id": 1, "tres"')])
    cut = read_jobs([written(tmp_path, '{"jobs": [{"job_id": 1, "tres": {}}, {"job_id"')])
    assert cut.jobs.words["job"] == ("1",)
    assert "after 1 jobs; what came before is kept" in cut.left_out[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "a,b,c\n1,2,3\n",
        "step,loss\n1,2.0\n",
        '{"traceEvents": []}',
        "x|y\n",
        "{" * 5000,
        "NodeNames are nice",
        "# HELP x\n",
    ],
)
def test_other_files_are_not_taken_for_accounting(text: str, tmp_path: Path) -> None:
    assert not AccountingSource().recognises(tmp_path, text.encode())


_CELL = st.text(alphabet="0123456789|,:-.T_ =[]gresu/pUnkownabcXYZ{}\"'\n\\\x00é", max_size=40)


@given(
    header=st.sampled_from(
        [
            HEAD,
            "job,gpus,start,end,status,nodes\n",
            "JobId=1 JobName=",
            "NodeName=n1 ",
            '{"slurm":1,"jobs":[{"job_id":',
        ]
    ),
    body=st.lists(_CELL, max_size=30),
)
def test_no_input_ends_in_a_traceback(
    header: str, body: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("hostile") / "x"
    path.write_text(header + "|".join(body), encoding="utf-8")
    with contextlib.suppress(ComputeFlowError):
        (observed,) = AccountingSource().observe([path], SourceRequest(catalog=FACTS))
        codec.encode(observed.facts)
        for table in tables(observed):
            to_text(table)


_STATES = ["COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT", "RUNNING", "REQUEUED", "ODD"]
_JOBS = st.lists(
    st.tuples(
        st.integers(0, 8).map(str),
        st.sampled_from(_STATES),
        st.integers(0, 64).map(float),
        st.integers(0, 1000).map(float),
        st.integers(0, 500).map(float),
    ),
    min_size=1,
    max_size=40,
)


@settings(deadline=None)
@given(jobs=_JOBS, start=st.integers(0, 1200), length=st.integers(1, 800))
def test_the_ledger_closes_and_holds_what_jobs_had(
    jobs: list[tuple[str, str, float, float, float]], start: int, length: int
) -> None:
    rows = rows_of(*((job, state, gpus, at, at + took) for job, state, gpus, at, took in jobs))
    end = start + length
    books = account_usage(rows, start=start, end=end)
    seen = {(job, at): (state, gpus, at + took) for job, state, gpus, at, took in jobs}
    used = sum(
        gpus * max(0.0, min(until, end) - max(at, start))
        for (_, at), (_, gpus, until) in seen.items()
    )
    assert books.facts.used_gpu_seconds == pytest.approx(used, abs=1e-9)
    if books.ledger is None:
        assert used == 0
        return
    whole = math.fsum(books.ledger.accounts.values())
    assert whole == pytest.approx(books.ledger.gpu_seconds, rel=1e-9)
    assert books.ledger.booked("idle") == pytest.approx(whole - used, abs=1e-6)
    for part in (books.facts.by_job, books.facts.by_state):
        assert math.fsum(row.gpu_seconds for row in part) == pytest.approx(used, abs=1e-6)


def many(nodes: int, each: int, failing: dict[str, float], users: int = 5) -> JobAttempts:
    draw = np.random.default_rng(3)
    rows = AttemptRows()
    for number in range(nodes * each):
        node = f"n{number % nodes}"
        failed = draw.random() < failing.get(node, 0.1)
        rows.add(
            str(number),
            state="FAILED" if failed else "COMPLETED",
            gpus=8,
            start=number * 10.0,
            end=number * 10.0 + 5,
            user=f"u{draw.integers(users)}",
            nodes=node,
        )
    return rows.finish()[0]


def test_a_node_that_fails_jobs_of_all_users_is_named() -> None:
    jobs = many(40, 50, {"n7": 0.5})
    found, _ = find_suspect_nodes(jobs, pairs_of(jobs, jobs.gpus > 0))
    assert [suspect.node for suspect in found] == ["n7"]
    assert found[0].failed > 2 * found[0].expected


def test_nodes_that_are_alike_are_not_named() -> None:
    jobs = many(40, 50, {})
    pairs = pairs_of(jobs, jobs.gpus > 0)
    draw = np.random.default_rng(5)
    for _ in range(50):
        shuffled = replace(jobs, state_of=draw.permutation(jobs.state_of))
        assert find_suspect_nodes(shuffled, pairs)[0] == ()


def test_a_user_whose_jobs_fail_everywhere_makes_no_node_a_suspect() -> None:
    draw = np.random.default_rng(1)
    rows = AttemptRows()
    for number in range(2000):  # the user of broken code has most of the jobs of n0
        broken = draw.random() < 0.1
        node = "n0" if broken and draw.random() < 0.5 else f"n{draw.integers(20)}"
        rows.add(
            str(number),
            state="FAILED" if broken or draw.random() < 0.05 else "COMPLETED",
            gpus=1,
            start=0,
            end=1,
            user="broken" if broken else f"u{draw.integers(9)}",
            nodes=node,
        )
    jobs = rows.finish()[0]
    assert find_suspect_nodes(jobs, pairs_of(jobs, jobs.gpus > 0))[0] == ()


def test_an_array_that_fails_on_one_node_counts_as_one_job() -> None:
    rows = AttemptRows()
    for number in range(200):
        rows.add(
            str(number),
            state="COMPLETED",
            gpus=1,
            start=0,
            end=1,
            user=f"u{number % 7}",
            nodes=f"n{number % 10}",
        )
    for task in range(500):
        rows.add(f"900_{task}", state="FAILED", gpus=1, start=0, end=1, user="u1", nodes="n3")
    jobs = rows.finish()[0]
    assert find_suspect_nodes(jobs, pairs_of(jobs, jobs.gpus > 0))[0] == ()


def failed_job(name: str, nodes: str, start: float, end: float, gpus: float = 16) -> JobAttempt:
    return JobAttempt(
        job=name, state="FAILED", outcome="failed", gpus=gpus, start=start, end=end, nodes=nodes
    )


def fault(node: str, seconds: float | None, what: str = "xid 79") -> Event:
    return Event(seconds=seconds, what=what, node=node, fault=True)


def test_a_failed_job_is_laid_to_the_first_fault_before_its_end() -> None:
    jobs = [
        failed_job("1", "gpu[01-02]", 0, DAY),
        failed_job("2", "gpu[03-04]", 0, DAY),  # no fault on its nodes
        failed_job("3", "gpu01", 0, DAY / 2),  # had ended long before
        replace(failed_job("4", "gpu01", 0, DAY), state="COMPLETED", outcome="done"),
    ]
    events = [
        fault("gpu02.cluster.local", DAY - 300),
        fault("gpu01", DAY - 200, "xid 45"),
        fault("gpu01", DAY / 4, "xid 31"),  # too long before
        fault("gpu02", DAY + 5),  # after the end
        fault("gpu02", None),
        fault("", 7.0),
        Event(seconds=DAY - 400, what="link up", node="gpu01"),
        Event(seconds=DAY - 400, what="job ended: NODE_FAIL", node="gpu01", job="1", fault=True),
    ]
    found = attribute_faults(jobs, events)
    (one,) = found.jobs
    assert "1 of 3 failed jobs" in to_text(attribution_table(found))
    assert (one.job, one.node, one.what, one.between_seconds) == ("1", "gpu02", "xid 79", 300)
    assert one.gpu_seconds == 16 * DAY
    assert one.waiting_gpu_seconds == 16 * 300
    assert (found.failed, found.unplaced) == (3, 2)
    assert found.nodes[0].gpu_seconds == 16 * DAY
    # job 1 saw three faults in a day; job 3 one in half a day
    chance = 1 - (1 - 900 / DAY) ** 3 + 900 / (DAY / 2)
    assert found.by_chance == pytest.approx(chance)


@settings(deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5000), st.integers(0, 5000)), max_size=20
    ),
    faults=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9000)), max_size=20),
)
def test_each_job_is_blamed_once_and_only_on_its_own_nodes(
    jobs: list[tuple[int, int, int]], faults: list[tuple[int, int]]
) -> None:
    made = [
        failed_job(str(number), f"n[{node}-{node + 2}]", start, start + took)
        for number, (node, start, took) in enumerate(jobs)
    ]
    found = attribute_faults(made, [fault(f"n{node}", at) for node, at in faults])
    named = [one.job for one in found.jobs]
    assert len(named) == len(set(named))
    for one in found.jobs:
        node, start, took = jobs[int(one.job)]
        assert node <= int(one.node[1:]) <= node + 2
        assert start <= one.fault_seconds <= start + took
        assert 0 <= one.between_seconds <= 900
    for number, (node, start, took) in enumerate(jobs):  # by looking at all pairs
        due = any(
            node <= where <= node + 2 and max(start, start + took - 900) <= at <= start + took
            for where, at in faults
        )
        assert due == (str(number) in named)


def test_the_tables_fit_a_terminal_and_the_facts_json() -> None:
    observed = observe(DATA / "sacct.txt", DATA / "scontrol_node.txt")
    made = tables(observed)
    assert [table.title.split(",")[0] for table in made][:5] == [
        "The cluster",
        "Teams",
        "Users",
        "Jobs",
        "States",
    ]
    for table in made:
        assert all(len(line) <= 80 for line in to_text(table).splitlines())
    data = codec.encode(observed.facts)
    assert data["by_team"][0]["name"] == "llm"
    codec.to_json(data)


def test_a_host_list_of_many_nodes_is_split_in_equal_parts() -> None:
    rows = AttemptRows()
    rows.add("1", state="COMPLETED", gpus=32, start=0, end=100, nodes="a[1-4]")
    rows.add("2", state="FAILED", gpus=8, start=0, end=50, nodes="a1")
    rows.add("3", state="FAILED", gpus=8, start=0, end=50, nodes="a[1-")  # no host list
    books = account_usage(rows.finish()[0], [NodeState(name="a1", gpus=64, state="IDLE")])
    assert books.facts.nodes_unread == 1
    assert {row.name: row.gpu_seconds for row in books.facts.by_node} == {
        "a1": 800 + 400,
        "a2": 800,
        "a3": 800,
        "a4": 800,
    }


def plain_sums(lines: Sequence[str]) -> dict[str, float]:
    """GPU-seconds by state, computed without the code under test."""
    from datetime import datetime

    sums: dict[str, float] = {}
    for line in lines[1:]:
        cells = line.split("|")
        start, end = (datetime.fromisoformat(cells[at]) for at in (6, 7))
        gpus = int(cells[8].split("gres/gpu=")[1].split(",")[0])
        state = cells[4].split(" ")[0]
        sums[state] = sums.get(state, 0.0) + gpus * (end - start).total_seconds()
    return sums


@pytest.mark.shared
def test_109_days_of_82_thousand_jobs_close_in_seconds(data_folder: Path, tmp_path: Path) -> None:
    from benchmarks.prove_accounting import BAD, sacct_lines

    lines = list(sacct_lines(data_folder))
    path = written(tmp_path, "\n".join(lines))
    before = time.process_time()
    observed = observe(path)
    assert time.process_time() - before < 20
    ledger, sums = ledger_of(observed), plain_sums(lines)
    whole = math.fsum(ledger.accounts.values())
    assert whole == pytest.approx(ledger.gpus * ledger.wall_seconds, rel=1e-9)
    assert ledger.accounts["lost"] == pytest.approx(sums["FAILED"], rel=1e-9)
    assert ledger.accounts["compute"] == pytest.approx(
        sums["COMPLETED"] + sums["CANCELLED"], rel=1e-9
    )
    assert observed.facts.attempts == len(lines) - 1
    assert [suspect.node for suspect in observed.facts.suspects] == [BAD]
