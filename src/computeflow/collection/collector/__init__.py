"""The collector: takes batches of agents, keeps them, watches the runs, and answers over HTTP."""

from computeflow._lazy import lazy_exports

_EXPORTS = {"CollectorOptions": "collector_options", "run_collector": "running"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
