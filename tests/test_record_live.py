"""`computeflow record` on training as people write it: scripts in `record_scripts`, unchanged.

Each script prints how many updates it made, and the seconds that it measured itself.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchmarks.live_training import before_other_work

from computeflow.recorder.frames import FrameReader, Record

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "record_scripts"
BUILT = Path(tempfile.gettempdir()) / "computeflow-torch-extensions"
"""DeepSpeed compiles what it needs on a CPU: a minute, once."""
NEAR = 0.1
"""A tenth of what was injected may be elsewhere."""
STEADY = 8
"""Steps after which the model has been found, whatever it is wrapped in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a script told of each rank, and what was recorded of it."""

    truth: dict[int, dict[str, Any]]
    records: dict[int, list[Record]]
    output: str

    def steps(self, rank: int) -> list[Record]:
        return [each for each in self.records[rank] if each["k"] == "s"]

    def rest(self, rank: int) -> list[Record]:
        return [each for each in self.records[rank] if each["k"] == "rest"]

    def events(self, rank: int, what: str) -> list[Record]:
        return [each for each in self.records[rank] if each["k"] == "e" and each["w"] == what]


def record(
    folder: Path,
    script: str,
    *arguments: str,
    ranks: int = 0,
    launcher: bool = True,
    **variables: str,
) -> Recorded:
    environment = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCH_EXTENSIONS_DIR": str(BUILT),
        **variables,
    }
    recorded = [sys.executable, "-m", "computeflow", "record", "--out", str(folder / "run"), "--"]
    launched = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks else []
    running = subprocess.Popen(
        [*recorded, sys.executable, *launched, str(SCRIPTS / script), *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running, before_other_work(running.pid):
        try:
            output = "".join(running.communicate(timeout=240))
        except subprocess.TimeoutExpired:
            running.kill()
            raise
    assert running.returncode == 0, output[-4000:]
    return Recorded(truth=truth_in(output), records=read_records(folder / "run"), output=output)


def truth_in(output: str) -> dict[int, dict[str, Any]]:
    told = [json.loads(line[6:]) for line in output.splitlines() if line.startswith("TRUTH ")]
    return {each.pop("rank"): each for each in told}


def read_records(folder: Path) -> dict[int, list[Record]]:
    records = {}
    for path in sorted(folder.glob("rank-*.cfr")):
        with path.open("rb") as file:
            read = list(FrameReader(file).read())
        records[read[0]["rank"]] = read
    return records


def spans_of(step: Record) -> Iterator[tuple[str, int, int]]:
    flat = step["p"]
    for letter, start, length in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        yield letter, start, start + length


def letters_of(step: Record) -> set[str]:
    return {letter for letter, *_ in spans_of(step)} | set(step.get("more", ()))


def seconds_by_letter(steps: list[Record]) -> Counter[str]:
    """Time of each phase; where spans lie inside each other, the innermost counts."""
    total: Counter[str] = Counter()
    for step in steps:
        spans = sorted(spans_of(step), key=lambda span: (span[1], -span[2]))
        for at, (letter, start, end) in enumerate(spans):
            inside = [s for s in spans[at + 1 :] if s[1] >= start and s[2] <= end]
            total[letter] += end - start - union(inside)
    return Counter({letter: time / 1e6 for letter, time in total.items()})


def union(spans: list[tuple[str, int, int]]) -> int:
    covered = reached = 0
    for _, start, end in sorted(spans, key=lambda span: span[1]):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def outside_share(step: Record) -> float:
    """What lies outside of phases, but for the loss (f to b); clipping is part of the update."""
    reached, last, outside = 0, "", 0
    for letter, start, end in sorted(spans_of(step), key=lambda span: span[1]):
        if start > reached and last + letter != "fb":
            outside += start - reached
        if end > reached:
            reached, last = end, letter
    return float((outside + step["d"] - reached) / step["d"])


def usual(values: list[float]) -> float:
    """The lower quartile: other processes of this machine take their time anywhere."""
    return sorted(values)[len(values) // 4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    script: str
    arguments: tuple[str, ...] = ()
    ranks: int = 0
    letters: str = "dfbo"
    """Phases of every steady step."""
    outside: float = 0.1
    """Most of a usual step that may lie outside of its phases."""
    exceptions: int = 0
    """Steady steps that may have a phase less."""
    led_before: int = 0
    """Steps of an optimizer that led until another one turned out to step more often."""

    @property
    def name(self) -> str:
        return "-".join([self.script, *self.arguments])


CASES = [
    Case(script="plain"),
    Case(script="ddp", ranks=4),
    Case(script="fsdp2", ranks=2),
    Case(script="deepspeed_zero", arguments=("1",), ranks=2),
    Case(script="deepspeed_zero", arguments=("2",), ranks=2),
    Case(script="deepspeed_zero", arguments=("3",), ranks=2),
    Case(script="hf_trainer", ranks=2),
    Case(script="accelerate_loop", ranks=2),
    Case(script="lightning_fit", arguments=("2",), ranks=2, outside=0.3),  # its own loop
    Case(script="lightning_fit", arguments=("1", "manual")),
    Case(script="accumulation"),
    Case(script="gan", arguments=("1",), outside=0.2),
    Case(script="gan", arguments=("5",), letters="fbo", outside=0.2, led_before=1),
    Case(script="scaler", exceptions=2),  # skipped: no optimizer steps
    Case(script="lbfgs"),
    Case(script="in_backward"),
    Case(script="by_hand", letters="dfb", outside=0.6),  # its updates are in no phase
    Case(script="evaluation"),
    Case(script="evaluation", arguments=("no-grad",)),
    Case(script="trains_in_eval", exceptions=1),  # an evaluation, until its backward
    Case(script="saving", outside=0.2),  # copies its weights in every step, outside of any phase
    Case(script="slow_parts", arguments=("0",)),
    Case(script="slow_parts", arguments=("2",)),
    Case(script="two_phases"),
    Case(script="sweep", exceptions=2),  # the first step of each model
]


LONG = ("deepspeed_zero", "lbfgs", "two_phases", "sweep", "by_hand")


def _with_mark(case: Case) -> Any:
    marks = pytest.mark.long if case.script in LONG or case.arguments in (("5",), ("2",)) else ()
    return pytest.param(case, marks=marks, id=case.name)


@pytest.mark.parametrize("case", [*map(_with_mark, CASES)])
def test_steps_are_counted_and_phases_known(case: Case, tmp_path: Path) -> None:
    run = record(tmp_path, f"{case.script}.py", *case.arguments, ranks=case.ranks)
    assert sorted(run.records) == sorted(run.truth) == list(range(max(1, case.ranks)))
    for rank, truth in run.truth.items():
        steps = run.steps(rank)
        assert not [each for each in run.records[rank] if each["k"] == "x"]
        assert len(steps) - case.led_before == truth["updates"] > STEADY
        assert [each["n"] for each in steps] == list(range(1, len(steps) + 1))
        missing = [each for each in steps[STEADY:] if not set(case.letters) <= letters_of(each)]
        assert len(missing) <= case.exceptions, missing
        assert usual([outside_share(each) for each in steps[STEADY:]]) < case.outside
        seconds = seconds_by_letter(steps + run.rest(rank))
        for letter in "cdgv":
            if letter in truth:
                assert seconds[letter] == pytest.approx(truth[letter], rel=NEAR), (letter, seconds)
        assert len(run.events(rank, "skipped-step")) == truth.get("skipped", 0)
        if "v" not in truth:
            assert not seconds["v"]


WAYS = [
    *("module", "step"),
    *(
        pytest.param(way, marks=pytest.mark.long)
        for way in ("in-place", "blocks", "loss", "optimizer")
    ),
]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_compiled_stays_as_it_is(way: str, tmp_path: Path) -> None:
    """No further graphs, graph breaks or recompiles; steps are counted all the same."""
    logs = "recompiles,graph_breaks"
    found = []
    for switch in ("on", "off"):
        folder = tmp_path / switch
        folder.mkdir()
        found.append(
            record(folder, "compiled.py", way, COMPUTEFLOW_RECORDER=switch, TORCH_LOGS=logs)
        )
    on, off = found
    assert not off.records
    assert dynamo_counters(on) == dynamo_counters(off)
    for sign in ("Recompiling", "Graph break"):
        assert on.output.count(sign) == off.output.count(sign)
    steps = on.steps(0)
    assert len(steps) == on.truth[0]["updates"]
    for step in steps[STEADY:]:
        assert set("dfbo") <= letters_of(step), step
    assert "v" in seconds_by_letter(steps)


def dynamo_counters(run: Recorded) -> Any:
    (line,) = [each for each in run.output.splitlines() if each.startswith("DYNAMO ")]
    return json.loads(line[7:])


@pytest.mark.parametrize(
    ("script", "arguments", "saved"),
    [
        ("hf_trainer.py", ("callback",), "out/checkpoint-*"),
        ("lightning_fit.py", ("1", "callback"), "saved/step-*.ckpt"),
    ],
)
def test_a_callback_numbers_steps_and_saves_on_command(
    script: str, arguments: tuple[str, ...], saved: str, tmp_path: Path
) -> None:
    control = tmp_path / "run" / "control"
    control.mkdir(parents=True)
    command = control / "1.json"
    command.write_text(json.dumps({"do": "checkpoint", "step": 10}))
    later = time.time() + 600  # what was written before a process began is not for it
    os.utime(command, (later, later))
    run = record(tmp_path, script, *arguments)
    assert [each["o"] for each in run.steps(0)] == [each["n"] for each in run.steps(0)]
    (answer,) = run.events(0, "command")
    assert answer["text"] == "1.json: done"
    # the command is read within half a second, in which a short step may be done more than ten times
    steps = [int(re.findall(r"[0-9]+", path.name)[-1]) for path in tmp_path.glob(saved)]
    assert any(step >= 10 for step in steps)


@pytest.mark.parametrize("arguments", [(), ("held",)])
def test_models_that_are_not_trained_are_part_of_the_step(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """A teacher that every step asks computes; averaged weights that few steps ask are evaluated."""
    run = record(tmp_path, "teacher.py", *arguments)
    steps = run.steps(0)[STEADY:]
    assert all(letter_count(step, "f") == 3 for step in steps)  # the teacher, and twice the student
    evaluated = [step["n"] for step in steps if letter_count(step, "v")]
    assert evaluated == [11, 21, 31]  # after the update of the step before
    assert usual([outside_share(step) for step in steps]) < 0.1


def letter_count(step: Record, wanted: str) -> int:
    return sum(letter == wanted for letter, *_ in spans_of(step))
