"""The agent of a node: `NodeAgent.tick` does what is due, `run_agent` calls it once a second.

Each second it ships the new records of its ranks and what the kernel said; every few seconds it reads
the node. Schedules go by the steady clock, so that a clock that is put right changes nothing but the
stamps.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from computeflow.collection.agent.agent_state import AgentState, default_runs, default_state
from computeflow.collection.agent.amd_readings import AmdReadings
from computeflow.collection.agent.collector_client import CollectorClient, read_token
from computeflow.collection.agent.exposition import ReadingsServer
from computeflow.collection.agent.followed_runs import FollowedRun, FollowedRuns
from computeflow.collection.agent.host_readings import HostReadings
from computeflow.collection.agent.infiniband import InfinibandReadings
from computeflow.collection.agent.kernel_signals import KMSG, KernelSignals
from computeflow.collection.agent.node_sources import NodeLook, NodeSource, join_looks
from computeflow.collection.agent.nvml_library import NvmlMissingError, open_nvml
from computeflow.collection.agent.nvml_readings import NvmlReadings
from computeflow.collection.agent.otlp_push import OtlpPush
from computeflow.collection.agent.processes import RankProcesses
from computeflow.collection.agent.recorded_nvml import RecordedNvml
from computeflow.collection.agent.shipping import Shipper
from computeflow.collection.wire.batches import NodeReading

TICK_SECONDS = 1.0
FIND_SECONDS = 2.0
BEAT_SECONDS = 5.0
"""The collector hears of the node at least this often."""
_SHIP_SECONDS = 0.5
"""Time of one tick that goes to shipping, where there is much to ship."""
_NVML_AGAIN_SECONDS = 60.0
_ONCE_SECONDS = 60.0
"""How long one round may take to ship all that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    collector: str | None = None
    runs: tuple[Path, ...] = ()
    """Folders of runs; by default where `record` keeps them."""
    token_file: Path | None = None
    ca: Path | None = None
    listen: str | None = None
    otlp: str | None = None
    every_seconds: float = 5.0
    node: str = ""
    """Name of the node; by default that of the host."""
    state: Path | None = None
    nvml: Path | None = None
    """A recording that is replayed in place of the driver."""
    kernel_log: Path = KMSG
    all_hosts: bool = False
    """Ship the files of all hosts: for a disk that is this node's alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """What an agent did, and how its node looked at last."""

    node: str
    agent: str
    look: NodeLook
    runs: tuple[str, ...]
    ranks: int
    records: int
    """Records that the collector has acknowledged."""
    batches: int
    connected: bool | None
    """None without a collector."""


class NodeAgent:
    """Everything that an agent does, by the clocks that it is given."""

    def __init__(self, options: AgentOptions, say: Callable[[str], None]) -> None:
        self._options, self._say = options, say
        self.node = options.node or socket.gethostname()
        client = None
        if options.collector is not None:
            client = CollectorClient(
                options.collector, token_file=options.token_file, ca=options.ca
            )
        self._state = AgentState(options.state or default_state(), self.node)
        self._client = client
        hosts = frozenset() if options.all_hosts else frozenset({self.node, socket.gethostname()})
        self.runs = FollowedRuns(options.runs or (default_runs(),), hosts)
        self._kernel = KernelSignals(options.kernel_log)
        self._nvml: NvmlReadings | None = None
        self._nvml_reason, self._nvml_next = "", 0.0
        self._sources: tuple[NodeSource, ...] = (
            HostReadings(),
            InfinibandReadings(),
            AmdReadings(self.node),
            RankProcesses(self.runs.processes),
        )
        self.shipper: Shipper | None = None
        if client is not None:
            self.shipper = Shipper(client, agent=self._state.agent, node=self.node, say=say)
        self._server: ReadingsServer | None = None
        self._otlp: OtlpPush | None = None
        self._due = {"find": 0.0, "look": 0.0, "beat": 0.0}
        self._last = NodeLook()
        self._open_outputs(options)
        for note in (self._state.note, *(client.notes if client else ())):
            if note:
                say(note)

    def _open_outputs(self, options: AgentOptions) -> None:
        try:
            if options.listen is not None:
                self._server = ReadingsServer(options.listen, read_token(options.token_file))
            if options.otlp is not None:
                self._otlp = OtlpPush(options.otlp, self.node, self._say)
        except Exception:
            self.close()
            raise

    @property
    def metrics_address(self) -> tuple[Any, ...] | None:
        return self._server.address if self._server else None

    def tick(self, steady: float, at: int) -> None:
        """Do what is due; `steady` is seconds on a steady clock, `at` Unix microseconds."""
        if self._is_due("find", steady, FIND_SECONDS):
            self.runs.look(at / 1e6)
        signals = self._kernel.look(at)
        if self._is_due("look", steady, self._options.every_seconds):
            look = join_looks([*self._looks(at, steady), signals])
            self._last = self._with_uuids(look)
            self._show(at)
            self._send_node(self._last, steady, at)
        elif signals.signals or steady >= self._due["beat"]:
            self._send_node(self._with_uuids(signals), steady, at)
        if self.shipper is not None:
            self._ship(steady)

    def _is_due(self, what: str, steady: float, every: float) -> bool:
        if steady < self._due[what]:
            return False
        self._due[what] = steady + every
        return True

    def _looks(self, at: int, steady: float) -> Iterator[NodeLook]:
        nvml = self._nvml_source(steady)
        yield nvml.look(at) if nvml else NodeLook(missing={"nvml": self._nvml_reason})
        for source in self._sources:
            yield source.look(at)
        yield NodeLook(missing=self.runs.missing)

    def _nvml_source(self, steady: float) -> NvmlReadings | None:
        """The driver's readings; a driver that is not there is looked for once a minute."""
        if self._nvml is None and steady >= self._nvml_next:
            self._nvml_next = steady + _NVML_AGAIN_SECONDS
            try:
                path = self._options.nvml
                calls = RecordedNvml.load(path) if path else open_nvml()
                self._nvml = NvmlReadings(calls, self.node)
            except NvmlMissingError as missing:
                self._nvml_reason = str(missing)
        return self._nvml

    def _with_uuids(self, look: NodeLook) -> NodeLook:
        """The kernel names GPUs by their PCI address; give them their UUIDs where they are known."""
        uuids = self._nvml.uuids if self._nvml else {}
        signals = tuple(
            replace(one, gpu=uuids[one.gpu]) if one.gpu in uuids else one for one in look.signals
        )
        return replace(look, signals=signals)

    def _show(self, at: int) -> None:
        readings = (*self._last.readings, *self._own_readings(at))
        if self._server is not None:
            self._server.show(readings)
        if self._otlp is not None:
            self._otlp.push(readings)

    def _own_readings(self, at: int) -> Iterator[NodeReading]:
        """What the agent costs and does, and what it cannot read."""
        used = os.times()
        figures = {
            "computeflow_agent_cpu_seconds_total": used.user + used.system,
            "computeflow_agent_resident_bytes": _resident_bytes(),
            "computeflow_agent_followed_ranks": float(sum(1 for _ in self.runs.tails())),
        }
        if self.shipper is not None:
            counts = self.shipper.counts
            figures["computeflow_agent_connected"] = float(self.shipper.connected)
            figures["computeflow_agent_records_total"] = float(counts["records"])
            figures["computeflow_agent_batches_total"] = float(counts["batches"])
            figures["computeflow_agent_failures_total"] = float(counts["failures"])
        for name, value in figures.items():
            yield NodeReading(at=at, name=name, value=value)
        for name, reason in self._last.missing.items():
            labels = {"signal": name.strip(), "reason": reason[:200]}
            yield NodeReading(at=at, name="computeflow_agent_missing", value=1.0, labels=labels)

    def _send_node(self, look: NodeLook, steady: float, at: int) -> None:
        self._due["beat"] = steady + BEAT_SECONDS
        if self.shipper is not None:
            self.shipper.ship_node(look, steady, at)

    def _ship(self, steady: float) -> None:
        """Ship runs in turn, the one with an unacknowledged batch first."""
        assert self.shipper is not None
        runs = list(self.runs.runs.values())
        waiting = self.shipper.waiting_run
        if waiting is not None and waiting not in runs:
            self.shipper.forget(waiting)
        runs.sort(key=lambda run: run is not waiting)
        began = time.monotonic()
        busy: list[FollowedRun] = runs
        while busy and time.monotonic() - began < _SHIP_SECONDS:
            now = steady + time.monotonic() - began
            busy = [run for run in busy if self.shipper.ship_run(run, now, _unix_micros)]

    def is_behind(self) -> bool:
        """Whether anything waits to be shipped."""
        if self.shipper is None:
            return False
        if self.shipper.waiting_run is not None:
            return True
        return any(run.has_news() for run in self.runs.runs.values())

    def report(self) -> AgentReport:
        counts = self.shipper.counts if self.shipper else {}
        return AgentReport(
            node=self.node,
            agent=self._state.agent,
            look=self._last,
            runs=tuple(run.run for run in self.runs.runs.values()),
            ranks=sum(1 for _ in self.runs.tails()),
            records=counts.get("records", 0),
            batches=counts.get("batches", 0),
            connected=self.shipper.connected if self.shipper else None,
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._otlp is not None:
            self._otlp.close()
        if self._client is not None:
            self._client.close()
        for _, tail in self.runs.tails():
            tail.end()
        self._state.close()


def run_agent(
    options: AgentOptions, *, say: Callable[[str], None], once: bool = False
) -> AgentReport:
    """Run until a signal asks to stop; with `once`, ship all that is there, and look once."""
    agent = NodeAgent(options, say)
    gc.freeze()  # what was imported stays: collections need not look at it
    try:
        if once:
            _run_once(agent)
        else:
            with _stopping() as stop:
                _run(agent, stop)
        return agent.report()
    finally:
        agent.close()


def _run(agent: NodeAgent, stop: threading.Event) -> None:
    due = time.monotonic()
    while True:
        agent.tick(time.monotonic(), _unix_micros())
        due = max(due + TICK_SECONDS, time.monotonic())
        if stop.wait(due - time.monotonic()):
            agent.tick(time.monotonic(), _unix_micros())  # what came meanwhile
            return


def _run_once(agent: NodeAgent) -> None:
    began = time.monotonic()
    agent.tick(began, _unix_micros())
    while agent.is_behind() and time.monotonic() - began < _ONCE_SECONDS:
        agent.tick(time.monotonic(), _unix_micros())
        time.sleep(0.01)


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that is set by SIGTERM and SIGINT."""
    stop = threading.Event()

    def ask(_: int, __: FrameType | None) -> None:
        stop.set()

    before: dict[int, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError):  # not on this thread
            before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for asked, handler in before.items():
            signal.signal(asked, handler)


def _unix_micros() -> int:
    return time.time_ns() // 1000


def _resident_bytes() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
