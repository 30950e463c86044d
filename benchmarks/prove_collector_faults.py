"""Faults at random points of a collector with real senders; benchmarks/reports/collector_faults.md.

    python -m benchmarks.prove_collector_faults                 300 points
    python -m benchmarks.prove_collector_faults --points 10 --seed 7

A point is one of: kill -9 of the collector; kill -9 of an agent; its network cut in the middle of what
passes; the collector's disk full (a small tmpfs); its clock set hours ahead or back (clock_shift.c).
The agent ships what two real ranks record that train meanwhile. Other senders behave as an agent does:
they ask for positions, send, rewind when told to, and wait when refused. In the end every step that was
acknowledged, and every step that the ranks recorded, must be in the store, none of them twice; every
file must be readable, and the training must have ended by itself.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.agent_faults import TrainedNode, training_node
from computeflow.collection.store.journal import journal_numbers, journal_path, read_frames
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import StoreFolder, open_store
from computeflow.collection.wire.batches import (
    _STEPS,
    Batch,
    RankNews,
    RankRows,
    pack_batch,
    unpack_known,
)
from computeflow.telemetry.run_folders.rank_file import RankStart

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "collector_faults.md"
RANKS = 4
DISK_BYTES = 48 << 20
EPOCH = 1_795_000_000_000_000
_WAIT_SECONDS = 300.0
KINDS = {"kill": 0.3, "agent": 0.25, "cut": 0.25, "full": 0.1, "clock": 0.1}


class Proxy:
    """Passes bytes between senders and the collector, until it is told to cut."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self.cut_after: int | None = None
        """Bytes to the collector after which everything is cut."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                assert self.target is not None
                far = socket.create_connection(self.target, timeout=10)
            except (OSError, AssertionError):
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
            for source, sink, counted in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, counted), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                if counted and self.cut_after is not None:
                    data = data[: max(self.cut_after, 0)]
                    self.cut_after -= len(data)
                sink.sendall(data)
                if counted and self.cut_after is not None and self.cut_after <= 0:
                    self.cut()
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.cut_after = None
        for pair in pairs:
            for end in pair:  # closing alone does not wake who waits for its bytes
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


@dataclass
class Sender(threading.Thread):
    """One run's sender: its records are made from their number, so that it can send any again."""

    run_id: str
    port: int
    seed: int
    acknowledged: int = 0
    """Records of each rank that the collector said it has."""
    answers: Counter[str] = field(default_factory=Counter)
    stopping: threading.Event = field(default_factory=threading.Event)
    failure: str = ""

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        chance = random.Random(self.seed)
        connection: http.client.HTTPConnection | None = None
        following, number = 0, 0
        while not self.stopping.is_set():
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                    following = self._positions(connection)
                number += 1
                batch = made_batch(self.run_id, following, chance.randint(1, 20), number)
                connection.request("POST", "/v1/batches", pack_batch(batch))
                answer = connection.getresponse()
                following = self._take(answer.status, answer.read(), following)
                time.sleep(chance.random() * 0.01)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.answers[type(error).__name__] += 1
                if connection is not None:
                    connection.close()
                connection = None
                time.sleep(0.05)

    def _positions(self, connection: http.client.HTTPConnection) -> int:
        connection.request("GET", f"/v1/positions?run={self.run_id}")
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise OSError(content)
        return self._seen(json.loads(content)["next"])

    def _seen(self, known: dict[str, int]) -> int:
        low = min(known.values(), default=0)
        if low < self.acknowledged:
            self.failure = f"{self.run_id}: {self.acknowledged} were acknowledged, now {low}"
        self.acknowledged = max(self.acknowledged, low)
        return low

    def _take(self, status: int, content: bytes, following: int) -> int:
        self.answers[str(status)] += 1
        if status in (200, 409):
            return self._seen(json.loads(content)["next"])
        if status not in (429, 503):
            self.failure = f"{self.run_id}: {status} {content!r}"
        time.sleep(0.1)
        return following


def made_batch(run: str, first: int, count: int, number: int) -> Batch:
    """Records `first` on: record 0 is the start of a rank, record n its step n."""
    steps = count if first else count - 1
    numbers = np.arange(first or 1, (first or 1) + steps)
    columns = {name: np.zeros(RANKS * steps, kind) for name, kind in _STEPS.items()}
    columns["number"][:] = np.tile(numbers, RANKS)
    columns["begin"][:] = EPOCH + 1000 * columns["number"]
    columns["end"][:] = columns["begin"] + 1000
    news = [None if first else RankNews(start=_start(rank)) for rank in range(RANKS)]
    return Batch(
        agent=f"agent-of-{run}",
        number=number,
        node="node",
        sent=time.time_ns() // 1000,
        run=run,
        ranks=tuple(
            RankRows(
                rank=rank,
                attempt=0,
                first=first,
                records=count,
                last=EPOCH,
                steps=steps,
                news=news[rank],
            )
            for rank in range(RANKS)
        ),
        steps=columns if steps else {},
    )


