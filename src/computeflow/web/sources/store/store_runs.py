"""`StoreOpening`: a collector's runs, findings, nodes and actions (SQLite), and its steps (Parquet)."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

from computeflow.answers.action_lists import ActionsAnswer, list_actions
from computeflow.answers.audits import AuditAnswer
from computeflow.answers.live_tops import TopAnswer
from computeflow.collection.online.live_values import LiveRun
from computeflow.collection.outputs.snapshots import STATE_FILE, read_store
from computeflow.collection.store.segments import day_of
from computeflow.diagnosis.rules.live_states import SILENT_SECONDS
from computeflow.economics import usd_per_hour
from computeflow.units import DAY_SECONDS
from computeflow.web.sources.opening import AuditOptions, Kind, RunLine, Table
from computeflow.web.sources.reading_curves import ReadingCurves
from computeflow.web.sources.remembered import Remembered, file_stamp
from computeflow.web.sources.step_spans import StepSpans
from computeflow.web.sources.store.journal_rows import JournalRows
from computeflow.web.sources.store.sound_segments import SoundSegments
from computeflow.web.sources.store.step_cells import CellReader, StepCells
from computeflow.web.sources.store.stored_readings import MeteredRun, StoredReadings
from computeflow.web.sources.store.stored_steps import AROUND, AskedStep, stored_spans

_LAST_DAY = 250_000_000_000.0
"""Unix time at which years end to be written with four digits."""
_FILES = (STATE_FILE, f"{STATE_FILE}-wal")


class StoreOpening:
    kind: Kind = "store"

    def __init__(self, path: Path, options: AuditOptions) -> None:
        self.path, self._options = path, options
        self._remembered = Remembered()
        self._journal = JournalRows(path / "journal")
        self._sound = SoundSegments(path)
        self._readings = StoredReadings()

    def revision(self) -> Hashable:
        """The files, and how many nodes and runs have fallen silent since, which changes no file."""
        snapshot = self._read().snapshot
        heard = [node.last_seen for node in snapshot.nodes]
        heard += [run.updated for run in snapshot.runs if run.state != "ended"]
        return self._written(), bisect_left(sorted(heard), time.time() - SILENT_SECONDS)

    def runs(self) -> list[RunLine]:
        snapshot = self.top().snapshot
        latest = sorted(snapshot.runs, key=lambda run: -run.updated)
        return [self._line(run, snapshot.silent.get(run.run)) for run in latest]

    def runs_answer(self) -> TopAnswer:
        return self.top()

    def audit(self, run: str) -> AuditAnswer | None:
        return None

    def top(self) -> TopAnswer:
        return self._remembered.get("top", self.revision(), self._top_now)

    def _top_now(self) -> TopAnswer:
        answer = self._read()
        return replace(answer, snapshot=answer.snapshot.shown_at(time.time()))

    def _read(self) -> TopAnswer:
        return self._remembered.get("read", self._written(), self._read_now)

    def _read_now(self) -> TopAnswer:
        return TopAnswer(snapshot=read_store(self.path).priced(self._options.price))

    def _written(self) -> Hashable:
        return tuple(file_stamp(self.path / name) for name in _FILES)

    def actions(self) -> ActionsAnswer:
        return self._remembered.get(
            "actions", self.revision(), lambda: list_actions(store=self.path)
        )

    def steps(self, run: str) -> StepCells | None:
        return self._remembered.get(("steps", run), self._taken(), lambda: self._steps(run))

    def spans(self, run: str, step: int, most: int, attempt: int | None = None) -> StepSpans | None:
        asked = AskedStep(run=run, step=step, attempt=attempt, most=most)
        unsealed = self._journal.spans(run, step, AROUND)
        return self._sound.ask(
            ("spans", "leads", "collectives"),
            lambda: stored_spans(asked, self._sound.files, unsealed),
        )

    def ranks(self, run: str) -> None:
        return None

    def readings(self, run: str) -> ReadingCurves | None:
        found = {each.run: each for each in self.top().snapshot.runs}.get(run)
        if found is None or not found.nodes:
            return None
        metered = self._metered(found)
        unsealed = self._journal.readings(found.nodes)  # first: sealed meanwhile it is there twice
        begun = day_of(int(_moment(found.started - DAY_SECONDS) * 1e6))

        def curves() -> ReadingCurves:
            files = self._sound.files("readings")
            late = [name for name in files if Path(name).parent.name >= begun]
            return self._readings.curves(metered, late, unsealed)

        return self._sound.ask(("readings",), curves)

    def _metered(self, run: LiveRun) -> MeteredRun:
        """GPUs of a node that no agent tells of are as many as an equal part of the run's ranks."""
        nodes = tuple(node for node in self.top().snapshot.nodes if node.node in {*run.nodes})
        part = max(run.world // len(run.nodes), 1)
        told = {node.node: node.gpus for node in nodes if node.gpus}
        return MeteredRun(
            run=run.run,
            gpus={node: told.get(node, part) for node in sorted(run.nodes)},
            begin=_moment(run.started),
            end=_moment(run.updated),
            nodes=nodes,
        )

    def _steps(self, run: str) -> StepCells | None:
        unsealed = self._journal.steps(run)  # first: sealed meanwhile it is there twice
        reader = self._remembered.get(("cells", run), None, lambda: CellReader(run))
        return self._sound.ask(
            ("steps",), lambda: reader.read(self._sound.files("steps"), unsealed)
        )

    def _taken(self) -> Hashable:
        """Sealed files and how long the journal is."""
        journals = sorted((self.path / "journal").glob("*.cfj"))
        return (*self._sound.files("steps"), *((path.name, *file_stamp(path)) for path in journals))

    def left_out(self, run: str | None, *tables: Table) -> list[str]:
        drawn = [*self._sound.left_out(*tables), *self._journal.left_out()] if tables else []
        return [*self.top().snapshot.left_out, *drawn]

    def _line(self, run: LiveRun, silent_since: float | None) -> RunLine:
        price = run.usd_per_gpu_hour
        return RunLine(
            id=run.run,
            name=run.name or run.run,
            state=run.state,
            silent_since=silent_since,
            gpus=run.world,
            device=run.gpu or run.device,
            started=run.started,
            updated=run.updated,
            step=run.step,
            step_seconds=run.step_seconds,
            basis="last steps",
            tokens_per_second=run.tokens_per_second,
            mfu=run.mfu,
            mfu_palm=run.mfu_palm,
            peak_precision="" if run.peak is None else run.peak.precision,
            goodput=run.goodput,
            restarts=run.attempt,
            usd_per_hour=None if price is None else usd_per_hour(run.world, 1.0, price),
        )


def _moment(seconds: float) -> float:
    """A time that has a day: a run may say any."""
    return min(max(seconds, 0.0), _LAST_DAY)
