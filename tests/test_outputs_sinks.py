"""Alerts and messages to a receiver of the test: what arrives, how often, and what is never said."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from computeflow.collection.outputs import AlertmanagerSink, MetricsPush, WebhookSink
from computeflow.collection.outputs.posting import read_address
from computeflow.collection.outputs.sinks import nodes_label, ranks_label
from computeflow.errors import InputError
from live_value_maker import NOW, MadeChanges, hostile_values, live_finding, live_run
from metrics_servers import Quiet, free_port, serving

WAIT_SECONDS = 300.0
SECRET = "T0PSECRET"
END = datetime.fromtimestamp(NOW, tz=UTC).isoformat()[:19]


class Received:
    """Bodies that a receiver took, and the statuses that it answers with."""

    def __init__(self, statuses: tuple[int, ...] = ()) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.statuses = [*statuses]
        self.free = threading.Event()
        self.free.set()

    def wait(self, enough: Callable[[Received], bool]) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while not enough(self):
            assert time.monotonic() < until, self.bodies
            time.sleep(0.01)

    def messages(self) -> list[Any]:
        return [json.loads(body) for body in self.bodies]


@contextmanager
def receiver(received: Received) -> Iterator[str]:
    class Taker(Quiet):
        def do_POST(self) -> None:  # noqa: N802  # http.server's name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.free.wait(WAIT_SECONDS)
            status = received.statuses.pop(0) if received.statuses else 200
            received.headers.append(dict(self.headers))
            received.paths.append(self.path)
            received.bodies.append(body)
            self.reply(b"ok", "text/plain", status)

    with serving(Taker) as port:
        yield f"http://127.0.0.1:{port}"


def closed(**fields: Any) -> Any:
    return live_finding(closed=NOW, why_closed="rank 3 is as fast as its peers", **fields)


def test_an_alert_opens_is_sent_again_while_open_and_ends() -> None:
    received = Received()
    finding = live_finding()
    with receiver(received) as address:
        sink = AlertmanagerSink(address, resend_seconds=0.2, token="abc")
        sink.publish(MadeChanges(opened=(finding,)), [live_run()])
        received.wait(lambda seen: len(seen.bodies) >= 3)
        wider = replace(finding, share=0.9, ranks=(3, 4), nodes=("node-00", "node-09"))
        sink.publish(MadeChanges(updated=(wider,)), [live_run()])
        sink.publish(MadeChanges(closed=(replace(wider, closed=NOW),)), [live_run()])
        received.wait(lambda seen: any(m[0]["endsAt"].startswith(END) for m in seen.messages()))
        sink.close()
    first, *_, last = [message[0] for message in received.messages()]
    assert first["labels"] == last["labels"]
    assert first["labels"] == {
        "alertname": "straggler-rank",
        "run": "7b-20261118",
        "account": "straggler",
        "severity": "critical",
        "ranks": "3",
        "nodes": "node-00",
        "finding": finding.key,
    }
    assert first["annotations"]["command"].startswith("scontrol update nodename=node-00")
    assert first["annotations"]["usd"] == "3.56"
    assert first["startsAt"] < first["endsAt"]
    assert (received.paths[0], received.headers[0]["Authorization"]) == (
        "/api/v2/alerts",
        "Bearer abc",
    )
    assert sink.counts()["alertmanager_failed_total"] == 0


def test_an_end_is_kept_until_it_arrives() -> None:
    received = Received(statuses=(200, *[503] * 7))
    finding = live_finding()
    with receiver(received) as address:
        sink = AlertmanagerSink(address, resend_seconds=0.2, first_wait_seconds=0.01)
        sink.publish(MadeChanges(opened=(finding,)), [])
        received.wait(lambda seen: len(seen.bodies) == 1)
        sink.publish(MadeChanges(closed=(closed(),)), [])
        received.wait(lambda seen: len(seen.bodies) >= 9)
        sink.close()
    assert received.messages()[-1][0]["endsAt"].startswith(END)
    assert sink.counts()["alertmanager_failed_total"] >= 1


def test_a_silenced_finding_is_reported_to_nobody() -> None:
    received = Received()
    quiet = live_finding(silenced_until=time.time() + 3600)
    loud = live_finding(rule="hang", ranks=(9,))
    with receiver(received) as address:
        sinks = (AlertmanagerSink(address), WebhookSink(address, every_seconds=0.01))
        for sink in sinks:
            sink.publish(MadeChanges(opened=(quiet, loud)), [])
            sink.close(WAIT_SECONDS)
    text = b"".join(received.bodies)
    assert len(received.bodies) == 2
    assert b"hang" in text
    assert b"straggler" not in text.replace(b'"account": "straggler"', b"")


def test_a_finding_is_one_message_when_it_opens_and_one_when_it_closes() -> None:
    received = Received()
    finding = live_finding()
    with receiver(received) as address:
        sink = WebhookSink(f"{address}/services/{SECRET}", every_seconds=0.01)
        for _ in range(5):
            sink.publish(MadeChanges(opened=(finding,), updated=(finding,)), [live_run()])
        received.wait(lambda seen: len(seen.bodies) == 1)
        for _ in range(5):
            sink.publish(MadeChanges(updated=(finding,), closed=(closed(),)), [live_run()])
        received.wait(lambda seen: len(seen.bodies) == 2)
        sink.close()
    first, second = received.messages()
    assert first["text"] == "1 finding: 1 opened. 255 ranks wait for rank 3, 210 ms a step"
    shown = first["blocks"][1]["text"]["text"]
    assert "run `llama-7b`, ranks `3`, on `node-00`" in shown
    assert "$128.00 an hour, $3.56 so far" in shown
    assert "`scontrol update nodename=node-00 state=drain reason=computeflow`" in shown
    assert "rank 3 is as fast as its peers" in second["blocks"][1]["text"]["text"]
    assert received.paths == [f"/services/{SECRET}"] * 2


def test_a_thousand_findings_are_one_message_with_the_most_expensive_first() -> None:
    received = Received()
    many = tuple(live_finding(ranks=(n,), usd_per_hour=float(n)) for n in range(1, 1301))
    with receiver(received) as address:
        received.free.clear()
        sink = WebhookSink(address, every_seconds=0.01)
        sink.publish(MadeChanges(opened=many), [])
        received.free.set()
        sink.close(WAIT_SECONDS)
    assert sink.counts()["webhook_dropped_total"] == 300
    blocks = [
        block["text"]["text"] for message in received.messages() for block in message["blocks"]
    ]
    assert len(blocks) < 30
    assert "ranks `1000`" in "".join(blocks)
    assert blocks[-1].endswith("more: `computeflow top` lists all.")


def test_the_collector_never_waits_for_a_receiver_that_hangs() -> None:
    received = Received()
    with receiver(received) as address:
        received.free.clear()
        sink = WebhookSink(address, every_seconds=0.01)
        began = time.process_time()
        for n in range(2000):
            sink.publish(MadeChanges(opened=(live_finding(ranks=(n,)),)), [])
        spent = time.process_time() - began
        counts = sink.counts()
        received.free.set()
        sink.close(WAIT_SECONDS)
    assert spent < 10
    assert counts["webhook_dropped_total"] > 0


@pytest.mark.parametrize("status", [404, 503])
def test_tries_are_bounded_and_no_secret_is_logged(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    received = Received(statuses=(status,) * 20)
    with caplog.at_level(logging.DEBUG), receiver(received) as address:
        sink = WebhookSink(f"{address}/hook/{SECRET}", every_seconds=0.01, first_wait_seconds=0.01)
        sink.publish(MadeChanges(opened=(live_finding(),)), [])
        received.wait(lambda _: sink.counts()["webhook_dropped_total"] == 1)
        sink.close()
    assert len(received.bodies) == (1 if status == 404 else 5)
    assert SECRET not in caplog.text
    assert f"answered {status}" in caplog.text


def test_nobody_there_is_counted_and_said_without_the_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = WebhookSink(f"http://127.0.0.1:{free_port()}/{SECRET}", first_wait_seconds=0.001)
    sink.publish(MadeChanges(opened=(live_finding(),)), [])
    until = time.monotonic() + WAIT_SECONDS
    while not sink.counts()["webhook_failed_total"] and time.monotonic() < until:
        time.sleep(0.01)
    sink.close()
    assert "Connection refused" in caplog.text
    assert SECRET not in caplog.text


def test_hostile_names_mention_no_channel_and_stay_within_slacks_limits() -> None:
    received = Received()
    runs, findings, _ = hostile_values()
    with receiver(received) as address:
        hook = WebhookSink(address, every_seconds=0.01)
        alerts = AlertmanagerSink(address)
        for sink in (hook, alerts):
            sink.publish(MadeChanges(opened=tuple(findings)), runs)
            sink.close(WAIT_SECONDS)
    for body in received.bodies:
        assert b"<!channel>" not in body or b'"alertname"' in body
        text = json.dumps(json.loads(body), ensure_ascii=False)
        assert text.encode().isascii() or text.isprintable() or "\u200b" in text
        assert "\x1b" not in text
    message = json.loads(next(body for body in received.bodies if b"blocks" in body))
    assert all(len(block["text"]["text"]) <= 3000 for block in message["blocks"])


def test_metrics_are_pushed_until_the_end() -> None:
    received = Received()
    with receiver(received) as address:
        push = MetricsPush(address, lambda: b"a 1\n", every_seconds=0.01)
        received.wait(lambda seen: len(seen.bodies) >= 3)
        push.close()
    assert received.paths[0] == "/api/v1/import/prometheus"
    assert received.headers[0]["Content-Encoding"] == "gzip"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "hooks.slack.com",
        "http://",
        "http://u:p@h/x",
        "http://h:0/",
        "http://h/ä",
        "http://h:x/",
    ],
)
def test_an_address_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InputError) as refused:
        read_address(url, "--webhook")
    assert "--webhook" in str(refused.value)
    assert "u:p" not in str(refused.value)


def test_labels_of_many_ranks_and_nodes_are_short() -> None:
    assert ranks_label((7, 3, 4, 5)) == "3-5,7"
    assert ranks_label(range(0, 40, 2)) == "0,2,4,6,8,10,+14"
    assert ranks_label(()) == ""
    assert nodes_label([f"n{i}" for i in range(6)]) == "n0,n1,n2,n3,+2"
