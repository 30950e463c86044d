"""Job accounting of a cluster: who had the GPUs, for how long, and what came of it.

Start with `accounting_source.AccountingSource`; `cluster_ledger.account_usage` makes the ledger;
`fault_attribution.attribute_faults` says which failed jobs followed a fault on one of their nodes.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Accounting": "usage",
    "AccountingSource": "accounting_source",
    "FaultAttribution": "fault_attribution",
    "UsageRow": "usage",
    "SuspectNode": "suspect_nodes",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
