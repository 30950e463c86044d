"""Metrics of GPUs and nodes: exporters' text files, node monitors' lines, Prometheus servers.

Start with `metrics_source.MetricsSource` for files, `prometheus_server.observe_server` for an
address.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "GpuFigures": "gpu_facts",
    "MetricsFacts": "gpu_facts",
    "MetricsSource": "metrics_source",
    "SETTINGS": "exporter_fields",
    "observe_server": "prometheus_server",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
