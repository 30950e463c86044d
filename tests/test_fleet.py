"""A fleet in one call: accounting, metrics, kernel log and job logs make one ranked, priced list.

The recorded fleets (tests/data/fleet) are of a real Slurm; their jobs sleep, and what GPUs did is
written with planted faults (tests/slurm_fleet.py), so the truth is known.
"""

from __future__ import annotations

import gzip
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import computeflow as cf
from computeflow.cli.app import app
from computeflow.ledger import Entry, Ledger, Window, describe
from computeflow.telemetry.accounting.jobs import AttemptRows, JobAttempts
from computeflow.telemetry.accounting.queue_idle import split_idle
from computeflow.telemetry.accounting.slurm_text import NodeState
from growing import growth
from metrics_servers import Synthetic, prometheus
from slurm_fleet import make_fleet
from slurm_lab import why_not

FLEET = Path(__file__).parent / "data" / "fleet"
SICK, HEALTHY = FLEET / "sick", FLEET / "healthy"
TRUTH = json.loads((FLEET / "truth.json").read_text())
PRICE = 2.5
SAMPLE = 60.0
"""Seconds between samples: what metrics show is known no better."""


def audited(*paths: Path, price: float | None = PRICE) -> dict[str, Any]:
    return cf.audit(paths, price=price).to_dict()


