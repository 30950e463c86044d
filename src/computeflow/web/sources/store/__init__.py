"""A collector's store, also while it is written: `store_runs` first.

Sealed steps and readings are in Parquet, the last minutes in the journal (`journal_rows`).
"""
