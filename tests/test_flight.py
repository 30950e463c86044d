"""Flight-recorder dumps: the first culprit, no victim; silence on a healthy job; nothing executed."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks import prove_hangs

from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose_source
from computeflow.errors import InputError
from computeflow.files.limits import FLIGHT_BYTES, FLIGHT_ENTRIES
from computeflow.telemetry.flight_recorder.dump import read_dump
from computeflow.telemetry.flight_recorder.flight_source import Flight, FlightRecorder
from computeflow.telemetry.pickles import unpickle
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from computeflow.views.sources.flight_recorder import tables
from computeflow.views.tables import to_html, to_text

ASKED = SourceRequest(catalog=load_catalog())
ROOT = Path(__file__).parent.parent
HANGS = Path(__file__).parent / "data" / "gloo_hangs"
SHARED = Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data")) / "recordings/flight_recorder"
START = 1_790_000_000_000_000_000  # nanoseconds
TICK = 10_000_000


def observe(*paths: Path) -> SourceReport:
    (found,) = FlightRecorder().observe(paths, ASKED)
    return found


def named(found: SourceReport) -> set[int]:
    return {rank for finding in diagnose_source(found).findings for rank in finding.ranks}


# --- a job of dp x tp x pp ranks, and what goes wrong in it


@dataclass
class Step:
    """One operation of the whole job: a collective of a group, or a message."""

    group: tuple[int, ...]
    name: str
    size: int
    ends: tuple[int, int] | None = None


@dataclass
class Entered:
    step: int
    created: int
    number: int
    """Number among the operations of its kind on its rank."""
    completed: int | None = None


@dataclass
class Job:
    dp: int = 1
    tp: int = 1
    pp: int = 1
    steps: list[Step] = field(default_factory=list)
    stops: dict[int, int] = field(default_factory=dict)
    """The step that each of these ranks never enters."""
    skips: dict[int, int] = field(default_factory=dict)
    swaps: dict[int, int] = field(default_factory=dict)
    """The step that each of these ranks enters after the next one."""
    sizes: dict[int, int] = field(default_factory=dict)
    """The step in which the tensor of each of these ranks is twice as big."""
    deaf: dict[int, int] = field(default_factory=dict)
    """The step from which on each of these ranks sees no completion; it stops three later."""
    period: int = 1
    """Operations of the whole job in a step of training."""
    ahead: int = 1
    """Number of operations by which the host may be ahead of the device."""
    pace: float = 0.3
    """Probability that a rank does not move in a tick."""

    @property
    def world(self) -> int:
        return self.dp * self.tp * self.pp

    def rank(self, d: int, t: int, p: int) -> int:
        return (p * self.dp + d) * self.tp + t

    def groups(self) -> dict[str, tuple[int, ...]]:
        found = {"default_pg": tuple(range(self.world))}
        for p in range(self.pp):
            for d in range(self.dp):
                found[f"tp{p}.{d}"] = tuple(self.rank(d, t, p) for t in range(self.tp))
            for t in range(self.tp):
                found[f"dp{p}.{t}"] = tuple(self.rank(d, t, p) for d in range(self.dp))
        for d in range(self.dp):
            for t in range(self.tp):
                found[f"pp{d}.{t}"] = tuple(self.rank(d, t, p) for p in range(self.pp))
        return {name: ranks for name, ranks in found.items() if len(ranks) > 1}

    def train(self, count: int) -> Job:
        """Steps of training in one order for all ranks: forward, backward, gradients, a norm."""
        at = {ranks: name for name, ranks in reversed(self.groups().items())}
        for _ in range(count):
            for name, back in (("all_reduce", False), ("_all_gather_base", True)):
                for p in sorted(range(self.pp), reverse=back):
                    self._layer(at, p, name)
                    self._pass_on(p, p - 1 if back else p + 1)
            for ranks, group in at.items():
                if group.startswith("dp"):
                    self.steps.append(Step(ranks, "_reduce_scatter_base", 4096))
            if self.world > 1:
                self.steps.append(Step(tuple(range(self.world)), "all_reduce", 1))
        self.period = len(self.steps) // count
        return self

    def _layer(self, at: dict[tuple[int, ...], str], p: int, name: str) -> None:
        for ranks, group in at.items():
            if group.startswith(f"tp{p}."):
                self.steps += [Step(ranks, name, 1024), Step(ranks, "broadcast", 16)]

    def _pass_on(self, p: int, then: int) -> None:
        if 0 <= then < self.pp:
            for d in range(self.dp):
                for t in range(self.tp):
                    ends = self.rank(d, t, p), self.rank(d, t, then)
                    group = tuple(self.rank(d, t, q) for q in range(self.pp))
                    self.steps.append(Step(group, "message", 512, ends))

    def run(self, ticks: int, random_: random.Random) -> dict[int, list[Entered]]:
        """Each tick a rank may enter its next operation, `ahead` at most before its device; one is
        complete when all its members have entered it and completed what came before.
        """
        program = {
            r: [
                i
                for i, s in enumerate(self.steps)
                if r in (s.ends or s.group) and self.skips.get(r) != i
            ]
            for r in range(self.world)
        }
        for r, swapped in self.swaps.items():
            at = program[r].index(swapped)
            program[r][at : at + 2] = reversed(program[r][at : at + 2])
        log: dict[int, list[Entered]] = {r: [] for r in program}
        counts: dict[tuple[int, tuple[int, ...], tuple[int, int] | None], int] = {}
        done, still = dict.fromkeys(program, 0), 0
        for tick in range(ticks):
            for r, own in program.items():
                at = len(log[r])
                free = at < len(own) and at - done[r] < self.ahead and random_.random() > self.pace
                if free and own[at] < self.stops.get(r, 1 << 30):
                    step = self.steps[own[at]]
                    key = (r, step.group, step.ends)
                    counts[key] = counts.get(key, 0) + 1
                    log[r].append(Entered(own[at], tick, counts[key]))
            while self._complete(program, log, done, tick):
                still = tick
            if tick - still > 60:
                break
        return log

    def _complete(
        self,
        program: dict[int, list[int]],
        log: dict[int, list[Entered]],
        done: dict[int, int],
        tick: int,
    ) -> bool:
        """The k-th operation of a group on one rank meets the k-th on the others."""
        moved = False
        for r in program:
            if done[r] >= len(log[r]):
                continue
            step = self.steps[log[r][done[r]].step]
            members = step.ends or step.group
            number = log[r][done[r]].number
            ready = all(
                done[q] < len(log[q])
                and self._meets(self.steps[log[q][done[q]].step], step)
                and log[q][done[q]].number == number
                for q in members
            )
            if ready:
                for q in members:
                    entry = log[q][done[q]]
                    if entry.step < self.deaf.get(q, 1 << 30):
                        entry.completed = tick
                    done[q] += 1
                moved = True
        return moved

    def _meets(self, one: Step, other: Step) -> bool:
        big = {self.sizes.get(r) for r in (other.ends or other.group)}
        return (
            one.group == other.group
            and one.ends == other.ends
            and one.name == other.name
            and (one.size == other.size)
            and not any(s is not None and self.steps[s] is one for s in big)
        )

    def dumps(
        self,
        log: dict[int, list[Entered]],
        *,
        at: dict[int, int] | None = None,
        active: bool = False,
        backend: str = "nccl",
        leave_out: Sequence[int] = (),
    ) -> dict[int, dict[str, Any]]:
        """Dumps of every rank, at the tick that `at` has for it."""
        found = {}
        for r, entries in log.items():
            if r in leave_out:
                continue
            limit = at[r] if at is not None else 1 << 30
            seen = [e for e in entries if e.created <= limit]
            written = self._entries(r, seen, limit, backend)
            own = {n: ranks for n, ranks in self.groups().items() if r in ranks}
            config = {n: {"name": n, "desc": n, "ranks": str(list(x))} for n, x in own.items()}
            if backend == "gloo":
                config = {"": {"name": "", "desc": "", "ranks": "[]"}}
            found[r] = {
                "version": "2.10",
                "pg_config": config,
                "pg_status": {},
                "entries": [e for e in written if not (active and e["state"] == "completed")],
            }
        return found

    def _entries(
        self, r: int, seen: Sequence[Entered], limit: int, backend: str
    ) -> list[dict[str, Any]]:
        names = {ranks: name for name, ranks in reversed(self.groups().items())}
        ids = [name for name, ranks in self.groups().items() if r in ranks]
        counts: dict[tuple[str, bool], int] = {}
        entries = []
        for record, entered in enumerate(seen):
            step = self.steps[entered.step]
            group = names[step.group]
            key = (group, step.ends is not None)
            counts[key] = counts.get(key, 0) + 1
            title = step.name
            if step.ends is not None:
                here, there = (step.group.index(e) for e in step.ends)
                title = f"send {here}->{there}" if r == step.ends[0] else f"recv {there}<-{here}"
            size = step.size * (2 if self.sizes.get(r) == entered.step else 1)
            done = entered.completed is not None and entered.completed <= limit
            gloo = backend == "gloo"
            if gloo and step.ends is not None:
                continue
            entries.append(
                {
                    "record_id": record,
                    "pg_id": ids.index(group) if gloo else 0,
                    "process_group": (group, group),
                    "collective_seq_id": counts.get((group, False), 0),
                    "p2p_seq_id": 0 if gloo else counts.get((group, True), 0),
                    "op_id": counts.get((group, False), 0) + counts.get((group, True), 0),
                    "profiling_name": f"{backend}:{title}",
                    "time_created_ns": START + entered.created * TICK,
                    "input_sizes": [[size]],
                    "output_sizes": [[size]],
                    "input_dtypes": ["Float"],
                    "output_dtypes": ["Float"],
                    "state": "completed" if done and not gloo else "scheduled",
                    "time_discovered_started_ns": None,
                    "time_discovered_completed_ns": START + (entered.completed or 0) * TICK
                    if done and not gloo
                    else None,
                    "retired": done,
                    "timeout_ms": 600_000,
                    "is_p2p": step.ends is not None,
                    "frames": [
                        {"name": "train", "filename": "loop.py", "line": entered.step % self.period}
                    ],
                }
            )
        return entries


def write(folder: Path, dumps: dict[int, dict[str, Any]], at: dict[int, int] | None = None) -> Path:
    """Write dumps as files, at tick `at` or else ten minutes after the last event."""
    folder.mkdir(parents=True)
    for rank, dump in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(dump, protocol=2))
        last = max((e["time_created_ns"] for e in dump["entries"]), default=START)
        moment = START + at[rank] * TICK if at is not None else last + 600 * 10**9
        os.utime(path, ns=(moment, moment))
    return folder


LAYOUTS = [(4, 1, 1), (2, 2, 2), (4, 2, 2), (2, 4, 2), (1, 2, 4), (8, 2, 1), (2, 1, 3)]


def victims_of(kind: str, job: Job, random_: random.Random) -> set[int]:
    """Plant a fault; returns the ranks to be named."""
    rank = random_.randrange(job.world)
    mine = [i for i, s in enumerate(job.steps) if rank in (s.ends or s.group)]
    step = random_.choice(mine[len(mine) // 3 : -1])
    if kind == "stops":
        job.stops[rank] = step
    elif kind == "two stop":
        other = random_.choice([r for r in range(job.world) if r != rank])
        job.stops |= {rank: step, other: step}
        return {rank, other}
    elif kind == "skips":
        collectives = [i for i in mine if job.steps[i].ends is None and len(job.steps[i].group) > 2]
        job.skips[rank] = random_.choice(collectives[len(collectives) // 3 :])
    elif kind == "swaps":
        pairs = [
            one
            for one, other in pairwise(mine)
            if job.steps[one].ends is None
            and job.steps[other].ends is None
            and job.steps[one].group != job.steps[other].group
        ]
        job.swaps[rank] = random_.choice(pairs[len(pairs) // 3 :]) if pairs else mine[0]
    elif kind == "other size":
        big = [i for i in mine if job.steps[i].ends is None and len(job.steps[i].group) > 2]
        job.sizes[rank] = random_.choice(big[len(big) // 3 :])
    elif kind == "device":
        job.deaf[rank] = mine[max(mine.index(step) - 4, 0)]
        job.stops[rank] = step
    return {rank}


def case(kind: str, seed: int, folder: Path) -> tuple[set[int], set[int], SourceReport]:
    """The planted culprits, and those that were found."""
    random_ = random.Random(f"{kind} {seed}")
    dp, tp, pp = random_.choice(LAYOUTS[1:] if kind == "swaps" else LAYOUTS)
    job = Job(dp, tp, pp, ahead=random_.choice([1, 1, 4, 16])).train(4)
    truth = victims_of(kind, job, random_)
    log = job.run(40 * len(job.steps), random_)
    if kind == "two stop":  # the second may wait for the first, and then it is a victim
        reached = {
            r
            for r in truth
            if [e.step for e in log[r]]
            == [i for i, s in enumerate(job.steps) if r in (s.ends or s.group) and i < job.stops[r]]
            and all(e.completed is not None for e in log[r])
        }
        truth = reached or truth
    gone = list(truth) if kind == "no dump" else []
    if kind == "no dump":
        rank = next(iter(truth))
        mine = [i for i, s in enumerate(job.steps) if rank in (s.ends or s.group)]
        job.stops[rank] = mine[len(mine) // 2]
        log = job.run(40 * len(job.steps), random_)
    active = random_.random() < 0.5
    backend = random_.choice(["nccl", "gloo"]) if kind != "device" else "nccl"
    dumps = job.dumps(log, active=active and backend == "nccl", backend=backend, leave_out=gone)
    found = observe(*sorted(write(folder, dumps).iterdir()))
    return truth, named(found), found


KINDS = ["stops", "two stop", "skips", "swaps", "other size", "device", "no dump"]
SEEDS = 30


FEWEST = {"skips": 0.5, "swaps": 0.1, "device": 0.75}
"""Least share of jobs in which the rank is named, but those that gloo leaves open. Who skips or swaps
in a group of two cannot be told; a device that lags by one collective looks like one in flight.
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_planted_rank_is_named_and_never_a_victim(kind: str, tmp_path: Path) -> None:
    right, open_by_gloo, untold = 0, 0, 0
    for seed in range(SEEDS):
        truth, names, found = case(kind, seed, tmp_path / str(seed))
        assert names <= truth, (seed, found.facts.culprits)
        right += names == truth
        untold += bool(found.facts.untold)
        open_by_gloo += "gloo" in found.facts.untold
    print(f"{kind}: {right} of {SEEDS} named, {untold} cannot tell, {open_by_gloo} because of gloo")
    assert right >= FEWEST.get(kind, 0.95) * (SEEDS - open_by_gloo)


