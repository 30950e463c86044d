"""Launch files started for real, written to benchmarks/reports/launchers.md.

A Slurm of four nodes on this machine (fake GPUs; needs root and Debian's slurm-wlm and munge), Open MPI
and Ray run the files that ComputeFlow writes, with a small step of DistributedDataParallel over gloo.
The report says what is not installed. Every process started here is ended here, by its id.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.launchers import LaunchSettings, launchers
from computeflow.prediction.stack import STACKS
from computeflow.workload import Job, Layout

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "launchers.md"
FACTS = load_catalog()
NODES = ("n0", "n1", "n2", "n3")
NODE_GPUS = 2
HOSTILE = 'it\'s $(id) "x"\n#SBATCH'
BIN = Path(sys.executable).parent
STEP = """
import os, socket, sys
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.full((1, 4), float(rank))).sum().backward()
gradient = model.module.weight.grad[0, 0].item()
node = os.environ.get("SLURMD_NODENAME", "here")
told = sys.argv[1] == os.environ["HOSTILE"]
line = f"rank {rank} of {ranks} on {node}, mean of ranks {gradient}, argument whole: {told}"
os.write(1, f"{line}\\n".encode())  # at once: ranks share the stream
torch.distributed.barrier()
os._exit(0)
"""
SLURM_CONF = """\
ClusterName=proof
SlurmctldHost={here}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/ctld
SlurmctldPidFile={folder}/ctld/pid
SlurmdPidFile={folder}/%n/pid
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=2,sched_min_interval=0,batch_sched_delay=0
GresTypes=gpu
AccountingStorageType=accounting_storage/none
NodeName=n[0-3] NodeHostname={here} NodeAddr=127.0.0.1 Port={first}-{last} CPUs=8 RealMemory=64000 \
Gres=gpu:2 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    launcher: str
    done: str
    seconds: float
    lines: tuple[str, ...] = ()


def a_setup(nodes: int) -> Setup:
    """A setup of so many nodes with two GPUs each."""
    cluster = find_cluster("h100-sxm:8", FACTS)
    tier = cluster.tiers[0]
    sizes = (NODE_GPUS,) if nodes == 1 else (NODE_GPUS, NODE_GPUS * nodes)
    tiers = tuple(replace(tier, devices=size) for size in sizes)
    return Setup(
        job=Job(model=FACTS.models["llama-3.1-8b"], global_batch=64, seq_len=4096),
        cluster=replace(cluster, gpus=NODE_GPUS * nodes, tiers=tiers, node_devices=NODE_GPUS),
        layout=Layout(gpus=NODE_GPUS * nodes),
        stack=STACKS["torchtitan"],
    )


def write(folder: Path, launcher: str, nodes: int, terms: LaunchSettings) -> None:
    (folder / "step.py").write_text(STEP)
    command = [sys.executable, str(folder / "step.py"), HOSTILE]
    for name, text in launchers(terms)[launcher].write(a_setup(nodes), command).files.items():
        (folder / name).write_text(text)


def environment(**more: str) -> dict[str, str]:
    path = f"{BIN}:/usr/sbin:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOSTILE": HOSTILE, "OMP_NUM_THREADS": "1"} | more


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def run(line: list[str], folder: Path, env: dict[str, str], seconds: float = 120) -> str:
    done = subprocess.run(
        line,
        cwd=folder,
        env=env,
        text=True,
        timeout=seconds,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{line[0]} ended with {done.returncode}: {done.stdout[-1500:]}")
    return done.stdout


def ranks_in(text: str) -> tuple[str, ...]:
    """Lines that ranks printed, without Ray's prefix."""
    return tuple(
        sorted(line[line.index("rank ") :] for line in text.splitlines() if " of ranks " in line)
    )


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.3)


@contextmanager
def started(lines: list[list[str]], env: dict[str, str]) -> Iterator[None]:
    """Run servers for the length of the block; each leads a process group, which ends with it."""
    quiet = subprocess.DEVNULL
    running: list[subprocess.Popen[bytes]] = []
    try:
        for line in lines:
            running.append(
                subprocess.Popen(line, env=env, stdout=quiet, stderr=quiet, start_new_session=True)
            )
            time.sleep(0.5)
        yield
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    for name in ("munge", "ctld", "dev", *NODES):
        (folder / name).mkdir()
    folder.chmod(0o755)
    munge = folder / "munge"
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o400)
    here, first = socket.gethostname().partition(".")[0], 17100
    ports = {"port": free_port(), "first": first, "last": first + len(NODES) - 1}
    (folder / "slurm.conf").write_text(SLURM_CONF.format(folder=folder, here=here, **ports))
    for gpu in range(NODE_GPUS):
        # Nothing but a name: clones of /dev/null.
        os.mknod(folder / "dev" / f"gpu{gpu}", 0o20666, os.makedev(1, 3))
    devices = f"NodeName=n[0-3] Name=gpu File={folder}/dev/gpu[0-{NODE_GPUS - 1}]\n"
    (folder / "gres.conf").write_text(devices)
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "hosts").write_text(f"127.0.0.1 localhost {here} {' '.join(NODES)}\n")
    # Tasks find nodes by name: an /etc/hosts that only slurmd and its children see.
    bind = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    named = ["unshare", "--mount", "sh", "-c", bind, "sh", str(folder / "hosts")]
    files = {
        "key-file": "key",
        "socket": "munge.sock",
        "pid-file": "pid",
        "log-file": "log",
        "seed-file": "seed",
    }
    paths = [f"--{option}={munge / name}" for option, name in files.items()]
    env = environment(SLURM_CONF=str(folder / "slurm.conf"))
    daemons = [["slurmd", "-D", "-N", node] for node in NODES]
    lines = [["munged", "--force", "--foreground", *paths], ["slurmctld", "-D", "-c"]]
    with started([*lines, *([*named, *daemon] for daemon in daemons)], env):
        until(lambda: idle(folder, env) == len(NODES), 40, "idle nodes")
        yield env


