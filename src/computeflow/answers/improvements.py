"""`improve`: an ordered path of changes from where a job stands to where it could."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from computeflow.answers.answer import Answer
from computeflow.answers.audits import audit
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, open_catalog
from computeflow.answers.requests import JobRequest, choose_cluster, read_request
from computeflow.answers.saved_predictions import (
    PredictOptions,
    format_of_stack,
    predicted_setup,
    saved_prediction,
)
from computeflow.auditing import AuditReport
from computeflow.catalog import Catalog
from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.files.limits import CONFIG_BYTES
from computeflow.files.reading import read_text
from computeflow.ledger import Finding, Ledger, ledger_to_data
from computeflow.planning.explain import changed_fields
from computeflow.planning.exports.config_edits import ConfigFile
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.config_reader import recognised
from computeflow.planning.exports.framework_space import FrameworkSpace, switchable
from computeflow.planning.improvement import Improvement, improve_plan
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_seconds
from computeflow.views.improvements import PathRow, PathStart, improve_headline, improve_tables
from computeflow.views.tables import Table

ENDINGS = (
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".sh",
    ".slurm",
    ".sbatch",
    ".args",
    ".py",
    ".bash",
    "",
)
"""Files that may be configurations; all others are recordings."""
_RECORDED = (".json", "")
"""Endings among them that large recordings have, too."""
_UNTOLD = (
    "data loading, host work, stragglers and the network as it is: record a few steps and run "
    "`computeflow audit`",
    "the loss after a change of the mathematics: train both for a while",
)
_SAME = 0.01
_NOT_SAVED = "a calibration, or what a framework's file switches, is not in a prediction"
_OTHER_MATHEMATICS = ("matmul-precision",)
_BESIDE_STEPS = ("startup", "restart", "lost", "idle")
"""Accounts of a whole run that are in none of its steps."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ImproveAnswer(Answer):
    path: str
    start: PathStart
    steps: tuple[PathRow, ...]
    notes: tuple[str, ...] = ()
    """What only a measurement can tell, and what was left out."""

    @property
    def title(self) -> str:
        return f"From here to there: {self.path}"

    @property
    def headline(self) -> str:
        return improve_headline(self.start, self.steps)

    def tables(self) -> list[Table]:
        return improve_tables(self.start, self.steps, self.notes)

    def _data(self) -> dict[str, Any]:
        start, last = self.start, self.steps[-1] if self.steps else self.start
        ledger = None if start.ledger is None else ledger_to_data(start.ledger)
        return {
            "schema": "computeflow.improve/1",
            "start": {**_fields(start, "ledger"), "ledger": ledger},
            "steps": [asdict(step) for step in self.steps],
            "end": {
                "step_seconds": last.step_seconds,
                "mfu": last.mfu,
                "memory_bytes": last.memory_bytes,
                "gain": _total(start.step_seconds, last.step_seconds) if start.runs else None,
            },
            "notes": list(self.notes),
        }


def _fields(value: Any, *without: str) -> dict[str, Any]:
    return {n: getattr(value, n) for n in value.__dataclass_fields__ if n not in without}