def test_messages_that_wait_for_each_other_are_a_deadlock(tmp_path: Path) -> None:
    job = Job(pp=2, dp=2).train(1)
    log = job.run(500, random.Random(1))
    dumps = job.dumps(log)
    for rank, title in ((0, "recv 0<-1"), (2, "recv 1<-0")):
        last = dumps[rank]["entries"][-1]
        dumps[rank]["entries"].append(
            last
            | {
                "record_id": last["record_id"] + 1,
                "is_p2p": True,
                "state": "scheduled",
                "retired": False,
                "process_group": ("pp0.0", "pp0.0"),
                "profiling_name": f"nccl:{title}",
                "p2p_seq_id": 99,
                "time_discovered_completed_ns": None,
            }
        )
    found = observe(*sorted(write(tmp_path / "job", dumps).iterdir()))
    assert named(found) == set() and "in a circle" in found.facts.untold
    assert {(suspect.rank, suspect.why) for suspect in found.facts.suspects} == {
        (0, "deadlock"),
        (2, "deadlock"),
    }


def healthy(seed: int, folder: Path, *, copied: bool) -> SourceReport:
    """A running job, slow at times, whose ranks dump within some ticks of each other."""
    random_ = random.Random(f"healthy {seed}")
    job = Job(*random_.choice(LAYOUTS), ahead=random_.choice([1, 4, 16]), pace=0.6).train(8)
    log = job.run(100_000, random_)
    moment = random_.randrange(10, max(e.created for own in log.values() for e in own))
    at = {rank: moment + random_.randrange(6) for rank in log}
    dumps = job.dumps(log, at=at, active=random_.random() < 0.3)
    return observe(*sorted(write(folder, dumps, None if copied else at).iterdir()))


