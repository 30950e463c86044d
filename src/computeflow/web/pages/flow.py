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
from computeflow.web.page_answers import Content, OpeningDep, empty_content, page_content
from computeflow.web.sources.opening import Opening, RunLine, find_run

_TITLE = "Flow"
Part = Literal["whole", "last"]
AskedPart = Annotated[
    Part | None,
    Query(
        description="Of an active run: all of it, or its last steps. Without it, the last steps "
        "where a finding is open: they are what it is about."
    ),
]
_MAX_UNREAD = 5
_NO_FLOPS = {"compute.model": "the model's FLOPs"}
_TRAIN = "torchrun --nproc-per-node 8 train.py"


def flow_page(opening: OpeningDep, run: str | None = None, window: AskedPart = None) -> Content:
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
        return empty_content(
            _TITLE,
            text,
            [record_command(opening)],
            **_which(opening, line),
            left_out=opening.left_out(line.id),
        )
    lines, source = _expected(answer, ledger)
    return page_content(
        _TITLE,
        answer,
        **_which(opening, line),
        basis=ledger.window.label,
        window="whole",
        **_size(ledger),
        bands=codec.encode(flow_bands(ledger, lines, _ranks(answer))),
        **_left_out(ledger, lines),
        ranks_in="",
        lines=codec.encode(lines),
        expected_from=source,
        unavailable=ledger.unavailable,
        findings=answer.to_dict()["findings"],
        left_out=opening.left_out(line.id),
    )


def no_runs(title: str, opening: Opening) -> Content:
    """The empty state of every page that is about runs."""
    if opening.kind == "store":
        text = f"{opening.path} has no runs yet. Record one in a folder that its collector follows:"
        commands = [collect_command(opening), record_command(opening)]
        return empty_content(title, text, commands, left_out=opening.left_out(None))
    unread = opening.left_out(None)
    text = f"{opening.path} has no recordings. Record a run:"
    if unread:
        reasons = "; ".join(unread[:_MAX_UNREAD])
        text = f"Nothing in {opening.path} can be read: {reasons}. Record a run:"
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


def _size(ledger: Ledger) -> Content:
    """What is divided, and how much of it were FLOPs of the model by PaLM's count."""
    return {
        "gpus": ledger.gpus,
        "wall_seconds": ledger.wall_seconds,
        "on_host": ledger.on_host,
        "mfu_palm": ledger.mfu_palm,
    }


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


def _live_flow(opening: Opening, line: RunLine, asked: Part | None) -> Content:
    top = opening.top()
    assert top is not None
    runs = {run.run: run for run in top.snapshot.runs}
    if line.id not in runs:  # it was forgotten meanwhile
        raise UnknownNameError("run", line.id, runs)
    run = runs[line.id]
    findings: Any = [each for each in top.to_dict()["findings"] if each["run"] == line.id]
    window: Part = asked or ("last" if findings and run.window_seconds else "whole")
    ledger = _live_ledger(run, window)
    if ledger is None:
        text = f"{line.name}: not enough steps yet, the first result needs seven."
        command = f"computeflow top --store {quote(str(opening.path))}"
        return empty_content(_TITLE, text, [command], **_which(opening, line))
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
        **_size(ledger),
        bands=codec.encode(flow_bands(ledger, lines, run.ranks_by_account)),
        **_left_out(ledger, lines),
        ranks_in=_ranks_in(run),
        lines=codec.encode(lines),
        expected_from="" if run.planned is None else run.planned.source,
        unavailable={} if ledger.booked("compute.model") else _NO_FLOPS,
        findings=findings,
        left_out=opening.left_out(line.id),
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
        peak=run.peak,
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
        return f"{line.name}: no open findings."
    worst = max(findings, key=lambda each: each["share"])
    share, idle = format_share(worst["share"]), worst["account"] == "idle"
    if not worst["share"]:
        text = line.name
    elif line.silent_since is not None:
        time = "time" if idle else "step time"
        text = f"When {line.name} was last heard from, {share} of its {time} could be won back"
    elif idle:
        text = f"{share} of {line.name}'s time can be won back right now"
    else:
        text = f"{share} of {line.name}'s recent step time can be won back"
    more = len(findings) - 1
    rest = f" {more} more open {'finding' if more == 1 else 'findings'}." if more else ""
    return f"{text}: {_without_colon(worst['title'])}.{rest}"


def _without_colon(title: str) -> str:
    """The details of a title, which follow a colon, in brackets."""
    what, _, details = title.partition(": ")
    return f"{what} ({details})" if details else what
