"""`WebhookSink`: findings as Slack messages, one when a finding opens and one when it closes.

Slack takes about one message a second from a webhook, so a message carries everything that waits: the
most expensive findings in full, the others as a count. A finding that opens and closes while it waits
is one message. What others wrote is escaped: no name in it can mention a channel or make a link.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.collection.outputs.alertmanager import cost_words
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
from computeflow.errors import InputError

EVERY_SECONDS = 2.0
MAX_WAITING = 1_000
_MAX_TOLD = 20_000
_SHOWN = 8
_MAX_ADDRESS_BYTES = 4096
"""Findings in one message: Slack takes 50 blocks, a reader takes fewer."""
_TITLE = 300
_LONGER = 600
_MARKS = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
_CODE = {ord("`"): "'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    finding: LiveFinding
    run: str

    @property
    def cost(self) -> tuple[float, float]:
        return (self.finding.usd_per_hour or 0.0, self.finding.share)


def read_webhook(path: Path) -> str:
    """The address in a file: whoever knows it can write to the channel, so it is not an option."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_ADDRESS_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise InputError(f"--webhook-file {path}: {error.strerror}") from None
    read_address(text, "--webhook-file")
    return text


class WebhookSink:
    def __init__(
        self,
        url: str,
        findings: Sequence[LiveFinding] = (),
        *,
        every_seconds: float = EVERY_SECONDS,
        first_wait_seconds: float = 1.0,
    ) -> None:
        """`findings`: the open ones of before a restart, which were told."""
        self._every = every_seconds
        self._lock = threading.Lock()
        self._waiting: dict[str, _News] = {}
        self._told = OrderedDict((finding.key, False) for finding in findings)
        """By key: whether its end was told, too."""
        self._next = 0.0
        address = read_address(url, "--webhook")
        self._sender = Sender("webhook", address, self._work, first_wait_seconds=first_wait_seconds)
        self._sender.start()

    def publish(self, changes: FindingChanges, runs: Sequence[LiveRun]) -> None:
        now = time.time()
        with self._lock:
            for finding in (*changes.opened, *changes.updated, *changes.closed):
                if is_silenced(finding, now) or not self._is_new(finding):
                    continue
                if finding.key not in self._waiting and len(self._waiting) >= MAX_WAITING:
                    self._sender.count("dropped")
                    continue
                news = _News(finding=finding, run=run_name(finding.run, runs))
                self._waiting[finding.key] = news
            waiting = bool(self._waiting)
        if waiting:
            self._sender.wake()

    def _is_new(self, finding: LiveFinding) -> bool:
        """An open one that was not told, or the end of one whose end was not."""
        if finding.is_open:
            return finding.key not in self._told
        return not self._told.get(finding.key, False)

    def counts(self) -> dict[str, float]:
        return self._sender.counts()

    def close(self, seconds: float = 5.0) -> None:
        self._sender.close(seconds)

    def _work(self, now: float) -> float:
        if now < self._next and not self._sender.is_stopping:
            return self._next - now
        with self._lock:
            due = [*self._waiting.values()]
            self._waiting = {}
            self._remember(due)
        if not due:
            return self._every * 30
        due.sort(key=lambda news: news.cost, reverse=True)
        body = json.dumps(message(due)).encode()
        self._next = now + self._every
        if not self._sender.deliver(body):
            self._sender.count("dropped", len(due))
        return self._every

    def _remember(self, news: Sequence[_News]) -> None:
        """They count as told from here on: the same finding comes again while they are being sent."""
        for each in news:
            self._told[each.finding.key] = not each.finding.is_open
            self._told.move_to_end(each.finding.key)
        while len(self._told) > _MAX_TOLD:
            self._told.popitem(last=False)


def message(news: Sequence[_News]) -> dict[str, Any]:
    """One message in Slack's format: `text` for notifications, `blocks` for the channel."""
    opened = sum(each.finding.is_open for each in news)
    words = [f"{opened} opened"] * bool(opened) + [f"{len(news) - opened} closed"] * (
        len(news) > opened
    )
    first = news[0].finding
    count = f"{len(news)} finding{'s' * (len(news) > 1)}: {', '.join(words)}"
    text = f"{count}. {_plain(first.title, _TITLE)}"
    blocks: list[dict[str, Any]] = [_section(f"*{count}*")]
    for each in news[:_SHOWN]:
        blocks.append(_section(_finding_text(each)))
    if len(news) > _SHOWN:
        blocks.append(_section(f"{len(news) - _SHOWN} more: `computeflow top` lists all."))
    return {"text": text, "blocks": blocks}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _finding_text(news: _News) -> str:
    finding = news.finding
    state = "closed" if not finding.is_open else severity(finding)
    where = [f"run {_code(news.run)}"] if finding.run else []
    where += [f"ranks {_code(ranks_label(finding.ranks))}"] * bool(finding.ranks)
    where += [f"on {_code(nodes_label(finding.nodes))}"] * bool(finding.nodes)
    lines = [
        f"*{_plain(finding.rule, 60)}* ({state}): {_plain(finding.title, _TITLE)}",
        f"{', '.join(where)}: {cost_words(finding)}" if where else cost_words(finding),
    ]
    if not finding.is_open:
        return "\n".join([*lines, _plain(finding.why_closed, _TITLE)]).strip()
    if finding.remedy is not None:
        lines.append(_plain(finding.remedy.change, _LONGER))
        lines += [_code(finding.remedy.command, _LONGER)] * bool(finding.remedy.command)
    return "\n".join(lines)


def _plain(text: str, most: int) -> str:
    """Text of others between Slack's marks: shown as it is written."""
    marked = label(text, most).translate(_MARKS)
    return "".join(f"{letter}\u200b" if letter in "*_~`" else letter for letter in marked)


def _code(text: str, most: int = 200) -> str:
    return f"`{label(text, most).translate(_CODE).translate(_MARKS)}`"