def test_a_running_job_has_no_finding_whenever_it_dumps(tmp_path: Path) -> None:
    for seed in range(60):
        found = healthy(seed, tmp_path / str(seed), copied=False)
        assert diagnose_source(found).findings == (), (seed, found.facts.culprits)


def test_a_copied_snapshot_may_look_hung_and_its_ranks_are_those_behind(tmp_path: Path) -> None:
    """A rank one collective late looks like one that stopped there: only the time shows it."""
    found = [healthy(seed, tmp_path / str(seed), copied=True) for seed in range(60)]
    hung = [one for one in found if diagnose_source(one).findings]
    print(f"copied snapshots of running jobs held for hung: {len(hung)} of 60")
    for one in hung:
        late = {c.rank for c in one.facts.culprits if c.why == "never arrived"}
        assert late.isdisjoint(one.facts.waiting)


def test_a_finished_job_has_no_finding(tmp_path: Path) -> None:
    job = Job(2, 2, 2).train(2)
    dumps = job.dumps(job.run(10_000, random.Random(0)))
    found = observe(*sorted(write(tmp_path / "job", dumps).iterdir()))
    assert diagnose_source(found).findings == () and found.facts.waiting == ()


def test_a_kernel_that_does_not_end_is_on_the_rank_that_has_not_started(tmp_path: Path) -> None:
    """All have entered: it is a hang only because something timed out."""
    job = Job(dp=4).train(1)
    dumps = job.dumps(job.run(500, random.Random(0)))
    for rank, dump in dumps.items():
        dump["entries"][-1] |= {
            "state": "scheduled" if rank == 3 else "started",
            "retired": rank < 3,
            "time_discovered_completed_ns": None,
        }
    found = observe(*sorted(write(tmp_path / "timed-out", dumps).iterdir()))
    assert named(found) == {3} and found.facts.culprits[0].why == "not started"
    for dump in dumps.values():
        dump["entries"][-1]["retired"] = False
    running = observe(*sorted(write(tmp_path / "running", dumps).iterdir()))
    assert diagnose_source(running).findings == () and "in flight" in " ".join(running.notes)


