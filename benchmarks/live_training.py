"""Real training under `record` with a collector beside it, and faults that are switched on and off.

Used by the live tests and by `prove_online --live`: `collecting`, `training`, `agents`, `CpuQuota`;
`before_other_work` for any training whose steps are looked at.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from computeflow.recorder.starting import recording_environment

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "record_scripts" / "faults_by_command.py"
BOUND_SECONDS = 300.0
"""Waits end by what happens, not by the clock: a machine may be busy."""
LAST_NODE = "node-last"
"""Name of the node that the last rank is on, where this machine can be two."""
Found = TypeVar("Found")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), **more}


@dataclass(frozen=True, slots=True)
class LiveCollector:
    address: str
    store: Path

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=30) as answer:
            data: dict[str, Any] = json.load(answer)
        return data

    def open_findings(self) -> list[dict[str, Any]]:
        return [each for each in self.get("/v1/findings")["findings"] if each["closed"] is None]

    def all_findings(self) -> list[dict[str, Any]]:
        with sqlite3.connect(f"file:{self.store / 'state.sqlite'}?mode=ro", uri=True) as state:
            rows = state.execute("SELECT data FROM findings ORDER BY opened").fetchall()
        return [json.loads(row[0]) for row in rows]

    def named(self, rule: str, ranks: list[int]) -> dict[str, Any] | None:
        """The open finding of a rule on exactly these ranks."""
        for finding in self.open_findings():
            if finding["rule"] == rule and finding["ranks"] == ranks:
                return finding
        return None

    def steps(self) -> int:
        runs = self.get("/v1/runs")["runs"]
        return int(runs[0]["step"]) if runs else 0


def _computeflow(*words: str) -> list[str]:
    return [sys.executable, "-m", "computeflow", *words]


@contextmanager
def collecting(folder: Path, *options: str) -> Iterator[LiveCollector]:
    """A collector with its store in `folder`."""
    (folder / "runs").mkdir(exist_ok=True)
    words = ["collect", "--store", str(folder / "store"), "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(
        _computeflow(*words, "--price", "2"), env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield LiveCollector(line.split()[-1].rstrip("/"), folder / "store")
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def agents(folder: Path, collector: LiveCollector) -> Iterator[None]:
    """An agent for each node that `training` has."""
    with ExitStack() as stack:
        for node in [socket.gethostname(), *([LAST_NODE] if can_be_two_nodes() else [])]:
            words = ["agent", "--collector", collector.address, "--runs", str(folder / "runs")]
            words += ["--state", str(folder / f"agent-{node}"), "--every", "1", "--quiet"]
            process = subprocess.Popen(
                on_node(node, _computeflow(*words)),
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        yield


@contextmanager
def training(
    folder: Path, ranks: int, *, nodes: bool = False
) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Ranks that are started one by one, as srun does: none of them ends another. The path is that of
    the file which names the fault; with `nodes`, the last rank is on a node of its own.
    """
    command = folder / "fault"
    out = folder / "runs" / "run"
    script = [sys.executable, str(SCRIPT), str(command)]
    recorded = _computeflow("record", "--quiet", "--out", str(out), "--", *script)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    where["GLOO_SOCKET_IFNAME"] = "lo"  # a node of our own has a name that nobody resolves
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen(
                recorded
                if rank == 0
                else on_node(LAST_NODE, script)
                if nodes and rank == ranks - 1
                else script,
                env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **where)
                | ({} if rank == 0 else recording_environment(out, environment())),
                stdout=log,
                stderr=log,
            )
            for rank in range(ranks)
        ]
        with before_other_work(*(process.pid for process in processes)):
            try:
                yield command, processes
            finally:
                command.write_text("end")
                for process in processes:
                    wait_or_kill(process)


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def before_other_work(*pids: int) -> Iterator[None]:
    """Processes that have just begun, and what they start, go before all else, where this machine lets
    us say so: tests whose subject is the length of steps have others beside them.
    """
    groups = [_control_group(f"computeflow-first-{pid}", pid) for pid in pids]
    try:
        yield
    finally:
        for group in groups:
            if group is not None:
                with suppress(OSError):  # something that they started is there yet
                    group.rmdir()


def on_node(node: str, words: Sequence[str]) -> list[str]:
    """The command on a node of another name: its own host name, and this machine otherwise."""
    if node == socket.gethostname() or not can_be_two_nodes():
        return [*words]
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', node, *words]


@cache
def can_be_two_nodes() -> bool:
    """Whether a process here may have a host name of its own."""
    words = ["unshare", "--uts", "hostname", LAST_NODE]
    with suppress(OSError):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def wait_for(what: Callable[[], Found | None], why: str) -> Found:
    until = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.25)
    raise AssertionError(f"not within {BOUND_SECONDS:.0f} s: {why}")


class CpuQuota:
    """A CPU quota on a process that runs: a control group where this machine lets us make one, else
    SIGSTOP and SIGCONT in turn, which stand for it (and which no control group counts).
    """

    PERIOD_MICROS, QUOTA_MICROS = 20_000, 2_000
    """A tenth of a core."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._group = _control_group(f"computeflow-quota-{pid}", pid)
        self._stop: threading.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_real(self) -> bool:
        return self._group is not None

    def hold(self) -> None:
        if self._group is not None:
            _write_quota(self._group, self.QUOTA_MICROS, self.PERIOD_MICROS)
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._stop_and_go, args=(self._stop,), daemon=True)
        self._thread.start()

    def release(self) -> None:
        if self._group is not None:
            _write_quota(self._group, None, self.PERIOD_MICROS)
        elif self._stop is not None and self._thread is not None:
            self._stop.set()
            self._thread.join()

    def close(self) -> None:
        """Let the process go; its group is removed once it is empty."""
        self.release()
        if self._group is None:
            return
        with suppress(OSError):
            (self._group.parent / "cgroup.procs").write_text(str(self._pid))
        with suppress(OSError):
            self._group.rmdir()

    def _stop_and_go(self, stop: threading.Event) -> None:
        while not stop.wait(self.QUOTA_MICROS / 1e6):
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGSTOP)
                time.sleep((self.PERIOD_MICROS - self.QUOTA_MICROS) / 1e6)
                os.kill(self._pid, signal.SIGCONT)


def _control_group(name: str, pid: int) -> Path | None:
    """A new group below the root of the CPU controller with the process in it, before other work."""
    for root in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / "cpu.stat").exists():
                raise FileNotFoundError(group)
            _write_quota(group, None, CpuQuota.PERIOD_MICROS)
            _write_weight(group)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.rmdir()
            continue
        return group
    return None


def _write_weight(group: Path) -> None:
    """About fifty times that of any other process."""
    for name, value in (("cpu.shares", "50000"), ("cpu.weight", "5000")):
        if (group / name).exists():
            (group / name).write_text(value)


def _write_quota(group: Path, micros: int | None, period: int) -> None:
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_quota_us").write_text("-1")
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(-1 if micros is None else micros))
    else:
        (group / "cpu.max").write_text(f"{'max' if micros is None else micros} {period}")
