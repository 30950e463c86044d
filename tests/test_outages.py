"""Tables of node outages: read, booked, ranked; and kept apart from the jobs of another cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks import prove_accounting

import computeflow as cf
from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS, HOUR_SECONDS

ON = "h100-sxm:32"
"""Four nodes of eight."""
PRICE = 2.5
TABLE = """node,start,end,cause
a,2026-01-01T00:00:00,2026-01-02T00:00:00,GPU
a,2026-01-01T12:00:00,2026-01-03T00:00:00,NIC
b,2026-01-05T00:00:00,2026-01-05T06:00:00,GPU
c,2026-01-10T00:00:00,,Fan
d,2026-01-11T00:00:00,2026-01-11T00:00:00,Change
"""


def written(folder: Path, text: str, name: str = "outages.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def audited(*paths: Path, on: str | None = ON) -> dict[str, Any]:
    return cf.audit(paths, price=PRICE, on=on).to_dict()


def check_adds_up(answer: dict[str, Any]) -> None:
    """Findings are ranked, claim all that was out of service, and no more; the ledger closes."""
    ledger = answer["ledger"]
    whole = ledger["gpus"] * ledger["wall_seconds"]
    assert sum(ledger["accounts"].values()) == pytest.approx(whole)
    sizes = [finding["gpu_seconds"] for finding in answer["findings"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == pytest.approx(ledger["accounts"]["idle"])
    usd = sum(finding["usd"] for finding in answer["findings"])
    assert usd == pytest.approx(ledger["accounts"]["idle"] / HOUR_SECONDS * PRICE)


def test_time_that_two_outages_share_counts_once(tmp_path: Path) -> None:
    answer = audited(written(tmp_path, TABLE))
    facts = answer["observed"][0]["facts"]
    days = {cause["cause"]: cause["node_seconds"] / DAY_SECONDS for cause in facts["causes"]}
    assert days == pytest.approx({"GPU": 1.25, "NIC": 1.0, "Fan": 1.0, "Change": 0.0})
    assert facts["still_out"] == ["c"]
    assert answer["ledger"]["accounts"]["idle"] == pytest.approx(8 * 3.25 * DAY_SECONDS)
    check_adds_up(answer)


def test_events_are_matched_to_outages(tmp_path: Path) -> None:
    """The first end of a node and cause ends the first start; an end without a start is left out."""
    text = """node,event_time_days,event,class
