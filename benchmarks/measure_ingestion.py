"""What taking batches costs a collector: CPU a batch, rank-steps a second and core, bytes on disk.

    python -m benchmarks.measure_ingestion            2,048 nodes of 8 ranks, one step a second
    python -m benchmarks.measure_ingestion --nodes 256 --seconds 10 --full-speed

A real `computeflow collect` on 127.0.0.1; the sender is this process, whose CPU is not counted. Writes
benchmarks/reports/ingestion.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store
from computeflow.collection.wire.batches import Batch, RankNews, RankRows, pack_batch, unpack_batch
from computeflow.telemetry.run_folders.rank_file import RankStart

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "ingestion.md"
RANKS = 8
PIECES = np.array([1_000, 30_000, 300, 60_000, 300, 8_400], np.int64) * 10
"""Input, forward, gap, backward, gap, optimizer: one second."""
BUCKETS = 3
EPOCH = 1_795_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    batches: int
    seconds: float
    refused: int
    service_cpu: float
    helpers_cpu: float
    service_bytes: int
    latency_ms: tuple[float, float, float]
    """Median, 99th percentile and longest time to an acknowledgement."""
    journal_bytes: float
    parquet_bytes: float
    """Bytes on disk of a rank-step."""
    rows: int
    sealing_cpu: float
    """CPU-seconds of sealing all of it."""
    unpack_us: float
    """CPU of `unpack_batch` alone on one batch, on this machine at this moment."""


def make_bodies(nodes: int, second: int, noise: np.random.Generator) -> list[bytes]:
    """One batch of each node: 8 ranks, one step, as an agent sends it every second."""
    return [pack_batch(make_batch_of(node, second, nodes, noise)) for node in range(nodes)]


def make_batch_of(node: int, second: int, nodes: int, noise: np.random.Generator) -> Batch:
    kinds = _real_kinds()
    jitter = noise.integers(-3000, 3000, (RANKS, len(PIECES)))
    jitter[:, [2, 4]] = 0
    jitter[:, -1] -= jitter.sum(axis=1)  # steps of one length: ranks wait for each other
    lengths = PIECES + jitter
    begin = np.full(RANKS, EPOCH + second * 1_000_000, np.int64)
    arrivals = begin[:, None] + 313_000 + np.arange(1, BUCKETS + 1) * 200_000
    arrivals = arrivals + noise.integers(0, 3000, arrivals.shape)
    first = 0 if second == 0 else 1 + 2 * second
    return Batch(
        agent=f"agent-{node:05d}",
        number=second + 1,
        node=f"node-{node:05d}",
        sent=EPOCH + (second + 1) * 1_000_000,
        run="llama-70b-7f3a",
        ranks=tuple(
            RankRows(
                rank=RANKS * node + place,
                attempt=0,
                first=first,
                records=3 if second == 0 else 2,
                last=int(begin[0]) + 1_000_000,
                alive=True,
                steps=1,
                pieces=len(PIECES),
                arrivals=BUCKETS,
                news=_start(RANKS * node + place, nodes) if second == 0 else None,
            )
            for place in range(RANKS)
        ),
        groups=(("default_pg#1a2b3c4d", "all_reduce"),),
        steps={
            "number": np.full(RANKS, second + 1, "<i8"),
            "own": np.full(RANKS, second + 1, "<i8"),
            "begin": begin,
            "end": begin + lengths.sum(axis=1),
            "tokens": np.full(RANKS, 8192, "<i8"),
            "samples": np.full(RANKS, 1, "<i8"),
            "profiled": np.zeros(RANKS, "|b1"),
            "loss": np.full(RANKS, 2.5 + 0.01 * noise.random()),
            "collections": np.zeros(RANKS, "<i8"),
            "collecting": np.zeros(RANKS, "<i8"),
        },
        pieces={"length": lengths.reshape(-1), "kind": np.tile(kinds, RANKS)},
        arrivals={
            "group": np.zeros(RANKS * BUCKETS, "<i4"),
            "sequence": np.tile(BUCKETS * second + np.arange(BUCKETS), RANKS).astype("<i8"),
            "at": arrivals.reshape(-1),
            "end": np.full(RANKS * BUCKETS, -1, "<i8"),
            "bytes": np.full(RANKS * BUCKETS, 25 << 20, "<i8"),
            "every": np.ones(RANKS * BUCKETS, "<i4"),
        },
    )


def _real_kinds() -> np.ndarray:
    from computeflow.telemetry.run_folders import phases

    gaps = phases.gap_kinds(
        np.array([phases.FORWARD, phases.BACKWARD]), np.array([phases.BACKWARD, phases.OPTIMIZER])
    )
    return np.array(
        [phases.DATA, phases.FORWARD, gaps[0], phases.BACKWARD, gaps[1], phases.OPTIMIZER], "<i4"
    )


def _start(rank: int, nodes: int) -> RankNews:
    start = RankStart(
        rank=rank,
        world=RANKS * nodes,
        attempt=0,
        host=f"node-{rank // RANKS:05d}",
        device="cuda",
        gpu="NVIDIA H200",
        gpu_uuid=f"GPU-{rank:08x}",
        framework={"torch": "2.9"},
        versions={"torch": "2.9", "nccl": "2.27"},
        epoch=EPOCH,
        began=-10_000_000,
    )
    return RankNews(start=start)


class Client:
    """A connection that sends one batch after the other and waits for each answer."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.refused = 0

    async def open(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)

    async def post(self, body: bytes) -> None:
        head = b"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        while True:
            began = time.perf_counter()
            self._writer.write(head + body)
            answer = await self._reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].split()[0])
            content = await self._reader.readexactly(length)
            if answer.startswith(b"HTTP/1.1 200"):
                self.latencies.append(time.perf_counter() - began)
                return
            if answer[9:12] not in (b"429", b"503"):
                raise SystemExit(f"{answer[:60]!r} {content!r}")
            self.refused += 1
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        self._writer.close()


