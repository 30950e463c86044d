"""Real Alertmanager, Prometheus and VictoriaMetrics take what goes out, and give it back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import computeflow as cf
from computeflow.collection.outputs import AlertmanagerSink, MetricsPush
from computeflow.collection.outputs.metrics import CONTENT_TYPE, render_metrics
from computeflow.collection.outputs.posting import post, read_address
from computeflow.telemetry.metrics.prometheus_json import rows
from computeflow.telemetry.metrics.prometheus_server import connect
from live_value_maker import MadeChanges, hostile_values, live_finding, live_node, live_run
from metrics_servers import Quiet, free_port, needed, running, serving
from test_outputs_sinks import Received, receiver

pytestmark = pytest.mark.live
WAIT_SECONDS = 300.0


def until(there: Callable[[], Any]) -> Any:
    """The first answer that is something."""
    end = time.monotonic() + WAIT_SECONDS
    while not (answer := there()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return answer


def ask(address: str, query: str) -> list[tuple[dict[str, str], float]]:
    """PromQL, by the client that `audit` uses."""
    data = connect(address).ask("query", {"query": query})
    return [(labels, values[-1][1]) for labels, values in rows(data, address) if values]


def now_fleet() -> tuple[list[Any], list[Any], list[Any]]:
    now = time.time()
    finding = live_finding(onset=now - 60, opened=now - 50, seen=now)
    node = live_node(last_seen=now)
    return [live_run(updated=now, started=now - 7200)], [finding], [node]


@contextmanager
def alertmanager(folder: Path, hook: str) -> Iterator[str]:
    settings = (
        "route: {receiver: test, group_by: [alertname, run], group_wait: 0s, group_interval: 1s, "
        "repeat_interval: 1h}\n"
        f"receivers: [{{name: test, webhook_configs: [{{url: '{hook}', send_resolved: true}}]}}]\n"
    )
    (folder / "alertmanager.yml").write_text(settings)
    port = free_port()
    command = [
        needed("prometheus-alertmanager"),
        "--config.file=alertmanager.yml",
        "--storage.path=alerts",
        "--cluster.listen-address=",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, port, "/-/ready", folder) as address:
        yield address


@contextmanager
def victoria_metrics(folder: Path) -> Iterator[str]:
    folder.mkdir()
    port = free_port()
    command = [
        needed("victoria-metrics"),
        "-storageDataPath=data",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
        "-memory.allowedBytes=200MB",
    ]
    with running(command, port, "/health", folder) as address:
        yield address


def told(received: Received) -> list[tuple[str, str, str]]:
    """What Alertmanager passed on: status, rule and ranks of each alert."""
    return [
        (alert["status"], alert["labels"]["alertname"], alert["labels"].get("ranks", ""))
        for message in received.messages()
        for alert in message["alerts"]
    ]


def test_a_finding_fires_and_resolves_through_alertmanager(tmp_path: Path) -> None:
    received = Received()
    runs, (finding,), _ = now_fleet()
    with receiver(received) as hook, alertmanager(tmp_path, hook) as address:
        sink = AlertmanagerSink(address, resend_seconds=2.0)
        sink.publish(MadeChanges(opened=(finding,)), runs)
        received.wait(lambda seen: ("firing", "straggler-rank", "3") in told(seen))
        grown = replace(finding, share=0.5, seen=time.time(), usd=10.0)
        sink.publish(MadeChanges(updated=(grown,)), runs)
        ended = replace(grown, closed=time.time(), why_closed="as fast as its peers")
        sink.publish(MadeChanges(closed=(ended,)), runs)
        received.wait(lambda seen: ("resolved", "straggler-rank", "3") in told(seen))
        hostile = tuple(replace(f, onset=time.time()) for f in hostile_values()[1])
        sink.publish(MadeChanges(opened=hostile), [])
        received.wait(lambda seen: any(ranks.startswith("0,2,4") for _, _, ranks in told(seen)))
        sink.close()
    first = received.messages()[0]["alerts"][0]
    assert first["annotations"]["command"].startswith("scontrol update")
    assert first["annotations"]["run_name"] == "llama-7b"
    assert sink.counts()["alertmanager_failed_total"] == 0


def test_alerts_of_a_collector_that_died_resolve_by_themselves(tmp_path: Path) -> None:
    received = Received()
    _, (finding,), _ = now_fleet()
    with receiver(received) as hook, alertmanager(tmp_path, hook) as address:
        sink = AlertmanagerSink(address, resend_seconds=1.0)
        sink.publish(MadeChanges(opened=(finding,)), [])
        received.wait(lambda seen: ("firing", "straggler-rank", "3") in told(seen))
        sink.close()
        received.wait(lambda seen: ("resolved", "straggler-rank", "3") in told(seen))


@contextmanager
def exporter(values: Callable[[], tuple[list[Any], list[Any], list[Any]]]) -> Iterator[str]:
    class Metrics(Quiet):
        def answer(self) -> None:
            service = {"records_total": 5.0, "refused_total": 0.0, "tick_seconds": 0.01}
            self.reply(render_metrics(*values(), service), CONTENT_TYPE)

    with serving(Metrics) as port:
        yield f"127.0.0.1:{port}"


def test_prometheus_scrapes_alerts_and_writes_on_to_victoriametrics(tmp_path: Path) -> None:
    """All with the files of `export`: scrape, rules, remote write, and PromQL at both ends."""
    with victoria_metrics(tmp_path / "far") as far, exporter(now_fleet) as collector:
        near = tmp_path / "near"
        near.mkdir()
        cf.export("alerts", to=near / "computeflow-alerts.yml")
        cf.export(
            "prometheus",
            to=near / "prometheus.yml",
            collector=[collector],
            remote_write=f"{far}/api/v1/write",
        )
        text = (near / "prometheus.yml").read_text().replace(": 5s", ": 1s")
        (near / "prometheus.yml").write_text(text)
        port = free_port()
        command = [
            needed("prometheus"),
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with running(command, port, "/-/ready", near) as address:
            asked = 'computeflow_finding_usd_per_hour{rule="straggler-rank"}'
            ((labels, value),) = until(lambda: ask(address, asked))
            assert (labels["run"], labels["ranks"], value) == ("7b-20261118", "3", 128.0)
            firing = 'ALERTS{alertname="ComputeFlowCostlyFinding", alertstate="firing"}'
            assert until(lambda: ask(address, firing))[0][0]["finding"] == labels["finding"]
            assert until(lambda: ask(far, asked))[0][1] == 128.0
            shares = until(lambda: ask(far, "sum(computeflow_account_ratio)"))
            assert shares[0][1] == pytest.approx(1.0)
            hottest = "max by (Hostname) (DCGM_FI_DEV_GPU_TEMP)"
            assert until(lambda: ask(far, hottest)) == [({"Hostname": "node-00"}, 86.0)]
            (up,) = until(lambda: ask(address, 'up{job="computeflow"}'))
            assert up[1] == 1.0


def test_prometheus_takes_hostile_names(tmp_path: Path) -> None:
    with exporter(hostile_values) as collector:
        (tmp_path / "prometheus.yml").write_text(
            cf.export("prometheus", collector=[collector])
            .text.replace(": 5s", ": 1s")
            .replace("rule_files:\n  - computeflow-alerts.yml\n", "")
        )
        port = free_port()
        command = [
            needed("prometheus"),
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with running(command, port, "/-/ready", tmp_path) as address:
            (found,) = until(lambda: ask(address, "computeflow_run_info"))
            assert found[0]["name"].startswith('x"\\n')
            assert ask(address, "up")[0][1] == 1.0


def test_metrics_pushed_to_victoriametrics_are_asked_back(tmp_path: Path) -> None:
    def render() -> bytes:
        return render_metrics(*now_fleet(), {"records_total": 5.0}, text=True)

    with victoria_metrics(tmp_path / "far") as address:
        push = MetricsPush(address, render, every_seconds=1.0)
        try:
            (found,) = until(lambda: ask(address, "computeflow_step_seconds"))
            assert (found[0]["run"], found[1]) == ("7b-20261118", 1.12)
        finally:
            push.close()
        assert push.counts()["push_failed_total"] == 0


def states(address: str) -> dict[str, str]:
    """What Alertmanager does with the alerts it has, by run."""
    with urlopen(f"{address}/api/v2/alerts", timeout=60) as answer:
        alerts = json.load(answer)
    return {each["labels"]["run"]: each["status"]["state"] for each in alerts}


def test_silences_made_in_alertmanager_hold(tmp_path: Path) -> None:
    """A silence made in Alertmanager keeps a finding from its receivers: routing is not ours."""
    received = Received()
    runs, (finding,), _ = now_fleet()
    with receiver(received) as hook, alertmanager(tmp_path, hook) as address:
        silence = {
            "matchers": [{"name": "run", "value": finding.run, "isRegex": False}],
            "startsAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 5)),
            "endsAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600)),
            "createdBy": "test",
            "comment": "test",
        }
        silences = read_address(address, "test", path="/api/v2/silences")
        assert post(silences, json.dumps(silence).encode()).is_done
        other = live_finding(run="other", onset=time.time())
        sink = AlertmanagerSink(address, resend_seconds=2.0)
        sink.publish(MadeChanges(opened=(finding, other)), runs)
        received.wait(lambda seen: bool(told(seen)))
        until(lambda: states(address) == {finding.run: "suppressed", "other": "active"})
        sink.close()
    runs_told = {
        alert["labels"]["run"] for message in received.messages() for alert in message["alerts"]
    }
    assert runs_told == {"other"}
