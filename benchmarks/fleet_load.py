"""A fleet that sends to a collector, in a process of its own: `python -m benchmarks.fleet_load JSON`.

`Load` says what is sent; what happened is one JSON object on standard output. In real time the bodies
of a step are sent when it has ended, spread over the second behind it as those of nodes are.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from benchmarks.fleet_bodies import FleetBodies, Plant
from benchmarks.fleet_sender import FleetSender
from benchmarks.live_batches import FLUSH_SECONDS
from benchmarks.step_noise import load_noise
from computeflow import codec

_SPREAD_SECONDS = 0.9
_NOISE = "production-ST"
_PAST_STEPS = 50
_PAST_SECONDS = 3_600.0
"""Time enough for the past, whose steps are somewhat longer than a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    port: int
    ranks: int
    steps: int
    real_time: bool = True
    ranks_per_body: int = 8
    steps_per_body: int = 1
    connections: int | None = None
    """None: one for each body of a step, as each node has its own."""
    run: str = "fleet"
    past_steps: int = 0
    """Steps that the run made before, a multiple of 50; sent at once, before those of real time."""
    plants: tuple[Plant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    seconds: float
    cpu_seconds: float
    """Processor time of the fleet itself."""
    rank_steps: int
    records_per_rank: int
    bytes_sent: int
    statuses: dict[str, int]
    behind_seconds: float
    """The longest time after which a step was sent later than it should have been."""
    step_ends: list[float] = field(default_factory=list)
    """Unix seconds at which the last rank ended each step."""
    ack_seconds: list[float] = field(default_factory=list)
    """Median, 99 % and longest time from when a body was due to its acknowledgement."""


async def _drive(load: Load) -> LoadResult:
    calls = load.steps // load.steps_per_body
    past = load.past_steps + _PAST_SECONDS if load.past_steps else 0.0
    start = time.time() + 1.0 - past if load.real_time else time.time() - load.steps - 60
    fleet = FleetBodies(
        load.ranks,
        run=load.run,
        start=start,
        noise=load_noise()[_NOISE],
        plants=load.plants,
        ranks_per_body=load.ranks_per_body,
        steps_per_body=_PAST_STEPS if load.past_steps else load.steps_per_body,
    )
    nodes = -(-load.ranks // load.ranks_per_body)
    sender = FleetSender(host="127.0.0.1", port=load.port, connections=load.connections or nodes)
    await sender.open()
    began, cpu = time.monotonic(), time.process_time()
    await sender.send_all(fleet.opening())
    await sender.drain()
    for _ in range(load.past_steps // _PAST_STEPS):
        times = fleet.times()
        await sender.send_all(list(fleet.bodies(times, times.over / 1e6)))
        await sender.drain()
    if load.past_steps:
        fleet.go_on(time.time() + 1.0, load.steps_per_body)
    sender.ack_seconds.clear()
    behind, ends = 0.0, list[float]()
    for _ in range(calls):
        times = fleet.times()
        over = times.over / 1e6
        due = over + FLUSH_SECONDS
        content = list(fleet.bodies(times, due))
        if load.real_time:
            behind = max(behind, time.time() - due)
            await asyncio.sleep(max(due - time.time(), 0.0))
        await sender.send_all(content, over_seconds=_SPREAD_SECONDS if load.real_time else 0.0)
        if not load.real_time:  # as fast as the collector takes it, and not a body faster
            await sender.drain()
        ends += (times.end.max(axis=0) / 1e6).tolist()
    await sender.drain()
    await sender.close()
    acks = sorted(sender.ack_seconds)
    return LoadResult(
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - cpu,
        rank_steps=load.ranks * (load.past_steps + calls * load.steps_per_body),
        records_per_rank=fleet.records_per_rank,
        bytes_sent=sender.bytes_sent,
        statuses={str(status): count for status, count in sender.statuses.items()},
        behind_seconds=behind,
        step_ends=ends,
        ack_seconds=[round(acks[int(share * (len(acks) - 1))], 4) for share in (0.5, 0.99, 1.0)],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    process: subprocess.Popen[bytes]
    output: IO[bytes]

    def result(self) -> LoadResult:
        if self.process.wait():
            raise RuntimeError(f"the fleet ended with {self.process.returncode}")
        self.output.seek(0)
        return codec.decode(LoadResult, json.loads(self.output.read()), "load")


@contextmanager
def running_load(load: Load) -> Iterator[Sending]:
    """The fleet as a process; it is gone at the end, whatever happened."""
    command = [sys.executable, "-m", "benchmarks.fleet_load", json.dumps(asdict(load))]
    with tempfile.TemporaryFile() as output, subprocess.Popen(command, stdout=output) as process:
        try:
            yield Sending(process=process, output=output)
        finally:
            process.kill()


def main() -> None:
    data: Any = json.loads(sys.argv[1])
    load = codec.decode(Load, data, "load")
    print(json.dumps(asdict(asyncio.run(_drive(load)))))


if __name__ == "__main__":
    main()
