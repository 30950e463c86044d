"""Faults of engine and controller, on a real Slurm: nothing is done twice, nothing is forgotten."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from computeflow.actions.steps import Drain, Requeue, Submit
from control_faults import FaultyControl
from slurm_control import control_lab, slurm_for_control, wait_for
from slurm_lab import SlurmLab, why_not

pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(why_not()), reason=why_not())]
MOMENTS = (0.3, 2.5)
"""Seconds after its start at which a controller is killed: it takes some 0.7 s to its first look."""


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
    for _ in range(4):
        faulty.kill_within(MOMENTS, draws)
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
    process = faulty.controller()
    try:
        wait_for(lambda: faulty.state_of(action) == "undone", "the undoing")
    finally:
        process.terminate()
        process.wait(60)
    assert faulty.lab.slurm.run("sinfo", "-h", "-n", "n5", "-o", "%T").strip().rstrip("*") == "idle"


def test_ranks_run_in_the_order_of_the_plan(faulty: FaultyControl) -> None:
    """The order of nodes is read back from the ranks of the running job."""
    folder = faulty.lab.folder
    said = folder / "order.txt"
    script = folder / "order.sh"
    say = "echo $SLURM_PROCID $SLURMD_NODENAME"
    script.write_text(f"#!/bin/sh\nsrun --mpi=none sh -c '{say}' > {said}\nsleep 60\n")
    order = ("n4", "n0", "n3")
    step = Submit(
        script=str(script),
        nodes=3,
        tasks_per_node=2,
        node_order=order,
        account="research",
        folder=str(folder),
    )
    action = faulty.approve("0", step)
    faulty.until_done(action)
    lines = wait_for(lambda: _lines(said, 6), "the ranks")
    ranks = dict(line.split() for line in lines)
    assert [ranks[str(rank)] for rank in range(6)] == [n for n in order for _ in range(2)]


def _lines(path: Path, count: int) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return lines if len(lines) == count else []


def test_a_requeue_of_an_unknown_job_fails_with_a_reason(faulty: FaultyControl) -> None:
    action = faulty.approve("99999", Requeue(job="99999"))
    faulty.until_done(action)
    record = faulty.journal.get(action.id)
    assert (record.state, record.note) == (
        "failed",
        "job 99999: Slurm knows none of this number, or no longer",
    )
