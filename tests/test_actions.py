"""Actions against a fake engine, in memory: journalled first, within limits, never twice, undone.

The fake is `fake_engine`; what a real Slurm does is in test_control_live.py.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from computeflow.actions import controller_lock as controller_locks
from computeflow.actions.control_limits import ControlLimits, read_limits, refusal
from computeflow.actions.controller import Controller, ControlOptions
from computeflow.actions.controller_lock import ClusterLock, controller_lock
from computeflow.actions.engine import EngineError
from computeflow.actions.journal import RETURN_NODE, ActionJournal, ActionRecord, StepRecord
from computeflow.actions.node_returns import approved_return
from computeflow.actions.steps import (
    Drain,
    EngineStep,
    ProbeNode,
    Requeue,
    Resubmit,
    Submit,
    step_data,
)
from computeflow.cli import run as command_line
from computeflow.collection.outputs.snapshots import LiveSnapshot
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store
from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS
from fake_engine import FakeEngine

NODES = 6
LIMITS = ControlLimits(
    max_drains_per_day=3,
    min_healthy_nodes=3,
    min_seconds_between_actions=100.0,
    partitions=("train",),
    accounts=("research",),
)


class KilledError(BaseException):
    """The controller is killed here."""


def action(
    job: str, steps: list[EngineStep], at: float, nodes: tuple[str, ...] = ()
) -> ActionRecord:
    return ActionRecord(
        at=at,
        kind="restart-on-spare",
        state="proposed",
        mode="auto",
        run="run",
        job=job,
        nodes_out=nodes,
        title=f"job {job}",
        steps=tuple(StepRecord(step=step_data(step)) for step in steps),
    )


class KillableJournal(ActionJournal):
    """A journal whose writer may be killed just before it writes: what was done is not noted."""

    kill_in: int | None = None

    def save(self, record: ActionRecord, before: Any = None) -> ActionRecord:
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_in = None
                raise KilledError
        return super().save(record, before)


class World:
    """A fake cluster, a journal in a real store's database, and a controller that can be killed."""

    def __init__(self, folder: Path, limits: ControlLimits = LIMITS) -> None:
        self.engine = FakeEngine.with_nodes(NODES)
        self.engine.on_change = self.changed
        self.state = StateDatabase(folder / "state.sqlite")
        self.journal = KillableJournal(self.state)
        self.limits = limits
        self.kill_in: int | None = None
        self.drained: list[tuple[float, str]] = []
        self.acted: dict[str, list[float]] = {}
        self.controller = self.new_controller()

    def new_controller(self) -> Controller:
        return Controller(
            self.engine,
            self.journal,
            ControlOptions(mode="auto", limits=self.limits, limits_name="test"),
            store="store",
            read=lambda: LiveSnapshot(source="test", taken=self.engine.at),
            now=lambda: self.engine.at,
            say=lambda _: None,
        )

    def changed(self, key: str, step: EngineStep) -> None:
        """Before each change: it must be in the journal already, or be an undoing."""
        number, _, place = key.removeprefix("store-").partition(".")
        record = self.journal.get(int(number))
        assert record.state in ("started", "undoing"), (key, record.state)
        assert record.steps[int(place)].state in ("started", "done", "failed")
        if record.state == "started" and isinstance(step, Drain):
            self.drained.append((self.engine.at, step.node))
            left = self.engine.observe().healthy_nodes - self.engine.nodes[step.node].is_healthy
            healthy = self.engine.nodes[step.node].is_healthy
            assert not healthy or left >= self.limits.min_healthy_nodes
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_in = None
                raise KilledError

    def tick(self) -> None:
        try:
            self.controller.tick()
        except KilledError:
            self.controller = self.new_controller()
        except EngineError:
            pass

    def close(self) -> None:
        self.state.close()


