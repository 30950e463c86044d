"""`audit`: where the time of a recorded run went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from computeflow import codec
from computeflow.answers.answer import PROBLEMS, Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, NewFile, as_list, open_catalog
from computeflow.answers.periods import parse_period
from computeflow.answers.redaction import Redaction
from computeflow.auditing import AuditReport, AuditRequest
from computeflow.auditing import audit as audit_run
from computeflow.auditing.baselines import baseline_path, keep_baseline
from computeflow.auditing.report_data import report_data
from computeflow.catalog import Accelerator, Catalog
from computeflow.catalog.lookup import find_typed_model
from computeflow.engines import Engine
from computeflow.errors import InputError
from computeflow.files.writing import inputs_kept, write_file
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from computeflow.views.audit_headlines import audit_headline
from computeflow.views.audit_tables import hang_tables, report_tables
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.views.html_report import Part

_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditAnswer(Answer):
    report: AuditReport
    details: bool = False
    redact: bool = False
    fail_on: float | None = None
    """Percent of the window; findings that claim as much or more are problems."""

    @property
    def title(self) -> str:
        traces = self.report.traces
        title = f"Audit: {', '.join(each.kind for each in self.report.recordings.observed)}"
        if traces is not None:
            title = f"Audit of {traces.job.ledger.window.label}"
        return self._redaction().text(title) if self.redact else title

    @property
    def exit_code(self) -> int:
        """3 with --fail-on where findings claim as much, or the job hangs: that has no share."""
        if self.fail_on is None:
            return 0
        claimed = self.report.claimed_share
        return PROBLEMS if self.report.hangs or (0 < claimed >= self.fail_on / 100) else 0

    def _files_read(self) -> tuple[Path, ...]:
        return tuple(self.report.files)

    def _data(self) -> dict[str, Any]:
        data = report_data(self.report)
        redacted: dict[str, Any] = self._redaction().value(data) if self.redact else data
        return redacted

    @property
    def headline(self) -> str:
        text = audit_headline(self.report)
        return self._redaction().text(text) if self.redact else text

    def tables(self) -> list[Table]:
        tables = report_tables(self.report, details=self.details)
        return self._redaction().value(tables) if self.redact else tables

    def parts(self) -> Sequence[Part]:
        parts = self._parts()
        if not self.redact:
            return parts
        redaction = self._redaction()
        redaction.value(report_tables(self.report, details=self.details))  # they count first
        return [redaction.value(part) for part in parts]

    def _source_parts(self) -> Sequence[Part]:
        """Tables, and a fleet's findings as cards before them."""
        from computeflow.telemetry.fleet.fleet_join import KIND
        from computeflow.views.cards import finding_cards

        report, recordings = self.report, self.report.recordings
        price = None if report.price is None else report.price.usd
        cards = [
            finding_cards(found, each.ledger, price)
            for each, found in zip(recordings.observed, recordings.diagnoses, strict=True)
            if each.kind == KIND and each.ledger is not None and found.findings
        ]
        return [*cards, *report_tables(report, details=self.details)]

    def _redaction(self) -> Redaction:
        request = self.report.request
        typed = dict.fromkeys((*request.paths, request.against, request.expect), "file")
        typed |= {request.baseline: "job"}
        named = {str(name): kind for name, kind in typed.items() if name is not None}
        return Redaction(report_data(self.report), named)

    def _parts(self) -> Sequence[Part]:
        report, traces = self.report, self.report.traces
        if traces is None or report.diagnosis is None:
            return self._source_parts()
        from computeflow.telemetry.trace_formats import read_rank
        from computeflow.telemetry.traces.step_timelines import step_timeline
        from computeflow.views.audit_figures import audit_parts

        timeline, first = None, traces.ranks[0]
        with suppress(InputError):  # nothing ran in its steps, or the trace is gone
            timeline = step_timeline(read_rank(first), report.request.trace, first.rank)
        compared = report.compared
        before = compared if compared and compared.earlier else None
        price = None if report.price is None else report.price.usd
        parts = audit_parts(traces, report.diagnosis, timeline, before=before, price=price)
        return [*hang_tables(report.recordings, price), *parts]