# --- real dumps


@pytest.mark.parametrize("case", ["ddp-4-ranks", "fsdp-2-ranks"])
def test_our_own_hangs_name_the_rank_that_slept(case: str) -> None:
    truth = json.loads((HANGS / case / "truth.json").read_text())
    found = observe(*sorted((HANGS / case).glob("rank_*")))
    assert named(found) == {truth["culprit"]}
    facts: Flight = found.facts
    assert facts.ranks == facts.ranks_total == truth["ranks"]
    assert "loop.py" in " ".join(facts.culprits[0].frames)
    assert found.ledger is None and found.ledger_reason


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="needs COMPUTEFLOW_DATA")
@pytest.mark.parametrize(
    ("case", "truth"), [("gpu_error_1st", {12, 14}), ("lock_gil_1st", {9, 14})]
)
def test_the_injected_ranks_are_found_and_no_other(case: str, truth: set[int]) -> None:
    found = observe(*sorted((SHARED / case).glob("_dump_*")))
    assert named(found) == truth
    assert found.facts.ranks == 16


def test_two_jobs_in_two_folders_are_two() -> None:
    paths = sorted(HANGS.glob("*/rank_*"))
    assert [len(o.sources) for o in FlightRecorder().observe(paths, ASKED)] == [4, 2]


