"""How much is read of what: every limit of the readers, in one place.

What is beyond a limit is refused, or cut and said; nothing grows with what a stranger wrote.
"""

from __future__ import annotations

MiB = 1 << 20

TEXT_BYTES = 64 * MiB
"""Of a file that is read whole: a table, a catalog, a calibration, a topology."""
LINE_BYTES = 1 << 16
"""Of one line of a log; what follows is skipped."""
DEPTH = 64
"""Levels of tables and lists inside each other."""
KEY_CHARACTERS = 256
"""Of one key of a TOML or YAML file, with its dots."""
DIGITS = 400
"""Of one number: a double has no more than 309 before its point."""
NAME_CHARACTERS = 200
"""Of a name: of a model, a host, a job, a run."""
SHOWN_CHARACTERS = 80
"""Of a stranger's text inside a message of ours."""
CACHE_ENTRY_BYTES = 64 * MiB
"""Of what is kept of one trace: some kilobytes of a rank."""
CACHE_BYTES = 1024 * MiB
"""Of all that is kept; the oldest go first."""