@checked
def audit(
    paths: File | Sequence[File],
    *,
    steps: str | None = None,
    window: Literal["steps", "whole", "hta"] = "steps",
    period: str | None = None,
    rank_from: str | None = None,
    no_replay: bool = False,
    step_seconds: float | None = None,
    on: str | None = None,
    model: str | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    expect: File | None = None,
    work_ratio: float | None = None,
    against: File | None = None,
    baseline: str | None = None,
    keep: bool = False,
    perfetto: NewFile | None = None,
    calibrate: NewFile | None = None,
    force: bool = False,
    price: str | float | None = None,
    fail_on: float | None = None,
    grid: str | None = None,
    details: bool = False,
    redact: bool = False,
    engine: Engine = "local",
    no_cache: bool = False,
    catalog: CatalogFiles = (),
    progress: Callable[[str], None] | None = None,
) -> AuditAnswer:
    """Make a closed ledger from recordings of a run, with findings ranked by cost.

    `paths` are files or folders of profiler traces, dumps, logs, metrics, accounting, or the address of
    a Prometheus server, in any mix.
    """
    facts = open_catalog(catalog)
    first, last = _parse_steps(steps)
    start, end = parse_period(period)
    accelerator, gpus = parse_accelerator(on, facts)
    if baseline is not None:
        baseline_path(baseline)
    if not any(map(str, as_list(paths))):
        raise InputError("no files to read: name a file or a folder")
    if fail_on is not None and not 0 <= fail_on <= 100:
        raise InputError(f"--fail-on {fail_on:g}: must be between 0 and 100 percent")
    if redact and (perfetto is not None or calibrate is not None):
        option = "--perfetto" if perfetto is not None else "--calibrate"
        raise InputError(
            f"{option} cannot be combined with --redact: its file would contain the names"
        )
    beside = {"perfetto": perfetto, "calibrate": calibrate, "details": details}
    request = AuditRequest(
        paths=tuple(map(str, as_list(paths))),
        catalog=facts,
        trace=TraceOptions(
            first_step=first,
            last_step=last,
            rank_from=rank_from,
            window=window,
            replay=not no_replay,
        ),
        step_seconds=step_seconds,
        start=start,
        end=end,
        accelerator=accelerator,
        gpus=gpus,
        model=find_typed_model(facts, model) if model is not None else None,
        global_batch=global_batch,
        seq_len=seq_len,
        expect=None if expect is None else Path(expect),
        work_ratio=work_ratio,
        against=None if against is None else str(against),
        baseline=baseline,
        keep=keep,
        price=price,
        grid=facts.grids[grid] if grid else None,
        engine=engine,
        cache=not no_cache,
        extras=frozenset(name for name, value in beside.items() if value),
    )
    report = audit_run(request, progress)
    if report.traces is not None:
        with inputs_kept(report.files):
            _write(report, report.traces, perfetto, calibrate, force=force)
    return AuditAnswer(report=report, details=details, redact=redact, fail_on=fail_on)


def _write(
    report: AuditReport,
    traces: TracedJob,
    perfetto: File | None,
    calibrate: File | None,
    *,
    force: bool,
) -> None:
    """Write the requested files, and the baseline where it is new."""
    request = report.request
    if perfetto is not None:
        from computeflow.telemetry.trace_formats import read_rank
        from computeflow.telemetry.traces.perfetto import perfetto_writer

        fill = perfetto_writer(read_rank(traces.ranks[0]), request.trace, Path(perfetto).suffix)
        write_file(perfetto, fill, "--perfetto", force=force)
    if calibrate is not None:
        from computeflow.diagnosis.calibrating import calibration_data
        from computeflow.diagnosis.diagnose import make_case

        data = calibration_data(make_case(traces, request.catalog))
        write_file(calibrate, codec.to_json(data) + "\n", "--calibrate", force=force)
    name = request.baseline
    if name is not None and (request.keep or not baseline_path(name).exists()):
        keep_baseline(request, name, traces)


def _parse_steps(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    parts = [part for part in (first, last) if part]
    if not parts or not all(part.isdecimal() and len(part) <= _MAX_DIGITS for part in parts):
        raise InputError(f"--steps {text}: write A:B, A: or :B with whole numbers")
    low = int(first) if first else None
    high = (int(last) if last else None) if colon else low
    if low is not None and high is not None and high < low:
        raise InputError(f"--steps {text}: ends before it starts")
    return low, high


def parse_accelerator(text: str | None, catalog: Catalog) -> tuple[Accelerator | None, int | None]:
    """The accelerator, and its count where one is stated (h200-sxm:8)."""
    if text is None:
        return None, None
    name, colon, count = text.rpartition(":")
    if not colon:
        return catalog.accelerators[text], None
    number = int(count) if count.isdecimal() and len(count) <= _MAX_DIGITS else 0
    if not 0 < number < 10**7:
        raise InputError(f"--on {text}: write accelerator or accelerator:count (h200-sxm:8)")
    return catalog.accelerators[name], number
