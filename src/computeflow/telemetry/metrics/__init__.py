"""Metrics of GPUs and nodes: exporters' text files, node monitors' lines, Prometheus servers.

Start with `source.MetricsSource` for files and `server.observe_server` for an address.
"""
