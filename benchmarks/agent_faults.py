"""A node with two ranks that train and an agent that is killed: `training_node`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.live_training import environment, training
from computeflow.recorder.frames import FrameReader

_RANKS = 2
_END_SECONDS = 120.0
_LIVES_SECONDS = 4.0
"""Longest life that a killed agent is given: it needs one or two to start on a busy machine."""


class TrainedNode:
    def __init__(
        self,
        place: Path,
        command: Path,
        processes: list[subprocess.Popen[bytes]],
        chance: random.Random,
    ) -> None:
        self._place, self._command, self._processes = place, command, processes
        self._chance = chance
        self._agent: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._started = 0.0
        self.agent_starts = 0

    def start_agent(self, port: int) -> None:
        """Start an agent that ships to this port."""
        self._port = port
        words = ["agent", "--collector", f"http://127.0.0.1:{port}", "--every", "1", "--quiet"]
        words += ["--runs", str(self._place / "runs"), "--state", str(self._place / "agent")]
        with (self._place / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "computeflow", *words],
                env=environment(),
                stdout=log,
                stderr=log,
            )
        self.agent_starts += 1
        self._started = time.monotonic()

    def kill_agent(self) -> None:
        """Kill it some time after its start: while it imports, asks, or ships."""
        assert self._agent is not None
        lived = time.monotonic() - self._started
        time.sleep(max(self._chance.uniform(0.0, _LIVES_SECONDS) - lived, 0.0))
        self._agent.send_signal(signal.SIGKILL)
        self._agent.wait()
        self.start_agent(self._port)

    def end_training(self) -> list[str]:
        """Let the ranks end; what is wrong with how they did."""
        alive = [process.poll() is None for process in self._processes]
        self._command.write_text("end")
        codes = [process.wait(_END_SECONDS) for process in self._processes]
        wrong = [] if all(alive) else ["a rank ended before it was told to"]
        wrong += [] if not any(codes) else [f"ranks ended with {codes}"]
        wrong += ["a traceback of a rank"] if b"Traceback" in self._read("log") else []
        wrong += ["a traceback of an agent"] if b"Traceback" in self._read("agent.log") else []
        numbers = [number for _, number in sorted(self.recorded_steps())]
        count = len(numbers) // _RANKS
        if not count or numbers != _RANKS * list(range(1, count + 1)):
            wrong.append("the ranks' files have gaps")
        return wrong

    def _read(self, name: str) -> bytes:
        return (self._place / name).read_bytes()

    def recorded_steps(self) -> set[tuple[int, int]]:
        """Rank and number of every step in the files of the ranks, which must have no damage."""
        found = set()
        for path in sorted((self._place / "runs").rglob("rank-*.cfr")):
            with path.open("rb") as file:
                reader = FrameReader(file)
                records = list(reader.read())
            if reader.damaged_bytes:
                raise SystemExit(f"{path}: {reader.damaged_bytes} damaged bytes")
            rank = int(records[0]["rank"])
            found |= {(rank, int(record["n"])) for record in records if record["k"] == "s"}
        return found

    def wait_shipped(self, seconds: float) -> bool:
        """Let an agent ship what is left, and end."""
        assert self._agent is not None
        self._agent.terminate()
        self._agent.wait(seconds)
        words = ["agent", "--collector", f"http://127.0.0.1:{self._port}", "--once", "--quiet"]
        words += ["--runs", str(self._place / "runs"), "--state", str(self._place / "agent")]
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            done = subprocess.run(
                [sys.executable, "-m", "computeflow", *words],
                env=environment(),
                capture_output=True,
                check=False,
            )
            if done.returncode == 0:
                return True
            time.sleep(1.0)
        return False

    def stop(self) -> None:
        if self._agent is not None and self._agent.poll() is None:
            self._agent.kill()
            self._agent.wait()


@contextmanager
def training_node(place: Path, chance: random.Random) -> Iterator[TrainedNode]:
    """Two ranks that train until they are told to end."""
    (place / "runs").mkdir()
    with training(place, _RANKS) as (command, processes):
        node = TrainedNode(place, command, processes, chance)
        try:
            yield node
        finally:
            node.stop()
