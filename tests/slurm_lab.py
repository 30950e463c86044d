"""A real Slurm on this machine, with nodes that exist by name only: `slurm_lab`.

Debian's packages, one slurmd per node on its own port, GPUs that are clones of /dev/null, slurmdbd on a
MariaDB of its own: what `sacct` says is Slurm's. Everything runs in one folder and is stopped by its
process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "sacct", "munged", "mariadbd", "mariadb-install-db")
"""Programs of the packages slurm-wlm, slurmdbd, munge and mariadb-server."""
GPUS = 8
USERS = ("root", "daemon", "nobody")
_READY_SECONDS = 300
_SLURM_CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock
CredType=cred/munge
SlurmUser=slurm
StateSaveLocation={folder}/ctld
SlurmctldPidFile={folder}/ctld/slurmctld.pid
SlurmdPidFile={folder}/spool/%n/slurmd.pid
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
PriorityType=priority/basic
JobRequeue=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd}
AccountingStoragePass={folder}/munge/munge.sock
AccountingStorageTRES=gres/gpu
KillWait=1
MinJobAge=3600
NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port={first_port}-{last_port} CPUs=64 \
Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=1000000 Gres=gpu:h100:{gpus} State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_DBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock
DbdHost=localhost
DbdPort={dbd}
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/log/slurmdbd.pid
"""
_GRANTS = (
    "CREATE DATABASE slurm_acct_db; CREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm'; "
    "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1'; "
    "CREATE USER 'slurm'@'localhost' IDENTIFIED BY 'slurm'; "
    "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost'"
)


