"""Recordings are compared at equal useful work: what is computed in vain is a loss, not work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import computeflow as cf
from computeflow.auditing.equal_work import (
    FLOPS,
    GPU_SECONDS,
    MODEL_FLOPS,
    RECORDINGS,
    STEPS,
    TOKENS,
    Product,
    WorkDone,
    compare_ledgers,
)
from computeflow.errors import InputError
from computeflow.ledger import Entry, Ledger, PeakFlops, Window
from kineto_maker import Maker

LOG = Path("tests/data/logs/torchtitan.log")
FORWARD, BACKWARD = (2048, 512, 512), (512, 2048, 512)


def record(
    folder: Path,
    products: Mapping[tuple[int, int, int], int],
    *,
    steps: int = 4,
    rank: int = 0,
    length: float = 1000.0,
) -> Path:
    """A device that computes each product so many times in a step; `length` in microseconds."""
    maker = Maker(rank=rank)
    for number in range(steps):
        start = maker.host
        for shape, count in products.items():
            for _ in range(count):
                maker.product(*shape, length)
        maker.host = maker.device - 100.0
        maker.step(number, start)
    folder.mkdir(parents=True, exist_ok=True)
    return maker.write(folder)


def compared(recording: Path, earlier: Path, **options: Any) -> tuple[dict[str, Any], float]:
    """The audit's data, and the change of time against an earlier recording."""
    answer = cf.audit(recording, against=earlier, no_cache=True, **options)
    data = answer.to_dict()
    measured, expected = (
        sum(line[side] for line in data["gaps"]) for side in ("measured", "expected")
    )
    return data, measured / expected - 1


def test_extra_work_in_every_step_is_a_regression(tmp_path: Path) -> None:
    """At equal FLOPs the same recording would be called as good: its extra products are as fast."""
    once = record(tmp_path / "once", {FORWARD: 4, BACKWARD: 4})
    twice = record(tmp_path / "twice", {FORWARD: 8, BACKWARD: 4}, steps=6)
    data, change = compared(twice, once)
    assert data["basis"] == STEPS
    assert change == pytest.approx(0.5, abs=0.02)
    (finding,) = (each for each in data["findings"] if each["rule"] == "regression")
    assert finding["share"] == pytest.approx(1 / 3, abs=0.02)
    back, change = compared(once, twice)
    assert change == pytest.approx(-1 / 3, abs=0.02)
    assert not back["findings"]


def test_extra_work_near_the_peak_is_a_regression(tmp_path: Path) -> None:
    """More of `compute.model` in a step is no more of the model."""
    shapes = (4096, 4096, 4096), (4096, 4096, 4224)
    once = record(tmp_path / "once", dict.fromkeys(shapes, 4), length=172.0)
    twice = record(tmp_path / "twice", {shapes[0]: 8, shapes[1]: 4}, length=172.0)
    data, _ = compared(twice, once)
    grown = {each["account"]: each["share"] for each in data["findings"]}
    assert grown["compute.model"] > 0.2
    assert sum(grown.values()) == pytest.approx(1 / 3, abs=0.02)


def test_extra_work_of_other_shapes_is_a_regression(tmp_path: Path) -> None:
    plain = record(tmp_path / "plain", {FORWARD: 4, BACKWARD: 4})
    extra = record(tmp_path / "extra", {FORWARD: 4, BACKWARD: 4, (64, 64, 64): 2})
    data, change = compared(extra, plain)
    assert data["basis"] == STEPS
    assert change == pytest.approx(0.25, abs=0.02)


def test_more_micro_batches_in_a_step_are_more_tokens(tmp_path: Path) -> None:
    one = record(tmp_path / "one", {FORWARD: 4, BACKWARD: 8})
    two = record(tmp_path / "two", {FORWARD: 8, BACKWARD: 16})
    data, change = compared(two, one)
    assert data["basis"] == TOKENS
    assert change == pytest.approx(0.0, abs=0.02)


def test_another_micro_batch_is_compared_by_flops(tmp_path: Path) -> None:
    small = record(tmp_path / "small", {FORWARD: 4, BACKWARD: 4, (64, 64, 64): 1})
    wide = {(4096, 512, 512): 4, (512, 4096, 512): 4, (64, 64, 64): 1}
    data, change = compared(record(tmp_path / "large", wide), small)
    assert data["basis"] == FLOPS
    assert change == pytest.approx(-0.5, abs=0.02)