def by_rule(answer: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for finding in answer["findings"]:
        found[finding["rule"]] = found.get(finding["rule"], 0.0) + finding["gpu_seconds"]
    return found


def check_truth(answer: dict[str, Any], truth: dict[str, float], slack: float) -> None:
    """One list: the planted faults, nothing else, each with its GPU-seconds."""
    found = by_rule(answer)
    assert found.keys() == truth.keys()
    for rule, seconds in truth.items():
        assert found[rule] == pytest.approx(seconds, rel=slack), rule
    sizes = [finding["gpu_seconds"] for finding in answer["findings"]]
    assert sizes == sorted(sizes, reverse=True)


def test_the_planted_faults_are_the_list_with_their_gpu_seconds() -> None:
    check_truth(audited(SICK), TRUTH, 0.06)


def test_dollars_add_up_to_the_ledger_and_no_account_is_claimed_beyond_it() -> None:
    answer = audited(SICK)
    accounts = answer["ledger"]["accounts"]
    whole = answer["ledger"]["gpus"] * answer["ledger"]["wall_seconds"]
    assert sum(accounts.values()) == pytest.approx(whole)
    claimed: dict[str, float] = {}
    for finding in answer["findings"]:
        assert finding["usd"] == pytest.approx(finding["gpu_seconds"] / 3600 * PRICE)
        for claim in finding["claims"]:
            name = claim["account"].partition(".")[0]
            claimed[name] = claimed.get(name, 0.0) + claim["gpu_seconds"]
    assert all(claimed[name] <= accounts[name] * (1 + 1e-9) for name in claimed)
    assert claimed["lost"] == pytest.approx(accounts["lost"])
    queue = answer["observed"][0]["facts"]["queue"]
    idle = claimed["idle"] + queue["unwanted"] + queue["out"]
    assert idle == pytest.approx(accounts["idle"])


def test_a_healthy_fleet_is_silent() -> None:
    answer = cf.audit([HEALTHY], price=PRICE, fail_on=0)
    assert answer.to_dict()["findings"] == []
    assert answer.headline.startswith("No finding")
    assert answer.exit_code == 0


def test_each_remedy_has_its_command() -> None:
    commands = {one["rule"]: one["remedy"]["command"] for one in audited(SICK)["findings"]}
    assert commands["failing-node"].startswith(
        "scontrol update nodename=n3 state=drain reason='5 of"
    )
    assert commands["clock-throttle"].startswith("scontrol update nodename=n1 state=drain reason=")
    assert commands["idle-allocation"] == f"scancel {idle_job()}"
    assert "scontrol reconfigure" in commands["fragmentation"]


def idle_job() -> str:
    lines = (SICK / "jobs.txt").read_text().splitlines()
    return next(line.partition("|")[0] for line in lines if "|notebook|" in line)


def test_the_wait_for_a_throttled_gpu_is_claimed_by_the_log_and_else_said_to_be_left_out(
    tmp_path: Path,
) -> None:
    fleet = tmp_path / "fleet"
    shutil.copytree(SICK, fleet)
    for log in fleet.glob("slurm-*.out"):
        log.unlink()
    answer = audited(fleet)
    (slow,) = [one for one in answer["findings"] if one["rule"] == "clock-throttle"]
    assert slow["gpu_seconds"] == pytest.approx(TRUTH["clock-throttle"] / 16, rel=0.06)
    text = " ".join(evidence["what"] for evidence in slow["evidence"])
    assert "not included: what the other 15 GPUs" in text
    assert "restarts" not in by_rule(answer)
    assert any(
        one["rule"] == "restarts" and "logs" in one["missing"] for one in answer["abstained"]
    )


def test_accounting_alone_gives_the_list_without_what_needs_metrics() -> None:
    answer = audited(SICK / "jobs.txt", SICK / "nodes.txt")
    assert by_rule(answer).keys() == {"failing-node", "fragmentation"}
    assert by_rule(answer)["fragmentation"] == pytest.approx(TRUTH["fragmentation"], rel=0.01)
    skipped = {one["rule"] for one in answer["abstained"]}
    assert {"idle-allocation", "clock-throttle", "restarts"} <= skipped


def test_idle_time_of_a_job_that_is_lost_is_not_counted_twice(tmp_path: Path) -> None:
    """The idle job fails at the end: all of it is lost, and its idle GPUs are no second finding."""
    fleet = tmp_path / "fleet"
    shutil.copytree(SICK, fleet)
    lines = (fleet / "jobs.txt").read_text().splitlines()
    end = max(cell for line in lines[1:] for cell in line.split("|")[7:9] if cell != "Unknown")
    changed = [
        line.replace("|RUNNING|", "|FAILED|").replace("|Unknown|", f"|{end}|")
        if "|notebook|" in line
        else line
        for line in lines
    ]
    (fleet / "jobs.txt").write_text("\n".join(changed) + "\n")
    found = by_rule(audited(fleet))
    assert "idle-allocation" not in found
    assert found["lost-work"] > 0


def test_sources_of_other_nodes_are_judged_apart(tmp_path: Path) -> None:
    other = (SICK / "kernel.log").read_text().replace(" n3 ", " elsewhere ")
    (tmp_path / "kernel.log").write_text("\n".join(x for x in other.splitlines() if "Xid" in x))
    answer = audited(SICK / "jobs.txt", SICK / "nodes.txt", tmp_path / "kernel.log")
    (fleet,) = [each for each in answer["observed"] if each["kind"] == "fleet"]
    assert any("judged apart" in text for text in fleet["facts"]["apart"])
    (node,) = fleet["facts"]["failing_nodes"]
    assert node["faults"] == []


def test_the_exit_code_follows_fail_on() -> None:
    share = sum(by_rule(audited(SICK)).values()) / (64 * 2400) * 100
    assert cf.audit([SICK], fail_on=share - 2).exit_code == 3
    assert cf.audit([SICK], fail_on=share + 2).exit_code == 0


def test_the_report_in_html_has_the_commands(tmp_path: Path) -> None:
    page = tmp_path / "fleet.html"
    cf.audit([SICK], price=PRICE).save_html(page)
    text = page.read_text()
    assert "scontrol update nodename=n3" in text and f"scancel {idle_job()}" in text


def test_an_account_that_is_booked_and_unavailable_in_part_says_so() -> None:
    """It said `lost 37,757` and "Unavailable: lost" in one table."""
    ledger = Ledger(
        gpus=1,
        wall_seconds=10.0,
        entries=(Entry(account="lost", gpu_seconds=4.0), Entry(account="idle", gpu_seconds=6.0)),
        basis="measured",
        window=Window(label="all"),
        unavailable={"lost": "checkpoints", "restart": "job steps"},
    )
    notes = describe.notes(ledger)
    assert "In part unavailable: lost (needs checkpoints)" in notes
    assert any(note.startswith("Unavailable: restart (needs job steps)") for note in notes)


def test_a_node_out_of_service_is_claimed_from_the_time_of_its_reason(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    shutil.copytree(HEALTHY, fleet)
    end = datetime.fromtimestamp(audited(HEALTHY)["observed"][0]["facts"]["end"], UTC)
    since = (end - timedelta(seconds=600)).strftime("%Y-%m-%dT%H:%M:%S")
    before, name, block = (fleet / "nodes.txt").read_text().partition("NodeName=n4 ")
    block = block.replace("State=IDLE", "State=IDLE+DRAIN", 1)
    block = block.replace("\n\n", f"\n   Reason=fan tray [root@{since}]\n\n", 1)
    (fleet / "nodes.txt").write_text(before + name + block)
    answer = audited(fleet)
    (out,) = answer["findings"]
    assert out["rule"] == "node-out" and "fan tray" in out["title"]
    assert out["gpu_seconds"] == pytest.approx(8 * 600)
    assert out["remedy"]["command"] == "scontrol update nodename=n4 state=resume"
    assert sum(answer["ledger"]["accounts"].values()) == pytest.approx(
        sum(audited(HEALTHY)["ledger"]["accounts"].values())
    )


def pods(tmp_path: Path, fleet: Synthetic) -> list[Path]:
    """A fleet under Kubernetes: a table of jobs, and metrics whose labels name the pods."""
    (tmp_path / "metrics.prom").write_text(fleet.history())
    rows = ["job_id,user,gpus,start,end,status,nodes"]
    for node in range(2):
        held = f"8,{fleet.start:.0f},{fleet.end:.0f}"
        rows.append(f"research/llama-worker-{node},ann,{held},succeeded,node-{node}")
    for number in range(40):
        begin = fleet.start + 80 * number
        for node, status in ((2, "failed"), (3 + number % 5, "succeeded")):
            rows.append(
                f"pod-{node}-{number},u{number % 3},8,{begin:.0f},{begin + 60:.0f},{status},"
            )
            rows[-1] += f"node-{node}"
    (tmp_path / "jobs.csv").write_text("\n".join(rows) + "\n")
    return [tmp_path / "jobs.csv", tmp_path / "metrics.prom"]


def test_a_fleet_of_pods_gets_the_commands_of_kubernetes(tmp_path: Path) -> None:
    answer = audited(*pods(tmp_path, Synthetic(throttled=frozenset({5}), step=60.0)))
    commands = {one["rule"]: one["remedy"]["command"] for one in answer["findings"]}
    assert commands["clock-throttle"] == "kubectl cordon node-0"
    assert commands["failing-node"] == "kubectl cordon node-2"


@pytest.mark.live
def test_a_prometheus_server_is_part_of_the_fleet(tmp_path: Path) -> None:
    """The same list as with the exporter's text: the server holds the recorded samples."""
    window = audited(SICK)["observed"][0]["facts"]
    first, last = (datetime.fromtimestamp(window[name], UTC) for name in ("start", "end"))
    files = [path for path in SICK.iterdir() if not path.name.startswith("metrics")]
    with prometheus(tmp_path / "server", Recorded()) as address:
        answer = cf.audit(
            [*files, address],
            price=PRICE,
            period=f"{first:%Y-%m-%dT%H:%M:%S}:{last:%Y-%m-%dT%H:%M:%S}",
        ).to_dict()
    assert address in answer["observed"][0]["sources"]
    check_truth(answer, TRUTH, 0.06)


class Recorded(Synthetic):
    def openmetrics(self) -> str:
        """The recorded samples by metric, times in seconds."""
        by_name: dict[str, list[str]] = {}
        with gzip.open(SICK / "metrics.prom.gz", "rt") as file:
            for line in file:
                series, _, stamp = line.rstrip("\n").rpartition(" ")
                name = series.partition("{")[0]
                by_name.setdefault(name, []).append(f"{series} {int(stamp) / 1000:.3f}")
        parts = [f"# TYPE {name} gauge\n" + "\n".join(rows) for name, rows in by_name.items()]
        return "\n".join([*parts, "# EOF", ""])


def queue_of(count: int) -> JobAttempts:
    """Jobs of four GPUs, two thirds of which wait, spread over 60 nodes."""
    rows = AttemptRows()
    for number in range(count):
        begin = 1e9 + 10.0 * number
        rows.add(
            str(number),
            state="COMPLETED",
            gpus=4.0,
            start=begin + 600.0 * (number % 3),
            end=begin + 600.0 * (number % 3) + 900.0,
            submit=begin,
            nodes=f"n{number % 60}",
        )
    return rows.finish()[0]


@pytest.mark.parametrize("placed", [True, False])
def test_the_sweep_over_the_queue_grows_with_the_jobs_not_their_square(placed: bool) -> None:
    nodes = [NodeState(name=f"n{index}", gpus=8.0, state="IDLE") for index in range(60)]

    def sweep(count: int) -> object:
        jobs = queue[count]
        last = 1e9 + 10.0 * count
        return split_idle(jobs, nodes, 1e9, last, gpus=480, idle=1e12, placed=placed)

    queue = {count: queue_of(count) for count in (1500, 6000)}
    assert growth(sweep, 1500) < 8


@pytest.mark.live
def test_a_fleet_made_on_a_real_slurm_has_its_planted_faults(tmp_path: Path) -> None:
    """40 minutes in a minute: a second of Slurm's is 40 s here, so a busy machine moves what the faults
    cost. Costs are judged on the recordings that were made without stretching.
    """
    if reason := why_not():
        pytest.skip(reason)
    truth = make_fleet(tmp_path / "sick", pace=1.5, sick=True)
    answer = audited(tmp_path / "sick")
    found = by_rule(answer)
    assert {"failing-node", "idle-allocation"} <= found.keys() <= truth.keys()
    ledger = answer["ledger"]
    whole = ledger["gpus"] * ledger["wall_seconds"]
    assert sum(ledger["accounts"].values()) == pytest.approx(whole)


def test_the_command_line_shows_the_answer_within_a_screen() -> None:
    from click.testing import CliRunner

    result = CliRunner().invoke(app, ["audit", str(SICK), "--price", "2.5"])
    assert result.exit_code == 0, result.output
    top = "\n".join(result.output.splitlines()[:25])
    assert "idle-allocation" in top and "failing-node" in top and "scancel" in top