def idle(folder: Path, env: dict[str, str]) -> int:
    listing = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"], env=env, cwd=folder, text=True, capture_output=True
    )
    return listing.stdout.split().count("idle")


def prove_slurm() -> list[Outcome]:
    if os.getuid() or not all(map(shutil.which, ("sbatch", "slurmctld", "munged"))):
        return [
            Outcome(launcher="slurm", done="not run: needs root, slurm-wlm and munge", seconds=0)
        ]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="slurm") as name, slurm(Path(name)) as env:
        folder = Path(name)
        for hosts in ((), ("n2", "n0", "n3")):
            start = time.monotonic()
            nodes = len(hosts) or 2
            write(folder, "slurm", nodes, LaunchSettings(hosts=hosts, port=free_port()))
            tested = run(["sbatch", "--test-only", "job.sbatch"], folder, env).strip()
            version = run(["sbatch", "--version"], folder, env).strip()
            run(["sbatch", "--wait", "--output=out", "job.sbatch"], folder, env)
            lines = ranks_in((folder / "out").read_text())
            (folder / "out").unlink()
            done = f"{version}: `--test-only` says: {tested.partition(': ')[2]}; then the job ran"
            if hosts:
                done += f", placed on {', '.join(hosts)} in this order"
            outcomes.append(judged("slurm", done, start, lines, nodes, hosts))
    return outcomes


def prove_mpirun() -> list[Outcome]:
    if shutil.which("mpirun") is None:
        return [Outcome(launcher="mpirun", done="not run: needs openmpi-bin", seconds=0)]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, "mpirun", 1, LaunchSettings(port=free_port()))
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        lines = ranks_in(run(["bash", "mpirun.sh"], folder, environment(**root)))
        version = run(["mpirun", "--version"], folder, environment()).partition("\n")[0]
    return [judged("mpirun", f"{version}, one node", start, lines, 1)]


def prove_torchrun() -> list[Outcome]:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, "torchrun", 1, LaunchSettings())
        lines = ranks_in(run(["bash", "torchrun.sh"], folder, environment()))
    return [judged("torchrun", "one node", start, lines, 1)]


def prove_ray() -> list[Outcome]:
    if subprocess.run([sys.executable, "-c", "import ray.train"], capture_output=True).returncode:
        return [Outcome(launcher="ray", done="not run: needs ray[train]", seconds=0)]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ray") as name:
        folder = Path(name)
        address = f"127.0.0.1:{free_port()}"
        write(folder, "ray", 1, LaunchSettings(port=free_port()))
        env = environment(RAY_ADDRESS=address, RAY_USAGE_STATS_ENABLED="0")
        head = [
            str(BIN / "ray"),
            "start",
            "--head",
            "--block",
            "--node-ip-address=127.0.0.1",
            f"--port={address.rpartition(':')[2]}",
            "--num-cpus=4",
            f"--num-gpus={NODE_GPUS}",
            "--include-dashboard=false",
            f"--temp-dir={folder}/t",
        ]
        with started([head], env):
            status = [str(BIN / "ray"), "status"]
            until(
                lambda: not subprocess.run(status, env=env, capture_output=True).returncode,
                60,
                "ray",
            )
            lines = ranks_in(run([sys.executable, "ray_train.py"], folder, env, 200))
        version = run([str(BIN / "ray"), "--version"], folder, env).strip()
    return [judged("ray", f"{version}, the driver on one node", start, lines, 1)]


def judged(
    launcher: str,
    done: str,
    start: float,
    lines: tuple[str, ...],
    nodes: int,
    hosts: tuple[str, ...] = (),
) -> Outcome:
    """Check that every rank printed, had the mean of all, got its whole argument, ran in its place."""
    ranks = nodes * NODE_GPUS
    mean = (ranks - 1) / 2
    if len(lines) != ranks:
        raise RuntimeError(f"{launcher}: {len(lines)} of {ranks} ranks spoke")
    for rank, line in enumerate(lines):
        node = f" on {hosts[rank // NODE_GPUS]}," if hosts else " on "
        if node not in line or f"mean of ranks {mean}," not in line or "whole: True" not in line:
            raise RuntimeError(f"{launcher}: {line}")
    return Outcome(launcher=launcher, done=done, seconds=time.monotonic() - start, lines=lines)


def report(outcomes: list[Outcome]) -> str:
    rows = [f"| {o.launcher} | {o.done} | {len(o.lines)} | {o.seconds:.0f} |" for o in outcomes]
    spoken = [f"{o.launcher}: {line}" for o in outcomes for line in o.lines]
    return "\n".join(
        [
            "# Launch files, started",
            "",
            "Written by `python -m benchmarks.prove_launchers`. Manifests of Kubernetes are checked",
            "against the projects' types, not applied to a cluster.",
            "",
            "| launcher | what ran | ranks | seconds |",
            "|---|---|--:|--:|",
            *rows,
            "",
            "```",
            *spoken,
            "```",
            "",
        ]
    )


def main() -> None:
    outcomes: list[Outcome] = []
    for prove in (prove_torchrun, prove_mpirun, prove_slurm, prove_ray):
        outcomes += prove()
        print(outcomes[-1], flush=True)
    REPORT.write_text(report(outcomes))


if __name__ == "__main__":
    main()
