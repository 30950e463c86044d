"""Faults of engine and controller, on a real Slurm: nothing is done twice, nothing is forgotten."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from computeflow import codec
from computeflow.actions.engine import EngineError
from computeflow.actions.slurm.command_line import CommandLine
from computeflow.actions.slurm.slurm_rest import RestReader
from computeflow.actions.slurm.slurm_session import CommandLineReader
from computeflow.actions.slurm.slurm_state import read_state
from computeflow.actions.steps import Drain, Release, Requeue, Resubmit, Shrink, Signal, Submit
from computeflow.cluster.collectives import bus_factor
from computeflow.cluster.placement import Placement
from computeflow.cluster.topology import read_topology
from computeflow.cluster.topology.hostlist import expand
from computeflow.cluster.wiring import wiring_of
from computeflow.collection.submissions import read_submission
from computeflow.planning.placement import Flow, Traffic, crossing, place, total
from control_faults import FaultyControl
from rank_traffic import RankTraffic
from recorded_runs import ROOT
from slurm_control import LIMITS, control_lab, slurm_for_control, wait_for, why_no_quota
from slurm_lab import SlurmLab, why_not

pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(why_not()), reason=why_not())]

INTERLEAVED = ("n0", "n3", "n1", "n4")
"""Every rank's neighbours are on the other leaf."""
GRADIENT_BYTES = 4 * (6 * (512 * 512 + 512) + 512 * 10 + 10)
"""fp32 gradients of `record_scripts/small.py`: six layers of 512 x 512, a head of 10, their biases."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmLab]:
    with slurm_for_control() as lab:
        yield lab


@pytest.fixture
def faulty(slurm: SlurmLab, tmp_path: Path) -> Iterator[FaultyControl]:
    with control_lab(slurm, tmp_path) as lab:
        faulty = FaultyControl(lab)
        yield faulty
        faulty.state.close()


def test_a_controller_that_is_killed_does_nothing_twice_and_forgets_nothing(
    faulty: FaultyControl,
) -> None:
    draws = random.Random(7)
    actions = [
        faulty.restart(job, faulty.jobs(job)[0][2], new=new)
        for new, job in ((False, faulty.job()), (True, faulty.job("--no-requeue")))
    ]
    for action in (*actions, *actions):
        faulty.kill_at_random(action, draws)
    faulty.until_done(*actions)
    faults = [
        faulty.faults_of(each, new=new) for each, new in zip(actions, (False, True), strict=True)
    ]
    assert faults == [[], []]


def test_an_engine_that_is_dead_is_waited_for(faulty: FaultyControl) -> None:
    job = faulty.job()
    node = faulty.jobs(job)[0][2]
    slurm = faulty.lab.slurm
    os.killpg(slurm.daemons["slurmctld"].pid, signal.SIGTERM)  # -9 loses jobs of the last seconds
    slurm.daemons["slurmctld"].wait()
    action = faulty.restart(job, node, new=False)
    process = faulty.controller()
    try:
        wait_for(lambda: "slurm does not answer" in faulty.lab.log(), "the controller says so")
        assert faulty.state_of(action) == "approved"
        slurm.start_controller()
        wait_for(lambda: faulty.state_of(action) == "done", "the action")
    finally:
        process.terminate()
        process.wait(60)
    assert faulty.faults_of(action, new=False) == []


def test_an_action_that_is_refused_fails_and_its_drain_is_taken_back(faulty: FaultyControl) -> None:
    job = faulty.job("--no-requeue")
    node = faulty.jobs(job)[0][2]
    action = faulty.restart(job, node, new=False)
    faulty.until_done(action)
    record = faulty.journal.get(action.id)
    assert record.state == "failed"
    assert "requeuehold" in record.note
    assert faulty.jobs(job)[0][1] == "RUNNING"
    assert (
        faulty.lab.slurm.run("sinfo", "-h", "-n", node, "-o", "%T").strip().rstrip("*")
        == "allocated"
    )


def test_a_node_that_dies_during_the_action_does_not_stop_it(faulty: FaultyControl) -> None:
    job = faulty.job()
    node = faulty.jobs(job)[0][2]
    faulty.lab.lose(node)
    action = faulty.restart(job, node, new=False)
    faulty.until_done(action)
    wait_for(lambda: faulty.jobs(job)[0][1] == "RUNNING", "the job runs again")
    assert faulty.jobs(job)[0][2] != node
    assert faulty.state_of(action) == "done"


def test_an_approved_drain_is_undone(faulty: FaultyControl) -> None:
    job = faulty.job()
    action = faulty.approve(job, Drain(node="n5", reason="test"))
    faulty.until_done(action)
    faulty.lab.cli("actions", "undo", str(action.id), "--store", str(faulty.lab.store))
    faulty.until("undone", action)
    assert faulty.node("n5")[0] == "idle"


@pytest.mark.skipif(bool(why_no_quota()), reason=why_no_quota())
def test_a_drained_node_returns_only_when_a_probe_accepts_it(faulty: FaultyControl) -> None:
    """Two nodes, one with a CPU quota; `probe --accept` on both, each the only job of its node."""
    lab, probe = faulty.lab, [sys.executable, "-m", "computeflow", "probe", "--accept"]
    lab.slurm.run("scontrol", "update", "NodeName=n[4-5]", "State=DRAIN", "Reason=was slow")
    command = json.dumps([*probe, "--quick", "--device", "cpu"])
    path = lab.folder / "limits.toml"
    stop = lab.folder / "stop"
    limits = LIMITS.format(debounce=3, drains=2, healthy=0, stop=stop)
    path.write_text(f"probe = {command}\n{limits}")
    asked = [lab.cli("actions", "return", node, "--store", str(lab.store)) for node in ("n4", "n5")]
    good, bad = faulty.journal.all()[-2:]
    assert [each["nodes_in"] for each in asked] == [["n4"], ["n5"]]
    with lab.slow("n5", 1.0):
        faulty.until_done(good, bad, options=("--limits", str(path)))
    assert faulty.state_of(good) == "done", faulty.journal.get(good.id)
    assert faulty.node("n4") == ("idle", "none")
    refused = faulty.journal.get(bad.id)
    assert (refused.state, "n5 stays drained: refused by probe" in refused.note) == ("failed", True)
    state, reason = faulty.node("n5")
    assert (state, "host quota is low" in reason) == ("drained", True)
    assert "computeflow-" not in lab.slurm.run("scontrol", "-o", "show", "reservation")
    lab.cli("actions", "undo", str(good.id), "--store", str(lab.store))
    faulty.until("undone", good)
    assert faulty.node("n4") == ("drained", "was slow")


def test_a_job_is_held_released_signalled_and_shrunk_as_a_person_approves(
    faulty: FaultyControl,
) -> None:
    lab = faulty.lab
    script = lab.folder / "signalled.sh"
    rank = lab.folder / "rank.sh"
    rank.write_text(
        f"trap 'touch {lab.folder}/saved-$SLURM_PROCID' USR1\n"
        f"touch {lab.folder}/listens-$SLURM_PROCID\nwhile :; do sleep 0.1; done\n"
    )
    script.write_text(f"#!/bin/sh\nsrun --mpi=none --no-kill sh {rank}\nsleep 3600\n")
    step = Submit(
        script=str(script),
        nodes=2,
        max_switches=1,
        switch_wait_seconds=60.0,
        hold=True,
        account="research",
        folder=str(lab.folder),
    )
    submitted = faulty.approve("0", step)
    faulty.until_done(submitted)
    job = faulty.journal.get(submitted.id).new_job
    shown = lab.slurm.run("scontrol", "show", "job", job)
    assert "Reason=JobHeldUser" in shown and "Switches=1@00:01:00" in shown

    release = faulty.propose(job, Release(job=job))
    asked = lab.cli(
        "actions", "approve", str(release.id), "--store", str(lab.store), SUDO_USER="ann"
    )
    assert asked["approved_by"] == "root (sudo by ann)"
    faulty.until_done(release)
    wait_for(lambda: faulty.jobs(job)[0][1] == "RUNNING", "the job runs")
    nodes = expand(faulty.jobs(job)[0][2])
    assert (
        len(nodes) == 2 and len({number // 3 for number in map(int, (n[1:] for n in nodes))}) == 1
    )
    wait_for(lambda: len(list(lab.folder.glob("listens-*"))) == 2, "both ranks listen")

    saved = faulty.approve(job, Signal(job=job, signal="USR1"))
    faulty.until_done(saved)
    wait_for(lambda: len(list(lab.folder.glob("saved-*"))) == 2, "both ranks save")
    smaller = faulty.approve(job, Shrink(job=job, keep=(nodes[0],)))
    faulty.until_done(smaller)
    assert faulty.jobs(job)[0][1:3] == ("RUNNING", nodes[0])


def test_a_job_is_submitted_again_with_its_arguments_and_its_environment(
    faulty: FaultyControl,
) -> None:
    lab = faulty.lab
    run, saved = lab.folder / "run", lab.folder / "saved"
    script = lab.folder / "again.sh"
    record = f"{sys.executable} -m computeflow record --quiet --no-seal --out {run}"
    script.write_text(
        f'#!/bin/sh\nprintf "%s|" "$@" "$MODEL" "$HF_TOKEN" > {lab.folder}/said-$SLURM_JOB_ID\n'
        f"{record} --total-steps 9 --checkpoints {saved} -- sleep 3600\n"
    )
    path = f"{ROOT / 'src'}"
    secret = "hf_abcdefghijklmnop1234"
    words = ("two words", 'a "quoted" $HOME', f"--token={secret}")
    job = lab.submit(
        "-N1", "--no-requeue", str(script), *words, MODEL="a b\nc", HF_TOKEN=secret, PYTHONPATH=path
    )
    kept = wait_for(lambda: read_submission(run, os.getuid()), "what it was submitted with")
    assert kept is not None
    assert (kept.job, kept.arguments) == (job, words)
    assert (run / "submission.json").stat().st_mode & 0o777 == 0o600

    action = faulty.approve(job, Resubmit(job=job, folder=str(run)))
    faulty.until_done(action)
    new = faulty.journal.get(action.id).new_job
    first = (lab.folder / f"said-{job}").read_text()
    assert first == "|".join([*words, "a b\nc", secret, ""])
    again = lab.folder / f"said-{new}"
    assert wait_for(lambda: again.exists() and again.read_text(), "the new job") == first
    assert secret not in json.dumps(codec.encode(faulty.journal.get(action.id)))
    assert list((lab.store / "actions").glob("environment-*")) == []


def test_ranks_run_in_the_order_of_the_plan_and_its_bytes_cross_leaves(
    faulty: FaultyControl,
) -> None:
    """Predicted from topology.conf and the size of the model; counted on the sockets of the ranks."""
    config = (faulty.lab.slurm.folder / "etc/topology.conf").read_text()
    wiring = wiring_of(read_topology(config, "topology.conf"), devices=1)
    ring = Flow(
        account="comm.dp",
        ranks=4,
        stride=1,
        pattern="ring",
        bytes=bus_factor("all-reduce", 4) * GRADIENT_BYTES,
    )
    sent = Traffic(gpus=4, flows=(ring,))
    allocation = np.array([wiring.names.index(name) for name in INTERLEAVED])
    planned = place(sent, wiring, allocation)
    counted = {}
    for placement in (planned, Placement.of_nodes(allocation, devices=1, ranks=4)):
        order = tuple(wiring.names[node] for node in placement.node_order)
        ranks = RankTraffic(faulty.lab.folder, 4, steps=10)
        job = faulty.submit_in_order(ranks.write_script(), order)
        where = ranks.where(job)
        assert tuple(where[rank].node for rank in range(4)) == order
        crossed = sum(
            size for (a, b), size in ranks.step_bytes(job).items() if where[a].leaf != where[b].leaf
        )
        predicted = total(crossing(placement, wiring, sent), wiring).between_leaves
        assert crossed == pytest.approx(predicted, rel=0.02)
        counted[order] = crossed
    ours, interleaved = counted.values()
    assert ours == pytest.approx(interleaved / 2, rel=0.02)


@pytest.mark.skipif(shutil.which("slurmrestd") is None, reason="slurmrestd is not installed")
def test_slurmrestd_says_what_the_command_line_says(faulty: FaultyControl) -> None:
    lab = faulty.lab.slurm
    job = faulty.job("--comment=two words")
    path = lab.folder / "rest" / "socket"
    path.parent.mkdir(mode=0o777)
    path.parent.chmod(0o777)
    config = f"SLURM_CONF={lab.folder}/etc/slurm.conf"
    serve = ("slurmrestd", "-a", "rest_auth/local", "-s", "openapi/v0.0.38", f"unix:{path}")
    lab.start("slurmrestd", "runuser", "-u", "nobody", "--", "env", config, *serve)
    wait_for(path.exists, "slurmrestd")
    reader = RestReader(address=f"unix:{path}")
    line = CommandLineReader(line=CommandLine(environment=lab.environment))
    said, other = (read_state(each.jobs(), each.nodes(), at=0.0) for each in (reader, line))
    assert said.jobs[job] == other.jobs[job]
    assert said.nodes == other.nodes
    action = faulty.restart(job, said.jobs[job].nodes[0], new=False)
    faulty.until_done(action, options=("--slurmrestd", f"unix:{path}"))
    assert faulty.faults_of(action, new=False) == []
    os.killpg(lab.daemons["slurmrestd"].pid, signal.SIGTERM)
    lab.daemons["slurmrestd"].wait()
    with pytest.raises(EngineError, match="slurmrestd"):
        reader.jobs()


def test_a_requeue_of_an_unknown_job_fails_with_a_reason(faulty: FaultyControl) -> None:
    action = faulty.approve("99999", Requeue(job="99999"))
    faulty.until_done(action)
    record = faulty.journal.get(action.id)
    assert (record.state, record.note) == (
        "failed",
        "job 99999: Slurm knows none of this number, or no longer",
    )