class ActingMachine(RuleBasedStateMachine):
    """Jobs and nodes come, go and fail; the controller is killed before any change."""

    @initialize()
    def begin(self) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.world = World(Path(self.scratch.name))
        for _ in range(2):
            self.world.engine.add_job(2)
        self.undone: list[int] = []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
            self.scratch.cleanup()

    @rule(job=st.integers(0, 3), node=st.integers(0, NODES - 1), new=st.booleans())
    def propose(self, job: int, node: int, new: bool) -> None:
        engine, name = self.world.engine, f"n{node}"
        chosen = sorted(engine.jobs)[job % len(engine.jobs)]
        restart = Resubmit if new else Requeue
        again = restart(job=chosen, exclude=(name,))
        steps: list[EngineStep] = [Drain(node=name, reason="slow"), again]
        active = self.world.journal.all("proposed", "approved", "started", "undoing")
        if not any(each.job == chosen for each in active):
            self.world.journal.add(action(chosen, steps, engine.at, (name,)))

    @rule(node=st.integers(0, NODES - 1), bad=st.booleans())
    def return_node(self, node: int, bad: bool) -> None:
        name, journal = f"n{node}", self.world.journal
        self.world.engine.bad_nodes = frozenset({name} if bad else ())
        if not any(each.nodes_in == (name,) for each in journal.all("approved", "started")):
            journal.add(approved_return(name, at=self.world.engine.at, by="somebody"))

    @rule(seconds=st.sampled_from([1.0, 60.0, 150.0, DAY_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.world.engine.at += seconds

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @rule(calls=st.integers(0, 3))
    def kill(self, calls: int) -> None:
        self.world.kill_in = calls
        self.world.tick()

    @rule(writes=st.integers(0, 6))
    def kill_before_writing(self, writes: int) -> None:
        self.world.journal.kill_in = writes
        self.world.tick()
        self.world.journal.kill_in = None

    @rule(node=st.integers(0, NODES - 1), up=st.booleans())
    def node_changes(self, node: int, up: bool) -> None:
        engine = self.world.engine
        if up:
            engine.nodes[f"n{node}"] = replace(engine.nodes[f"n{node}"], is_up=True)
        elif not engine.is_down:
            engine.fail_node(f"n{node}")

    @rule(down=st.booleans())
    def engine_stops(self, down: bool) -> None:
        self.world.engine.is_down = down

    @rule(refuse=st.sampled_from([frozenset(), frozenset({"requeue"}), frozenset({"drain"})]))
    def engine_refuses(self, refuse: frozenset[str]) -> None:
        self.world.engine.refuses = refuse

    @rule()
    def undo(self) -> None:
        done = self.world.journal.all("done")
        if not done:
            return
        number = done[-1].id
        self.world.journal.move(number, ("done",), "undoing")
        self.world.engine.is_down, self.world.engine.refuses = False, frozenset()
        while self.world.journal.get(number).state == "undoing":
            self.world.tick()
        marks = [f"store-{number}.{place}" for place in range(2)]
        left = [node.name for node in self.world.engine.nodes.values() if node.reason in marks]
        assert left == []
        alive = [job for job in self.world.engine.jobs.values() if job.comment in marks]
        assert all(job.phase == "failed" for job in alive)

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for at, _ in world.drained:
            today = [each for each, _ in world.drained if at - DAY_SECONDS < each <= at]
            assert len(today) <= world.limits.max_drains_per_day

    @invariant()
    def what_is_done_is_done_to_the_end(self) -> None:
        if not hasattr(self, "world"):
            return
        for record in self.world.journal.all("done"):
            assert {step.state for step in record.steps} == {"done"}
        for record in self.world.journal.all("failed"):
            assert "failed" in {step.state for step in record.steps}

    @invariant()
    def no_node_has_two_jobs(self) -> None:
        if not hasattr(self, "world"):
            return
        jobs = [job for job in self.world.engine.jobs.values() if job.phase == "running"]
        nodes = [node for job in jobs for node in job.nodes]
        assert len(nodes) == len(set(nodes))

    @invariant()
    def nothing_is_done_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        changes = [each for each in self.world.engine.changes if each[1] in ("submit", "requeue")]
        assert len(changes) == len(set(changes))

    @invariant()
    def two_actions_on_a_job_lie_apart(self) -> None:
        if not hasattr(self, "world"):
            return
        begun: dict[str, list[float]] = {}
        for record in self.world.journal.all():
            if record.acted_at is not None and record.job:
                begun.setdefault(record.job, []).append(record.acted_at)
        for moments in begun.values():
            ordered = sorted(moments)
            between = [b - a for a, b in pairwise(ordered)]
            assert all(gap >= LIMITS.min_seconds_between_actions for gap in between)


ActingMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestActing = ActingMachine.TestCase


@pytest.fixture
def world(tmp_path: Path) -> Any:
    world = World(tmp_path)
    yield world
    world.close()


def run(world: World, record: ActionRecord) -> ActionRecord:
    added = world.journal.add(record)
    for _ in range(20):
        world.tick()
    return world.journal.get(added.id)


@given(
    before=st.sets(st.integers(0, NODES - 1)),
    drains=st.lists(st.integers(0, NODES - 1), min_size=1, max_size=3, unique=True),
    returns=st.booleans(),
    submits=st.booleans(),
)
def test_undoing_restores_the_state_that_was_found(
    before: set[int], drains: list[int], returns: bool, submits: bool
) -> None:
    """Nodes with their reasons; a job that was submitted is ended."""
    free = replace(LIMITS, max_drains_per_day=9, min_healthy_nodes=0)
    with tempfile.TemporaryDirectory() as scratch:
        world = World(Path(scratch), free)
        job = world.engine.add_job(1)
        for node in before:
            name = f"n{node}"
            world.engine.nodes[name] = replace(
                world.engine.nodes[name], drained=True, reason="repair"
            )
        found = dict(world.engine.nodes)
        steps: list[EngineStep] = [Drain(node=f"n{node}", reason="slow") for node in drains]
        if returns:
            steps = [ProbeNode(node=f"n{node}") for node in drains]
        if submits:
            steps.append(Submit(script="job.sh", nodes=1))
        done = run(world, action(job.job, steps, 0.0))
        assert done.state == "done"
        world.journal.move(done.id, ("done",), "undoing")
        world.tick()
        assert world.journal.get(done.id).state == "undone"
        assert world.engine.nodes == found
        assert [each.job for each in world.engine.jobs.values() if each.phase == "running"] == [
            job.job
        ]
        world.close()


def test_an_action_is_carried_out_step_by_step(world: World) -> None:
    job = world.engine.add_job(2)
    leave: list[EngineStep] = [
        Drain(node="n0", reason="slow"),
        Requeue(job=job.job, exclude=("n0",)),
    ]
    done = run(world, action(job.job, leave, 0.0, ("n0",)))
    assert done.state == "done"
    assert world.engine.jobs[job.job].nodes == ("n1", "n2")
    assert [word for _, word in world.engine.changes] == ["drain", "requeue", "release"]


def test_a_refused_step_fails_the_action_and_takes_the_drain_back(world: World) -> None:
    job = world.engine.add_job(2)
    world.engine.refuses = frozenset({"requeue"})
    leave: list[EngineStep] = [
        Drain(node="n0", reason="slow"),
        Requeue(job=job.job, exclude=("n0",)),
    ]
    failed = run(world, action(job.job, leave, 0.0, ("n0",)))
    assert (failed.state, failed.note) == ("failed", "requeue: refused")
    assert not world.engine.nodes["n0"].drained
    assert world.engine.jobs[job.job].nodes == ("n0", "n1")


def test_a_node_that_was_drained_before_stays_so_after_undoing(world: World) -> None:
    world.engine.nodes["n5"] = replace(world.engine.nodes["n5"], drained=True, reason="repair")
    job = world.engine.add_job(1)
    done = run(world, action(job.job, [Drain(node="n5", reason="slow")], 0.0, ("n5",)))
    world.journal.move(done.id, ("done",), "undoing")
    world.tick()
    assert world.journal.get(done.id).state == "undone"
    assert world.engine.nodes["n5"].reason == "repair"


def test_a_drained_node_returns_when_a_probe_accepts_it(tmp_path: Path) -> None:
    world = World(tmp_path, replace(LIMITS, return_after_seconds=600.0))
    job = world.engine.add_job(1)
    drained = run(world, action(job.job, [Drain(node="n5", reason="slow")], 0.0, ("n5",)))
    world.engine.bad_nodes = frozenset({"n5"})
    for moment, states in ((599.0, []), (600.0, ["failed"]), (1199.0, ["failed"])):
        world.engine.at = moment
        world.tick()
        world.tick()
        assert [each.state for each in world.journal.all() if each.kind == RETURN_NODE] == states
    assert world.engine.nodes["n5"].reason == f"store-{drained.id}.0"
    world.engine.bad_nodes, world.engine.at = frozenset(), 1200.0
    world.tick()
    world.tick()
    assert world.journal.all()[-1].state == "done"
    assert world.engine.nodes["n5"].is_spare
    world.close()


def test_a_return_is_undone_by_draining_the_node_as_it_was(world: World) -> None:
    world.engine.nodes["n5"] = replace(world.engine.nodes["n5"], drained=True, reason="repair")
    done = run(world, approved_return("n5", at=0.0, by="somebody"))
    assert (done.state, world.engine.nodes["n5"].drained) == ("done", False)
    world.journal.move(done.id, ("done",), "undoing")
    world.tick()
    assert world.engine.nodes["n5"].reason == "repair"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"max_drains_per_day": 0}, "drains of a day"),
        ({"min_healthy_nodes": 6}, "healthy nodes would be left"),
        ({"partitions": ("debug",)}, "partition train"),
        ({"accounts": ("other",)}, "account research"),
        ({"stop_file": __file__}, "stopped"),
    ],
)
def test_what_is_beyond_a_limit_waits_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    world = World(tmp_path, replace(LIMITS, **changes))
    job = world.engine.add_job(1)
    waiting = run(world, action(job.job, [Drain(node="n1", reason="slow")], 0.0, ("n1",)))
    assert waiting.state == "proposed"
    assert why in waiting.note
    assert world.engine.changes == []
    world.close()