def _start(rank: int) -> RankStart:
    return RankStart(
        rank=rank,
        world=RANKS,
        attempt=0,
        host="node",
        device="cpu",
        gpu="",
        gpu_uuid="",
        framework={},
        versions={},
        epoch=EPOCH,
        began=0,
    )


class Site:
    """The collector on its small disk, and what is done to it."""

    def __init__(self, place: Path, chance: random.Random) -> None:
        self.disk, self.clock = place / "disk", place / "clock"
        self.shim = build_shim(place)
        self._chance = chance
        self.clock.write_bytes(bytes(8))
        self.proxy = Proxy()
        self.process: subprocess.Popen[str] | None = None
        self.starts = 0
        self.log = place / "errors.log"

    def start(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        if self.shim is not None:
            environment |= {"LD_PRELOAD": str(self.shim), "CLOCK_SHIFT_FILE": str(self.clock)}
        words = [sys.executable, "-m", "computeflow", "collect", "--listen", "127.0.0.1:0"]
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [*words, "--store", str(self.disk / "store")],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"the collector did not start: {self.log.read_text()[-2000:]}")
        self.proxy.target = ("127.0.0.1", int(line.rpartition(":")[2]))
        self.starts += 1

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(_WAIT_SECONDS)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)
        self.start()

    def cut(self) -> None:
        self.proxy.cut_after = self._chance.randint(0, 3000)
        time.sleep(self._chance.random() * 0.3)
        self.proxy.cut()

    def full(self) -> None:
        ballast = self.disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
            while file.write(b"0"):
                pass
        time.sleep(self._chance.random() * 1.5)
        if self._chance.random() < 0.3:
            self.stop(signal.SIGKILL)
            ballast.unlink()
            self.start()
        ballast.unlink(missing_ok=True)

    def jump(self) -> None:
        hours = self._chance.choice([-2000, -30, -1, 1, 30, 2000])
        with self.clock.open("r+b") as file:
            file.write(struct.pack("<q", 3600 * hours))
        time.sleep(self._chance.random())


def build_shim(place: Path) -> Path | None:
    """The library that sets a program's clock; None without a C compiler."""
    source, made = Path(__file__).with_name("clock_shift.c"), place / "clock_shift.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return made


@contextmanager
def small_disk(place: Path) -> Iterator[bool]:
    folder = place / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def steps_of(store: StoreFolder) -> Counter[tuple[str, int, int]]:
    """How often each step (run, rank, number) is in Parquet and in journals that are not sealed."""
    from computeflow.files.parquet import parquet_engine

    counts: Counter[tuple[str, int, int]] = Counter()
    with parquet_engine("counting") as (engine, _):
        for path in store.parquet.glob("*/*/*.parquet"):  # every file is read to its end
            engine.execute(f"SELECT count(COLUMNS(*)) FROM '{path}'").fetchall()
        if list(store.parquet.glob("steps/*/*.parquet")):
            query = f"SELECT run, rank, step FROM '{store.parquet}/steps/*/*.parquet'"
            counts.update(engine.execute(query).fetchall())
    state = StateDatabase(store.state)
    for number in journal_numbers(store.journal):
        if state.is_sealed(number):
            continue
        with journal_path(store.journal, number).open("rb") as file:
            for frame in read_frames(file):
                counts.update(_steps(unpack_known(frame.body)))
    state.close()
    return counts


def _steps(batch: Batch) -> Iterator[tuple[str, int, int]]:
    at = 0
    for rows in batch.ranks:
        for number in batch.steps["number"][at : at + rows.steps] if rows.steps else ():
            yield batch.run, rows.rank, int(number)
        at += rows.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    points: Counter[str]
    seconds: float
    starts: int
    acknowledged: int
    """Steps that the senders were told are there."""
    stored: int
    lost: int
    twice: int
    files: int
    answers: Counter[str]
    trained: int
    """Steps that the ranks recorded, each of which an agent shipped."""
    agent_starts: int
    failures: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.lost and not self.twice and not self.failures


def prove(points: int, seed: int) -> Proof:
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="collector-faults-") as name,
        small_disk(Path(name)) as has_disk,
        training_node(Path(name), chance) as node,
    ):
        site = Site(Path(name), chance)
        left_out = [] if has_disk else ["full disk: no right to mount one"]
        left_out += [] if site.shim is not None else ["clock: no C compiler"]
        kinds = {
            kind: share
            for kind, share in KINDS.items()
            if (kind != "full" or has_disk) and (kind != "clock" or site.shim is not None)
        }
        began = time.monotonic()
        site.start()
        senders = [Sender(f"run-{n}", site.proxy.port, seed + n) for n in range(3)]
        for sender in senders:
            sender.start()
        node.start_agent(site.proxy.port)
        done: Counter[str] = Counter()
        actions = {"kill": site.kill, "agent": node.kill_agent, "cut": site.cut}
        actions |= {"full": site.full, "clock": site.jump}
        for point in range(points):
            time.sleep(chance.random() * 0.6)
            (kind,) = chance.choices(list(kinds), list(kinds.values()))
            actions[kind]()
            done[kind] += 1
            if point % 20 == 19:
                print(f"{point + 1} points, {time.monotonic() - began:.0f} s", file=sys.stderr)
        return _finished(site, senders, node, done, time.monotonic() - began, tuple(left_out))


