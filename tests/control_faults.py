"""Actions on a real Slurm whose controller is killed -9 at random moments: `FaultyControl`.

The actions are written into the journal as approved, so that no training is needed: jobs sleep. After
each kill another controller goes on; in the end every action is done once.
"""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

from computeflow.actions.action_runner import next_step
from computeflow.actions.journal import ActionJournal, ActionRecord, StepRecord
from computeflow.actions.steps import Drain, Requeue, Resubmit, Step, Submit, step_data
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store, store_id
from slurm_control import BOUND_SECONDS, ControlLab, wait_for

MAX_WRITES = 5
"""Most writes of an action's journal before a controller is killed; an action has about nine."""
MAX_SECONDS = 0.3
"""And how long after the last of them: two looks are 0.5 s apart."""
_LOOK_SECONDS = 0.003


class FaultyControl:
    def __init__(self, lab: ControlLab) -> None:
        self.lab = lab
        open_store(lab.store)
        self.state = StateDatabase(lab.store / "state.sqlite")
        self.journal = ActionJournal(self.state)
        self.script = lab.folder / "sleep.sh"
        self.script.write_text("#!/bin/sh\nsleep 3600\n")
        self.kills = 0

    def job(self, *options: str) -> str:
        """A job of one node that sleeps, once it runs."""
        job = self.lab.submit("-N1", "--exclusive", *options, str(self.script))
        wait_for(lambda: self.jobs(job)[0][1] == "RUNNING", f"job {job} runs")
        return job

    def jobs(self, job: str = "") -> list[tuple[str, str, str, str, str]]:
        """Number, state, node, restarts and comment of jobs, those that ended included."""
        chosen = [f"--jobs={job}"] if job else []
        text = self.lab.slurm.run("squeue", "-h", "-t", "all", "-O", _FIELDS, *chosen)
        rows = [line.split("|") for line in text.splitlines()]
        return [(r[0], r[1], r[2], r[3], r[4].strip()) for r in rows]

    def propose(self, job: str, *steps: Step) -> ActionRecord:
        return self.journal.add(
            ActionRecord(
                at=time.time(),
                kind="restart-on-spare",
                state="proposed",
                mode="ask",
                run=f"run of job {job}",
                job=job,
                title=f"job {job}",
                steps=tuple(StepRecord(step=step_data(step)) for step in steps),
            )
        )

    def approve(self, job: str, *steps: Step) -> ActionRecord:
        proposed = self.propose(job, *steps)
        return self.journal.move(proposed.id, ("proposed",), "approved", approved_by="test")

    def state_of(self, action: ActionRecord) -> str:
        return self.journal.get(action.id).state

    def mark(self, action: ActionRecord, place: int) -> str:
        return f"computeflow:{store_id(self.lab.store)}-{action.id}.{place}"

    def marked(self, action: ActionRecord, place: int) -> list[str]:
        """Jobs that carry the mark of a step."""
        return [row[0] for row in self.jobs() if self.mark(action, place) in row[4].split()]

    def controller(self, *options: str) -> subprocess.Popen[bytes]:
        return self.lab._start(
            "control", "--store", str(self.lab.store), "--mode", "ask", *options, log="control"
        )

    def kill_at_random(self, action: ActionRecord, draws: random.Random) -> str:
        """Start a controller and kill it so many writes of its journal and a moment later.

        Where it was with the action then; "" where it had not begun, or was through with it.
        """
        writes, moment = draws.randint(1, MAX_WRITES), draws.uniform(0.0, MAX_SECONDS)
        seen, process = self.journal.get(action.id), self.controller()
        until = time.monotonic() + BOUND_SECONDS
        while writes and time.monotonic() < until and process.poll() is None:
            now = self.journal.get(action.id)
            if now.state in ("done", "failed"):
                break
            writes, seen = writes - (now != seen), now
            time.sleep(_LOOK_SECONDS)
        time.sleep(moment)
        process.kill()
        process.wait()
        self.kills += 1
        return self._place(self.journal.get(action.id))

    @staticmethod
    def _place(action: ActionRecord) -> str:
        """The step that a started action is at, with how far that is."""
        place = next_step(action)
        if action.state != "started" or place is None:
            return ""
        record = action.steps[place]
        return f"{record.step['do']}: {record.note or record.state}"

    def until_done(self, *actions: ActionRecord, options: tuple[str, ...] = ()) -> None:
        self._until(("done", "failed"), actions, options)

    def until(self, state: str, *actions: ActionRecord) -> None:
        self._until((state,), actions)

    def _until(
        self,
        states: tuple[str, ...],
        actions: tuple[ActionRecord, ...],
        options: tuple[str, ...] = (),
    ) -> None:
        """Run a controller until all actions are in one of these states."""
        process = self.controller(*options)
        try:
            wait_for(
                lambda: all(self.state_of(each) in states for each in actions),
                f"actions to be {' or '.join(states)}",
            )
        finally:
            process.terminate()
            process.wait(60)

    def node(self, name: str) -> tuple[str, str]:
        """State and reason of a node."""
        text = self.lab.slurm.run("sinfo", "-h", "-n", name, "-o", "%T|%E")
        state, _, reason = text.splitlines()[0].partition("|")
        return state.strip().rstrip("*$"), reason.strip()

    def restart(self, job: str, node: str, *, new: bool) -> ActionRecord:
        last: Step = (Resubmit if new else Requeue)(job=job, exclude=(node,))
        return self.approve(job, Drain(node=node, reason="test"), last)

    def submit_in_order(self, script: Path, order: tuple[str, ...]) -> str:
        """The number of a job with a rank on each of these nodes, in this order."""
        step = Submit(
            script=str(script),
            nodes=len(order),
            node_order=order,
            account="research",
            folder=str(self.lab.folder),
        )
        action = self.approve("0", step)
        self.until_done(action)
        return self.journal.get(action.id).new_job

    def faults_of(self, action: ActionRecord, *, new: bool) -> list[str]:
        """What is wrong with an action that should have been done once."""
        faults = []
        if self.state_of(action) != "done":
            faults.append(f"action {action.id} is {self.state_of(action)}")
        rows = {row[0]: row for row in self.jobs()}
        if new:
            if len(made := self.marked(action, 1)) != 1:
                faults.append(f"action {action.id}: submitted {len(made)} times")
        elif rows[action.job][3] != "1":
            faults.append(
                f"action {action.id}: job {action.job} restarted {rows[action.job][3]} times"
            )
        node = self.lab.slurm.run("sinfo", "-h", "-N", "-o", "%N|%E")
        if sum(self.mark(action, 0) in line for line in node.splitlines()) != 1:
            faults.append(f"action {action.id}: its node is not drained by it")
        return faults


_FIELDS = "JobID:|,State:|,NodeList:|,RestartCnt:|,Comment:200"
