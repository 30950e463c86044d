"""`/findings`: what costs most an hour, why, what to do, and what was done about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from computeflow.answers.answer import Answer
from computeflow.answers.audits import AuditAnswer
from computeflow.economics import usd_of
from computeflow.errors import ComputeFlowError
from computeflow.units import format_count, format_share, format_usd
from computeflow.web.page_answers import Content, OpeningDep, page_content
from computeflow.web.pages.flow import no_runs
from computeflow.web.sources.opening import Opening, RunLine, find_run

_TITLE = "Findings"
_MAX_RUNS = 50
"""Runs whose recordings are audited for one list, the latest of them."""


def findings_page(opening: OpeningDep, run: str | None = None) -> Content:
    """Findings by dollars an hour, with evidence, remedy, and the actions on them."""
    lines = opening.runs()
    if not lines:
        return no_runs(_TITLE, opening)
    found = find_run(opening, run)
    run = None if run is None or found is None else found.id
    top = opening.top()
    if top is not None:
        data = top.to_dict()
        mine = [each for each in data["findings"] if run in (None, each["run"])]
        actions = opening.actions()
        return page_content(
            _TITLE,
            top,
            findings=mine,
            closed=[each for each in data["closed"] if run in (None, each["run"])],
            actions=[] if actions is None else actions.to_dict()["actions"],
            left_out=[*opening.left_out(run), *(() if actions is None else actions.left_out)],
            skipped=[],
            silent=data["silent"],
            names={line.id: line.name for line in lines},
            last_heard=_last_heard(lines),
        )
    return _recorded(opening, run, [line.id for line in lines if run in (None, line.id)])


def _recorded(opening: Opening, run: str | None, ids: list[str]) -> Content:
    read = ids[:_MAX_RUNS]
    left_out = opening.left_out(run)
    answers: dict[str, AuditAnswer] = {}
    for each in read:
        try:
            answer = opening.audit(each)
        except ComputeFlowError as error:
            if len(read) == 1:
                raise
            left_out.append(f"{each}: {error}")
        else:
            answers |= {each: answer} if answer is not None else {}
    if older := len(ids) - len(read):
        left_out.append(f"{format_count(older, 'older run')}: choose one to see its findings")
    findings: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for name, answer in answers.items():
        data = answer.to_dict()
        findings += [
            {**each, "run": name, "key": f"{name}:{i}"} for i, each in enumerate(data["findings"])
        ]
        skipped += [{**each, "run": name} for each in data["abstained"]]
    findings.sort(key=lambda each: (-(each["usd_per_hour"] or 0.0), -(each["share"] or 0.0)))
    only: Answer | None = next(iter(answers.values())) if len(answers) == 1 else None
    lost, whole = _known_sum(each["usd"] for each in findings), _cost(answers.values())
    return page_content(
        _TITLE,
        only,
        headline=only.headline if only else _headline(findings, len(answers), (lost, whole)),
        findings=findings,
        usd=lost,
        runs_usd=whole,
        closed=[],
        actions=[],
        left_out=left_out,
        skipped=skipped,
        silent={},
        names={line.id: line.name for line in opening.runs()},
        last_heard=_last_heard(opening.runs()),
    )


def _cost(answers: Iterable[AuditAnswer]) -> float | None:
    """What all that was recorded cost, $; None without a price, or where a run has no ledger."""
    total = 0.0
    for answer in answers:
        price, ledger = answer.report.price, answer.report.shown_ledger
        if price is None or ledger is None:
            return None
        total += usd_of(ledger.gpu_seconds, price.usd)
    return total


def _known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _headline(
    findings: Sequence[Mapping[str, Any]], runs: int, cost: tuple[float | None, float | None]
) -> str:
    """How many findings recordings have, what these cost in all, and which of them cost most."""
    if not findings:
        return f"No findings in {format_count(runs, 'run')}."
    lost, whole = cost
    text = format_count(len(findings), "finding")
    found = len({each["run"] for each in findings})
    text += f" in {found:,} of {format_count(runs, 'run')}"
    if lost is None:
        worst = max(findings, key=lambda each: each["share"] or 0.0)
        most = f"The largest is {worst['rule']} in {worst['run']}, {format_share(worst['share'])}"
        return f"{text}. {most} of its time."
    text += f" cost {format_usd(lost)}"
    text += "" if whole is None else f" of the {format_usd(whole)} of these runs"
    worst = max(findings, key=lambda each: each["usd"] or 0.0)
    return f"{text}. The largest is {worst['rule']} in {worst['run']}: {format_usd(worst['usd'])}."


def _last_heard(lines: Sequence[RunLine]) -> float | None:
    """When a run that goes on was last heard of, Unix time."""
    going = (line.updated for line in lines if line.state not in ("ended", "recorded"))
    return max(going, default=None)
