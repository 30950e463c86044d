"""What pages are about: recordings, or a collector's store. Nothing is written to either.

`opening.open_directory` finds out which it is; pages ask the `Opening` that it returns. Beside it is
what both answer with: `step_table`, `step_spans`, `reading_curves`.
"""
