"""The recorder under a hard hand: `python -m benchmarks.prove_recorder kill [--times 300]`.

`kill` trains in a process of its own under the recorder, kills it at a random moment (SIGKILL), and
compares what the file has with what the process had done, which it tells step by step through memory
that outlives it. Fails where a file cannot be read or more than a second is missing.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from computeflow.recorder.frames import FrameReader
from computeflow.recorder.starting import recording_environment

_TOLD = struct.Struct("<qd")
_TRAINER = """
import mmap, os, random, struct, sys, time
import torch
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
told = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 16)
def train(seed):
    longest = random.Random(seed).choice((0.0, 0.001, 0.01, 0.05))
    for step in range(1, 10**9):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        struct.pack_into("<qd", told, 0, step, time.time())
        time.sleep(longest * random.random())
for line in sys.stdin:  # a process for each line: torch is imported once
    child = os.fork()
    if child == 0:
        train(int(line))
    print(child, flush=True)
    os.waitpid(child, 0)
    print("over", flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A killed process: what it had done and what is left of it."""

    after_seconds: float
    true_steps: int
    recorded_steps: int
    lost_seconds: float
    """From the last recorded step to the kill."""
    damaged_bytes: int
    said_its_end: bool


def kill_at_random(folder: Path, *, times: int, seed: int) -> list[Kill]:
    choose = random.Random(seed)
    told = folder / "told"
    told.write_bytes(bytes(_TOLD.size))
    environment = recording_environment(folder / "run", os.environ)
    environment |= {"OMP_NUM_THREADS": "1"}
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, str(told)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        return [_kill_one(trainer, folder, choose) for _ in range(times)]
    finally:
        trainer.kill()
        trainer.wait()


def _kill_one(trainer: subprocess.Popen[str], folder: Path, choose: random.Random) -> Kill:
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    with (folder / "told").open("r+b") as file, mmap.mmap(file.fileno(), _TOLD.size) as told:
        told[:] = bytes(_TOLD.size)
        trainer.stdin.write(f"{choose.randrange(10**6)}\n")
        trainer.stdin.flush()
        pid = int(trainer.stdout.readline())
        while not any(told[:8]):
            time.sleep(0.001)
        first, after = time.time(), choose.uniform(0.0, 2.0)
        time.sleep(after)
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        trainer.stdout.readline()
        steps, _ = _TOLD.unpack(told[:])
    return _compare(folder / "run", pid, steps, first, killed, after)


def _compare(folder: Path, pid: int, steps: int, first: float, killed: float, after: float) -> Kill:
    recorded, last, damaged, ended = 0, first, 0, False
    for path in folder.glob("rank-*.cfr"):
        with path.open("rb") as file:
            reader = FrameReader(file)
            records = list(reader.read())
        if not records or records[0]["pid"] != pid:
            continue
        damaged = reader.damaged_bytes
        ended = records[-1]["k"] == "end"
        for record in records:
            if record["k"] == "s":
                recorded = record["n"]
                last = records[0]["unix_ns"] / 1e9 + record["t"] / 1e6
    return Kill(
        after_seconds=after,
        true_steps=steps,
        recorded_steps=recorded,
        lost_seconds=killed - last,
        damaged_bytes=damaged,
        said_its_end=ended,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["kill"])
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills = kill_at_random(Path(folder), times=options.times, seed=options.seed)
    lost = sorted(kill.lost_seconds for kill in kills)
    steps = sum(kill.true_steps for kill in kills)
    missing = sum(kill.true_steps - kill.recorded_steps for kill in kills)
    print(
        f"{len(kills)} kills, {steps:,} steps, {missing:,} of them not in the files; seconds lost: "
        f"median {lost[len(lost) // 2]:.2f}, most {lost[-1]:.2f}; "
        f"{sum(kill.damaged_bytes > 0 for kill in kills)} files with damage before their end, "
        f"{sum(kill.said_its_end for kill in kills)} that claim to have ended"
    )
    return int(lost[-1] > 1.0 or any(k.damaged_bytes or k.said_its_end for k in kills))


if __name__ == "__main__":
    sys.exit(main())
