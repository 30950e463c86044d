"""`AlertmanagerSink`: open findings as alerts of Alertmanager, which groups, silences and routes them.

Every open finding is sent when it opens, when it grows by a tenth, and again every minute, as
Prometheus does; each time it says that it ends after four such intervals, so that alerts of a collector
that died resolve by themselves. A finding that closed is sent with its end until that has arrived.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.collection.outputs.posting import read_address
from computeflow.collection.outputs.sender import Sender
from computeflow.collection.outputs.sinks import (
    FindingChanges,
    is_silenced,
    label,
    nodes_label,
    ranks_label,
    run_name,
    severity,
)
from computeflow.units import format_seconds, format_share

PATH = "/api/v2/alerts"
RESEND_SECONDS = 60.0
MAX_OPEN = 5_000
_BATCH = 100
_TEXT = 500
_GREW = 1.1


class AlertmanagerSink:
    def __init__(
        self,
        url: str,
        findings: Sequence[LiveFinding] = (),
        *,
        token: str = "",
        resend_seconds: float = RESEND_SECONDS,
        page: str = "",
        first_wait_seconds: float = 1.0,
    ) -> None:
        """`findings`: the open ones of before a restart; `page`: where a person sees more."""
        address = read_address(url, "--alertmanager", path=PATH, token=token)
        self._resend = resend_seconds
        self._page = page
        self._lock = threading.Lock()
        self._open = {finding.key: finding for finding in findings if finding.is_open}
        self._labels = {key: alert_labels(finding) for key, finding in self._open.items()}
        """As they were first: an alert whose labels change is another alert."""
        self._names: dict[str, str] = {}
        self._closed: dict[str, LiveFinding] = {}
        self._sent: dict[str, tuple[float, float]] = {}
        """By key: when it was sent last, and its share then."""
        self._sender = Sender(
            "alertmanager", address, self._work, first_wait_seconds=first_wait_seconds
        )
        self._sender.start()

    def publish(self, changes: FindingChanges, runs: Sequence[LiveRun]) -> None:
        with self._lock:
            for finding in (*changes.opened, *changes.updated):
                if finding.key in self._open or len(self._open) < MAX_OPEN:
                    self._open[finding.key] = finding
                    self._labels.setdefault(finding.key, alert_labels(finding))
                    self._names[finding.key] = run_name(finding.run, runs)
                else:
                    self._sender.count("dropped")
            for finding in changes.closed:
                self._open.pop(finding.key, None)
                self._closed[finding.key] = finding
                self._names.setdefault(finding.key, run_name(finding.run, runs))
                if len(self._closed) > MAX_OPEN:
                    self._forget(next(iter(self._closed)))
                    self._sender.count("dropped")
            waiting = bool(changes.opened or changes.closed)
        if waiting:
            self._sender.wake()

    def counts(self) -> dict[str, float]:
        return self._sender.counts()

    def close(self, seconds: float = 5.0) -> None:
        self._sender.close(seconds)

    def _work(self, now: float) -> float:
        with self._lock:
            due = [finding for finding in self._open.values() if self._is_due(finding, now)]
            ended = [f for f in self._closed.values() if f.key in self._sent]
            for key in [key for key in self._closed if key not in self._sent]:
                self._forget(key)  # opened and closed while nobody could be told
            alerts = [(f, self._alert(f, now)) for f in (*due, *ended)]
        for start in range(0, len(alerts), _BATCH):
            part = alerts[start : start + _BATCH]
            if not self._sender.deliver(json.dumps([each for _, each in part]).encode()):
                return self._resend / 4
            self._note_sent([finding for finding, _ in part], now)
        return self._resend / 4

    def _alert(self, finding: LiveFinding, now: float) -> dict[str, Any]:
        made: dict[str, Any] = {
            "labels": self._labels.get(finding.key) or alert_labels(finding),
            "annotations": alert_notes(finding, self._names.get(finding.key, finding.run)),
            "startsAt": _stamp(min(finding.onset, now)),
            "endsAt": _stamp(self._end(finding, now)),
        }
        return made | ({"generatorURL": self._page} if self._page else {})

    def _is_due(self, finding: LiveFinding, now: float) -> bool:
        sent, share = self._sent.get(finding.key, (None, 0.0))
        if is_silenced(finding, now):
            return sent is not None
        return sent is None or now - sent >= self._resend or finding.share > _GREW * share

    def _end(self, finding: LiveFinding, now: float) -> float:
        if finding.closed is not None:
            return min(finding.closed, now)
        return now if is_silenced(finding, now) else now + 4 * self._resend

    def _note_sent(self, findings: Sequence[LiveFinding], now: float) -> None:
        with self._lock:
            for finding in findings:
                if finding.closed is not None:
                    self._forget(finding.key)
                elif is_silenced(finding, now):
                    self._sent.pop(finding.key, None)
                else:
                    self._sent[finding.key] = (now, finding.share)

    def _forget(self, key: str) -> None:
        self._closed.pop(key, None)
        self._sent.pop(key, None)
        self._names.pop(key, None)
        self._labels.pop(key, None)


def alert_labels(finding: LiveFinding) -> dict[str, str]:
    labels = {
        "alertname": label(finding.rule) or "finding",
        "run": label(finding.run),
        "account": label(finding.account),
        "severity": severity(finding),
        "ranks": ranks_label(finding.ranks),
        "nodes": nodes_label(finding.nodes),
        "finding": label(finding.key),
    }
    return {key: value for key, value in labels.items() if value}


def alert_notes(finding: LiveFinding, name: str) -> dict[str, str]:
    """Annotations: what is wrong, what it costs, what to do."""
    remedy = finding.remedy
    notes = {
        "title": label(finding.title, _TEXT),
        "run_name": label(name),
        "cost": cost_words(finding),
        "usd_per_hour": "" if finding.usd_per_hour is None else f"{finding.usd_per_hour:.2f}",
        "usd": "" if finding.usd is None else f"{finding.usd:.2f}",
        "remedy": "" if remedy is None else label(remedy.change, _TEXT),
        "command": "" if remedy is None else label(remedy.command, _TEXT),
        "evidence": "; ".join(label(each.what, _TEXT) for each in finding.evidence[:5]),
        "why_closed": label(finding.why_closed, _TEXT),
        "docs": f"docs/rules/{label(finding.rule)}.md",
    }
    return {key: value for key, value in notes.items() if value}


def cost_words(finding: LiveFinding) -> str:
    lasted = format_seconds(max((finding.closed or finding.seen) - finding.onset, 0.0))
    words = f"{format_share(finding.share)} of the run's GPU time for {lasted}"
    if finding.usd_per_hour is not None:
        words += f", ${finding.usd_per_hour:,.2f} an hour"
    return words if finding.usd is None else f"{words}, ${finding.usd:,.2f} so far"


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(max(seconds, 0.0), tz=UTC).isoformat(timespec="milliseconds")