def test_a_drain_counts_from_when_it_is_done_and_while_it_is_under_way(tmp_path: Path) -> None:
    """One that began yesterday and ends today is one of today's."""
    world = World(tmp_path, replace(LIMITS, max_drains_per_day=1, min_seconds_between_actions=0.0))
    first, second = world.engine.add_job(1), world.engine.add_job(1)
    drain = Drain(node="n4", reason="slow")
    begun = action(first.job, [drain], 0.0, ("n4",))
    steps = (replace(begun.steps[0], state="started", began=0.0),)
    late = world.journal.add(replace(begun, state="started", steps=steps))
    next_one = action(second.job, [Drain(node="n5", reason="slow")], 0.0, ("n5",))
    for ended in (None, DAY_SECONDS):
        kept = replace(late, steps=(replace(steps[0], ended=ended),))
        why = refusal(
            world.limits,
            next_one,
            state=world.engine.observe(),
            past=[replace(kept, state="started" if ended is None else "done")],
            now=DAY_SECONDS + 60,
        )
        assert "drains of a day" in why
    world.close()


def test_a_misspelt_limit_is_named_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("max_drains_per_dya = 2\n")
    with pytest.raises(InputError, match="unknown field 'max_drains_per_dya'; nearest: max_drains"):
        read_limits(file)