def test_a_folder_for_each_node_is_one_job(tmp_path: Path) -> None:
    for path in sorted((HANGS / "ddp-4-ranks").glob("rank_*")):
        folder = tmp_path / ("a" if path.name < "rank_2" else "b")
        folder.mkdir(exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    assert named(observe(*sorted(tmp_path.glob("*/rank_*")))) == {2}


@pytest.mark.parametrize("script", prove_hangs.FITTED + prove_hangs.JUDGING)
def test_no_innocent_rank_is_named_in_recorded_hangs(script: str) -> None:
    verdicts = dict(prove_hangs.judge_script(ROOT / prove_hangs.DATA, script))
    results = {name: verdict.result for name, verdict in verdicts.items()}
    assert len(results) >= 12 and not {"WRONG", "SILENT"} & set(results.values()), results


# --- what gloo leaves out


def gloo_dumps(ranks: int, *lists: Sequence[tuple[str, int]]) -> dict[int, dict[str, Any]]:
    """Dumps of ranks by their (line, messages so far); the last operation of each is pending."""
    dumps = {}
    for rank, steps in enumerate(lists):
        entries = [
            {
                "record_id": index,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": index + 1,
                "p2p_seq_id": 0,
                "op_id": index + 1 + messages,
                "profiling_name": "gloo:all_reduce",
                "time_created_ns": START + index * TICK,
                "input_sizes": [[4]],
                "output_sizes": [[4]],
                "state": "scheduled",
                "retired": index < len(steps) - 1 or len(steps) < max(map(len, lists)),
                "timeout_ms": 600_000,
                "frames": [
                    {
                        "name": "all_reduce",
                        "filename": "/usr/lib/python3.11/site-packages/torch/d.py",
                    },
                    {"name": line, "filename": "/home/me/train.py", "line": 7},
                ],
            }
            for index, (line, messages) in enumerate(steps)
        ]
        dumps[rank] = {
            "version": "2.10",
            "pg_config": {"": {"name": "", "desc": "", "ranks": str(list(range(ranks)))}},
            "entries": entries,
        }
    return dumps


LOOP = [("loss", 0), ("norm", 0)] * 3


def test_a_rank_that_passed_here_before_without_messages_is_named(tmp_path: Path) -> None:
    dumps = gloo_dumps(3, LOOP, LOOP[:-1], LOOP)
    found = observe(*sorted(write(tmp_path / "job", dumps).iterdir()))
    assert named(found) == {1} and not found.facts.untold


@pytest.mark.parametrize(
    ("ahead", "behind"),
    [
        ([("loss", 0), ("norm", 2), ("loss", 2), ("norm", 4)], 3),  # messages on the way
        ([("loss", 0), ("norm", 0)], 1),  # the first time that anyone comes here
    ],
)
def test_a_rank_that_may_wait_for_a_message_is_not_named(
    ahead: list[tuple[str, int]], behind: int, tmp_path: Path
) -> None:
    dumps = gloo_dumps(3, ahead, ahead[:behind], ahead)
    found = observe(*sorted(write(tmp_path / "job", dumps).iterdir()))
    assert named(found) == set() and "no send and recv" in found.facts.untold
    (finding,) = diagnose_source(found).findings
    assert "cannot tell which rank (rank 1 in question)" in finding.title


def test_the_root_of_a_broadcast_is_no_victim_of_who_got_it(tmp_path: Path) -> None:
    """Rank 2 has what rank 0 sent, and rank 1 never came for it: rank 0 waits."""
    ahead = [("loss", 0), ("first", 0), ("second", 0)]
    loop = ahead * 2
    dumps = gloo_dumps(3, loop, loop[:4], loop)
    for rank in (0, 2):
        for entry in dumps[rank]["entries"][-2:]:
            entry |= {"profiling_name": "gloo:broadcast", "retired": rank == 2}
        for entry in dumps[rank]["entries"][1:3]:
            entry["profiling_name"] = "gloo:broadcast"
    for entry in dumps[1]["entries"][1:3]:
        entry["profiling_name"] = "gloo:broadcast"
    assert named(observe(*sorted(write(tmp_path / "job", dumps).iterdir()))) == {1}


def test_an_operation_that_failed_is_not_done(tmp_path: Path) -> None:
    """gloo marks both as retired; a member that never entered it shows which it was."""
    dumps = gloo_dumps(3, LOOP, LOOP[:-1], LOOP)
    for dump in dumps.values():
        dump["entries"][-1]["retired"] = True
    assert named(observe(*sorted(write(tmp_path / "job", dumps).iterdir()))) == {1}


def test_a_rank_without_a_dump_is_named_where_others_wait_for_it(tmp_path: Path) -> None:
    dumps = gloo_dumps(4, LOOP, LOOP, LOOP, LOOP)
    del dumps[3]
    found = observe(*sorted(write(tmp_path / "job", dumps).iterdir()))
    assert named(found) == {3}
    assert "rank 3 left no dump: 3 ranks wait" in diagnose_source(found).findings[0].title


def test_the_line_of_the_user_is_shown_whole(tmp_path: Path) -> None:
    dumps = gloo_dumps(3, LOOP, LOOP[:-1], LOOP)
    found = observe(*sorted(write(tmp_path / "job", dumps).iterdir()))
    text = " ".join("\n".join(to_text(table) for table in tables(found)).split())
    assert "last seen at loss (/home/me/train.py:7)" in text
    assert "the others wait at norm (/home/me/train.py:7)" in text


# --- empty dumps, and dumps of several runs


def test_empty_dumps_say_what_to_set(tmp_path: Path) -> None:
    off = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}
    paths = sorted(write(tmp_path / "job", {0: off, 1: off}).iterdir())
    with pytest.raises(InputError, match=r"ranks 0, 1 are empty.*TORCH_FR_BUFFER_SIZE=0"):
        FlightRecorder().observe(paths, ASKED)


