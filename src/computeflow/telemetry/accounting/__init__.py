"""Job accounting of a cluster: who had the GPUs, for how long, and what came of it.

Start with `source.AccountingSource`; `books.keep_books` makes the ledger; `blame.blame` says which
failed jobs followed a fault on one of their nodes.
"""