def test_a_decision_on_a_closed_finding_is_void(world: World) -> None:
    job = world.engine.add_job(1)
    record = action(job.job, [Drain(node="n1", reason="slow")], 0.0, ("n1",))
    void = run(world, replace(record, findings=("abc",)))
    assert (void.state, void.note) == ("void", "finding abc is closed")


@pytest.mark.parametrize("name", ["n1;reboot", "$(id)", "-n", "n1 n2", ""])
def test_a_name_that_is_none_reaches_no_command_line(name: str) -> None:
    with pytest.raises(InputError):
        Drain(node=name, reason="slow")
    with pytest.raises(InputError):
        Requeue(job=name)


def cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = command_line([*words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def store(tmp_path: Path) -> Any:
    folder = tmp_path / "store"
    open_store(folder)
    state = StateDatabase(folder / "state.sqlite")
    journal = ActionJournal(state)
    journal.add(action("7", [Drain(node="n1", reason="slow")], 1000.0, ("n1",)))
    yield folder
    state.close()


def test_auto_does_not_start_without_limits(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = cli(capsys, "control", "--store", str(store), "--mode", "auto")
    assert code == 2
    assert "--mode auto needs --limits FILE.toml" in err


def test_limits_with_a_wrong_key_are_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(
        "max_drains_per_day = 1\nmin_healthy_nodes = 1\nmin_seconds_between_actions = 1\n"
        'partitions = ["a"]\naccounts = ["b"]\nmax_drain = 2\n'
    )
    code, _, err = cli(capsys, "control", "--store", str(store), "--limits", str(path))
    assert code == 2
    assert "unknown field 'max_drain'" in err


def test_an_action_is_approved_once_and_by_somebody(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = cli(capsys, "actions", "approve", "1", "--store", str(store), "-o", "json")
    assert code == 0
    approved = json.loads(out)
    assert (approved["state"], approved["approved_by"] != "") == ("approved", True)
    code, _, err = cli(capsys, "actions", "approve", "1", "--store", str(store))
    assert (code, "action 1 is approved: only proposed can become approved" in err) == (2, True)
    code, _, err = cli(capsys, "actions", "undo", "1", "--store", str(store))
    assert (code, "only done can become undoing" in err) == (2, True)
    assert cli(capsys, "actions", "dismiss", "1", "--store", str(store))[0] == 0


@pytest.mark.parametrize("words", [("list",), ("show", "1"), ("report",)])
def test_the_journal_is_shown(
    store: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, out, _ = cli(capsys, "actions", *words, "--store", str(store))
    assert code == 0
    assert out.strip()


def test_an_action_that_is_not_there_is_said(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(capsys, "actions", "show", "9", "--store", str(store))[0] == 2
    assert cli(capsys, "actions", "list", "--store", str(tmp_path / "none"))[0] == 2


def test_one_controller_has_the_lock_and_a_dead_one_gives_it_up(store: Path) -> None:
    with (
        controller_lock(store),
        pytest.raises(InputError, match="a controller runs already"),
        controller_lock(store),
    ):
        pass
    with controller_lock(store):
        pass


def test_one_controller_acts_on_a_cluster_and_asks_for_its_name_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever their stores; its name may be known only when the engine answers."""
    monkeypatch.setattr(controller_locks, "_FOLDERS", (str(tmp_path),))
    names: list[str] = []

    def lab() -> str:
        names.append("lab vm(127.0.0.1) 20000")
        return names[-1]

    held: list[int] = []
    with ExitStack() as first, ExitStack() as second:
        lock = ClusterLock(lab, held, first)
        lock.take()
        lock.take()
        with pytest.raises(InputError, match=r"cluster lab-vm-127\.0\.0\.1-20000: a controller"):
            ClusterLock(lab, [], second).take()
        ClusterLock(lambda: "another", [], second).take()
    assert (len(held), len(names)) == (1, 2)
    with ExitStack() as third:
        ClusterLock(lab, [], third).take()