def why_not() -> str:
    """Why no lab can be started here; empty where it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: make system"
    return "" if os.geteuid() == 0 else "slurmd and mariadbd need root to start as their own users"


@dataclass
class SlurmLab:
    folder: Path
    nodes: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """The last process of each name."""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "etc/slurm.conf"), "TZ": "UTC"}

    def run(self, *command: str, check: bool = True, more: Mapping[str, str] | None = None) -> str:
        """The output of a command of Slurm; `more` are variables of its environment."""
        done = subprocess.run(
            command,
            env={**self.environment, **(more or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def submit(self, script: str, *options: str, user: str = "root") -> str:
        """The ID of a job that runs a line of shell."""
        output = ("--output=/dev/null", "--error=/dev/null", "--chdir=/tmp")
        wrap = ("--parsable", f"--uid={user}", *output, *options, f"--wrap={script}")
        return self.run("sbatch", *wrap).strip()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log" / f"{name}.out").open("wb") as log:
            process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        self.daemons[name] = process
        return process

    def start_controller(self) -> None:
        config = f"SLURM_CONF={self.folder}/etc/slurm.conf"
        self.start("slurmctld", "runuser", "-u", "slurm", "--", "env", config, "slurmctld", "-D")

    def start_node(self, name: str) -> None:
        conf = f"{self.folder}/etc/slurm.conf"
        self.start(f"slurmd-{name}", "slurmd", "-D", "-N", name, "-f", conf)

    def until(self, what: str, *command: str, says: str = "") -> None:
        """Wait for a command to succeed, and to say something."""
        end = time.monotonic() + _READY_SECONDS
        while time.monotonic() < end:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, check=False
            )
            if done.returncode == 0 and says in done.stdout:
                return
            time.sleep(0.2)
        raise RuntimeError(f"{what} did not start: {done.stderr.strip() or done.stdout.strip()}")

    def stop(self) -> None:
        """End what was started, each with its own group: all at once, `runuser` takes two seconds."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            running = [process for process in self.processes if process.poll() is None]
            for process in running:
                os.killpg(process.pid, sign)
            until = time.monotonic() + 10
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0.1))


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nothing listens on; processes begin at other places, as
    a lab takes seconds until it listens on all of its own.
    """
    firsts = range(20_000, 30_000, count)
    begin = os.getpid() % len(firsts)
    places: list[int] = [*firsts[begin:], *firsts[:begin]]
    for first in places:
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


def _own(user: str, *paths: Path) -> None:
    for path in paths:
        shutil.chown(path, user)


def _write_files(lab: SlurmLab, port: int, more: str, topology: str) -> None:
    folder = lab.folder
    for name in ("etc", "munge", "ctld", "log", "mysql", "dev"):
        (folder / name).mkdir(parents=True)
    for node in range(lab.nodes):
        (folder / "spool" / f"n{node}").mkdir(parents=True)
    for gpu in range(GPUS):
        os.mknod(folder / "dev" / f"gpu{gpu}", 0o20666, os.makedev(1, 3))
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    (folder / "munge").chmod(0o711)
    (folder / "log").chmod(0o777)
    _own("munge", folder / "munge", folder / "munge" / "key")
    _own("slurm", folder / "ctld")
    _own("mysql", folder / "mysql")
    values = {
        "folder": folder,
        "host": socket.gethostname().partition(".")[0],
        "gpus": GPUS,
        "last": lab.nodes - 1,
        "ctld": port,
        "dbd": port + 1,
        "sql": port + 2,
        "first_port": port + 3,
        "last_port": port + 2 + lab.nodes,
    }
    if topology:
        more += "\nTopologyPlugin=topology/tree\n"
        (folder / "etc/topology.conf").write_text(topology)
    (folder / "etc/slurm.conf").write_text(_SLURM_CONF.format(**values) + more)
    (folder / "etc/slurmdbd.conf").write_text(_DBD_CONF.format(**values))
    (folder / "etc/slurmdbd.conf").chmod(0o600)
    _own("slurm", folder / "etc/slurmdbd.conf")
    gres = f"NodeName=n[0-{lab.nodes - 1}] Name=gpu Type=h100 File={folder}/dev/gpu[0-{GPUS - 1}]\n"
    (folder / "etc/gres.conf").write_text(gres)


def _start(lab: SlurmLab, port: int) -> None:
    folder = lab.folder
    munge = folder / "munge"
    sql = ("--no-defaults", "--user=mysql", f"--datadir={folder}/mysql/data")
    lab.start(
        "munged",
        "runuser",
        "-u",
        "munge",
        "--",
        "munged",
        "--force",
        "--foreground",
        f"--key-file={munge}/key",
        f"--socket={munge}/munge.sock",
        f"--pid-file={munge}/munged.pid",
        f"--log-file={munge}/munged.log",
        f"--seed-file={munge}/seed",
    )
    lab.run("mariadb-install-db", *sql, "--auth-root-authentication-method=normal")
    lab.start(
        "mariadbd",
        "mariadbd",
        *sql,
        f"--socket={folder}/mysql/my.sock",
        f"--pid-file={folder}/mysql/my.pid",
        "--bind-address=127.0.0.1",
        f"--port={port + 2}",
    )
    client = ("mariadb", "--no-defaults", "-S", f"{folder}/mysql/my.sock", "-uroot", "-e")
    lab.until("mariadbd", *client, "SELECT 1")
    lab.run(*client, _GRANTS)
    config = f"SLURM_CONF={folder}/etc/slurm.conf"
    lab.start("slurmdbd", "runuser", "-u", "slurm", "--", "env", config, "slurmdbd", "-D")
    lab.until("slurmdbd", "sacctmgr", "-n", "show", "cluster")
    lab.run("sacctmgr", "-i", "add", "cluster", "lab", check=False)
    lab.run("sacctmgr", "-i", "add", "account", "research")
    for user in USERS:
        lab.run("sacctmgr", "-i", "add", "user", user, "account=research")
    lab.start_controller()
    lab.until("slurmctld", "sinfo", "-h")
    for node in range(lab.nodes):
        lab.start_node(f"n{node}")
    lab.until("nodes", "sinfo", "-h", "-o", "%T=%D", says=f"idle={lab.nodes}")


@contextmanager
def slurm_lab(folder: Path, nodes: int, more: str = "", topology: str = "") -> Iterator[SlurmLab]:
    """A Slurm with so many nodes until the end of the block. `folder` must be open to all users.
    `more` are lines of slurm.conf, `topology` is topology.conf.
    """
    lab = SlurmLab(folder, nodes)
    port = free_ports(nodes + 4)
    _write_files(lab, port, more, topology)
    try:
        _start(lab, port)
        yield lab
    finally:
        for job in lab.run("squeue", "-h", "-o", "%i", check=False).split():
            lab.run("scancel", "--signal=KILL", job, check=False)
        lab.stop()


def sacct(lab: SlurmLab, fields: Sequence[str], since: float) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since))
    return lab.run("sacct", "-a", "-D", "-P", "-S", stamp, f"--format={','.join(fields)}")
