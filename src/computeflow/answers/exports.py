"""`export`: files for Grafana and Prometheus, over the metrics of a collector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import NewFile
from computeflow.collection.outputs.monitoring_files import (
    MonitoringFile,
    alert_rules,
    grafana_dashboard,
    prometheus_configuration,
)
from computeflow.errors import InputError
from computeflow.files.writing import write_file
from computeflow.units import format_count
from computeflow.views.tables import Table, columns

DEFAULT_COLLECTOR = "127.0.0.1:8471"
_USES = {
    "grafana": "Grafana: Dashboards, New, Import",
    "alerts": "prometheus.yml: rule_files",
    "prometheus": "prometheus --config.file",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExportAnswer(Answer):
    what: MonitoringFile
    text: str
    to: str | None = None

    @property
    def title(self) -> str:
        return f"Export for {self.what}"

    @property
    def headline(self) -> str:
        return "" if self.to is None else f"Wrote {self.to} for {_USES[self.what]}."

    def tables(self) -> list[Table]:
        lines = format_count(self.text.count("\n"), "line")
        return [
            Table(
                title=self.title,
                columns=columns("file", "size", "for", wrap="file,for"),
                rows=((self.to or "-", lines, _USES[self.what]),),
            )
        ]

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.export/1",
            "what": self.what,
            "to": self.to,
            "text": self.text,
        }


@checked
def export(
    what: MonitoringFile,
    *,
    to: NewFile | None = None,
    collector: Sequence[str] = (),
    remote_write: str | None = None,
    force: bool = False,
) -> ExportAnswer:
    """A Grafana dashboard, alert rules, or a Prometheus configuration; written where `to` says.

    `collector` (host:port) and `remote_write` are for `prometheus`: what it scrapes, and where it
    writes on to.
    """
    if what != "prometheus" and (collector or remote_write):
        raise InputError("--collector and --remote-write belong to `export prometheus`")
    if what == "grafana":
        text = grafana_dashboard()
    elif what == "alerts":
        text = alert_rules()
    else:
        text = prometheus_configuration(tuple(collector) or (DEFAULT_COLLECTOR,), remote_write)
    if to is not None:
        write_file(to, text, "--to", force=force)
    return ExportAnswer(what=what, text=text, to=None if to is None else str(to))
