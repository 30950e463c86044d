"""Op timelines: the published what-ifs, a ledger that closes, and nobody named without a cause."""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose_source
from computeflow.errors import InputError
from computeflow.telemetry.op_timelines.op_timeline_source import OpTimelines
from computeflow.telemetry.op_timelines.slowdown import replay
from computeflow.telemetry.op_timelines.timeline_file import read_timeline
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from computeflow.views.sources.op_timelines import tables
from computeflow.views.tables import to_html, to_text

ASKED = SourceRequest(catalog=load_catalog())
SHARED = (
    Path(os.environ.get("COMPUTEFLOW_DATA", "../shared/data")) / "recordings/bytedance_straggler"
)
COLUMNS = ("step", "dp_rank", "stage", "rank", "optype", "start_ts", "duration", "seq_id", "mb_id")
FORWARD, BACKWARD, TRANSFER = 0.1, 0.2, 0.001

Durations = Callable[[str, int, int, int, int], float]
"""Seconds of a computation by direction, step, replica, stage and micro-batch."""


def observe(path: Path) -> SourceReport:
    (found,) = OpTimelines().observe([path], ASKED)
    return found


class Pipeline:
    """One-forward-one-backward on dp x pp workers, run forward in time; a row for each operation."""

    def __init__(self, dp: int, pp: int, batches: int, durations: Durations) -> None:
        self.dp, self.pp, self.batches, self.durations = dp, pp, batches, durations
        self.rows: list[dict[str, Any]] = []

    def program(self, stage: int) -> list[tuple[str, int]]:
        warm = min(self.pp - 1 - stage, self.batches)
        order = [("forward", m) for m in range(warm)]
        for m in range(self.batches - warm):
            order += [("forward", warm + m), ("backward", m)]
        return order + [("backward", m) for m in range(self.batches - warm, self.batches)]

    def step(self, step: int, began: float) -> float:
        ends = [self._replica(step, d, began) for d in range(self.dp)]
        done: list[list[float]] = []
        for stage in range(self.pp):
            last = max(stages[stage] for stages in ends) + (0.02 if self.dp > 1 else 0)
            done.append([last] * self.dp)
            for d in range(self.dp if self.dp > 1 else 0):
                self._row(
                    step,
                    d,
                    stage,
                    "grads-reduce-scatter",
                    ends[d][stage],
                    last - ends[d][stage],
                    0,
                    -1,
                )
        clipped = max(max(row) for row in done) + 0.001
        for stage in range(self.pp):
            for d in range(self.dp):
                at = done[stage][d]
                self._row(step, d, stage, "optimizer-clip-main-grad", at, clipped - at, 0, -1)
                self._row(step, d, stage, "optimizer", clipped, 0.01, 0, -1)
        return clipped + 0.01

    def _replica(self, step: int, d: int, began: float) -> list[float]:
        sent: dict[tuple[str, int, int], float] = {}
        free = [began] * self.pp
        left = [self.program(stage) for stage in range(self.pp)]
        while any(left):
            for stage in range(self.pp):
                while left[stage] and self._ready(stage, *left[stage][0], sent):
                    direction, m = left[stage].pop(0)
                    self._run(step, d, stage, direction, m, sent, free, began)
        return free

    def _source(self, stage: int, direction: str) -> int:
        return stage - 1 if direction == "forward" else stage + 1

    def _ready(self, stage: int, direction: str, m: int, sent: dict[Any, float]) -> bool:
        source = self._source(stage, direction)
        return not 0 <= source < self.pp or (direction, source, m) in sent

    def _run(
        self,
        step: int,
        d: int,
        stage: int,
        direction: str,
        m: int,
        sent: dict[Any, float],
        free: list[float],
        began: float,
    ) -> None:
        """Run the pipeline; a receive is posted after the previous computation of its direction."""
        source, ready = self._source(stage, direction), free[stage]
        at = sent.get((direction, stage, m - 1), began)
        if direction == "backward" and m == 0:
            early = self.program(stage).index(("backward", 0)) - 2
            at = sent["forward", stage, early] if early >= 0 else began
        if 0 <= source < self.pp:
            done = max(sent[direction, source, m], at) + TRANSFER
            self._row(step, d, stage, f"{direction}-recv", at, done - at, m, -1)
            self._row(
                step,
                d,
                source,
                f"{direction}-send",
                sent[direction, source, m],
                done - sent[direction, source, m],
                m,
                -1,
            )
            ready = max(ready, done)
        at = ready
        took = self.durations(direction, step, d, stage, m)
        self._row(step, d, stage, f"{direction}-compute", at, took, m, m)
        free[stage] = sent[direction, stage, m] = at + took

    def _row(
        self,
        step: int,
        d: int,
        stage: int,
        kind: str,
        start: float,
        took: float,
        number: int,
        batch: int,
    ) -> None:
        self.rows.append(
            dict(
                zip(
                    COLUMNS,
                    (step, d, stage, d * self.pp + stage, kind, start, took, number, batch),
                    strict=True,
                )
            )
        )

    def write(self, path: Path, steps: int = 4, columns: tuple[str, ...] = COLUMNS) -> Path:
        now = 1000.0
        for step in range(steps):
            now = self.step(step, now)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self.rows)
        return path


