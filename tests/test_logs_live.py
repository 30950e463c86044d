"""Logs that the frameworks themselves write here: styles that are in no file of this repository.

Each is written by `benchmarks.foreign.log_writers` in a process of its own, with the truth beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose_source
from computeflow.telemetry.logs.log_facts import LoggedRun
from computeflow.telemetry.logs.log_source import LogSource
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[1]
LAUNCH = ("-m", "torch.distributed.run", "--nproc-per-node", "4", "-m")
NEAR = 0.1
"""Stated step times leave out what the library does between steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    report: SourceReport
    steps: int
    seconds: float
    """Between steps, the mean."""
    median: float
    loss: float

    def is_near(self, seconds: float | None, near: float = NEAR) -> bool:
        """Whether a step took so long. Logs have means of some steps, which lie between the median and
        the mean of all where the machine stalls for a few of them.
        """
        ends = sorted((self.median, self.seconds))
        return seconds is not None and (1 - near) * ends[0] <= seconds <= (1 + near) * ends[1]

    @property
    def run(self) -> LoggedRun:
        assert isinstance(self.report.facts, LoggedRun)
        return self.report.facts


def written(name: str, folder: Path, *launcher: str) -> Path:
    """The log of a training that runs here; `truth.json` is beside it."""
    log = folder / "train.log"
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "LOGS_FOLDER": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, *(launcher or ("-m",)), "benchmarks.foreign.log_writers", name]
    with log.open("wb") as file:
        subprocess.run(
            [*command, str(folder / "truth.json")],
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=300,
            check=not launcher,
            cwd=ROOT,
            env=environment,
        )
    return log


def observe(path: Path) -> SourceReport:
    source = LogSource()
    assert source.recognises(path, head_of(path)), path.read_text()[-2000:]
    (report,) = source.observe([path], SourceRequest(catalog=load_catalog()))
    return report


def read_back(name: str, folder: Path) -> Written:
    report = observe(written(name, folder))
    truth = json.loads((folder / "truth.json").read_text())
    return Written(report=report, **truth)


def needs(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[live]'")


STYLES = [  # package, writer, learned from the log itself, whether its step time is told
    ("transformers", "trainer", False, True),
    ("transformers", "trainer_without_bars", False, True),
    ("pytorch_lightning", "lightning", False, True),
    ("accelerate", "accelerate_print", True, True),
    ("accelerate", "accelerate_bar", True, True),
    ("keras", "keras", True, True),
    ("ignite", "ignite", True, False),
    ("skorch", "skorch", True, False),
]


@pytest.mark.parametrize(("package", "name", "learned", "timed"), STYLES)
def test_a_framework_writes_and_its_steps_are_read(
    package: str, name: str, learned: bool, timed: bool, tmp_path: Path
) -> None:
    needs(package)
    found = read_back(name, tmp_path)
    assert found.run.steps == found.steps and not found.run.restarts
    assert bool(found.run.learned) is learned
    if timed:
        near = 3 * NEAR if package == "keras" else NEAR  # means since each epoch's start
        assert found.is_near(found.run.step_seconds, near)
        assert found.report.ledger is not None
    else:
        assert found.run.step_seconds is None  # whole seconds, or a duration without a unit
    if package != "transformers":  # its losses are means of five steps
        assert found.run.last_loss == pytest.approx(found.loss, rel=0.01, abs=5e-3)
    assert not diagnose_source(found.report).findings
    for table in tmp_path.rglob("metrics.csv"):  # Lightning's CSVLogger writes it beside the log
        run = observe(table).facts
        assert isinstance(run, LoggedRun) and (run.framework, run.steps) == (
            "Lightning",
            found.steps,
        )


def test_times_of_day_give_the_step_time(tmp_path: Path) -> None:
    needs("accelerate")
    found = read_back("accelerate_log", tmp_path)
    assert (found.run.steps, found.run.last_step) == (90, 90)
    assert found.is_near(found.run.step_seconds)


def test_a_line_for_each_epoch_counts_epochs(tmp_path: Path) -> None:
    needs("keras")
    found = read_back("keras_lines", tmp_path)
    assert (found.run.unit, found.run.steps, found.run.total_steps) == ("epochs", 4, 4)
    assert found.run.step_seconds == pytest.approx(found.seconds * 30, abs=0.6)  # whole seconds
    (line,) = found.run.learned
    unsure = {column.name: column.sure for column in line.columns}
    assert unsure["loss"] and not unsure["mae"]


def test_nano_gpt_states_the_time_of_one_iteration(tmp_path: Path) -> None:
    """Every tenth iteration is logged, with its own time: not that of ten."""
    found = read_back("nano_gpt", tmp_path)
    run = found.run
    assert (run.framework, run.last_step, len(run.evaluations)) == ("nanoGPT", 60, 3)
    assert found.is_near(run.step_seconds, 0.4)  # seven of sixty are logged
    assert run.claimed_mfu == pytest.approx(0.31)


@pytest.mark.parametrize(
    ("name", "code", "signal", "error"),
    [
        ("rank_killed", -9, "SIGKILL", ""),
        ("rank_raises", 1, "", "RuntimeError: the batch has no tokens"),
    ],
)
def test_the_rank_that_torchrun_saw_fail_first_is_the_finding(
    name: str, code: int, signal: str, error: str, tmp_path: Path
) -> None:
    report = observe(written(name, tmp_path, *LAUNCH))
    run = report.facts
    assert isinstance(run, LoggedRun)
    (cause,) = run.root_causes
    assert (cause.rank, cause.exit_code, cause.signal, cause.error) == (2, code, signal, error)
    assert cause.node and cause.after == 4
    (finding,) = diagnose_source(report).findings
    assert (finding.rule, finding.ranks) == ("failed-rank", (2,))
    assert cause.node in finding.title and (signal or error) in finding.title