def test_one_empty_dump_cannot_be_blamed(tmp_path: Path) -> None:
    dumps = gloo_dumps(3, LOOP, LOOP, LOOP)
    dumps[1] = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}
    found = observe(*sorted(write(tmp_path / "job", dumps).iterdir()))
    assert named(found) == set() and "the dump of rank 1 is empty" in found.facts.untold


def later(dumps: dict[int, dict[str, Any]], seconds: int) -> dict[int, dict[str, Any]]:
    """The same dumps of a run some seconds later."""
    shift = {"time_created_ns": seconds * 10**9}
    return {
        rank: dump
        | {"entries": [e | {n: e[n] + by for n, by in shift.items()} for e in dump["entries"]]}
        for rank, dump in dumps.items()
    }


def two_runs(folder: Path, first: dict[int, Any], second: dict[int, Any]) -> list[set[int]]:
    """Ranks named in each run, where both left their dumps in one folder."""
    write(folder, first)
    for path in write(folder / "new", second).iterdir():
        free = folder / path.name
        path.rename(folder / f"again_{path.name}" if free.exists() else free)
    (folder / "new").rmdir()
    return [named(o) for o in FlightRecorder().observe(sorted(folder.iterdir()), ASKED)]


def test_attempts_of_one_job_are_kept_apart(tmp_path: Path) -> None:
    first = gloo_dumps(3, LOOP, LOOP[:-1], LOOP)
    second = later(gloo_dumps(3, LOOP[:-1], LOOP, LOOP), 7200)
    assert two_runs(tmp_path / "dumps", first, second) == [{1}, {0}]


def test_ranks_left_by_a_larger_job_are_another_run(tmp_path: Path) -> None:
    large = gloo_dumps(6, *[LOOP] * 4, LOOP[:-1], LOOP)
    left = {rank: dump for rank, dump in large.items() if rank > 2}
    small = later(gloo_dumps(3, LOOP, LOOP[:-1], LOOP), 60)
    assert {1} in two_runs(tmp_path / "dumps", left, small)


def test_an_old_file_of_a_rank_does_not_stand_in_for_it(tmp_path: Path) -> None:
    old = {2: gloo_dumps(3, LOOP, LOOP, LOOP)[2]}
    new = later(gloo_dumps(3, LOOP, LOOP, LOOP), 86_400)
    del new[2]
    assert two_runs(tmp_path / "dumps", old, new)[-1] == {2}


def test_a_second_dump_of_a_process_replaces_the_first(tmp_path: Path) -> None:
    dumps = gloo_dumps(3, LOOP, LOOP[:-1], LOOP)
    early = {0: dumps[0] | {"entries": dumps[0]["entries"][:3]}}
    assert two_runs(tmp_path / "dumps", early, dumps) == [{1}]


# --- forms