0,1.0,fault_start,GPU
1,1.5,fault_start,GPU
0,2.0,fault_end,GPU
1,4.5,fault_end,GPU
1,5.0,fault_end,NIC
"""
    answer = audited(written(tmp_path, text))
    (seen,) = answer["observed"]
    assert seen["facts"]["node_seconds"] == pytest.approx(4 * DAY_SECONDS)
    assert answer["ledger"]["wall_seconds"] == pytest.approx(4.5 * DAY_SECONDS)
    assert any("1 row of no outage" in text for text in seen["left_out"])


def test_a_node_that_comes_back_too_often_is_named_with_its_command(tmp_path: Path) -> None:
    rows = [f"n{node},{day},{day + 0.1},Fan" for node in range(1, 40) for day in (node, node + 50)]
    rows += [f"bad,{7 * week},{7 * week + 0.5},GPU" for week in range(15)]
    text = "\n".join(["node,start_days,end_days,cause", *rows])
    answer = audited(written(tmp_path, text), on="h100-sxm:320")
    commands = [finding["remedy"]["command"] for finding in answer["findings"]]
    titles = [finding["title"] for finding in answer["findings"]]
    assert titles[0] == "Fan took 39 nodes out 78 times, for 2.4 h in the median, 2.4 h at most"
    assert titles[1] == "node bad went out of service 15 times (GPU)"
    assert "scontrol update nodename=bad state=drain" in commands[1]
    assert "kubectl cordon bad" in commands[1]
    check_adds_up(answer)


def test_without_the_number_of_gpus_there_is_a_ranking_and_no_dollars(tmp_path: Path) -> None:
    answer = audited(written(tmp_path, TABLE), on=None)
    assert answer["findings"] == [] and answer.get("ledger") is None
    assert any("--on NAME:COUNT" in one["missing"] for one in answer["abstained"])


def test_more_nodes_than_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4 nodes are in it, and 8 GPUs are 1 node of 8"):
        audited(written(tmp_path, TABLE), on="h100-sxm:8")


def test_a_period_of_a_table_that_counts_from_its_own_start_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "node,start_days,end_days,cause\na,1,2,GPU\n")
    with pytest.raises(InputError, match="--period has no meaning"):
        cf.audit([path], period="30d")


def test_outages_of_the_accountings_own_nodes_are_not_booked_twice(tmp_path: Path) -> None:
    jobs = written(
        tmp_path,
        "job_id,user,gpus,start,end,status,nodes\n"
        "1,u,8,2026-01-01T00:00:00,2026-01-10T00:00:00,completed,b\n",
        "jobs.csv",
    )
    answer = audited(jobs, written(tmp_path, TABLE))
    (fleet,) = [each for each in answer["observed"] if each["kind"] == "fleet"]
    assert (fleet["facts"]["apart"]) == [
        "outages.csv: judged apart, what its nodes idle is idle in the accounting, too"
    ]


@pytest.mark.shared
def test_the_fault_trace_of_348_days_is_ranked_and_adds_up(data_folder: Path) -> None:
    trace = data_folder / "cluster" / "stepfun_infinitehbd_faults.csv"
    answer = audited(trace, on="h100-sxm:3200")
    check_adds_up(answer)
    facts = answer["observed"][0]["facts"]
    assert (facts["outages"], len(facts["node_names"]), facts["nodes_total"]) == (584, 231, 400)
    assert facts["node_seconds"] == pytest.approx(3231.3 * DAY_SECONDS, rel=1e-4)
    assert [node["node"] for node in facts["repeated"]] == ["188"]
    assert answer["findings"][0]["title"].startswith("GPU took 96 nodes out 148 times")


@pytest.mark.shared
def test_phillys_jobs_give_what_teams_used_and_no_finding(data_folder: Path) -> None:
    """The trace has neither starts nor nodes nor states: no ledger, nothing lost, nobody blamed."""
    answer = cf.audit([data_folder / "cluster" / "philly.csv.gz"], price=PRICE)
    data = answer.to_dict()
    assert data["findings"] == [] and data.get("ledger") is None
    facts = data["observed"][0]["facts"]
    used = sum(
        int(row["num_gpus"]) * int(row["duration"]) for row in prove_accounting.jobs(data_folder)
    )
    for rows in ("by_team", "by_state", "by_job"):
        sizes = [row["gpu_seconds"] for row in facts[rows] if not row["name"].endswith("more)")]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(row["gpu_seconds"] for row in facts[rows]) == pytest.approx(used)
    assert "how they ended is unknown" in answer.headline


@pytest.mark.shared
def test_jobs_and_faults_of_different_clusters_are_judged_apart(data_folder: Path) -> None:
    jobs = data_folder / "cluster" / "philly.csv.gz"
    faults = data_folder / "cluster" / "stepfun_infinitehbd_faults.csv"
    answer = cf.audit([jobs, faults], price=PRICE, on="h100-sxm:3200")
    assert "judged apart from philly.csv.gz" in answer.headline
    both, alone = answer.to_dict(), audited(faults, on="h100-sxm:3200")
    assert both["findings"] == alone["findings"] and both["ledger"] == alone["ledger"]
    assert [each["kind"] for each in both["observed"]] == ["accounting", "outages"]


@pytest.mark.shared
def test_a_queue_of_82_000_jobs_adds_up(data_folder: Path, tmp_path: Path) -> None:
    """Philly's jobs with drawn starts, nodes and states (benchmarks/prove_accounting.py)."""
    prove_accounting.write_sacct(data_folder, tmp_path / "jobs.txt")
    data = cf.audit([tmp_path / "jobs.txt"], price=PRICE).to_dict()
    ledger = data["ledger"]
    whole = ledger["gpus"] * ledger["wall_seconds"]
    assert sum(ledger["accounts"].values()) == pytest.approx(whole)
    found = {finding["rule"]: finding for finding in data["findings"]}
    assert found.keys() == {"lost-work", "fragmentation", "failing-node"}
    assert prove_accounting.BAD in found["failing-node"]["title"]
    queue = data["observed"][0]["facts"]["queue"]
    idle = sum(queue["wanted"].values()) + queue["out"] + queue["unwanted"]
    assert idle == pytest.approx(ledger["accounts"]["idle"])
    for name in ("lost", "idle"):
        claimed = sum(
            claim["gpu_seconds"]
            for finding in data["findings"]
            for claim in finding["claims"]
            if claim["account"] == name
        )
        assert 0 < claimed <= ledger["accounts"][name]
