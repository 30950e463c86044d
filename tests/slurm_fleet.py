"""A made fleet: accounting of a real Slurm, with metrics, kernel log and job logs of its nodes.

Jobs only sleep: they stand for training. What their GPUs and nodes did is written here, after the times
that Slurm gave the jobs, with planted faults: so the truth is known. A minute of the plan takes `pace`
seconds; where that is not 60, the exported times are stretched to minutes about the first start.

    python tests/slurm_fleet.py FOLDER --pace 60     # records tests/data/fleet: 40 minutes
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from slurm_lab import GPUS, SlurmLab, sacct, slurm_lab

NODES = 8
FIELDS = (
    "JobID,JobName,User,Account,State,Submit,Eligible,Start,End,Elapsed,AllocTRES,ReqTRES,NodeList"
).split(",")
STEP = 10.0
"""Seconds of a training step."""
SLOWER = 0.3
"""Share by which the clock of the throttled GPU falls."""
THROTTLED = (15.0, 35.0)
"""Minutes from the start of its job."""
THROTTLED_GPU = ("n1", 3)
IDLE_AFTER = 5.0
"""Minutes after which the idle job runs nothing."""
SAVE_EVERY = 60
STARTUP, RESUME = 60.0, 120.0
"""Seconds from a job's start to its first step; and after the requeue."""
XID_BEFORE = 20.0
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_HARDWARE_THERMAL = 0x8 | 0x40


@dataclass(frozen=True)
class Planned:
    """A job of the plan: when it is submitted and how long it sleeps, in minutes."""

    minute: float
    name: str
    minutes: float
    options: tuple[str, ...]
    user: str = "root"
    gpus: int = GPUS
    exit_code: int = 0
    requeue: float | None = None


@dataclass(frozen=True)
class Plan:
    minutes: float
    jobs: tuple[Planned, ...]


_USERS = ("root", "daemon", "nobody")
_SHORT = tuple(
    Planned(5.5 * k, f"short-{k}", 5.0, ("-w", "n7"), user=_USERS[k % 3]) for k in range(7)
)
SICK = Plan(
    40.0,
    (
        Planned(0, "pretrain", 60, ("-N2", "-w", "n[0-1]")),
        Planned(0, "finetune", 60, ("-w", "n2"), user="daemon", requeue=20.0),
        *(
            Planned(
                6.0 * k, f"ablation-{k}", 5.5, ("-w", "n3"), user=_USERS[1 + k % 2], exit_code=1
            )
            for k in range(5)
        ),
        Planned(0, "notebook", 60, ("-w", "n4"), user="nobody"),
        Planned(10, "eval-a", 20, ("-w", "n5"), gpus=4),
        Planned(10, "eval-b", 20, ("-w", "n6"), gpus=4),
        Planned(12, "sweep", 9, ("-N1", "--exclude=n[0-4,7]"), user="daemon"),
        *_SHORT,
    ),
)
HEALTHY = Plan(
    24.0,
    (
        Planned(0, "pretrain", 60, ("-N2", "-w", "n[0-1]")),
        Planned(0, "finetune", 60, ("-w", "n2"), user="daemon"),
        *(Planned(6.0 * k, f"ablation-{k}", 5.5, ("-w", "n3"), user="daemon") for k in range(4)),
        Planned(2, "eval-a", 15, ("-w", "n5"), gpus=4),
        *_SHORT[:4],
    ),
)


@dataclass(frozen=True)
class Ran:
    """An attempt as Slurm accounted for it."""

    job: str
    name: str
    state: str
    eligible: float
    start: float
    end: float | None
    gpus: int
    nodes: tuple[str, ...]

    def gpus_on(self, node: str) -> int:
        return self.gpus // len(self.nodes) if node in self.nodes else 0


