"""A run that was started for a plan: steps beyond its range are a finding, live and afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from computeflow.answers.audits import audit
from computeflow.collection.run_facts import read_plan, start_facts
from computeflow.errors import InputError
from computeflow.ledger import Entry, Ledger, Window, ledger_to_data
from live_stream import watch
from run_folder_maker import Training

STEP = 0.102
"""Seconds of a made step."""


def plan(step: float, high: float | None = None, gpus: int = 2) -> dict[str, Any]:
    """What `predict -o json` prints, as far as it is read."""
    ledger = Ledger(
        gpus=gpus,
        wall_seconds=step,
        basis="predicted",
        window=Window(label="one step"),
        entries=(Entry(account="compute.model", gpu_seconds=gpus * step),),
    )
    span = {} if high is None else {"step_seconds_range": [0.9 * step, high]}
    return {"step_seconds": step, "ledger": ledger_to_data(ledger), **span}


def facts(tmp_path: Path, data: Any) -> dict[str, Any]:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    return start_facts(["train"], "run", 0.0, {}, read_plan(path))


def training() -> Training:
    return Training(ranks=2, steps=1_200, jitter=0.03, ends=False)


def test_steps_beyond_the_plan_are_a_finding_of_the_watcher_and_of_audit(tmp_path: Path) -> None:
    about = facts(tmp_path, plan(0.08, high=0.09))
    heard = watch(training().records(), about=about, after=1.0)
    assert [(f.rule, f.ranks) for _, f in heard.opened] == [("regression", ())]
    assert "longer than planned" in heard.opened[0][1].title
    assert heard.opened[0][1].usd is not None
    folder = training().write(tmp_path / "run")
    (folder / "run.json").write_text(json.dumps(about))
    found = audit(folder, no_cache=True).to_dict()["findings"]
    assert [each["rule"] for each in found] == ["regression"]
    assert "plan.json" in found[0]["title"]


@pytest.mark.parametrize(
    "data",
    [plan(STEP), plan(0.08, high=0.11), plan(0.098), plan(0.05, gpus=4), {"plans": [plan(STEP)]}],
    ids=["as planned", "within the range", "4 % longer", "other GPUs", "the first plan"],
)
def test_other_plans_are_none(tmp_path: Path, data: Any) -> None:
    heard = watch(training().records(), about=facts(tmp_path, data), after=1.0)
    assert heard.opened == []


@pytest.mark.parametrize("stated", [None, 3, {"gpus": 2}, {"step_seconds": -1.0}, {"accounts": 1}])
def test_what_is_no_plan_in_a_batch_is_left_out(stated: Any) -> None:
    heard = watch(training().records(), about={"expected": stated}, after=1.0)
    assert heard.opened == []


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[1]")
    with pytest.raises(InputError, match=r"plan\.json"):
        read_plan(path)
