"""Shipping of records: each arrives once and in order, whatever happens on the way."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_collector import CollectorDouble, serving
from computeflow.collection.agent.node_agent import AgentOptions, NodeAgent
from computeflow.collection.agent.shipping import Shipper
from computeflow.recorder.frames import MAGIC, Record, packed
from computeflow.telemetry.run_folders.rank_file import join_parts
from computeflow.telemetry.run_folders.rank_reading import read_rank_file
from run_folder_maker import Training

pytestmark = pytest.mark.live
STEPS = 200


class GrowingRun:
    """A run folder whose files grow, as the recorder writes them."""

    def __init__(self, folder: Path, ranks: int = 2, steps: int = STEPS, host: str = "") -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        facts = {"name": "train", "started": 1.5, "host": "n1", "command": ["train.py"]}
        (folder / "run.json").write_text(json.dumps(facts))
        self.records = Training(ranks=ranks, steps=steps, jitter=0.1).records()
        for records in self.records:
            records[0]["host"] = host or socket.gethostname()
            records[0]["pid"] = os.getpid()
        self._written = [0] * ranks

    def path(self, rank: int) -> Path:
        return self.folder / f"rank-{rank:05d}.attempt-0.cfr"

    def grow(self, records: int) -> None:
        for rank, every in enumerate(self.records):
            at = self._written[rank]
            body = b"".join(map(packed, every[at : at + records]))
            with self.path(rank).open("ab") as file:
                file.write((b"" if at else MAGIC) + body)
            self._written[rank] = at + records

    def grow_all(self) -> None:
        self.grow(max(map(len, self.records)))


def options(tmp_path: Path, url: str, **more: Any) -> AgentOptions:
    return AgentOptions(
        collector=url,
        runs=(tmp_path / "runs",),
        state=tmp_path / "state",
        kernel_log=tmp_path / "no-kernel-log",
        **more,
    )


class Clock:
    """Ticks an agent without waiting: a second for each tick."""

    def __init__(self, agent: NodeAgent) -> None:
        self.agent, self.now = agent, 1000.0

    def tick(self, times: int = 1, seconds: float = 1.0) -> None:
        for _ in range(times):
            self.agent.tick(self.now, time.time_ns() // 1000)
            self.now += seconds


def complain(text: str) -> None:
    """Nothing is looked at."""


def all_steps(rank: int = 0, steps: int = STEPS) -> list[int]:
    return list(range(1, steps + 1))


def test_records_of_growing_files_arrive_once_and_as_they_are_in_the_files(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", ranks=3)
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        clock = Clock(agent)
        for _ in range(50):
            run.grow(9)
            clock.tick()
        run.grow_all()
        clock.tick(3)
        agent.close()
    assert [double.steps(rank) for rank in range(3)] == [all_steps()] * 3
    assert double.statuses == {200: double.requests}
    (name,) = double.runs()
    joined = join_parts(double.files[name, 1, 0])
    whole = read_rank_file(run.path(1), 1 << 30)
    assert (joined.steps.begin == whole.steps.begin).all()
    assert (joined.pieces.end == whole.pieces.end).all()
    assert (joined.arrivals.at == whole.arrivals.at).all()
    assert np.array_equal(joined.steps.loss, whole.steps.loss)
    assert joined.ended == "exit"


def troubles(seed: int) -> Callable[[int], Any]:
    noise = random.Random(seed)
    kinds = [
        "cut",
        "cut after",
        (503, {"Retry-After": "1"}),
        (429, {}),
        (500, {}),
        None,
        None,
        None,
    ]
    drawn = [noise.choice(kinds) for _ in range(400)]
    return lambda request: drawn[request] if request < len(drawn) else None


@pytest.mark.parametrize("seed", range(6))
def test_cut_connections_and_busy_collectors_lose_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    run = GrowingRun(tmp_path / "runs" / "a")
    double = CollectorDouble(troubles(seed))
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        clock = Clock(agent)
        for _ in range(60):
            run.grow(7)
            clock.tick(seconds=5.0)
        clock.tick(500, seconds=40.0)
        agent.close()
    assert [double.steps(rank) for rank in range(2)] == [all_steps()] * 2


def test_a_batch_that_waits_is_all_that_is_kept(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", steps=3000)
    double = CollectorDouble(lambda request: (503, {"Retry-After": "1"}) if request < 50 else None)
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        clock = Clock(agent)
        run.grow_all()
        clock.tick(20, seconds=10.0)
        _, tail = next(agent.runs.tails())
        assert tail.next <= 4096 // 2
        clock.tick(60, seconds=10.0)
        agent.close()
    assert double.steps(0) == all_steps(steps=3000)


def test_a_collector_that_forgot_gets_all_again(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a")
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        clock = Clock(agent)
        run.grow(100)
        clock.tick(2)
        assert double.steps(0)
        double.next.clear()
        double.files.clear()
        double.starts.clear()
        run.grow_all()
        clock.tick(10)
        agent.close()
    assert double.statuses[409] >= 1
    assert [double.steps(rank) for rank in range(2)] == [all_steps()] * 2


def test_batches_that_are_too_large_are_halved(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", ranks=4)
    double = CollectorDouble()
    double.max_bytes = 4000
    run.grow_all()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url, every_seconds=1e9), complain)
        Clock(agent).tick(200)
        agent.close()
    assert double.statuses[413] >= 2
    assert [double.steps(rank) for rank in range(4)] == [all_steps()] * 4


def test_a_rank_that_the_collector_refuses_does_not_hold_up_the_others(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", ranks=3)
    run.grow_all()
    double = CollectorDouble()
    take = double.take

    def refusing(body: bytes) -> tuple[int, dict[str, Any]]:
        from computeflow.collection.wire.batches import unpack_batch

        if any(rows.rank == 1 for rows in unpack_batch(body).ranks):
            return 400, {"error": "rank 1 is impossible"}
        return take(body)

    double.take = refusing  # type: ignore[method-assign]
    said: list[str] = []
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), said.append)
        Clock(agent).tick(20)
        agent.close()
    assert [double.steps(rank) for rank in range(3)] == [all_steps(), [], all_steps()]
    assert any("rank-00001" in text and "rank 1 is impossible" in text for text in said)


def test_files_of_other_hosts_are_not_ours_unless_all_are(tmp_path: Path) -> None:
    GrowingRun(tmp_path / "runs" / "other", host="elsewhere").grow_all()
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        Clock(agent).tick(3)
        agent.close()
        assert double.runs() == set() or double.steps(0) == []
        agent = NodeAgent(options(tmp_path, url, all_hosts=True), complain)
        Clock(agent).tick(3)
        agent.close()
    assert double.steps(0) == all_steps()


def test_hostile_files_are_passed_over_and_sound_ones_arrive(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", ranks=1)
    run.grow_all()
    folder = run.folder
    noise = random.Random(1)
    (folder / "rank-00007.attempt-0.cfr").write_bytes(b"not a recording")
    (folder / "rank-00008.attempt-0.cfr").write_bytes(MAGIC + noise.randbytes(100_000))
    (folder / "rank-00009.attempt-0.cfr").symlink_to("/etc/passwd")
    os.mkfifo(folder / "rank-00010.attempt-0.cfr")
    (folder / "rank-00011.attempt-0.cfr").mkdir()
    start: Record = {**run.records[0][0], "rank": 12}
    odd: list[Record] = [
        start,
        {"k": "s", "n": -1, "t": 1e300, "d": "x", "p": [1] * 1000},
        {"k": "c", "g": ["?"], "a": [None]},
        {"k": [], "t": {}},
        {"k": "s", "n": 1, "t": 2_000_000, "d": 10, "p": ["u", 0, 5] * 2000, "u": ["x" * 9999]},
    ]
    (folder / "rank-00012.attempt-0.cfr").write_bytes(MAGIC + b"".join(map(packed, odd)))
    same = [{**record} for record in run.records[0]]
    (folder / "rank-00013.attempt-0.cfr").write_bytes(MAGIC + b"".join(map(packed, same)))
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        Clock(agent).tick(30)
        missing = agent.runs.missing
        agent.close()
    assert double.steps(0) == all_steps()
    assert double.steps(12) == [1]
    assert "cannot be read" in missing["records in a"]


def test_damage_in_the_middle_of_a_file_costs_the_damaged_records_alone(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", ranks=1)
    run.grow_all()
    content = bytearray(run.path(0).read_bytes())
    content[len(content) // 2] ^= 0xFF
    run.path(0).write_bytes(content)
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        Clock(agent).tick(5)
        agent.close()
    steps = double.steps(0)
    assert len(steps) >= STEPS - 1 and steps == sorted(set(steps))


def test_a_wrong_token_is_said_once_and_a_new_one_is_taken(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a")
    run.grow_all()
    token = tmp_path / "token"
    token.write_text("wrong\n")
    double = CollectorDouble(token="right")
    said: list[str] = []
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url, token_file=token), said.append)
        clock = Clock(agent)
        clock.tick(20)
        assert double.steps(0) == []
        assert len([text for text in said if "401" in text]) == 1
        token.write_text("right\n")
        clock.tick(10, seconds=40.0)
        agent.close()
    assert double.steps(0) == all_steps()


def test_a_clock_that_jumps_changes_stamps_and_nothing_else(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a")
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        now = time.time_ns() // 1000
        for tick in range(30):
            run.grow(20)
            jump = {10: 3600, 20: -7200}.get(tick, 0)
            now += 1_000_000 * (1 + jump)
            agent.tick(1000.0 + tick, now)
        agent.close()
    assert [double.steps(rank) for rank in range(2)] == [all_steps()] * 2
    assert all(rows.alive in (True, None) for batch in double.batches for rows in batch.ranks)


def test_a_quiet_node_is_heard_of_every_five_seconds(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url, every_seconds=60.0), complain)
        Clock(agent).tick(61)
        agent.close()
    assert 12 <= len(double.batches) <= 14
    assert [batch.number for batch in double.batches] == list(range(len(double.batches)))
    assert len({batch.agent for batch in double.batches}) == 1


def test_what_a_run_was_started_with_goes_once_and_without_secrets(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a")
    facts = {
        "name": "train",
        "command": ["train.py", "--api-key", "abc123secret", "--lr", "0.1"],
        "environment": {"CUDA_VISIBLE_DEVICES": "0"},
        "started": 1.0,
        "host": "n1",
    }
    (run.folder / "run.json").write_text(json.dumps(facts))
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        clock = Clock(agent)
        for _ in range(10):
            run.grow(10)
            clock.tick()
        (run.folder / "run.json").write_text(json.dumps(facts | {"exit_code": 0}))
        os.utime(run.folder / "run.json", (1, 1))
        clock.tick(4)
        agent.close()
    abouts = [batch.about for batch in double.batches if batch.about]
    assert len(abouts) == 2
    assert abouts[0]["command"] == ["train.py", "--api-key", "(hidden)", "--lr", "0.1"]
    assert "environment" not in abouts[0]
    assert abouts[1]["exit_code"] == 0


def test_a_process_that_is_gone_without_a_word_is_told(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", ranks=1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        run.records[0][0]["pid"] = child.pid
        run.grow(50)
        double = CollectorDouble()
        with serving(double) as url:
            agent = NodeAgent(options(tmp_path, url), complain)
            clock = Clock(agent)
            clock.tick(4)
            assert double.batches[-1].signals == ()
            assert {rows.alive for batch in double.batches for rows in batch.ranks} == {True}
            child.kill()
            child.wait()
            clock.tick(4)
            agent.close()
    assert double.signals().count("training process gone") == 1


def test_two_runs_are_shipped_side_by_side(tmp_path: Path) -> None:
    first = GrowingRun(tmp_path / "runs" / "a", ranks=1)
    second = GrowingRun(tmp_path / "runs" / "b", ranks=1)
    (second.folder / "run.json").write_text(json.dumps({"name": "other", "started": 2.0}))
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        clock = Clock(agent)
        for _ in range(45):
            first.grow(10)
            second.grow(10)
            clock.tick()
        agent.close()
    assert len(double.runs()) == 2
    assert sorted(double.steps(0)) == sorted(all_steps() * 2)


def test_old_runs_are_left_alone(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a")
    run.grow_all()
    for rank in range(2):
        os.utime(run.path(rank), (1e9, 1e9))
    double = CollectorDouble()
    with serving(double) as url:
        agent = NodeAgent(options(tmp_path, url), complain)
        Clock(agent).tick(5)
        agent.close()
    assert double.runs() == set()


def agent_process(tmp_path: Path, url: str, *more: str) -> subprocess.Popen[bytes]:
    words = ["--collector", url, "--runs", str(tmp_path / "runs"), "--state", str(tmp_path / "st")]
    words += ["--kernel-log", str(tmp_path / "kernel.log"), *more]
    return subprocess.Popen([sys.executable, "-m", "computeflow", "agent", *words])


def wait_for(what: Callable[[], bool], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_an_agent_that_is_killed_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", steps=400)
    double = CollectorDouble()
    noise = random.Random(3)
    with serving(double) as url:
        for _ in range(8):
            process = agent_process(tmp_path, url)
            before = len(double.batches)
            wait_for(lambda before=before: len(double.batches) > before)  # type: ignore[misc]
            for _ in range(5):
                run.grow(20)
                time.sleep(noise.uniform(0.0, 0.4))
            process.kill()
            process.wait()
        run.grow_all()
        before = len(double.batches)
        process = agent_process(tmp_path, url)
        wait_for(lambda: len(double.batches) > before)
        wait_for(lambda: len(double.steps(0)) >= 400 and len(double.steps(1)) >= 400)
        process.terminate()
        assert process.wait() == 0
    assert [double.steps(rank) for rank in range(2)] == [all_steps(steps=400)] * 2
    assert len({batch.agent for batch in double.batches}) == 1
    assert double.statuses[409] == 0


def test_once_ships_all_that_is_there_and_ends(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "a", steps=5000)
    run.grow_all()
    double = CollectorDouble()
    with serving(double) as url:
        process = agent_process(tmp_path, url, "--once", "--quiet")
        assert process.wait() == 0
    assert double.steps(0) == double.steps(1) == all_steps(steps=5000)


def test_a_collector_that_is_away_is_waited_for_longer_each_time() -> None:
    from computeflow.collection.agent.collector_client import CollectorClient
    from computeflow.collection.agent.node_sources import NodeLook

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        shipper = Shipper(CollectorClient(url), agent="a", node="n", say=complain)
        for tick in range(600):
            shipper.ship_node(NodeLook(), float(tick), tick)
    assert 10 <= shipper.counts["failures"] <= 40
    assert not shipper.connected
