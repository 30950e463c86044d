"""Real training on a real Slurm, watched by a real collector and steered by `computeflow control`.

A node is made slow by a CPU quota (a cgroup) on its slurmd and all that it started; it is lost when its
slurmd, its stepds and its ranks are killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.live_training import wait_or_kill

from computeflow.actions.journal import ActionJournal, ActionRecord, ActionState
from computeflow.collection.store.state_database import StateDatabase
from recorded_runs import ROOT, environment
from slurm_lab import SlurmLab, slurm_lab

BOUND_SECONDS = 300.0
"""Waits end by what happens, not by the clock: a machine may be busy."""
NODES = 6
TOPOLOGY = """\
SwitchName=leaf0 Nodes=n[0-2]
SwitchName=leaf1 Nodes=n[3-5]
SwitchName=top Switches=leaf[0-1]
"""
_SCRIPT = ROOT / "tests" / "record_scripts" / "on_slurm.py"
_CGROUPS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
_PERIOD_MICROS = 10_000
T = TypeVar("T")
LIMITS = """
max_drains_per_day = {drains}
min_healthy_nodes = {healthy}
min_seconds_between_actions = 1
partitions = ["train"]
accounts = ["research"]
stop_file = "{stop}"
max_step_seconds = 300

[policy]
debounce_seconds = {debounce}
dead_after_seconds = 3
min_between_seconds = 1
"""


def wait_for(what: Callable[[], T], why: str) -> T:
    until = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {BOUND_SECONDS:.0f} s: {why}")


@dataclass
class ControlLab:
    """`slurm` with a folder for a run, its store and its checkpoints."""

    slurm: SlurmLab
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / "run"

    def collect(self) -> None:
        """A collector that follows the run folders, until the end."""
        (self.folder / "runs").mkdir(parents=True)
        (self.folder / "saved").mkdir()
        words = ["collect", "--store", str(self.store), "--listen", "127.0.0.1:0"]
        more = ["--follow", str(self.folder / "runs"), "--price", "2"]
        process = self._start(*words, *more, log="collect")
        wait_for(lambda: (self.store / "state.sqlite").is_file(), "the collector's store")
        self.stack.callback(_end, process)

    def control(self, limits: str, mode: str = "auto") -> subprocess.Popen[bytes]:
        """A controller that runs until the end, or is killed before."""
        path = self.folder / "limits.toml"
        path.write_text(limits)
        words = ["control", "--store", str(self.store), "--mode", mode, "--limits", str(path)]
        process = self._start(*words, log="control")
        self.stack.callback(_end, process)
        return process

    def _start(self, *words: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "computeflow", *words],
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def environment(self) -> dict[str, str]:
        return environment(SLURM_CONF=self.slurm.environment["SLURM_CONF"], TZ="UTC")

    def cli(self, *words: str, **variables: str) -> dict[str, Any]:
        """The JSON that a command prints."""
        done = subprocess.run(
            [sys.executable, "-m", "computeflow", *words, "-o", "json"],
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        data: dict[str, Any] = json.loads(done.stdout)
        return data

    def train(self, *options: str, steps: int = 4000, save_every: int = 100) -> str:
        """Submit two ranks on two nodes; the number of the job once they train."""
        script = self.folder / "job.sh"
        train = f"{sys.executable} {_SCRIPT} {self.folder} {steps} {save_every}"
        record = f"{sys.executable} -m computeflow record --quiet --no-seal --out {self.run_folder}"
        target = f"--total-steps {steps} --checkpoints {self.folder}/saved"
        script.write_text(
            f"#!/bin/sh\nexport OMP_NUM_THREADS=1 PYTHONPATH={ROOT / 'src'}\n"
            f"exec {record} {target} -- srun --mpi=none --kill-on-bad-exit=1 {train}\n"
        )
        job = self.submit("-N2", "--ntasks-per-node=1", "--gpus-per-node=1", *options, str(script))
        wait_for(lambda: len(self.steps()) > 120, "the first steps")
        return job

    def submit(self, *words: str, **variables: str) -> str:
        """The number of a new job, whose environment has these variables, too."""
        out = f"--output={self.folder}/job.out"
        account = ("--account=research", "--chdir=/tmp", out)
        return self.slurm.run("sbatch", "--parsable", *account, *words, more=variables).strip()

    def steps(self) -> list[tuple[str, int, float]]:
        """Attempt, step and loss, as the first rank wrote them."""
        path = self.folder / "steps.txt"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(row[0], int(row[1]), float(row[2])) for row in rows if len(row) == 3]

    def placed(self) -> dict[str, list[str]]:
        """Nodes in the order of ranks, by job and attempt."""
        found: dict[str, dict[int, str]] = {}
        for line in (self.folder / "ranks.txt").read_text().splitlines():
            job, attempt, rank, node = line.split()
            found.setdefault(f"{job}.{attempt}", {})[int(rank)] = node
        return {key: [nodes[rank] for rank in sorted(nodes)] for key, nodes in found.items()}

    def actions(self, *states: ActionState) -> list[ActionRecord]:
        """Read here: a command that is asked again and again would slow the run that it asks about."""
        state = StateDatabase(self.store / "state.sqlite")
        try:
            return ActionJournal(state).all(*states)
        finally:
            state.close()

    def log(self) -> str:
        return (self.folder / "control.log").read_text()

    def processes(self, node: str) -> list[int]:
        """slurmd of a node, and all that runs on it for jobs."""
        found = [self.slurm.daemons[f"slurmd-{node}"].pid]
        for path in Path("/proc").glob("[0-9]*"):
            try:
                variables = (path / "environ").read_bytes().split(b"\0")
                mine = str(self.slurm.folder).encode() in b" ".join(variables)
                if mine and f"SLURMD_NODENAME={node}".encode() in variables:
                    found += [int(path.name), _parent(int(path.name))]
            except (OSError, ValueError):
                continue
        return list(dict.fromkeys(found))

    def lose(self, node: str) -> None:
        """Kill the node's slurmd, its stepds and its ranks."""
        for pid in self.processes(node):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.slurm.daemons[f"slurmd-{node}"].wait()

    @contextmanager
    def slow(self, node: str, share: float) -> Iterator[None]:
        """A CPU quota on a node: this share of one core for all of it."""
        with control_group(node, lambda: self.processes(node)) as group:
            quota = round(share * _PERIOD_MICROS)
            if (group / "cpu.cfs_quota_us").exists():
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROS))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {_PERIOD_MICROS}")
            yield