def as_json(dump: dict[str, Any]) -> dict[str, Any]:
    """A dump as `dump_json` writes it: status numbers as strings, 0 for no time, no frames."""
    entries = [
        {k: v or 0 if k.startswith("time_discovered") else v for k, v in e.items() if k != "frames"}
        for e in dump["entries"]
    ]
    status = {k: {n: str(x) for n, x in v.items()} for k, v in dump["pg_status"].items()}
    return dump | {"entries": entries, "pg_status": status}


def test_json_and_compressed_dumps_say_the_same(tmp_path: Path) -> None:
    paths = []
    for path in sorted((HANGS / "ddp-4-ranks").glob("rank_*")):
        data = json.dumps(as_json(pickle.loads(path.read_bytes())))  # our own recording
        paths.append(tmp_path / f"{path.name}.json.gz")
        paths[-1].write_bytes(gzip.compress(data.encode()))
        assert FlightRecorder().recognises(paths[-1], data.encode()[:65536])
    assert named(observe(*paths)) == {2}


def test_dumps_of_torch_2_3_have_one_sequence(tmp_path: Path) -> None:
    for rank in range(3):
        entries = [
            {
                "record_id": i,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "seq_id": i + 1,
                "op_id": i,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": START + i,
                "input_sizes": [[4]],
                "output_sizes": [[4]],
                "state": "completed" if i < 3 else "scheduled",
                "retired": i < 3,
            }
            for i in range(3 if rank == 1 else 4)
        ]
        dump = {"version": "1.5", "entries": entries, "pg_config": {"0": {"0": 0, "1": 1, "2": 2}}}
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    assert named(observe(*sorted(tmp_path.iterdir()))) == {1}


def test_a_coalesced_group_is_as_far_as_its_end(tmp_path: Path) -> None:
    """Entries inside a coalesced group never complete by themselves."""
    for rank, title in ((0, "send 0->1"), (1, "recv 1<-0")):
        common = {
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "is_p2p": True,
            "collective_seq_id": 0,
            "input_sizes": [[4]],
            "output_sizes": [[4]],
            "time_created_ns": START,
            "retired": False,
        }
        entries = []
        for k in range(3):
            inside = {"record_id": 2 * k, "p2p_seq_id": k, "profiling_name": f"nccl:{title}"}
            end = {"record_id": 2 * k + 1, "p2p_seq_id": k, "profiling_name": "nccl:coalesced"}
            entries += [
                common | inside | {"state": "scheduled"},
                common | end | {"state": "completed"},
            ]
        dump = {"version": "2.7", "entries": entries, "pg_config": {"0": {"ranks": "[0, 1]"}}}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    assert observe(*sorted(tmp_path.iterdir())).facts.waiting == ()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_12", 12),
        ("nccl_trace_rank_7", 7),
        ("node3_rank_5.pkl", 5),
        ("r4.json", 4),
        ("host-17-rank31", 31),
        ("rank-2.json.gz", 2),
        ("trace.8", 8),
    ],
)
def test_the_rank_is_in_the_name_where_the_content_has_none(
    name: str, rank: int, tmp_path: Path
) -> None:
    data = {"version": "2.10", "pg_config": {"0": {"ranks": str(list(range(64)))}}, "entries": []}
    path = tmp_path / name
    text = json.dumps(data).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert read_dump(path).rank == rank


def test_the_content_tells_the_rank_better_than_the_name(tmp_path: Path) -> None:
    config = {"0": {"ranks": "[0, 1, 2, 3]"}, "1": {"ranks": "[0, 1]"}, "2": {"ranks": "[1, 3]"}}
    path = tmp_path / "trace_9"
    path.write_text(json.dumps({"version": "2.10", "pg_config": config, "entries": []}))
    dump = read_dump(path)
    assert dump.rank == 1 and "the name says rank 9" in dump.notes[0]


def test_tables_fit_and_name_the_culprit() -> None:
    found = observe(*sorted((HANGS / "ddp-4-ranks").glob("rank_*")))
    text = "\n".join(to_text(table) for table in tables(found))
    assert "never arrived" in text and max(map(len, text.splitlines())) <= 80
    assert all("<table>" in to_html(table) for table in tables(found))


# --- hostile files


class Runs:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


def planted_in_a_dump(value: Any, protocol: int) -> bytes:
    dump = {"version": "2.10", "pg_config": {"0": {"ranks": "[0]"}}, "entries": [value]}
    return pickle.dumps(dump, protocol=protocol)


