"""What leaves a collector: metrics, alerts, messages, and what `top` and `export` show of them."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "AlertmanagerSink": "alertmanager",
    "FindingChanges": "sinks",
    "MetricsPush": "remote_write",
    "Sink": "sinks",
    "WebhookSink": "webhook",
    "render_metrics": "metrics",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
