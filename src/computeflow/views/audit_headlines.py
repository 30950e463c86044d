"""The answer of an audit in one to three lines: `audit_headline`.

What stopped the job first (a hang, an out-of-memory), then what can be won back and for how much, then
the MFU; where nothing is wrong, how many rules looked and what the sources show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from computeflow.auditing.equal_work import GPU_SECONDS
from computeflow.economics import usd_of, usd_per_hour
from computeflow.ledger import Finding, Ledger
from computeflow.telemetry.fleet.fleet_join import KIND as FLEET
from computeflow.telemetry.outages.outage_source import KIND as OUTAGES
from computeflow.units import format_seconds, format_share
from computeflow.views.as_it_runs import is_slowed, step_sentence
from computeflow.views.sources import observed_headline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from computeflow.auditing.audit_report import AuditComparison, AuditReport
    from computeflow.diagnosis import Diagnosis

_ENDED = {"hang": "The job hangs", "failed-rank": "The job failed"}
_WHOSE = {
    "log": "this run's time",
    "metrics": "these GPUs' time",
}


_MANY = 2.0
"""Times as much time from which a comparison is a factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One source with what the rules found in it."""

    kind: str
    diagnosis: Diagnosis
    ledger: Ledger | None

    @property
    def timed(self) -> tuple[Finding, ...]:
        """Findings that claim time."""
        return tuple(f for f in self.diagnosis.findings if f.gpu_seconds)


def audit_headline(report: AuditReport) -> str:
    parts = _parts(report)
    price = None if report.price is None else report.price.usd
    if any(part.diagnosis.findings for part in parts):
        sentences = [*_untimed(parts), *_timed(parts, price)]
    else:
        shown = [observed_headline(each) for each in report.recordings.observed]
        sentences = [*_sound(parts), *shown]
    step = None if report.diagnosis is None else report.diagnosis.as_it_runs
    sentences += _apart(report.recordings.apart)
    sentences += [] if step is None else [step_sentence(step)]
    sentences += [] if report.compared is None else [_compared(report, report.compared)]
    return " ".join([*filter(None, sentences), *_mfu(report)])


def _parts(report: AuditReport) -> list[_Part]:
    """Traces first, then the other sources in their order."""
    parts = [
        _Part(kind=each.kind, diagnosis=diagnosis, ledger=each.ledger)
        for each, diagnosis in zip(
            report.recordings.observed, report.recordings.diagnoses, strict=True
        )
    ]
    if report.traces is not None and report.diagnosis is not None:
        ledger = report.traces.job.ledger
        parts.insert(0, _Part(kind="trace", diagnosis=report.diagnosis, ledger=ledger))
    return parts


def _untimed(parts: Sequence[_Part]) -> list[str]:
    """What ended or endangers the job, whatever it costs."""
    findings = [
        f
        for part in parts
        for f in part.diagnosis.findings
        if part.ledger is None or not f.gpu_seconds
    ]
    if not findings:
        return []
    worst = min(findings, key=lambda finding: finding.rule not in _ENDED)
    ended = _ENDED.get(worst.rule)
    text = f"{ended}: {worst.title}." if ended else f"{_upper(worst.title)}."
    if worst.remedy is not None:
        text += f" {_upper(worst.remedy.change)}."
    return [text, *_more(len(findings) - 1)]


def _timed(parts: Sequence[_Part], price: float | None) -> list[str]:
    """What the findings of the first ledger cost, and how many more there are in other sources."""
    timed = [part for part in parts if part.ledger is not None and part.timed]
    if not timed:
        return []
    first, *others = timed
    assert first.ledger is not None
    tell = _of_fleet if first.kind in (FLEET, OUTAGES) else _won_back
    return [
        tell(first, first.ledger, price),
        *_more(sum(len(part.timed) for part in others)),
    ]


def _won_back(part: _Part, ledger: Ledger, price: float | None) -> str:
    findings, gain = part.timed, part.diagnosis.combined_gain
    lost = math.fsum(finding.gpu_seconds for finding in findings)
    seconds, done = (lost, "is lost") if gain is None else (gain, "can be won back")
    steady = all(finding.steady for finding in findings)
    whose = _WHOSE.get(part.kind, "this job's time") if steady else "the recorded window"
    money = ""
    if price is not None and steady:
        usd = usd_per_hour(seconds, ledger.wall_seconds, price)
        money = f" (${usd:,.2f}/h of ${ledger.gpus * price:,.2f})"
    text = f"{format_share(seconds / ledger.gpu_seconds)} of {whose}{money} {done}"
    largest = findings[0]
    if len(findings) == 1:
        return f"{text}: {largest.rule}, {_short_title(largest)}."
    share = format_share(largest.gpu_seconds / ledger.gpu_seconds)
    return (
        f"{text}, {len(findings)} findings; the largest: {largest.rule} ({share}), "
        f"{_short_title(largest)}."
    )


def _of_fleet(part: _Part, ledger: Ledger, price: float | None) -> str:
    """What the findings of a fleet cost in the period, and what to do first."""
    findings = part.timed
    seconds = math.fsum(finding.gpu_seconds for finding in findings)
    money = ""
    if price is not None:
        usd, whole = usd_of(seconds, price), usd_of(ledger.gpu_seconds, price)
        money = f" (${usd:,.2f} of ${whole:,.2f} in {format_seconds(ledger.wall_seconds)})"
    causes = f"{len(findings)} causes, the largest" if len(findings) > 1 else "one cause"
    remedy = findings[0].remedy
    do = "" if remedy is None else f" Do first: {remedy.command or remedy.change}."
    share = format_share(seconds / ledger.gpu_seconds)
    return (
        f"{share} of this fleet's time{money} goes to {causes}: {findings[0].rule}, "
        f"{_short_title(findings[0])}.{do}"
    )


def _apart(reasons: Sequence[str]) -> list[str]:
    more = f" {len(reasons) - 1} more are apart, too." if len(reasons) > 1 else ""
    return [f"{reasons[0]}.{more}"] if reasons else []


def _more(count: int) -> list[str]:
    return [f"{count:,} more finding{'s' if count > 1 else ''} below."] if count else []


def _sound(parts: Sequence[_Part]) -> list[str]:
    """How many rules looked and found nothing; empty where no rule is for these sources."""
    from computeflow.diagnosis import RULES

    rules = {(part.kind, rule.id) for part in parts for rule in RULES if part.kind in rule.kinds}
    skipped = {(part.kind, one.rule) for part in parts for one in part.diagnosis.abstained}
    if not rules:
        return []
    checked = len(rules - skipped)
    text = f"No finding: {checked} rule{'' if checked == 1 else 's'} checked"
    return [f"{text}, {len(skipped)} skipped for a missing signal." if skipped else f"{text}."]


def _compared(report: AuditReport, compared: AuditComparison) -> str:
    expected = math.fsum(line.expected for line in compared.lines)
    if not expected:
        return ""
    if compared.at == GPU_SECONDS:
        return (
            f"Against {compared.name}, only shares compare: neither steps nor tokens are known of "
            "both."
        )
    measured, how = _compared_seconds(report, compared)
    time = "time" if report.recordings.ledger.on_host else "GPU time"
    if not compared.earlier and measured > _MANY * expected:
        time = f"predicted {time}"
    return (
        f"Against {compared.name}, at {compared.at}, it takes {_more_time(measured / expected)} "
        f"{time}{how}."
    )


def _compared_seconds(report: AuditReport, compared: AuditComparison) -> tuple[float, str]:
    """What was measured, as it runs: no prediction has a profiler. An earlier recording has one."""
    step = None if report.diagnosis is None else report.diagnosis.as_it_runs
    if step is None or compared.earlier:
        return math.fsum(line.measured for line in compared.lines), ""
    return step.ledger.gpu_seconds, " as it runs" if is_slowed(step) else ""


def _more_time(factor: float) -> str:
    """`2.9 times the`, `58.3 % more`: a percentage above 100 is hard to read."""
    if factor > _MANY:
        return f"{factor:,.1f} times the"
    return f"{format_share(abs(factor - 1))} {'more' if factor >= 1 else 'less'}"


def _mfu(report: AuditReport) -> list[str]:
    """As it runs where that is known: it is what the user's own run has."""
    step = None if report.diagnosis is None else report.diagnosis.as_it_runs
    if step is not None and step.ledger.mfu is not None:
        how = " as it runs" if is_slowed(step) else ""
        return [f"MFU {format_share(step.ledger.mfu)}{how}."]
    ledgers = report.recordings.ledgers
    mfu = ledgers[0].mfu if ledgers else None
    return [] if mfu is None else [f"MFU {format_share(mfu)}."]


def _short_title(finding: Finding) -> str:
    """What is wrong, without the reasons that the table gives."""
    return finding.title.partition(": ")[0]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