async def send(
    port: int, rounds: Sequence[Sequence[bytes]], connections: int, full_speed: bool
) -> tuple[float, list[float], int]:
    """Send the rounds, one a second, or as fast as they are taken."""
    clients = [Client() for _ in range(connections)]
    for client in clients:
        await client.open(port)
    began = time.monotonic()

    async def run(place: int, client: Client) -> None:
        for second, bodies in enumerate(rounds):
            mine = bodies[place::connections]
            for number, body in enumerate(mine):
                if not full_speed:  # spread over the second
                    due = began + second + (number + place / connections) / len(mine)
                    await asyncio.sleep(max(due - time.monotonic(), 0.0))
                await client.post(body)

    await asyncio.gather(*(run(place, client) for place, client in enumerate(clients)))
    seconds = time.monotonic() - began
    for client in clients:
        await client.close()
    latencies = [value for client in clients for value in client.latencies]
    return seconds, latencies, sum(client.refused for client in clients)


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def children(pid: int) -> list[int]:
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for text in texts for word in text.split()]


def measure(nodes: int, seconds: int, connections: int, full_speed: bool) -> Measured:
    noise = np.random.default_rng(1)
    rounds = [make_bodies(nodes, second, noise) for second in range(seconds)]
    place = Path(tempfile.mkdtemp(prefix="ingestion-", dir=ROOT / "build"))
    words = [sys.executable, "-m", "computeflow", "collect", "--store", str(place / "store")]
    process = subprocess.Popen(
        [*words, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        helpers = children(process.pid)
        before = cpu_of(process.pid), sum(map(cpu_of, helpers))
        took, latencies, refused = asyncio.run(send(port, rounds, connections, full_speed))
        alone = unpack_us(rounds[-1])
        after = cpu_of(process.pid), sum(map(cpu_of, helpers))
        memory = resident(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(300)
    rank_steps = nodes * RANKS * seconds
    journal, parquet, rows, sealing = _disk(place / "store", rank_steps)
    shutil.rmtree(place)
    middle, late = np.percentile(latencies, [50, 99])
    return Measured(
        batches=len(latencies),
        seconds=took,
        refused=refused,
        service_cpu=after[0] - before[0],
        helpers_cpu=after[1] - before[1],
        service_bytes=memory,
        latency_ms=(1e3 * float(middle), 1e3 * float(late), 1e3 * max(latencies)),
        journal_bytes=journal,
        parquet_bytes=parquet,
        rows=rows,
        sealing_cpu=sealing,
        unpack_us=alone,
    )


def unpack_us(bodies: Sequence[bytes]) -> float:
    began = time.process_time()
    for body in bodies[:500]:
        unpack_batch(body)
    return 1e6 * (time.process_time() - began) / len(bodies[:500])


def _disk(path: Path, rank_steps: int) -> tuple[float, float, int, float]:
    """Bytes of a rank-step in the journal and in Parquet, rows of steps, CPU-seconds of sealing."""
    from computeflow.collection.store.journal import JournalWriter, journal_numbers
    from computeflow.collection.store.keeper import Keeper, KeepOptions

    store = open_store(path)
    writer = JournalWriter(store.journal, journal_numbers(store.journal)[-1] + 1)
    writer.open()
    writer.close()
    keeper = Keeper(store, KeepOptions(store=str(path), merge_files=2))
    began = time.process_time()
    keeper.seal()
    sealing = time.process_time() - began
    keeper.merge()
    keeper.close()
    state = StateDatabase(store.state)
    segments = state.segments()
    (journal,) = state._base.execute("SELECT sum(bytes) FROM journals").fetchone()
    rows = sum(segment.rows for segment in segments if segment.name == "steps")
    return journal / rank_steps, sum(s.bytes for s in segments) / rank_steps, rows, sealing


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--full-speed", action="store_true")
    parser.add_argument("--print", action="store_true", dest="only_print")
    arguments = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    measured = measure(
        arguments.nodes, arguments.seconds, arguments.connections, arguments.full_speed
    )
    lines = _lines(arguments, measured)
    print("\n".join(lines))
    if not arguments.only_print:
        words = " --full-speed" * arguments.full_speed
        head = [
            "# Taking batches",
            "",
            f"`python -m benchmarks.measure_ingestion --nodes {arguments.nodes} --seconds "
            f"{arguments.seconds}{words}` on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} "
            "(others work on this machine, which inflates CPU times).",
            "",
        ]
        text = "\n".join([*head, *(f"- {line}." for line in lines)])
        REPORT.write_text(text + "\n", encoding="utf-8")
    return 0 if measured.rows == arguments.nodes * RANKS * arguments.seconds else 1


def _lines(arguments: argparse.Namespace, m: Measured) -> list[str]:
    per_batch = m.service_cpu / m.batches
    return [
        f"{arguments.nodes} nodes x {RANKS} ranks x {arguments.seconds} steps: {m.batches:,} batches "
        f"in {m.seconds:.1f} s, {m.refused} refused and sent again",
        f"service: {m.service_cpu:.1f} s of CPU ({100 * m.service_cpu / m.seconds:.0f} % of a core), "
        f"{1e6 * per_batch:.0f} us a batch, {1 / per_batch:,.0f} batches and {RANKS / per_batch:,.0f} "
        "rank-steps a second and core",
        f"unpack_batch alone: {m.unpack_us:.0f} us a batch, measured right after it",
        f"helpers: {m.helpers_cpu:.1f} s of CPU; memory of the service {m.service_bytes >> 20} MiB",
        "acknowledged after (median, 99 %, longest): "
        + ", ".join(f"{value:.0f} ms" for value in m.latency_ms),
        f"bytes a rank-step: {m.journal_bytes:.1f} in the journal, {m.parquet_bytes:.1f} in Parquet",
        f"sealing: {m.sealing_cpu:.1f} s of CPU, {m.rows / m.sealing_cpu:,.0f} rank-steps a second "
        "and core",
        f"rows of steps: {m.rows:,}",
    ]


if __name__ == "__main__":
    sys.exit(main())