def even(direction: str, step: int, replica: int, stage: int, batch: int) -> float:
    return FORWARD if direction == "forward" else BACKWARD


def pipeline(
    folder: Path, durations: Durations = even, dp: int = 4, pp: int = 4, **more: Any
) -> Path:
    return Pipeline(dp, pp, 8, durations).write(folder / "trace.csv", **more)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="needs COMPUTEFLOW_DATA")
@pytest.mark.parametrize("name", ["AR", "ST"])
def test_the_published_slowdowns(name: str) -> None:
    pytest.importorskip("duckdb")
    found = replay(read_timeline(SHARED / f"trace-{name}.parquet")).slowdown
    published = json.loads((SHARED / f"result-{name}.json").read_text())
    assert found.slowdown == pytest.approx(published["blocking_slowdown"], rel=1e-6)
    assert dict(found.by_type) == pytest.approx(published["blocking_decompose_by_optype"], rel=1e-6)
    for ours, theirs in ((found.by_stage, "stage"), (found.by_replica, "dp_rank")):
        table = published[f"blocking_decompose_by_{theirs}"]
        assert ours == pytest.approx([table[str(n)] for n in range(len(ours))], rel=1e-6)
    for ours, theirs in (
        (found.recorded, "step_t_base"),
        (found.replayed, "step_t_nodelay"),
        (found.ideal, "step_t_noblk"),
    ):
        assert ours == pytest.approx([published[theirs][str(s)] for s in found.steps], rel=1e-6)
    for part, theirs in ((found.of_slowest, "mw"), (found.of_last_stage, "ms")):
        table = json.loads((SHARED / f"{theirs}-{name}.json").read_text())
        assert part.removed == pytest.approx(table["rem"], rel=1e-6)
        assert part.added == pytest.approx(table["add"], rel=1e-6)
        assert part.removed_seconds == pytest.approx(table["trem"], rel=1e-6)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="needs COMPUTEFLOW_DATA")
def test_one_names_a_worker_the_other_a_stage() -> None:
    pytest.importorskip("duckdb")
    (rank,) = diagnose_source(observe(SHARED / "trace-AR.parquet")).findings
    assert (rank.rule, rank.ranks) == ("straggler-rank", (0,))
    (stage,) = diagnose_source(observe(SHARED / "trace-ST.parquet")).findings
    assert (stage.rule, stage.ranks) == ("straggler-stage", (6, 7))
    assert rank.gpu_seconds == pytest.approx(
        64 * 44 * (46.33637259691022 - 23.44582316843448), rel=1e-6
    )