@dataclass(frozen=True)
class Exported:
    jobs: str
    nodes: str
    end: float
    ran: tuple[Ran, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ran", tuple(_ran(self.jobs)))

    @property
    def start(self) -> float:
        return min(one.start for one in self.ran)

    def named(self, name: str) -> list[Ran]:
        return [one for one in self.ran if one.name == name]


def run_plan(lab: SlurmLab, plan: Plan, pace: float) -> Exported:
    """Live the plan on a Slurm, and export it while its last jobs run."""
    began = time.time()
    todo: list[tuple[float, Callable[[], None]]] = []
    for planned in plan.jobs:
        todo.append((planned.minute, _submitter(lab, planned, pace, todo)))
    while todo:
        todo.sort(key=lambda item: item[0])
        minute, act = todo.pop(0)
        time.sleep(max(began + minute * pace - time.time(), 0.0))
        act()
    time.sleep(max(began + plan.minutes * pace - time.time(), 0.0))
    nodes = lab.run("scontrol", "show", "node").replace(socket.gethostname(), "host")
    exported = Exported(sacct(lab, FIELDS, began - 60), _plain(nodes), time.time())
    factor = 60.0 / pace
    if factor == 1.0:
        return exported
    origin = exported.start
    return Exported(
        _stretched(exported.jobs, origin, factor),
        exported.nodes,
        origin + factor * (exported.end - origin),
    )


def _submitter(
    lab: SlurmLab, planned: Planned, pace: float, todo: list[tuple[float, Callable[[], None]]]
) -> Callable[[], None]:
    def submit() -> None:
        job = lab.submit(
            f"sleep {planned.minutes * pace:.2f}; exit {planned.exit_code}",
            f"--gpus-per-node={planned.gpus}",
            f"--job-name={planned.name}",
            *planned.options,
            user=planned.user,
        )
        if planned.requeue is not None:
            todo.append((planned.requeue, lambda: _requeue(lab, job)))

    return submit


def _requeue(lab: SlurmLab, job: str) -> None:
    """As if the job had crashed: Slurm puts it back and starts it again."""
    lab.run("scontrol", "requeue", job)
    lab.until("requeue", "squeue", "-h", "-j", job, "-o", "%T", says="PENDING")
    lab.run("scontrol", "update", f"jobid={job}", "StartTime=now")


def _plain(nodes: str) -> str:
    """Without the machine that the nodes pretend to be."""
    lines = [line for line in nodes.splitlines() if "OS=" not in line and "Boot" not in line]
    return "\n".join(lines) + "\n"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _stretched(jobs: str, origin: float, factor: float) -> str:
    """The export with every time and duration longer by a factor."""

    def later(match: re.Match[str]) -> str:
        return _text(origin + factor * (_seconds(match[0]) - origin))

    def longer(match: re.Match[str]) -> str:
        hours, minutes, seconds = map(int, match[1].split(":"))
        whole = round(factor * (3600 * hours + 60 * minutes + seconds))
        return f"|{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}|"

    return re.sub(r"\|(\d\d:\d\d:\d\d)\|", longer, _TIME.sub(later, jobs))


def _ran(jobs: str) -> Iterator[Ran]:
    from computeflow.cluster.topology.hostlist import expand

    head, *lines = jobs.splitlines()
    for line in lines:
        row = dict(zip(head.split("|"), line.split("|"), strict=True))
        if "." in row["JobID"] or row["Start"] in ("Unknown", "None"):
            continue
        yield Ran(
            row["JobID"],
            row["JobName"],
            row["State"],
            _seconds(row["Eligible"]),
            _seconds(row["Start"]),
            None if row["End"] == "Unknown" else _seconds(row["End"]),
            int(re.findall(r"gres/gpu=(\d+)", row["AllocTRES"])[0]),
            tuple(expand(row["NodeList"])),
        )


def write_fleet(folder: Path, exported: Exported, *, sick: bool) -> dict[str, float]:
    """Everything that the fleet recorded, into a folder; and the planted GPU-seconds by rule."""
    folder.mkdir(parents=True)
    (folder / "jobs.txt").write_text(exported.jobs)
    (folder / "nodes.txt").write_text(exported.nodes)
    with gzip.GzipFile(folder / "metrics.prom.gz", "wb", mtime=0) as file:
        file.write("".join(_metrics(exported, sick=sick)).encode())
    (folder / "kernel.log").write_text("".join(_kernel_log(exported, sick=sick)))
    truth = _write_logs(folder, exported, sick=sick)
    return truth | _truth(exported) if sick else truth


def _metrics(exported: Exported, *, sick: bool) -> Iterator[str]:
    """What dcgm-exporter would show every minute, with the job as its label."""
    minute = exported.start
    while minute <= exported.end:
        for node in (f"n{number}" for number in range(NODES)):
            here = [
                one for one in exported.ran if _runs(one, minute, exported) and node in one.nodes
            ]
            for gpu in range(GPUS):
                job, first = None, 0
                for one in here:
                    if first <= gpu < first + one.gpus_on(node):
                        job = one
                    first += one.gpus_on(node)
                yield from _samples(node, gpu, job, minute, sick=sick)
        minute += 60.0


def _runs(one: Ran, moment: float, exported: Exported) -> bool:
    return one.start <= moment < (exported.end + 1 if one.end is None else one.end)


def _samples(node: str, gpu: int, job: Ran | None, moment: float, *, sick: bool) -> Iterator[str]:
    minutes = 0.0 if job is None else (moment - job.start) / 60
    busy = job is not None and not (sick and job.name == "notebook" and minutes >= IDLE_AFTER)
    slow = sick and (node, gpu) == THROTTLED_GPU and THROTTLED[0] <= minutes < THROTTLED[1]
    clock = 1755 - 15 * ((gpu + int(node[1:])) % 2) if busy else 345
    values = {
        "DCGM_FI_DEV_GPU_UTIL": 100 if busy else 0,
        "DCGM_FI_DEV_SM_CLOCK": clock * (1 - SLOWER * slow),
        "DCGM_FI_DEV_POWER_USAGE": (640 - 150 * slow) if busy else 75,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _HARDWARE_THERMAL if slow else 0 if busy else 1,
        "DCGM_FI_DEV_GPU_TEMP": 87 if slow else 58 if busy else 33,
        "DCGM_FI_DEV_FB_USED": 71_000 if job is not None else 0,
    }
    held = "" if job is None else f',hpc_job="{job.job}"'
    labels = f'gpu="{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="{node}"{held}'
    for name, value in values.items():
        yield f"{name}{{{labels}}} {value:g} {moment * 1000:.0f}\n"


def _kernel_log(exported: Exported, *, sick: bool) -> Iterator[str]:
    lines = [
        (
            exported.start + 7 * number,
            f"n{number}",
            "nvidia-nvlink: Nvlink Core is being initialized",
        )
        for number in range(NODES)
    ]
    for one in exported.ran:
        if sick and one.name.startswith("ablation") and one.end is not None:
            text = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"
            lines.append((one.end - XID_BEFORE, "n3", f"{text} the bus."))
    for seconds, node, text in sorted(lines):
        uptime = f"[{seconds - exported.start + 90:12.6f}]"
        yield f"{_text(seconds)}.000000+00:00 {node} kernel: {uptime} {text}\n"


def _write_logs(folder: Path, exported: Exported, *, sick: bool) -> dict[str, float]:
    """Logs of the two long jobs, as torchtitan writes them."""
    truth = {}
    (train,) = exported.named("pretrain")
    log = _Log(train.gpus)
    log.launch(train.start, train.start + STARTUP, 1)
    window = [train.start + 60 * minute for minute in THROTTLED]
    log.steps(
        exported.end,
        lambda now: STEP / (1 - SLOWER) if sick and window[0] <= now < window[1] else STEP,
    )
    log.save(folder / f"slurm-{train.job}.out")
    attempts = exported.named("finetune")
    log = _Log(attempts[0].gpus)
    log.launch(attempts[0].start, attempts[0].start + STARTUP, 1)
    log.steps(attempts[0].end or exported.end, lambda now: STEP)
    for one in attempts[1:]:
        resumed = log.last // SAVE_EVERY * SAVE_EVERY
        crashed, again = attempts[0].end or 0.0, log.last - resumed
        truth["restarts"] = one.gpus * (STEP * again + crashed - log.now + RESUME)
        log.launch(one.start, one.start + RESUME, resumed + 1)
        log.steps(one.end or exported.end, lambda now: STEP)
    log.save(folder / f"slurm-{attempts[0].job}.out")
    return truth


class _Log:
    def __init__(self, gpus: int) -> None:
        self.lines: list[str] = []
        self.gpus, self.now, self.last = gpus, 0.0, 0

    def line(self, seconds: float, text: str) -> None:
        stamp = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
        self.lines.append(f"[titan] {stamp},{seconds % 1 * 1000:03.0f} - root - INFO - {text}\n")

    def launch(self, start: float, ready: float, step: int) -> None:
        mesh = f"pp=1, dp_replicate=1, dp_shard={self.gpus}, cp=1, tp=1, ep=1"
        self.line(start, f"Building device mesh with parallelism: {mesh}")
        self.line(ready, f"Training starts at step {step}")
        self.now, self.last = ready, step - 1

    def steps(self, until: float, seconds: Callable[[float], float]) -> None:
        while self.now + seconds(self.now) <= until:
            self.now += seconds(self.now)
            self.last += 1
            loss = 3 + 9 / self.last
            self.line(self.now, f"step: {self.last:3d}  loss: {loss:8.5f}  memory: 47.5GiB(60.10%)")

    def save(self, path: Path) -> None:
        path.write_text("".join(self.lines))


def _truth(exported: Exported) -> dict[str, float]:
    bad = [one for one in exported.ran if one.name.startswith("ablation")]
    (notebook,), (sweep,) = exported.named("notebook"), exported.named("sweep")
    throttled = 60 * (THROTTLED[1] - THROTTLED[0])
    (train,) = exported.named("pretrain")
    return {
        "failing-node": sum(one.gpus * ((one.end or exported.end) - one.start) for one in bad),
        "idle-allocation": notebook.gpus * (exported.end - notebook.start - 60 * IDLE_AFTER),
        "fragmentation": sweep.gpus * (sweep.start - sweep.eligible),
        "clock-throttle": train.gpus * throttled * SLOWER,
    }


def make_fleet(folder: Path, *, pace: float, sick: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="slurm-lab-") as scratch:
        Path(scratch).chmod(0o755)
        with slurm_lab(Path(scratch) / "lab", NODES) as lab:
            exported = run_plan(lab, SICK if sick else HEALTHY, pace)
    return write_fleet(folder, exported, sick=sick)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pace", type=float, default=60.0, help="seconds of a minute of the plan")
    parser.add_argument("--healthy", action="store_true")
    given = parser.parse_args(arguments)
    truth: Mapping[str, float] = make_fleet(given.folder, pace=given.pace, sick=not given.healthy)
    if truth:
        name = given.folder.with_name("truth.json")
        name.write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
