"""`dashboard`: a Grafana dashboard over the metrics of a collector, as plain data.

Tests load it into the models that Grafana generates from its own schema, and find nothing in it that
those do not know. `tests/test_export_monitoring.py` is the place to start when it changes.
"""

from __future__ import annotations

from typing import Any

from computeflow.ledger import ACCOUNTS

UID = "computeflow-runs"
SCHEMA_VERSION = 41
Json = dict[str, Any]
_SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
_RUN = '{run=~"$run"}'
_OWNER_COLOURS = {
    "useful": "#009E73",
    "site": "#0072B2",
    "design": "#D55E00",
    "tuning": "#CC79A7",
    "mixed": "#7F7F7F",
    "unknown": "#BBBBBB",
}
"""Okabe and Ito's colours by the owner of an account, as in reports."""


def dashboard() -> Json:
    rows = [_overview(), _flow(), _ranks_and_findings(), _nodes(), _collector()]
    panels: list[Json] = []
    for row in rows:
        below = max((p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels), default=0)
        for panel in row:
            panel["gridPos"]["y"] = below + panel["gridPos"].pop("down")
            panel["id"] = len(panels) + 1
            panels.append(panel)
    return {
        "uid": UID,
        "title": "ComputeFlow: runs",
        "description": "Where the GPU-seconds of training runs go, who is slow, and what it costs.",
        "tags": ["computeflow", "training"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "refresh": "5s",
        "time": {"from": "now-1h", "to": "now"},
        "fiscalYearStartMonth": 0,
        "templating": {"list": _variables()},
        "annotations": {"list": [_annotation()]},
        "panels": panels,
    }


def _variables() -> list[Json]:
    return [
        {"type": "datasource", "name": "datasource", "label": "Source", "query": "prometheus"},
        {
            "type": "query",
            "name": "run",
            "label": "Run",
            "datasource": _SOURCE,
            "query": "label_values(computeflow_run_info, run)",
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
        },
    ]


def _annotation() -> Json:
    """Mark when a finding appears."""
    return {
        "name": "Findings",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": f"computeflow_finding_age_seconds{_RUN} < 10",
    }


def _panel(
    kind: str,
    title: str,
    at: tuple[int, int, int] | tuple[int, int, int, int],
    queries: list[Json],
    *,
    unit: str = "short",
    doc: str = "",
    custom: Json | None = None,
    options: Json | None = None,
    **more: Any,
) -> Json:
    """A panel; `at` has its column of 24, its width, its height, and how far below its row it is."""
    column, width, height, *down = at
    defaults: Json = {"unit": unit, **({"custom": custom} if custom else {})}
    defaults |= more.pop("defaults", {})
    return {
        "type": kind,
        "title": title,
        **({"description": doc} if doc else {}),
        "datasource": _SOURCE,
        "gridPos": {"x": column, "w": width, "h": height, "down": sum(down)},
        "targets": [{**query, "refId": chr(65 + number)} for number, query in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": more.pop("overrides", [])},
        **({"options": options} if options else {}),
        **more,
    }


def _series(expression: str, legend: str = "") -> Json:
    query: Json = {"datasource": _SOURCE, "expr": expression, "range": True}
    return query | ({"legendFormat": legend} if legend else {})


def _now(expression: str, legend: str = "", *, table: bool = False) -> Json:
    query: Json = {"datasource": _SOURCE, "expr": expression, "instant": True, "range": False}
    query |= {"legendFormat": legend} if legend else {}
    return query | ({"format": "table"} if table else {})


def _overview() -> list[Json]:
    figures = [
        ("Runs", 'sum(computeflow_run_state{state="running"})', "short"),
        ("Stuck or silent", 'sum(computeflow_run_state{state=~"stuck|silent"})', "short"),
        ("Open findings", f"count(computeflow_finding_ratio{_RUN}) or vector(0)", "short"),
        ("Findings, $ an hour", f"sum(computeflow_finding_usd_per_hour{_RUN})", "currencyUSD"),
        ("Runs, $ an hour", f"sum(computeflow_run_usd_per_hour{_RUN})", "currencyUSD"),
        ("Lowest goodput", f"min(computeflow_goodput_ratio{_RUN})", "percentunit"),
    ]
    return [
        _panel("stat", title, (4 * number, 4, 4), [_now(expression)], unit=unit)
        for number, (title, expression, unit) in enumerate(figures)
    ]


def _flow() -> list[Json]:
    stacked: Json = {
        "drawStyle": "line",
        "fillOpacity": 70,
        "lineWidth": 0,
        "stacking": {"mode": "normal", "group": "A"},
    }
    return [
        _panel(
            "timeseries",
            "Where GPU-seconds go, by account",
            (0, 12, 10),
            [_series(f"avg by (account) (computeflow_account_ratio{_RUN})", "{{account}}")],
            unit="percentunit",
            doc="Shares of the last window; they add up to 1. The average over the chosen runs.",
            custom=stacked,
            defaults={"max": 1.0, "min": 0.0},
            overrides=[_coloured(name) for name in ACCOUNTS],
        ),
        _panel(
            "timeseries",
            "Step time",
            (12, 12, 5),
            [_series(f"computeflow_step_seconds{_RUN}", "{{run}}")],
            unit="s",
        ),
        _panel(
            "timeseries",
            "MFU and goodput",
            (12, 12, 5, 5),
            [
                _series(f"computeflow_mfu_ratio{_RUN}", "MFU {{run}}"),
                _series(f"computeflow_goodput_ratio{_RUN}", "goodput {{run}}"),
            ],
            unit="percentunit",
        ),
    ]


def _coloured(account: str) -> Json:
    colour = {"mode": "fixed", "fixedColor": _OWNER_COLOURS[ACCOUNTS[account].owner]}
    return {
        "matcher": {"id": "byName", "options": account},
        "properties": [{"id": "color", "value": colour}],
    }


def _ranks_and_findings() -> list[Json]:
    by = "finding, run, rule, account, ranks, nodes"
    hidden = {"Time": True, "finding": True}
    return [
        _panel(
            "bargauge",
            "Slowest ranks: late to collectives",
            (0, 8, 9),
            [
                _now(
                    f"topk(16, computeflow_rank_late_seconds{_RUN})",
                    "{{run}} rank {{rank}} {{node}}",
                )
            ],
            unit="s",
            doc="After the median of its peers.",
            options={"orientation": "horizontal", "displayMode": "basic"},
        ),
        _panel(
            "table",
            "Open findings, most expensive first",
            (8, 16, 9),
            [
                _now(f"max by ({by}) (computeflow_finding_usd_per_hour{_RUN})", table=True),
                _now(f"max by ({by}) (computeflow_finding_ratio{_RUN})", table=True),
                _now(f"max by ({by}) (computeflow_finding_usd{_RUN})", table=True),
                _now(f"max by ({by}) (computeflow_finding_age_seconds{_RUN})", table=True),
            ],
            transformations=[
                {"id": "merge", "options": {}},
                {
                    "id": "organize",
                    "options": {
                        "excludeByName": hidden,
                        "renameByName": {
                            "Value #A": "$ an hour",
                            "Value #B": "share",
                            "Value #C": "$ so far",
                            "Value #D": "age",
                        },
                    },
                },
                {"id": "sortBy", "options": {"sort": [{"field": "$ an hour", "desc": True}]}},
            ],
            overrides=[
                _in_unit("share", "percentunit"),
                _in_unit("$ an hour", "currencyUSD"),
                _in_unit("$ so far", "currencyUSD"),
                _in_unit("age", "s"),
            ],
        ),
    ]


def _in_unit(field: str, unit: str) -> Json:
    return {
        "matcher": {"id": "byName", "options": field},
        "properties": [{"id": "unit", "value": unit}],
    }


def _nodes() -> list[Json]:
    readings = [
        ("GPU power, largest of a node", "DCGM_FI_DEV_POWER_USAGE", "watt"),
        ("GPU temperature, largest of a node", "DCGM_FI_DEV_GPU_TEMP", "celsius"),
        ("Seconds since a node was heard of", "computeflow_node_last_seen_timestamp_seconds", "s"),
    ]
    panels = []
    for number, (title, name, unit) in enumerate(readings):
        ago = name.endswith("timestamp_seconds")
        expression = f"topk(16, time() - {name})" if ago else f"topk(16, {name})"
        legend = "{{node}}" if ago else "{{Hostname}}"
        panels.append(
            _panel(
                "timeseries", title, (8 * number, 8, 8), [_series(expression, legend)], unit=unit
            )
        )
    return panels


def _collector() -> list[Json]:
    figures = [
        ("Records a second", "rate(computeflow_collector_records_total[1m])", "short"),
        ("Batches that wait", "computeflow_collector_queue_batches", "short"),
        ("Time of a look at all runs", "computeflow_collector_tick_seconds", "s"),
    ]
    return [
        _panel(
            "timeseries",
            title,
            (8 * number, 8, 6),
            [_series(expression, "{{instance}}")],
            unit=unit,
        )
        for number, (title, expression, unit) in enumerate(figures)
    ]
