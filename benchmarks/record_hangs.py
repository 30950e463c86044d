"""Record dumps of hangs over gloo: `python -m benchmarks.record_hangs FOLDER [PART...]`.

Every script of `hang_scripts` is run with every kind of hang, by real processes on this machine's CPUs;
PART limits it to cases with this in their name. FOLDER gets, for each case, the dumps and `truth.json`:
what was planted, and when each dump was written; then the cases of each script in one archive. The
trainer's own hangs (`ddp-4-ranks`, `fsdp-2-ranks`) are recorded beside them.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # loaded once, before the ranks are forked
import torch.distributed.fsdp
import torch.distributed.pipelining

from benchmarks.hang_scripts.planted import KINDS, RUNNING, Planted

FITTED = ("ddp", "ddp_accumulating", "ddp_by_hand", "fsdp", "pipeline")
"""Scripts whose verdicts were looked at while the reader was written or repaired."""
JUDGING = (
    "ddp_exchanging",
    "fsdp_accumulating",
    "hsdp",
    "pipeline_replicated",
    "pipeline_schedule",
)
CASE_SECONDS = 40
_STEP = 3
_TRAINER = {
    "ddp-4-ranks": {"ranks": 4, "sharding": "ddp", "culprit": 2, "step": 3},
    "fsdp-2-ranks": {"ranks": 2, "sharding": "fsdp", "culprit": 1, "step": 2},
}
_SMALL = (
    "--layers 2 --hidden 64 --heads 4 --vocab 256 --seq-len 32 --steps 6 --warmup 1 --device cpu "
    "--precision fp32 --hang-seconds 15"
).split()


def plant(script: str, kind: str, ranks: int) -> Planted:
    """The rank differs from case to case; rank 0 saves, and both ends of a pipeline share a group."""
    culprit = (KINDS.index(kind) + 1) % ranks
    if kind in ("save", "subgroup"):
        culprit = 0
    return Planted(kind=kind, culprit=culprit, step=0 if kind == "first" else _STEP)


def record(script: str, kind: str, folder: Path) -> None:
    module = importlib.import_module(f"benchmarks.hang_scripts.{script}")
    planted = plant(script, kind, module.RANKS)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = _free_port()
    processes = []
    for rank in range(module.RANKS):
        child = os.fork()
        if child == 0:
            _run_rank(module, planted, folder, rank, port)
        processes.append(child)
    _wait(processes)
    truth = {
        "script": script,
        "kind": kind,
        "ranks": module.RANKS,
        "culprit": None if kind == RUNNING else planted.culprit,
        "step": planted.step,
    }
    _finish(folder, truth)


def _run_rank(module: object, planted: Planted, folder: Path, rank: int, port: int) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(module.RANKS),  # type: ignore[attr-defined]
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    try:
        module.main(planted, folder)  # type: ignore[attr-defined]
    except BaseException:
        (folder / f"error_{rank}.txt").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def _wait(processes: list[int]) -> None:
    """Wait for all processes; what is stopped, or left after the others, is killed."""
    end = time.monotonic() + CASE_SECONDS
    left = set(processes)
    while left and time.monotonic() < end:
        for process in sorted(left):
            if os.waitpid(process, os.WNOHANG)[0]:
                left.discard(process)
        stopped = [p for p in left if _is_stopped(p)]
        if left and len(stopped) == len(left):
            break
        time.sleep(0.1)
    for process in left:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def record_trainer(folder: Path, ranks: int, sharding: str, culprit: int, step: int) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    fault = f"hang:1:rank={culprit}:step={step}"
    own = ["--sharding", sharding, "--flight-folder", str(folder), "--fault", fault]
    command = [*launch, str(ranks), "-m", "computeflow.lab.trainer", *_SMALL, *own]
    subprocess.run(command, check=False, capture_output=True, timeout=300)
    truth = {"script": "trainer", "kind": "before", "ranks": ranks, "culprit": culprit}
    _finish(folder, truth | {"step": step})


def _finish(folder: Path, truth: dict[str, object]) -> None:
    dumps = sorted(folder.glob("rank_*"))
    written = {path.name: round(path.stat().st_mtime, 3) for path in dumps}
    for path in dumps:
        shorten(path)
    (folder / "truth.json").write_text(json.dumps(truth | {"written": written}) + "\n")
    print(folder.name, *written, flush=True)


def shorten(path: Path) -> None:
    """Shorten file names in the stacks, without where this repository and torch are installed."""
    dump = pickle.loads(path.read_bytes())  # our own file, written a moment ago
    for entry in dump["entries"]:
        for frame in entry.get("frames", []):
            name = frame["filename"]
            for root in ("site-packages", "benchmarks", "src", "lib"):
                if f"/{root}/" in name:
                    kept = f"{root}/" if root != "src" else ""
                    name = kept + name.rpartition(f"/{root}/")[2]
                    break
            frame["filename"] = name
    path.write_bytes(pickle.dumps(dump))


def pack(folder: Path, script: str) -> None:
    """Pack dumps and truths of a script, without what its processes wrote when they failed."""
    with tarfile.open(folder / f"{script}.tar.xz", "w:xz", preset=9) as archive:
        for case in sorted(folder.glob(f"{script}-*")):
            for path in [*sorted(case.glob("rank_*")), case / "truth.json"]:
                archive.add(path, f"{case.name}/{path.name}", filter=_nobody)


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    return member


def main(folder: Path, parts: list[str]) -> int:
    def wanted(name: str) -> bool:
        return not parts or any(part in name for part in parts)

    for script in (*FITTED, *JUDGING):
        for kind in KINDS:
            if wanted(name := f"{script}-{kind}"):
                record(script, kind, folder / name)
        if any(folder.glob(f"{script}-*")):
            pack(folder, script)
    for name, case in _TRAINER.items():
        if wanted(name):
            record_trainer(folder / name, **case)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
