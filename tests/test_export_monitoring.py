"""`export`: a dashboard that Grafana's models know, rules and configurations that promtool takes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import computeflow as cf
from computeflow.cli import run
from computeflow.collection.outputs.metrics import render_metrics
from live_value_maker import NOW, live_finding, live_node, live_run
from metrics_servers import needed

RULE_TESTS = Path(__file__).parent / "data" / "alerts" / "alerts_test.yml"
Capture = pytest.CaptureFixture[str]


def through_grafanas_models(data: dict[str, Any]) -> Any:
    """The same dashboard after it was read into the models generated from Grafana's schema."""
    pytest.importorskip("grafana_foundation_sdk", reason="pip install 'computeflow[dev]'")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(data)))


def lost(given: Any, back: Any, path: str = "") -> list[str]:
    """What the models did not take over as it was."""
    if isinstance(given, dict) and isinstance(back, dict):
        return [
            words
            for key, value in given.items()
            for words in (
                lost(value, back[key], f"{path}/{key}") if key in back else [f"{path}/{key}"]
            )
        ]
    if isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        return [
            w
            for i, pair in enumerate(zip(given, back, strict=True))
            for w in lost(*pair, f"{path}/{i}")
        ]
    return [] if given == back else [path]


def dashboard() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(cf.export("grafana").text)
    return data


def promtool(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        [needed("promtool"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_grafanas_models_know_every_field_of_the_dashboard() -> None:
    data = dashboard()
    assert lost(data, through_grafanas_models(data)) == []
    assert data["schemaVersion"] >= 39
    assert data["uid"] == "computeflow-runs"


def test_a_field_that_grafana_does_not_know_would_be_seen() -> None:
    data = dashboard()
    data["panels"][0]["fieldConfig"]["defaults"]["units"] = "s"
    assert lost(data, through_grafanas_models(data)) == ["/panels/0/fieldConfig/defaults/units"]


def test_panels_do_not_overlap_and_stay_on_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
        assert at["x"] + at["w"] <= 24


def test_dashboard_and_alerts_ask_for_metrics_that_there_are() -> None:
    service = {
        "records_total": 1.0,
        "refused_total": 1.0,
        "queue_batches": 1.0,
        "tick_seconds": 1.0,
    }
    served = render_metrics(
        [live_run()], [live_finding(silenced_until=NOW)], [live_node()], service, text=True
    ).decode()
    names = set(re.findall(r"^([a-zA-Z_]\w*)\{?", served, re.MULTILINE))
    asked = re.findall(
        r"\b(?:computeflow_\w+|DCGM_\w+)", json.dumps(dashboard()) + cf.export("alerts").text
    )
    assert set(asked) - names == set()
    assert len(set(asked)) > 15


def test_promtool_takes_the_rules_and_their_test(tmp_path: Path) -> None:
    cf.export("alerts", to=tmp_path / "computeflow-alerts.yml")
    (tmp_path / "alerts_test.yml").write_text(RULE_TESTS.read_text())
    assert "10 rules found" in promtool("check", "rules", "computeflow-alerts.yml", cwd=tmp_path)
    promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)


def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    cf.export("alerts", to=tmp_path / "computeflow-alerts.yml")
    cf.export(
        "prometheus",
        to=tmp_path / "prometheus.yml",
        collector=["10.0.0.1:8471", "[::1]:8471"],
        remote_write='http://h:8428/api/v1/write?x="{:[',
    )
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml", cwd=tmp_path)


def test_a_file_is_printed_written_or_json(tmp_path: Path, capsys: Capture) -> None:
    assert run(["export", "alerts"]) == 0
    printed = capsys.readouterr().out
    assert printed == cf.export("alerts").text
    out = tmp_path / "rules.yml"
    assert run(["export", "alerts", "--to", str(out)]) == 0
    assert out.read_text() == printed
    assert "rule_files" in capsys.readouterr().err
    assert run(["export", "grafana", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["what"] == "grafana"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["alerts", "--collector", "h:1"], "belong to `export prometheus`"),
        (["prometheus", "--collector", "http://h:1/x"], "--collector"),
        (["prometheus", "--collector", "h:1\n  evil: 1"], "--collector"),
        (["prometheus", "--remote-write", "ftp://h"], "--remote-write"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: list[str], said: str, capsys: Capture) -> None:
    assert run(["export", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
