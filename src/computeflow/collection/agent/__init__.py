"""The agent of a node: what the node says of itself, and its ranks' records, to a collector.

Start with `node_agent.NodeAgent`. Sources of readings are behind one method
(`node_sources.NodeSource`); `shipping.Shipper` sends, and every record arrives once.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "AgentOptions": "node_agent",
    "NodeAgent": "node_agent",
    "NodeLook": "node_sources",
    "NodeSource": "node_sources",
    "RecordedNvml": "recorded_nvml",
    "manifest": "manifests",
    "run_agent": "node_agent",
    "run_id": "run_ids",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
