"""`/flow`: where the GPU-hours of one run go, from what was contracted to the model's FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from fastapi import Query

from computeflow import codec
from computeflow.answers.audits import AuditAnswer
from computeflow.collection.online.live_values import LiveRun
from computeflow.errors import UnknownNameError
from computeflow.ledger import Entry, Gap, Ledger, RanksByAccount, Window, gaps, ranks_with_most
from computeflow.telemetry.run_folders.run_facts import PlannedStep, RecordedRun
from computeflow.units import format_seconds, format_share
from computeflow.views.flow_bands import flow_bands, left_out_accounts
from computeflow.web.opening import Opening, RunLine, find_run
from computeflow.web.page_answers import Content, Opened, empty_content, page_content

_TITLE = "Flow"
Part = Annotated[
    Literal["whole", "last"],
    Query(description="Of a run that goes on: all of it, or its last steps."),
]
_NO_FLOPS = {"compute.model": "the model's FLOPs"}
_TRAIN = "torchrun --nproc-per-node 8 train.py"


def flow_page(opening: Opened, run: str | None = None, window: Part = "whole") -> Content:
    """The ledger of a run as a flow, predicted beside measured."""
    line = find_run(opening, run)
    if line is None:
        return no_runs(_TITLE, opening)
    if opening.kind == "store":
        return _live_flow(opening, line, window)
    answer = opening.audit(line.id)
    assert answer is not None
    ledger = answer.report.shown_ledger
    if ledger is None:
        reasons = answer.to_dict()["ledger_reason"]
        text = f"{line.name} has no ledger: {reasons}"
        return empty_content(_TITLE, text, [record_command(opening)])
    lines, source = _expected(answer, ledger)
    return page_content(
        _TITLE,
        answer,
        **_which(opening, line),
        basis=ledger.window.label,
        window="whole",
        gpus=ledger.gpus,
        wall_seconds=ledger.wall_seconds,
        on_host=ledger.on_host,
        bands=codec.encode(flow_bands(ledger, lines, _ranks(answer))),
        **_left_out(ledger, lines),
        ranks_in="",
        lines=codec.encode(lines),
        expected_from=source,
        unavailable=ledger.unavailable,
        findings=answer.to_dict()["findings"],
    )


def no_runs(title: str, opening: Opening) -> Content:
    """The empty state of every page that is about runs."""
    if opening.kind == "store":
        text = f"{opening.path} has heard of no run yet. Record one below a folder that it follows:"
        return empty_content(title, text, [collect_command(opening), record_command(opening)])
    text = f"{opening.path} holds no recording. Record a run:"
    return empty_content(title, text, [record_command(opening)])


def record_command(opening: Opening) -> str:
    """Records a run that is on the page then: in its folder, or in the one that its store follows."""
    folder = Path("runs") if opening.kind == "store" else opening.path.resolve()
    folder = folder.parent if folder.is_file() else folder
    number = next(n for n in count(1) if not (folder / f"run-{n}").exists())
    return f"computeflow record --out {quote(str(folder / f'run-{number}'))} -- {_TRAIN}"


def collect_command(opening: Opening) -> str:
    return f"computeflow collect --store {quote(str(opening.path.resolve()))} --follow runs"


def _which(opening: Opening, line: RunLine) -> Content:
    return {"run": codec.encode(line), "runs": codec.encode(opening.runs())}


def _left_out(ledger: Ledger, lines: Sequence[Gap]) -> Content:
    """Accounts that are too small to be drawn, and what they have together."""
    small = left_out_accounts(ledger, lines)
    return {"left_out_accounts": [*small], "left_out_gpu_seconds": sum(small.values())}


def _expected(answer: AuditAnswer, ledger: Ledger) -> tuple[Sequence[Gap], str]:
    """Lines against what was expected for the same work, and where that is from."""
    report = answer.report
    found = report.diagnosis
    if found is not None and found.expected is not None:
        expected = found.expected.at_equal_work(ledger)
        return gaps(ledger, expected, work_ratio=1.0), found.expected.name
    if report.compared is not None:
        return report.compared.lines, report.compared.name
    facts = [each.facts for each in report.recordings.observed]
    runs = [each for each in facts if isinstance(each, RecordedRun)]
    if runs and runs[0].planned is not None and (kept := runs[0].steps - runs[0].redone_steps):
        planned = runs[0].planned
        return gaps(ledger, _planned(planned), work_ratio=float(kept)), planned.source
    return (), ""


def _planned(step: PlannedStep) -> Ledger:
    entries = [Entry(account=name, gpu_seconds=s) for name, s in step.accounts.items() if s > 0]
    return Ledger.closed(
        gpus=step.gpus,
        wall_seconds=step.step_seconds,
        entries=entries,
        window=Window(label="one planned step"),
        basis="predicted",
    )


def _ranks(answer: AuditAnswer) -> RanksByAccount:
    report = answer.report
    if report.traces is not None:
        return ranks_with_most(
            {part.rank: part.ledger.accounts for part in report.traces.job.ranks}
        )
    for each in report.recordings.observed:
        if isinstance(each.facts, RecordedRun):
            return ranks_with_most(each.facts.accounts_by_rank)
    return {}


def _live_flow(opening: Opening, line: RunLine, window: Part) -> Content:
    top = opening.top()
    assert top is not None
    runs = {run.run: run for run in top.snapshot.runs}
    if line.id not in runs:  # it was forgotten meanwhile
        raise UnknownNameError("run", line.id, runs)
    run = runs[line.id]
    findings: Any = [each for each in top.to_dict()["findings"] if each["run"] == line.id]
    ledger = _live_ledger(run, window)
    if ledger is None:
        text = f"{line.name}: no window of seven steps has been judged yet."
        return empty_content(_TITLE, text, [f"computeflow top --store {quote(str(opening.path))}"])
    lines: Sequence[Gap] = ()
    if run.planned is not None and run.step_seconds:
        last = ledger.wall_seconds / run.step_seconds
        steps = float(run.kept_steps) if window == "whole" else last
        if steps > 0:
            lines = gaps(ledger, _planned(run.planned), work_ratio=steps)
    return page_content(
        _TITLE,
        top,
        headline=live_headline(line, findings),
        **_which(opening, line),
        basis=ledger.window.label,
        window=window,
        gpus=ledger.gpus,
        wall_seconds=ledger.wall_seconds,
        on_host=ledger.on_host,
        bands=codec.encode(flow_bands(ledger, lines, run.ranks_by_account)),
        **_left_out(ledger, lines),
        ranks_in=_ranks_in(run),
        lines=codec.encode(lines),
        expected_from="" if run.planned is None else run.planned.source,
        unavailable={} if ledger.booked("compute.model") else _NO_FLOPS,
        findings=findings,
    )


def _live_ledger(run: LiveRun, window: Part) -> Ledger | None:
    """What a collector has booked of a run since it began, or of its last steps."""
    booked, label = run.booked, f"the whole run up to step {run.step:,}"
    if window == "last" or not booked:
        seconds = run.world * run.window_seconds
        booked = {name: share * seconds for name, share in run.accounts.items()}
        label = f"its last {format_seconds(run.window_seconds)}"
    total = sum(booked.values())
    if total <= 0 or not run.world:
        return None
    return Ledger.closed(
        [
            Entry(account=name, gpu_seconds=seconds)
            for name, seconds in booked.items()
            if seconds > 0
        ],
        gpus=run.world,
        wall_seconds=total / run.world,
        window=Window(label=label),
        basis="measured",
        on_host=run.device == "cpu",
    )


def _ranks_in(run: LiveRun) -> str:
    """What the seconds of ranks are of: they are not kept since the run began."""
    few = 0 < run.window_ranks < run.world
    some = f", {run.window_ranks:,} of {run.world:,} ranks" if few else ""
    return f"last {format_seconds(run.window_seconds)}{some}"


def live_headline(line: RunLine, findings: Sequence[Mapping[str, Any]]) -> str:
    """The worst finding of a run that goes on: of its last steps, not of the run."""
    if not findings:
        return f"{line.name}: no finding is open."
    worst = max(findings, key=lambda each: each["share"])
    silent, stands = line.silent_since is not None, worst["account"] == "idle"
    heard = "When last heard of" if stands else "In the last steps heard of"
    now = "Now" if stands else "In its last steps"
    when, can = (heard, "could") if silent else (now, "can")
    share = format_share(worst["share"])
    words = f"{when}, {share} of {line.name}'s time {can} be won back: {worst['title']}."
    words = words if worst["share"] else f"{line.name}: {worst['title']}."
    more = len(findings) - 1
    return (
        f"{words} {more} more {'finding is' if more == 1 else 'findings are'} open."
        if more
        else words
    )