@pytest.mark.parametrize("operation", [b"(", b"]", b"}", b"\x8f", b"\x85", b"\x94"])
def test_a_pickle_of_many_containers_is_refused(
    operation: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these bytes takes up to 232 of memory."""
    monkeypatch.setattr("computeflow.telemetry.pickles.PICKLED_BYTES", 64_000)
    with pytest.raises(InputError, match="its lists take more than"):
        unpickle(b"\x80\x04K\x01" + operation * 1001 + b".", "rank_0")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_runs_anything(protocol: int, tmp_path: Path) -> None:
    import numpy as np

    mark = tmp_path / "executed"
    values = [
        Runs(os.system, f"touch {mark}"),
        Runs(eval, f"open({str(mark)!r}, 'w')"),
        Runs(exec, "import os"),
        np.zeros(3),
        np.float64(1),
        print,
        Path,
        {1, 2}.__class__,
        Runs(getattr, "x", "y"),
        bytearray(b"x"),
        ValueError("x"),
    ]
    path = tmp_path / "rank_0"
    for value in values:
        path.write_bytes(planted_in_a_dump(value, protocol))
        with pytest.raises(InputError):
            read_dump(path)
    assert not mark.exists()


def packed(code: bytes) -> bytes:
    return b"\x80\x04" + code + b"."


BOMBS = {
    "global": packed(b"cos\nsystem\n(S'true'\ntR"),
    "stack global": packed(b"\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R"),
    "instance": packed(b"(S'true'\nios\nsystem\n"),
    "extension": packed(b"\x82\x01"),
    "persistent": b"\x80\x02Pid\n.",
    "memo": packed(b"Nr" + struct.pack("<I", 0x7FFFFFFF)),
    "long memo": packed(b"}" + b"".join(b"r" + struct.pack("<I", 1 << n) for n in range(20, 31))),
    "bytes": packed(b"\x8e" + struct.pack("<Q", 1 << 45) + b"x"),
    "text": packed(b"\x8d" + struct.pack("<Q", 1 << 45) + b"x"),
    "array": packed(b"\x96" + struct.pack("<Q", 1 << 45) + b"x"),
    "long": packed(b"\x8b" + struct.pack("<i", 0x7FFFFFFF) + b"x"),
    "digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "frame": packed(b"\x95" + struct.pack("<Q", 1 << 60)),
    "deep": packed(b"(" * 200_000 + b"l" * 200_000),
    "deep tuple": packed(b")" + b"\x85" * 500_000),
    "laughs": packed(b"]q\x00" + b"(h\x00" * 1 + b"e"),
    "cut": pickle.dumps({"entries": [1, 2, 3]})[:-4],
    "empty": b"",
    "text file": b"\x80 pg_config",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_in_one_line(name: str, tmp_path: Path) -> None:
    import resource

    path = tmp_path / "rank_0"
    path.write_bytes(BOMBS[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError) as error:
        read_dump(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_dump_beyond_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        block = io.BytesIO(b" " * (1 << 20)).getvalue()
        for _ in range((FLIGHT_BYTES >> 20) + 1):
            file.write(block)
    with pytest.raises(InputError, match="more than 64 MiB"):
        read_dump(path)


ODD: list[Any] = [
    [], {}, {"entries": 3}, {"entries": [3]}, {"entries": [], "pg_config": []},
    {"entries": [{"collective_seq_id": []}]}, {"entries": [{"input_sizes": [3]}]},
    {"entries": [{"record_id": "x"}]}, {"pg_config": {"0": {"ranks": "[-1]"}}},
    {"entries": [{"profiling_name": "nccl:send 0->9"}], "pg_config": {"": {"ranks": "[0, 1]"}}},
    {"entries": [{"time_created_ns": "soon"}]}, {"entries": [{"collective_seq_id": 1e400}]},
    {"entries": [{"frames": 3, "process_group": {}}]}, {"entries": [{"input_sizes": 5}]},
    {"entries": [{"input_dtypes": {}}]}, {"pg_config": {"0": {"ranks": 7}}},
]  # fmt: skip


@pytest.mark.parametrize("data", ODD, ids=range(len(ODD)))
def test_odd_content_is_refused_or_read_without_a_traceback(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps(data))
    try:
        read_dump(path)
    except InputError as error:
        assert str(path) in str(error)


def test_one_list_many_times_is_not_many_lists(tmp_path: Path) -> None:
    shape = [1] * 100_000
    path = tmp_path / "rank_0"
    for data in (
        {"entries": [{"input_sizes": [shape] * 100_000}]},
        {"entries": [{"input_sizes": [[1]]}] * (FLIGHT_ENTRIES + 1)},
        {"pg_config": {str(n): {"ranks": shape} for n in range(1000)}},
        {"entries": [{"input_dtypes": ["x"] * 100_000}]},
    ):
        path.write_bytes(pickle.dumps(data))
        with pytest.raises(InputError):
            read_dump(path)


def test_one_broken_dump_does_not_hide_the_others(tmp_path: Path) -> None:
    paths = sorted((HANGS / "ddp-4-ranks").glob("rank_*"))
    broken = tmp_path / "rank_9"
    broken.write_bytes(BOMBS["global"])
    found = FlightRecorder().observe([*paths, broken], ASKED)[0]
    assert named(found) == {2} and "rank_9" in found.left_out[0]
    with pytest.raises(InputError):
        FlightRecorder().observe([broken], ASKED)