def test_the_replay_of_an_even_pipeline_is_itself(tmp_path: Path) -> None:
    found = observe(pipeline(tmp_path))
    slowdown = found.facts.slowdown
    assert slowdown.slowdown == pytest.approx(1.0, abs=1e-6)
    assert slowdown.step_seconds == pytest.approx(slowdown.recorded_seconds, rel=1e-6)
    assert diagnose_source(found).findings == ()
    ledger = found.ledger
    assert ledger is not None
    work = 8 * (FORWARD + BACKWARD)
    assert ledger.booked("compute") == pytest.approx(4 * 16 * work, rel=1e-9)
    # (pp - 1) of pp - 1 + m slots are empty, and what messages take in them
    assert ledger.booked("bubble") == pytest.approx(4 * 16 * 3 * (FORWARD + BACKWARD), rel=0.05)
    assert ledger.booked("unexplained") < 1e-3 * ledger.gpu_seconds
    assert ledger.booked("straggler") + ledger.booked("imbalance") < 1e-3 * ledger.gpu_seconds


def test_a_slow_worker_is_named_and_priced(tmp_path: Path) -> None:
    def slow(direction: str, step: int, replica: int, stage: int, batch: int) -> float:
        return even(direction, step, replica, stage, batch) * (
            1.5 if (replica, stage) == (2, 1) else 1
        )

    found = observe(pipeline(tmp_path, slow))
    (finding,) = diagnose_source(found).findings
    assert (finding.rule, finding.ranks) == ("straggler-rank", (9,))
    normal = observe(pipeline(tmp_path)).facts.slowdown
    lost = (found.facts.slowdown.recorded_seconds - normal.recorded_seconds) * 4 * 16
    assert finding.gpu_seconds == pytest.approx(lost, rel=0.1)  # its mean has the slow one in it
    assert found.ledger is not None
    causes = {e.cause.rank for e in found.ledger.entries if e.cause is not None}
    assert causes == {9}


def test_two_slow_workers_are_both_named(tmp_path: Path) -> None:
    def slow(direction: str, step: int, replica: int, stage: int, batch: int) -> float:
        worse = 1.5 if (replica, stage) in ((2, 1), (0, 3)) else 1
        return even(direction, step, replica, stage, batch) * worse

    (finding,) = diagnose_source(observe(pipeline(tmp_path, slow))).findings
    assert (finding.rule, sorted(finding.ranks)) == ("straggler-rank", [3, 9])


def test_a_long_stage_is_named_but_no_worker(tmp_path: Path) -> None:
    def long(direction: str, step: int, replica: int, stage: int, batch: int) -> float:
        return even(direction, step, replica, stage, batch) * (1.3 if stage == 3 else 1)

    found = observe(pipeline(tmp_path, long))
    (finding,) = diagnose_source(found).findings
    assert (finding.rule, finding.ranks) == ("straggler-stage", (3, 7, 11, 15))
    assert found.ledger is not None
    assert found.ledger.booked("imbalance") > 10 * found.ledger.booked("straggler")


def test_micro_batches_of_unequal_length_name_nobody(tmp_path: Path) -> None:
    def unequal(direction: str, step: int, replica: int, stage: int, batch: int) -> float:
        work = random.Random(f"{step} {replica} {batch}").lognormvariate(0, 0.3)
        return even(direction, step, replica, stage, batch) * work

    found = observe(pipeline(tmp_path, unequal))
    assert found.facts.slowdown.slowdown > 1.1
    assert diagnose_source(found).findings == ()
    assert "no particular worker or stage" in " ".join(found.notes)
    assert found.ledger is not None
    assert found.ledger.booked("imbalance") > 4 * found.ledger.booked("straggler")


def test_jitter_names_nobody_and_is_no_imbalance(tmp_path: Path) -> None:
    def jitter(direction: str, step: int, replica: int, stage: int, batch: int) -> float:
        seed = f"{direction} {step} {replica} {stage} {batch}"
        return even(direction, step, replica, stage, batch) * random.Random(seed).lognormvariate(
            0, 0.3
        )

    found = observe(pipeline(tmp_path, jitter))
    assert diagnose_source(found).findings == ()
    assert found.ledger is not None
    assert found.ledger.booked("straggler") > found.ledger.booked("imbalance")


@pytest.mark.parametrize(("dp", "pp"), [(1, 1), (1, 4), (4, 1), (2, 3)])
def test_every_layout_replays_and_closes(dp: int, pp: int, tmp_path: Path) -> None:
    found = observe(pipeline(tmp_path, dp=dp, pp=pp))
    slowdown = found.facts.slowdown
    assert slowdown.step_seconds == pytest.approx(slowdown.recorded_seconds, rel=1e-6)
    assert found.ledger is not None and found.ledger.gpus == dp * pp
    for step in found.facts.steps:
        assert sum(step.accounts.values()) == pytest.approx(step.wall_seconds * dp * pp, rel=1e-9)