@contextmanager
def control_group(name: str, processes: Callable[[], list[int]]) -> Iterator[Path]:
    """A cgroup with these processes, which goes before other work of the machine; they go back to
    where the first of them was.
    """
    root = next(root for root in _CGROUPS if (root / "cgroup.procs").exists())
    group = root / f"computeflow-{os.getpid()}-{name}"
    group.mkdir()
    for weight, value in (("cpu.shares", "50000"), ("cpu.weight", "5000")):
        if (group / weight).exists():
            (group / weight).write_text(value)
    pids = processes()
    before = _group_of(pids[0], root)
    try:
        _move(pids, group)
        yield group
    finally:
        wait_for(lambda: _left(group, before), f"control group {name} to be left")


def _group_of(pid: int, root: Path) -> Path:
    """Where a process is now: one of ours, or the root."""
    for group in root.glob(f"computeflow-{os.getpid()}-*"):
        if str(pid) in (group / "cgroup.procs").read_text().split():
            return group
    return root


def _move(pids: list[int], group: Path) -> None:
    for pid in pids:
        try:
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:  # it has ended
            continue


def why_no_quota() -> str:
    """Why no CPU quota can be set here; empty where it can."""
    for root in _CGROUPS:
        group = root / f"computeflow-{os.getpid()}-probe"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if any((group / name).exists() for name in ("cpu.cfs_quota_us", "cpu.max")):
                return ""
        finally:
            group.rmdir()
    return "no cgroup with a CPU quota can be made here"


def _left(group: Path, other: Path) -> bool:
    """Move what is in a group, and remove it; False while processes come up in it."""
    try:
        _move([int(pid) for pid in (group / "cgroup.procs").read_text().split()], other)
        group.rmdir()
    except OSError:
        return False
    return True


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        wait_or_kill(process)


@contextmanager
def slurm_for_control(nodes: int = NODES) -> Iterator[SlurmLab]:
    """A Slurm on two leaf switches that holds a silent node for lost after ten seconds."""
    with tempfile.TemporaryDirectory(prefix="slurm-control-") as scratch:
        Path(scratch).chmod(0o755)
        more = "\nSlurmdTimeout=10\nSlurmctldTimeout=10\nMessageTimeout=5\n"
        with slurm_lab(Path(scratch) / "lab", nodes, more, TOPOLOGY) as lab, ExitStack() as stack:
            if not why_no_quota():  # step times are compared: other work must not decide them
                pids = [process.pid for process in lab.daemons.values()]
                stack.enter_context(control_group("lab", lambda: pids))
            yield lab


@contextmanager
def control_lab(slurm: SlurmLab, folder: Path) -> Iterator[ControlLab]:
    """A run's folder on a Slurm whose nodes are taken back first; jobs are ended afterwards."""
    _take_nodes_back(slurm)
    lab = ControlLab(slurm, folder)
    try:
        yield lab
    finally:
        for job in slurm.run("squeue", "-h", "-o", "%i", check=False).split():
            slurm.run("scancel", "--signal=KILL", job, check=False)
            slurm.run("scancel", job, check=False)
        lab.stack.close()
        names = [f"n{number}" for number in range(slurm.nodes)]
        wait_for(lambda: all(len(lab.processes(name)) == 1 for name in names), "jobs to end")


def _take_nodes_back(slurm: SlurmLab) -> None:
    """What the test before drained or lost: at the beginning, as the last one leaves it to nobody."""
    for number in range(slurm.nodes):
        if slurm.daemons[f"slurmd-n{number}"].poll() is not None:
            slurm.start_node(f"n{number}")
    slurm.run("scontrol", "update", f"nodename=n[0-{slurm.nodes - 1}]", "state=resume", check=False)
    slurm.until("nodes", "sinfo", "-h", "-o", "%T=%D", says=f"idle={slurm.nodes}")
