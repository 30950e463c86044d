"""Where the time of a run went: a closed ledger from whatever the run left behind.

PATH is a file or a folder: PyTorch profiler traces, flight-recorder dumps, memory snapshots, Nsight
Systems exports, JAX profiles, op timelines, framework logs, metrics, accounting, kernel logs, in any
mix; or the address of a Prometheus server.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.catalog.rows import Grid
from computeflow.cli.audit_data import audit_data, energy_data, observed_data, with_findings
from computeflow.cli.audit_diagnosis import (
    Priced,
    baseline_path,
    diagnosed,
    diagnosis_data,
    diagnosis_tables,
    keep_baseline,
    parse_price,
    read_baseline,
    write_calibration,
)
from computeflow.cli.audit_reading import (
    Found,
    Reader,
    compared,
    parse_steps,
    read_expected,
    steps_done,
    work_of,
)
from computeflow.cli.output import (
    catalog_option,
    emit,
    html_option,
    output_option,
    write_report,
)
from computeflow.cli.periods import parse_period
from computeflow.diagnosis import Diagnosis, Expected
from computeflow.errors import InputError
from computeflow.ledger import Gap, gaps
from computeflow.telemetry.engines import ENGINES, Engine
from computeflow.telemetry.joining import Together, together
from computeflow.telemetry.observed import Asked, Observed
from computeflow.telemetry.redaction import Redaction
from computeflow.telemetry.traces.job import TracedJob
from computeflow.telemetry.traces.measured import Options
from computeflow.views.audits import audit_tables, energy_table, hta_table
from computeflow.views.ledgers import finding_table, gap_table
from computeflow.views.observed import observed_tables, together_table
from computeflow.views.tables import Table


@click.command(help=__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--steps", metavar="A:B", help="Only these steps, as the profiler numbers them.")
@click.option(
    "--window",
    type=click.Choice(["steps", "whole", "hta"]),
    default="steps",
    show_default=True,
    help="Marked steps; the whole recording; or what Holistic Trace Analysis takes, with its figures.",
)
@click.option(
    "--period",
    metavar="P",
    help="Of accounting, metrics and logs: 30d, 12h (up to now), or 2026-10-01:2026-11-01.",
)
@click.option("--rank-from", metavar="REGEX", help="Its first group is the rank, in file names.")
@click.option(
    "--on", "device", metavar="NAME", help="The accelerator, where its name is not known."
)
@click.option("--model", metavar="NAME", help="FLOPs by the model, not by the trace's shapes.")
@click.option("--global-batch", type=int, help="With --model: sequences in a step of all ranks.")
@click.option("--seq-len", type=int, help="With --model: tokens in a sequence.")
@click.option(
    "--expect",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A plan, a prediction or a ledger (JSON) to measure against, at equal model FLOPs.",
)
@click.option("--against", metavar="PATH", help="An earlier recording: tells what grew.")
@click.option(
    "--baseline",
    metavar="NAME",
    help="Of this job's name: compare with what is kept, or keep this recording as the first.",
)
@click.option("--keep", is_flag=True, help="With --baseline: this recording is the new one.")
@click.option(
    "--perfetto",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the first rank's trace with a track for every account.",
)
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what the recording shows of the machine, for predict --calibration.",
)
@html_option
@click.option(
    "--price",
    metavar="USD",
    help="Dollars per GPU-hour, or an offer of the catalog: prices findings.",
)
@click.option(
    "--fail-on",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Exit with 3 where findings of most steps claim this much of the window or more.",
)
@click.option("--grid", metavar="NAME", help="Electricity of a region: prices energy and carbon.")
@click.option("--details", is_flag=True, help="Steps, kernels, operators, gaps of the first rank.")
@click.option(
    "--redact",
    is_flag=True,
    help="Hosts, users, paths and addresses get other names: for a ticket.",
)
@click.option("--engine", type=click.Choice(ENGINES), default="local", show_default=True)
@click.option("--no-cache", is_flag=True, help="Read everything again, and keep nothing.")
@catalog_option
@output_option
def audit(
    paths: tuple[str, ...], steps: str | None, window: str, period: str | None,
    rank_from: str | None, device: str | None, model: str | None, global_batch: int | None,
    seq_len: int | None, expect: Path | None, against: str | None, baseline: str | None, keep: bool,
    perfetto: Path | None, calibrate: Path | None, html: Path | None, price: str | None,
    fail_on: float | None, grid: str | None, details: bool, redact: bool, engine: Engine,
    no_cache: bool, files: tuple[str, ...], output: str,
) -> int:  # fmt: skip
    facts = load_catalog(files)
    first, last = parse_steps(steps)
    start, end = parse_period(period)
    reader = Reader(
        catalog=facts,
        options=Options(first_step=first, last_step=last, rank_from=rank_from, window=window),
        asked=Asked(catalog=facts, start=start, end=end),
        device=device,
        work=work_of(model, global_batch, seq_len, facts),
        engine=engine,
        cache=not no_cache,
    )
    found = reader.read(paths)
    accelerator = found.traces.accelerator if found.traces is not None else None
    priced = parse_price(price, facts, None if accelerator is None else accelerator.name)
    wanted = _Wanted(
        window=window, expect=expect, against=against, baseline=baseline, keep=keep, html=html,
        calibrate=calibrate, perfetto=perfetto, redact=redact, price=priced,
    )  # fmt: skip
    wanted.check(found)
    usd = None if priced is None else priced.usd
    data, tables = _answer(found, details=details, window=window, price=usd)
    before = wanted.compare(found, reader, data, tables)
    wanted.diagnose(found, reader, before, data, tables)
    with_findings(data, found.observed, usd)
    if grid is not None:
        data["energy"], table = _energy(found, facts.grids[grid])
        tables.append(table)
    claimed = _claimed(data)
    wanted.remember(found)  # before the answer, which a closed pipe may cut short
    if redact:
        data, tables = _redacted(data, tables)
    emit(output, data, tables)
    if calibrate is not None and found.traces is not None:  # after it: it may be refused
        write_calibration(calibrate, found.traces, facts)
    return 3 if fail_on is not None and claimed > 0 and claimed >= fail_on / 100 else 0


Before = tuple[list[Gap], str] | None
"""Lines against an earlier recording, and which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is to be compared and written, beside the answer itself."""

    window: str
    expect: Path | None
    against: str | None
    baseline: str | None
    keep: bool
    html: Path | None
    calibrate: Path | None
    perfetto: Path | None
    redact: bool
    price: Priced | None

    def check(self, found: Found) -> None:
        if self.keep and self.baseline is None:
            raise InputError("--keep goes with --baseline")
        if self.baseline is not None:
            baseline_path(self.baseline)
        given = [
            name for name in ("expect", "against", "baseline") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise InputError(f"--{' and --'.join(given)}: compare with one thing at a time")
        if found.traces is None and (self.calibrate or self.html or self.baseline):
            raise InputError("--calibrate, --html and --baseline need traces of a profiler")
        if self.html is not None and self.redact:
            raise InputError(
                "--html with --redact: a report is not redacted; redact the JSON instead"
            )

    def compare(
        self, found: Found, reader: Reader, data: dict[str, Any], tables: list[Table]
    ) -> Before:
        """Into the answer: line by line against a plan, a recording or the baseline."""
        before: Before = None
        if self.expect is not None:
            lines = gaps(found.main_ledger(), read_expected(self.expect))
            data["gaps"] = [codec.encode(line) for line in lines]
            tables.append(gap_table(lines))
        if self.against is not None:
            other = reader.read((self.against,))
            lines, at = compared(found, other)
            data["against"] = _answer(other, details=False, window=self.window)[0]
            data["gaps"] = [codec.encode(line) for line in lines]
            tables.append(gap_table(lines, at))
            before = lines, self.against
        if self.baseline is not None and found.traces is not None:
            before, at, note = _baseline(found.traces, self.baseline, keep=self.keep)
            data["notes"].append(note)
            tables[0] = replace(tables[0], notes=(*tables[0].notes, note))
            if before is not None:
                data["gaps"] = [codec.encode(line) for line in before[0]]
                tables.append(gap_table(before[0], at))
        return before

    def diagnose(
        self, found: Found, reader: Reader, before: Before, data: dict[str, Any],
        tables: list[Table],
    ) -> None:  # fmt: skip
        """Into the answer: findings; and the files that rest on them."""
        if self.perfetto is not None:
            _write_perfetto(found, self.perfetto, reader.options)
        if found.traces is None:
            return
        expected = None
        if self.expect is not None:
            expected = Expected(ledger=read_expected(self.expect), source=str(self.expect))
        diagnosis = diagnosed(found.traces, reader.catalog, found.observed, expected, before)
        ledger = found.traces.job.ledger
        data |= diagnosis_data(diagnosis, ledger, self.price)
        tables[1:1] = diagnosis_tables(diagnosis, ledger, self.price)  # right after the ledger
        if self.html is not None:
            usd = None if self.price is None else self.price.usd
            _write_html(self.html, found.traces, diagnosis, before, reader.options, usd)

    def remember(self, found: Found) -> None:
        if self.baseline is not None and found.traces is not None:
            path = baseline_path(self.baseline)
            if self.keep or not path.exists():
                keep_baseline(path, found.traces.job.ledger, steps_done(found.traces))


def _claimed(data: dict[str, Any]) -> float:
    """By findings that are there all the time."""
    steady = [finding for finding in data["findings"] if finding.get("steady", True)]
    return float(sum(finding["share"] or 0.0 for finding in steady))


def _baseline(traces: TracedJob, name: str, *, keep: bool) -> tuple[Before, str, str]:
    """Lines against what is kept of the job, at equal what, and what was done."""
    kept, ledger = read_baseline(baseline_path(name)), traces.job.ledger
    if kept is None:
        return None, "", f"baseline {name}: there was none, this recording is it now"
    earlier, steps = kept
    known = ledger.mfu is not None and earlier.mfu is not None
    ratio = None if known else steps_done(traces) / steps
    note = f"baseline {name}: compared" + (", and replaced by this recording" if keep else "")
    at = "equal model FLOPs" if known else "equal steps"
    return (gaps(ledger, earlier, work_ratio=ratio), f"the baseline {name}"), at, note


def _write_html(
    path: Path, traces: TracedJob, diagnosis: Diagnosis, before: Before, options: Options,
    price: float | None,
) -> None:  # fmt: skip
    from computeflow.telemetry.traces.timeline import step_timeline
    from computeflow.views.audit_figures import audit_parts

    timeline = None
    with suppress(InputError):  # nothing ran in its steps, or the trace is gone
        timeline = step_timeline(Path(traces.ranks[0].source), options)
    parts = audit_parts(traces, diagnosis, timeline, before=before, price=price)
    write_report(path, f"Audit of {traces.job.ledger.window.label}", parts)


def _answer(
    found: Found, *, details: bool, window: str, price: float | None = None
) -> tuple[dict[str, Any], list[Table]]:
    """As data and as tables."""
    tables: list[Table] = []
    if found.traces is not None:
        data = audit_data(found.traces)
        tables += audit_tables(found.traces, details=details)
        if window == "hta":
            tables.append(hta_table(found.traces.ranks))
    else:
        data = observed_data(found.observed, found.left_out)
    for each in found.observed:
        tables += observed_tables(each, price)
    joined: list[Together] = together(found.observed)
    data["observed"] = [codec.encode(each) for each in found.observed]
    data["together"] = [codec.encode(each) for each in joined]
    if joined:
        tables.append(together_table(joined))
    if any(each.kind == "accounting" for each in found.observed):
        _blame(found.observed, data, tables)
    findings = [finding for each in found.observed for finding in each.findings]
    if findings:
        total = max(
            (each.ledger.gpu_seconds for each in found.observed if each.ledger), default=1.0
        )
        tables.append(finding_table(findings, total))
    if found.left_out and tables:
        notes = (*tables[-1].notes, *(f"left out: {text}" for text in found.left_out))
        tables[-1] = replace(tables[-1], notes=notes)
    return data, tables


def _energy(found: Found, grid: Grid) -> tuple[dict[str, Any], Table]:
    """What the devices took, where a ledger knows it; without the facility around them."""
    known = [each.ledger for each in found.observed if each.ledger and each.ledger.joules]
    joules = sum(ledger.joules or 0.0 for ledger in known) if known else None
    data = energy_data(joules, grid)
    return data, energy_table(data, grid.name)


def _blame(observed: tuple[Observed, ...], data: dict[str, Any], tables: list[Table]) -> None:
    """Into the answer: failed jobs laid to faults of their nodes, where both are known."""
    from computeflow.telemetry.accounting.blame import blame
    from computeflow.views.observed.accounting import blame_table

    jobs = [job for each in observed if each.kind == "accounting" for job in each.facts.failed]
    faults = [one for each in observed if each.kind != "accounting" for one in each.happenings]
    if jobs and faults:
        laid = blame(jobs, faults)
        data["blame"] = codec.encode(laid)
        tables.append(blame_table(laid))


def _write_perfetto(found: Found, target: Path, options: Options) -> None:
    if found.traces is None:
        raise InputError("--perfetto needs a trace of a profiler")
    from computeflow.telemetry.traces.perfetto import write_perfetto

    write_perfetto(Path(found.traces.ranks[0].source), target, options)


def _redacted(data: dict[str, Any], tables: list[Table]) -> tuple[dict[str, Any], list[Table]]:
    names = Redaction(data)
    shown = [
        replace(
            table,
            title=names.text(table.title),
            rows=tuple(tuple(names.text(cell) for cell in row) for row in table.rows),
            notes=tuple(names.text(note) for note in table.notes),
        )
        for table in tables
    ]
    return names.data(data), shown