def test_the_basis_is_in_the_headline_and_in_the_titles(tmp_path: Path) -> None:
    once = record(tmp_path / "once", {FORWARD: 4, BACKWARD: 4})
    twice = record(tmp_path / "twice", {FORWARD: 8, BACKWARD: 4})
    answer = cf.audit(twice, against=once, no_cache=True)
    assert "Against rank_0.json, at equal steps, it takes 50." in answer.headline
    assert answer.tables()[0].title.endswith("at equal steps")
    titles = [part.title for part in answer.parts()]
    assert any(title.endswith("at equal steps, rank_0.json") for title in titles)


def test_a_baseline_is_compared_at_equal_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    once = record(tmp_path / "once", {FORWARD: 4, BACKWARD: 4})
    twice = record(tmp_path / "twice", {FORWARD: 8, BACKWARD: 4})
    cf.audit(once, baseline="job", no_cache=True)
    assert cf.audit(twice, baseline="job", no_cache=True).to_dict()["basis"] == STEPS
    (file,) = (tmp_path / "computeflow" / "baselines").iterdir()
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({name: kept[name] for name in ("ledger", "steps")}))
    old = cf.audit(twice, baseline="job", no_cache=True).to_dict()
    assert old["basis"] == STEPS
    kept["work"]["steps"] = -1
    file.write_text(json.dumps(kept))
    with pytest.raises(InputError, match="work of -1 steps"):
        cf.audit(twice, baseline="job", no_cache=True)


def test_logs_are_compared_by_their_tokens_and_with_traces_by_shares(tmp_path: Path) -> None:
    data, change = compared(LOG, LOG)
    assert (data["basis"], change) == (TOKENS, 0.0)
    trace = record(tmp_path, {FORWARD: 4, BACKWARD: 4})
    answer = cf.audit(trace, against=LOG, no_cache=True)
    assert answer.to_dict()["basis"] == GPU_SECONDS
    assert "only shares compare" in answer.headline


LEDGER = Ledger.closed(
    [Entry(account="host", gpu_seconds=2.0)],
    gpus=2,
    wall_seconds=4.0,
    basis="measured",
    window=Window(label="a window"),
)
USEFUL = replace(
    LEDGER,
    entries=(
        Entry(account="compute.model", gpu_seconds=2.0),
        Entry(account="compute.kernel", gpu_seconds=6.0),
    ),
    peak=PeakFlops(flops=1e15, precision="bf16"),
)
MATMUL = {"0 forward aten::mm": Product(count=2.0, flops=1e9)}


@pytest.mark.parametrize(
    ("ledger", "one", "other", "basis"),
    [
        (LEDGER, WorkDone(steps=4, tokens=8), WorkDone(steps=2, tokens=8), TOKENS),
        (LEDGER, WorkDone(steps=4, flops=1.0), WorkDone(steps=2, flops=1.0), STEPS),
        (LEDGER, WorkDone(steps=4, products=MATMUL), WorkDone(steps=2), STEPS),
        (LEDGER, WorkDone(flops=1.0), WorkDone(steps=2, flops=1.0), FLOPS),
        (USEFUL, WorkDone(), WorkDone(), MODEL_FLOPS),
        (LEDGER, WorkDone(traced=True), WorkDone(traced=True), RECORDINGS),
        (LEDGER, WorkDone(steps=2, traced=True), WorkDone(steps=2), GPU_SECONDS),
    ],
)
def test_the_basis_is_the_most_useful_work_that_is_known_of_both(
    ledger: Ledger, one: WorkDone, other: WorkDone, basis: str
) -> None:
    assert compare_ledgers(ledger, one, ledger, other)[1] == basis


def test_one_rank_with_extra_work_does_no_more_useful_work(tmp_path: Path) -> None:
    step = {FORWARD: 4, BACKWARD: 4}
    for name, times in (("even", 1), ("uneven", 2)):
        for rank in range(2):
            more = times if rank else 1
            record(
                tmp_path / name, {shape: more * count for shape, count in step.items()}, rank=rank
            )
    data, change = compared(tmp_path / "uneven", tmp_path / "even")
    assert data["basis"] == STEPS
    assert change == pytest.approx(0.5, abs=0.05)