def _total(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else 1 - after / before


class PlanText(Protocol):
    """What states a plan and can be changed to state another."""

    def with_plan(self, before: Setup, after: Setup) -> Self | None: ...

    def diff(self, other: Self) -> str: ...


@checked
def improve(
    path: File,
    *,
    on: str | None = None,
    storage: str | None = None,
    format: str | None = None,
    model: str | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    measured_mfu: float | None = None,
    step_seconds: float | None = None,
    catalog: CatalogFiles = (),
    progress: Callable[[str], None] | None = None,
) -> ImproveAnswer:
    """Find an ordered path of changes for a job: from its configuration, or from recordings of it.

    `measured_mfu` (a share) or `step_seconds` is what the job does today: gains are of that.
    """
    if measured_mfu is not None and step_seconds is not None:
        raise InputError("--measured-mfu and --step-seconds cannot be combined")
    if measured_mfu is not None and not 0 < measured_mfu < 1:
        raise InputError(f"--measured-mfu {measured_mfu:g}: a share between 0 and 1 (24 % is 0.24)")
    if step_seconds is not None and step_seconds <= 0:
        raise InputError(f"--step-seconds {step_seconds:g}: must be above zero")
    saved = saved_prediction(Path(path)) if format is None else None
    if saved is None and format is None and not _is_configuration(Path(path)):
        if measured_mfu is not None:
            raise InputError("--measured-mfu is for a configuration; a recording has its own")
        known: dict[str, Any] = {
            "on": on,
            "model": model,
            "global_batch": global_batch,
            "seq_len": seq_len,
        }
        given = {name: value for name, value in known.items() if value is not None}
        report = audit(
            path, step_seconds=step_seconds, catalog=catalog, progress=progress, **given
        ).report
        return _from_recordings(str(path), report)
    if on is None:
        kind = "configuration" if saved is None else "prediction"
        raise InputError(f"a {kind} needs the hardware it runs on: give --on, as h100-sxm:64")
    facts = open_catalog(catalog)
    sizes = {"global_batch": global_batch, "seq_len": seq_len}
    cluster = choose_cluster(on, storage, facts)
    stated = {**sizes, "model": model}
    given = {name: value for name, value in stated.items() if value is not None}
    if saved is not None:
        job = _OpenJob.of_prediction(saved, str(path), given, cluster, facts)
    else:
        request = read_request(model, cluster, facts, sizes, from_=path, format=format)
        job = _OpenJob.of_file(Path(path), request, given)
    return _walked(job, measured_mfu, step_seconds, progress)


def _is_configuration(path: Path) -> bool:
    ending = path.suffix.lower()
    if path.is_dir() or ending not in ENDINGS:
        return False
    if not path.is_file():
        return not path.exists()
    if path.stat().st_size > CONFIG_BYTES:
        if ending in _RECORDED:
            return False
        raise InputError(f"{path}: larger than {CONFIG_BYTES:,} bytes, which no configuration is")
    return bool(recognised(read_text(path), str(path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenJob:
    """A plan that can be changed, and what states it."""

    path: str
    setup: Setup
    space: FrameworkSpace
    first: PlanText
    known: frozenset[str]
    """Fields of the layout whose value is stated: a gain over what nobody stated would be a guess."""
    notes: tuple[str, ...]
    saved_seconds: float | None = None
    """The step of a saved prediction."""

    @classmethod
    def of_file(cls, path: Path, request: JobRequest, given: dict[str, Any]) -> _OpenJob:
        reading, stack = request.reading, request.stack
        assert reading is not None and stack is not None
        setup = Setup(job=request.job, cluster=request.cluster, layout=request.layout, stack=stack)
        unknown = f"not understood and ignored: {', '.join(reading.unknown)}"
        return cls(
            path=str(path),
            setup=setup,
            space=FrameworkSpace(reading.format, setup, switchable(reading)),
            first=ConfigFile(
                text=read_text(path),
                where=str(path),
                format=reading.format,
                given=given,
                catalog=request.catalog,
            ),
            known=frozenset((*reading.layout, *given)),
            notes=(*reading.notes, *([unknown] if reading.unknown else [])),
        )

    @classmethod
    def of_prediction(
        cls,
        saved: dict[str, Any],
        where: str,
        given: dict[str, Any],
        cluster: Cluster,
        catalog: Catalog,
    ) -> _OpenJob:
        setup = predicted_setup(saved, where, given, cluster, catalog)
        return cls(
            path=where,
            setup=setup,
            space=FrameworkSpace(format_of_stack(setup.stack.name), setup),
            first=PredictOptions(setup=setup),
            known=frozenset(saved["layout"]),
            notes=("the changes are options of `computeflow predict`",),
            saved_seconds=saved.get("step_seconds"),
        )


def _walked(
    job: _OpenJob,
    mfu: float | None,
    seconds: float | None,
    progress: Callable[[str], None] | None,
) -> ImproveAnswer:
    texts = [job.first]

    def accept(before: Setup, after: Setup) -> bool:
        if not changed_fields(before.layout, after.layout).keys() <= job.known:
            return False
        changed = texts[-1].with_plan(before, after)
        texts.extend([] if changed is None else [changed])
        return changed is not None

    found = improve_plan(job.setup, job.space, accept, progress)
    predicted = found.start.ledger.mfu
    if mfu is not None and predicted is not None:
        seconds = found.start.step_seconds * predicted / mfu
    notes = [*_UNTOLD, *job.notes]
    if found.left_out:
        notes.append(f"faster, but this file cannot be edited so: {'; '.join(found.left_out)}")
    if job.saved_seconds and abs(found.start.step_seconds / job.saved_seconds - 1) > _SAME:
        notes.insert(0, f"{format_seconds(job.saved_seconds)} a step were saved: {_NOT_SAVED}")
    start, rows = _priced(found, texts, seconds)
    if start.unexplained_seconds is not None:
        notes.insert(0, start.unexplained_text)
    return ImproveAnswer(path=job.path, start=start, steps=rows, notes=tuple(notes))


def _priced(
    found: Improvement, texts: Sequence[PlanText], measured: float | None
) -> tuple[PathStart, tuple[PathRow, ...]]:
    """Steps as they are measured today, times what each change is predicted to save.

    Nobody knows whether time that no prediction explains shrinks with the step: the low end of a gain
    takes it for constant.
    """
    start = found.start
    factor = 1.0 if measured is None else measured / start.step_seconds
    start_row = PathStart(
        step_seconds=factor * start.step_seconds,
        predicted_step_seconds=start.step_seconds,
        step_seconds_range=start.step_seconds_range,
        measured=measured is not None,
        mfu=_scaled(start.ledger.mfu, factor),
        mfu_palm=_scaled(start.ledger.mfu_palm, factor),
        peak_precision=start.job.precision,
        memory_bytes=start.memory_bytes,
        memory_limit_bytes=start.memory_limit_bytes,
        runs=start.fits,
        ledger=start.ledger,
    )
    rows = []
    for number, step in enumerate(found.steps):
        after = step.prediction
        ends = step.gain_range
        rows.append(
            PathRow(
                change=step.change,
                rule=step.rule,
                gain=step.gain,
                gain_range=None if ends is None else (_low_end(ends[0], factor), ends[1]),
                step_seconds=factor * after.step_seconds,
                mfu=_scaled(after.ledger.mfu, factor),
                peak_precision=after.job.precision,
                memory_bytes=after.memory_bytes,
                risk=step.risk,
                same_mathematics=step.same_mathematics,
                diff=texts[number].diff(texts[number + 1]),
            )
        )
    return start_row, tuple(rows)


def _low_end(low: float, factor: float) -> float:
    """The low end of a gain where what is beyond the prediction stays as it is."""
    return low / max(factor, 1.0) if low > 0 else low


def _scaled(mfu: float | None, factor: float) -> float | None:
    return None if mfu is None else mfu / factor


def _from_recordings(path: str, report: AuditReport) -> ImproveAnswer:
    findings = _ranked(report)
    ledger, step = _recorded(report)
    start = PathStart(
        step_seconds=step,
        mfu=None if ledger is None else ledger.mfu,
        mfu_palm=None if ledger is None else ledger.mfu_palm,
        peak_precision=ledger.peak.precision if ledger is not None and ledger.peak else None,
        measured=True,
        ledger=ledger,
    )
    rows, left = [], 1.0
    for finding, book in findings:
        row = _finding_row(finding, book, start, left)
        left *= 1 - (row.gain or 0.0)
        rows.append(row)
    note = (
        "gains are of the recorded step, replayed without the finding; settings of the job are not "
        "in it: `computeflow improve` of its configuration has those"
    )
    open_points = () if report.diagnosis is None else report.diagnosis.notes
    return ImproveAnswer(path=path, start=start, steps=tuple(rows), notes=(*open_points, note))


def _recorded(report: AuditReport) -> tuple[Ledger | None, float | None]:
    """The ledger of the recording and the seconds of its step, as far as it has them."""
    traces, diagnosis = report.traces, report.diagnosis
    if traces is None or diagnosis is None:
        ledgers = report.recordings.ledgers
        runs = [each for each in report.recordings.observed if each.kind == "recording"]
        if runs and runs[0].ledger is not None:
            return _steps_alone(runs[0].ledger), runs[0].facts.step_seconds
        return (ledgers[0] if ledgers else None), None
    as_it_runs = diagnosis.as_it_runs
    ledger = traces.job.ledger if as_it_runs is None else as_it_runs.ledger
    return ledger, diagnosis.step_seconds(traces.step_seconds)


def _steps_alone(ledger: Ledger) -> Ledger:
    """The ledger of a whole run without what is no step of it."""
    kept = tuple(entry for entry in ledger.entries if entry.account not in _BESIDE_STEPS)
    total = sum(entry.gpu_seconds for entry in kept)
    return replace(ledger, entries=kept, wall_seconds=total / ledger.gpus) if total else ledger


def _book_of(finding: Finding, report: SourceReport) -> Ledger | None:
    """What the gain of a finding is a share of: the steps of a recorded run, else the whole ledger."""
    if report.kind != "recording" or report.ledger is None:
        return report.ledger
    return None if finding.account in _BESIDE_STEPS else _steps_alone(report.ledger)


def _ranked(report: AuditReport) -> list[tuple[Finding, Ledger | None]]:
    """Findings of all sources: a hang first, then the most expensive."""
    pairs: list[tuple[Finding, Ledger | None]] = []
    if report.traces is not None and report.diagnosis is not None:
        pairs += [(finding, report.traces.job.ledger) for finding in report.diagnosis.findings]
    for each, found in zip(report.recordings.observed, report.recordings.diagnoses, strict=True):
        pairs += [(finding, _book_of(finding, each)) for finding in found.findings]
    return sorted(pairs, key=lambda pair: (pair[0].rule != "hang", -pair[0].gpu_seconds))


def _finding_row(finding: Finding, ledger: Ledger | None, start: PathStart, left: float) -> PathRow:
    """`left`: the share of the recorded step that the changes before it leave."""
    remedy = finding.remedy
    share = None if ledger is None else finding.gpu_seconds / ledger.gpu_seconds
    gain = None if not share else min(share / left, 1.0)
    alone = None if remedy is None else remedy.gain_gpu_seconds
    ends = None
    if gain is not None and remedy is not None and alone and remedy.gain_low is not None:
        high = alone if remedy.gain_high is None else remedy.gain_high
        ends = (gain * remedy.gain_low / alone, min(gain * high / alone, 1.0))
    after = left * (1 - (gain or 0.0))
    return PathRow(
        change=finding.title if remedy is None else remedy.change,
        rule=finding.rule,
        gain=gain,
        gain_range=ends,
        step_seconds=None if start.step_seconds is None else start.step_seconds * after,
        mfu=None if start.mfu is None else start.mfu / after,
        peak_precision=start.peak_precision,
        memory_bytes=None,
        risk="" if remedy is None else remedy.risk,
        same_mathematics=finding.rule not in _OTHER_MATHEMATICS,
        diff="" if remedy is None else remedy.command,
    )