def test_columns_that_can_be_made_up_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    bare = pipeline(tmp_path / "few", columns=COLUMNS[:3] + COLUMNS[4:7])
    assert OpTimelines().recognises(bare, bare.read_bytes()[:65536])
    full = observe(pipeline(tmp_path))
    found = observe(bare)
    assert found.facts.slowdown.step_seconds == pytest.approx(full.facts.slowdown.step_seconds)
    assert found.facts.slowdown.varies_with_work is None


def test_parquet_says_what_csv_says(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path, table = tmp_path / "trace.parquet", pipeline(tmp_path)
    duckdb.connect().execute(
        f"COPY (SELECT * FROM read_csv('{table}')) TO '{path}' (FORMAT parquet)"
    )
    assert OpTimelines().recognises(path, path.read_bytes()[:65536])
    one, other = observe(path).facts.slowdown, observe(table).facts.slowdown
    assert one.step_seconds == pytest.approx(other.step_seconds)
    (tmp_path / "meta.yaml").write_text("tp_size: 4\ndsp_size: 1\n")
    assert observe(path).facts.gpus == 64


def test_a_step_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = pipeline(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-50]) + "\n")
    found = observe(path)
    assert found.facts.slowdown.steps == (0, 1, 2)
    assert "1 of 4 steps" in found.left_out[0]


HEADER = ",".join(COLUMNS)
BROKEN = {
    "no columns": "a,b\n1,2\n",
    "no rows": HEADER + "\n",
    "words": HEADER + "\nx,0,0,0,forward-compute,0,1,0,0\n",
    "nothing": "",
    "not a number": HEADER + "\n0,0,0,0,forward-compute,nan,1,0,0\n",
    "endless": HEADER + "\n0,0,0,0,forward-compute,1e400,1,0,0\n",
    "back in time": HEADER + "\n0,0,0,0,forward-compute,0,-1,0,0\n",
    "short": HEADER + "\n0,0,0\n",
    "unknown": HEADER + "\n0,0,0,0,dance,0,1,0,0\n",
    "no backward": HEADER + "\n0,0,0,0,forward-compute,0,1,0,0\n",
    "huge stage": HEADER + "\n0,0,99999999999,0,forward-compute,0,1,0,0\n",
    "negative": HEADER + "\n0,-1,0,0,forward-compute,0,1,0,0\n",
    "twice": HEADER + "\n" + "0,0,0,0,forward-compute,0,1,0,0\n" * 2,
    "parquet": "PAR1 but not really PAR1",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_ends_in_one_line(name: str, tmp_path: Path) -> None:
    if name == "parquet":
        pytest.importorskip("duckdb")
    path = tmp_path / "trace.csv"
    path.write_text(BROKEN[name])
    with pytest.raises(InputError) as error:
        observe(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_broken_file_among_others_is_left_out(tmp_path: Path) -> None:
    broken = tmp_path / "broken.csv"
    broken.write_text(BROKEN["words"])
    found = OpTimelines().observe([pipeline(tmp_path), broken], ASKED)
    assert len(found) == 1 and "broken.csv" in found[0].left_out[-1]


def test_tables_fit(tmp_path: Path) -> None:
    made = tables(observe(pipeline(tmp_path)))
    text = "\n".join(to_text(table) for table in made)
    assert max(map(len, text.splitlines())) <= 80
    assert all("<table>" in to_html(table) for table in made)
    assert len(made) == 4


def test_the_replay_takes_little(tmp_path: Path) -> None:
    """Scenarios, steps and replicas are lanes of one pass: no loop over any of them."""
    timeline = read_timeline(pipeline(tmp_path, steps=20))
    assert np.prod(timeline.start.shape) == len(timeline.steps) * 4 * len(timeline.pattern.optype)
    assert replay(timeline).slowdown.slowdown == pytest.approx(1.0, abs=1e-6)
