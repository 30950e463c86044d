"""Figures and tables, built once, for the terminal, notebooks and reports.

The names below are imported when they are first used: a command shows one kind of table, and
should not wait for the others.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Column": "tables",
    "Figure": "figures",
    "Table": "tables",
    "comparison_figure": "figures",
    "finding_table": "ledgers",
    "front_figure": "gpu_fronts",
    "gap_table": "ledgers",
    "ledger_figure": "figures",
    "ledger_table": "ledgers",
    "memory_figure": "figures",
    "overview_table": "catalog",
    "report_html": "html_report",
    "row_tables": "catalog",
    "rows_table": "catalog",
    "to_html": "tables",
    "to_rich": "tables",
    "to_text": "tables",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
