"""Files for other people's monitoring: alert rules, a Prometheus configuration, a Grafana dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from computeflow import codec
from computeflow.collection.outputs.dashboard import dashboard
from computeflow.collection.outputs.posting import read_address
from computeflow.errors import InputError
from computeflow.files.names import shown

MonitoringFile = Literal["grafana", "alerts", "prometheus"]
_RULES = Path(__file__).with_name("alert_rules.yml")


def grafana_dashboard() -> str:
    return codec.to_json(dashboard()) + "\n"


def alert_rules() -> str:
    return _RULES.read_text(encoding="utf-8")


def prometheus_configuration(collectors: tuple[str, ...], remote_write: str | None = None) -> str:
    """A `prometheus.yml` that scrapes collectors and, where asked to, writes on to another server."""
    for collector in collectors:
        read_address(f"http://{collector}", "--collector")
        if "/" in collector:
            raise InputError(f"--collector {shown(collector)}: write host:port")
    lines = [
        "# Prometheus scrapes the collectors and looks at the rules of `computeflow export alerts`.",
        "global:",
        "  scrape_interval: 5s",
        "  evaluation_interval: 5s",
        "rule_files:",
        "  - computeflow-alerts.yml",
        "scrape_configs:",
        "  - job_name: computeflow",
        "    static_configs:",
        "      - targets:",
        *(f"          - {json.dumps(collector)}" for collector in collectors),
    ]
    if remote_write is not None:
        read_address(remote_write, "--remote-write")
        lines += [
            "remote_write:",
            f"  - url: {json.dumps(remote_write)}",
            "    write_relabel_configs:",
            "      - source_labels: [__name__]",
            "        regex: computeflow.*|DCGM_FI_.*",
            "        action: keep",
        ]
    return "\n".join([*lines, ""])
