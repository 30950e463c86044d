"""How much is read of what. Limits of a single reader of recordings may stand in its module instead.

What is beyond a limit is refused, or cut and said.
"""

from __future__ import annotations

MiB = 1 << 20

READING_BYTES = 2048 * MiB
"""Of memory, for reading one file, whatever is in it (benchmarks/prove_limits.py measures it)."""
TEXT_BYTES = 64 * MiB
"""Of a file that is read whole, once it is unpacked: a table, a catalog, a calibration, a topology."""
CONFIG_BYTES = 4 * MiB
"""Of a framework's configuration or a launch script; real ones are a thousand times smaller."""
VALUES = 4_000_000
"""Keys and items of a JSON, cells of a CSV: some hundred bytes each while they are read."""
NAMED_VALUES = 2_000_000
"""Keys and items of a TOML or YAML, whose parsers take half a kilobyte and microseconds for each."""
LINE_BYTES = 1 << 16
"""Of one line of a log; what follows is skipped. A longer row of a matrix is refused."""
DEPTH = 64
"""Levels of tables and lists inside each other, or of the brackets of a script."""
KEY_CHARACTERS = 256
"""Of one key, or the name of a column."""
DIGITS = 400
"""Of a number that is written as text: a double has no more than 309 before its point."""
WHOLE = 2**64
"""Whole numbers lie below: they are of 64 bits."""
NAME_CHARACTERS = 200
"""Of a name: of a model, a host, a job, a run."""
HOST_CHARACTERS = 253
"""Of a host name with its domain (RFC 1035)."""
PATH_CHARACTERS = 4096
"""Of a path that is kept as text (PATH_MAX of Linux)."""
LIST_ITEMS = 1000
"""Of a list that is typed: devices, batches, regions."""
SHOWN_CHARACTERS = 80
"""Of a stranger's text inside a message of ours."""
MESSAGE_CHARACTERS = 1000
"""Of a whole message: room for two paths, and for what to do."""
CACHE_ENTRY_BYTES = 64 * MiB
"""Of what is kept of one trace: some kilobytes of a rank."""
CACHE_BYTES = 1024 * MiB
"""Of all that is kept; the oldest go first."""
NODES = 100_000
"""Of a cluster, and as many switches: some times what the largest training clusters have."""
LEVELS = 16
"""Of switches above each other."""
RAILS = 256
"""Of one node: NICs, or leaves that it is under."""
NODE_COLUMNS = 256
"""Of a matrix of one node: its devices and NICs."""
SCRIPT_CHARACTERS = 20_000_000
"""That all values of a launch script come to: doubling a text forty times takes forty lines."""
PATTERN_CHARACTERS = 1_000
"""Of a text that a script compares with a pattern, and of the pattern."""
LAYERS = 4096
"""Of a model."""
PIPELINE_PARTS = 10_000
"""Of a pipeline layout that is written out."""

# Of recordings: traces, logs, metrics, dumps, accounting.
HEAD_BYTES = 1 << 16
"""Of the beginning of a recording, by which its kind is known."""
INFLATED_BYTES = 1 << 30
INFLATED_TIMES = 200
"""A gzip file may grow to the first, or to so many times its size: traces and logs grow ten- to
fiftyfold, a bomb a thousandfold."""
TRACE_DEPTH = 100_000
"""Brackets of an event of a trace that are open at once: what is deeper is skipped."""
TRAINER_STATE_BYTES = 128 * MiB
"""A million logged steps."""
FILES = 100_000
"""Of a folder that are looked at."""
TRACE_HEADER_BYTES = 64 * MiB
"""Of what stands before or behind the events of a trace."""
EVENT_BYTES = 16 * MiB
"""Of one event of a trace."""
TABLES = 10_000
"""Of a database."""
VALUE_BYTES = 16 * MiB
"""Of one value of a database: exports keep the output of programs among their strings."""
RECORD_BYTES = 64 * MiB
"""Of one job or node of `sacct --json`, with its steps."""
ATTEMPTS = 2_000_000
"""Of jobs in accounting: some years of a large cluster."""
NAMES = 1_000_000
NAMES_CHARACTERS = 256 * MiB
"""Distinct names of one kind that are kept while recordings are read (kernels, threads, jobs, series),
and the length of all of them: a profile has some thousand, a year of a large cluster a million jobs."""
FAULTS = 100_000
"""Distinct faults of a node and device in kernel logs; one in ten thousand messages is a new one."""
PROCESSES = 64
"""Of one fault that are told apart."""
COPIED_BYTES = 4 << 30
"""Of a database that is copied to be read, because a log of changes lies beside it."""
REPLAYED_OPERATIONS = 2_000_000_000
"""Of an op timeline, in all its replays: less than a minute."""