def _finished(
    site: Site,
    senders: list[Sender],
    node: TrainedNode,
    done: Counter[str],
    seconds: float,
    left_out: tuple[str, ...],
) -> Proof:
    before = [sender.acknowledged for sender in senders]
    ends = time.monotonic() + _WAIT_SECONDS
    while any(s.acknowledged <= b for s, b in zip(senders, before, strict=True)):
        if time.monotonic() > ends:  # after the last fault it must go on
            break
        time.sleep(0.1)
    stuck = [s.run_id for s, b in zip(senders, before, strict=True) if s.acknowledged <= b]
    for sender in senders:
        sender.stopping.set()
        sender.join(60)
    unsound = node.end_training()
    shipped = node.wait_shipped(_WAIT_SECONDS)
    code = site.stop()
    site.proxy.close()
    store = open_store(site.disk / "store")
    counts = steps_of(store)
    lost = sum(
        counts[sender.run_id, rank, number] == 0
        for sender in senders
        for rank in range(RANKS)
        for number in range(1, sender.acknowledged)
    )
    recorded = node.recorded_steps()
    mine = {sender.run_id for sender in senders}
    held = {key[1:] for key in counts if key[0] not in mine}
    lost += sum(key not in held for key in recorded)
    failures = [sender.failure for sender in senders if sender.failure]
    failures += unsound
    failures += [] if shipped else ["the agent did not ship all within five minutes"]
    failures += [f"{run} did not go on after the last fault" for run in stuck]
    failures += [f"the collector ended with {code}"] if code else []
    log = site.log.read_text()
    failures += ["a traceback in the collector's log"] if "Traceback" in log else []
    answers: Counter[str] = Counter()
    for sender in senders:
        answers += sender.answers
    if "Traceback" in log:
        print(log[-4000:], file=sys.stderr)
    return Proof(
        points=done,
        seconds=seconds,
        starts=site.starts,
        acknowledged=sum(RANKS * max(sender.acknowledged - 1, 0) for sender in senders),
        stored=len(counts),
        lost=lost,
        twice=sum(count > 1 for count in counts.values()),
        files=len(list(store.parquet.glob("*/*/*.parquet"))),
        answers=answers,
        trained=len(recorded),
        agent_starts=node.agent_starts,
        failures=tuple(failures),
        left_out=left_out,
    )


_WORDS = {
    "kill": "kill -9 of the collector",
    "agent": "kill -9 of the agent",
    "cut": "network cut",
    "full": "disk full",
    "clock": "clock set",
}


def report(proof: Proof, seed: int) -> str:
    rows = [f"| {_WORDS[kind]} | {count} |" for kind, count in sorted(proof.points.items())]
    answers = ", ".join(f"{name} {count:,}" for name, count in sorted(proof.answers.items()))
    return "\n".join(
        [
            "# Faults of a collector",
            "",
            f"`python -m benchmarks.prove_collector_faults` (seed {seed}): "
            f"{sum(proof.points.values())} points in {proof.seconds / 60:.0f} minutes, three "
            f"senders of {RANKS} ranks, a disk of {DISK_BYTES >> 20} MiB; meanwhile two real ranks "
            "train over gloo, and an agent ships what they record.",
            "",
            "| fault | points |",
            "|---|--:|",
            *rows,
            "",
            f"- {proof.acknowledged:,} steps acknowledged, {proof.stored:,} in the store: "
            f"**{proof.lost} lost, {proof.twice} twice**.",
            f"- The two ranks recorded {proof.trained:,} steps, which are among those in the store; "
            "their training ended by itself, its files have no damage and no gap."
            if proof.holds
            else f"- The two ranks recorded {proof.trained:,} steps.",
            f"- {proof.starts} starts of the collector, {proof.agent_starts} of the agent; "
            f"{proof.files} Parquet files at the end, all of them read.",
            f"- Answers and errors that the senders saw: {answers}.",
            *(f"- Failed: {text}." for text in proof.failures),
            *(f"- Left out: {text}." for text in proof.left_out),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print", action="store_true", dest="only_print")
    arguments = parser.parse_args()
    proof = prove(arguments.points, arguments.seed)
    text = report(proof, arguments.seed)
    print(text)
    if not arguments.only_print:
        REPORT.write_text(text, encoding="utf-8")
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
