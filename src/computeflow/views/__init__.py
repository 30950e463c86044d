"""Figures and tables, built once, for the terminal, notebooks and reports."""

from computeflow.views.catalog import overview_table, row_tables, rows_table
from computeflow.views.ledgers import finding_table, gap_table, ledger_table
from computeflow.views.tables import Column, Table, to_html, to_rich, to_text

__all__ = [
    "Column",
    "Table",
    "finding_table",
    "gap_table",
    "ledger_table",
    "overview_table",
    "row_tables",
    "rows_table",
    "to_html",
    "to_rich",
    "to_text",
]
