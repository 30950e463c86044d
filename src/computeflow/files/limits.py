"""Limits on what is read of every file and every answer that a stranger wrote.

What is beyond a limit is refused, or cut with a note.
"""

from __future__ import annotations

MiB = 1 << 20

READING_BYTES = 2048 * MiB
"""Memory for reading one file, whatever is in it (benchmarks/prove_limits.py measures it)."""
TEXT_BYTES = 64 * MiB
"""A file that is read whole, once it is unpacked: a table, a catalog, a calibration, a topology."""
CONFIG_BYTES = 4 * MiB
"""A framework's configuration or a launch script; real ones are a thousand times smaller."""
VALUES = 4_000_000
"""Keys and items of a JSON, cells of a CSV: some hundred bytes each while they are read."""
NAMED_VALUES = 2_000_000
"""Keys and items of a TOML or YAML, whose parsers take half a kilobyte and microseconds for each."""
LINE_BYTES = 1 << 16
"""One line of a log; what follows is skipped. A longer row of a matrix is refused."""
DEPTH = 64
"""Levels of tables and lists inside each other, or of the brackets of a script."""
KEY_CHARACTERS = 256
"""A key, or the name of a column."""
DIGITS = 400
"""A number written as text: a double has no more than 309 before its point."""
WHOLE = 2**64
"""Whole numbers lie below: they are of 64 bits."""
NAME_CHARACTERS = 200
"""The name of a model, a host, a job, a run."""
HOST_CHARACTERS = 253
"""A host name with its domain (RFC 1035)."""
PATH_CHARACTERS = 4096
"""A path that is kept as text (PATH_MAX of Linux)."""
LIST_ITEMS = 1000
"""A list that is typed: devices, batches, regions."""
SHOWN_CHARACTERS = 80
"""A stranger's text inside a message of ours."""
MESSAGE_CHARACTERS = 1000
"""A whole message: room for two paths, and for what to do."""
CACHE_ENTRY_BYTES = 64 * MiB
"""Cache entry of one trace: some kilobytes for each rank."""
CACHE_BYTES = 1024 * MiB
"""The whole cache; the oldest entries go first."""
NODES = 100_000
"""Nodes in a cluster, and as many switches: some times what the largest training clusters have."""
LEVELS = 16
"""Tiers of switches above each other."""
RAILS = 256
"""NICs of a node, or leaves that it is under."""
NODE_COLUMNS = 256
"""Columns in the matrix of one node: its devices and NICs."""
SCRIPT_CHARACTERS = 20_000_000
"""All values of a launch script together: doubling a text forty times takes forty lines."""
PATTERN_CHARACTERS = 1_000
"""A text that a script compares with a pattern, and the pattern; a pattern that is typed."""
LAYERS = 4096
"""Layers of a model."""
PIPELINE_PARTS = 10_000
"""Parts of a pipeline layout that is written out."""

# Recordings: traces, logs, metrics, dumps, accounting.
HEAD_BYTES = 1 << 16
"""Beginning of a recording, by which its kind is recognised."""
INFLATED_BYTES = 1 << 30
INFLATED_TIMES = 200
"""A gzip file may grow to the first, or to so many times its size: traces and logs grow ten- to
fiftyfold, a bomb a thousandfold."""
TRACE_DEPTH = 100_000
"""Brackets of an event of a trace that are open at once: what is deeper is skipped."""
TRAINER_STATE_BYTES = 128 * MiB
"""A million logged steps."""
FILES = 100_000
"""Files looked at in one folder."""
FOLDERS = 10_000
"""Folders in which runs are looked for: half a second."""
TRACE_HEADER_BYTES = 64 * MiB
"""Text before or behind the events of a trace."""
EVENT_BYTES = 16 * MiB
"""One event of a trace."""
TABLES = 10_000
"""Tables in a database."""
VALUE_BYTES = 16 * MiB
"""One value in a database: exports keep the output of programs among their strings."""
RECORD_BYTES = 64 * MiB
"""One job or node of `sacct --json`, with its steps."""
ATTEMPTS = 2_000_000
"""Attempts of jobs in accounting: some years of a large cluster."""
NAMES = 1_000_000
NAMES_CHARACTERS = 256 * MiB
"""Distinct names of one kind that are kept while recordings are read (kernels, threads, jobs, series),
and the length of all of them: a profile has some thousand, a year of a large cluster a million jobs."""
COLLECTIVES = 100_000
"""Collectives of a trace that differ in names, group or size; one of many groups has some thousand."""
FAULTS = 100_000
"""Distinct faults of a node and device in kernel logs; one in ten thousand messages is a new one."""
PROCESSES = 64
"""Processes with one fault that are told apart."""
COPIED_BYTES = 4 << 30
"""A database that is copied to be read, because a log of changes lies beside it."""
REPLAYED_OPERATIONS = 2_000_000_000
"""Operations of an op timeline in all its replays: less than a minute."""

# Traces and dumps.
XPLANE_BYTES = 512 * MiB
"""Largest profile of JAX, in bytes, inflated."""
XPLANE_LINE_BYTES = 128 * MiB
"""Largest line of events of such a profile, in bytes."""
XPLANE_EVENTS = 20_000_000
"""Events read of one plane of such a profile."""
RECORDED_DEVICES = 1024
"""GPUs or TPUs of one host that a recording may name."""
TIMELINE_ROWS = 20_000_000
"""Operations of an op timeline."""
FLIGHT_BYTES = 64 * MiB
"""Largest dump of the flight recorder of one rank, in bytes."""
FLIGHT_ENTRIES = 200_000
"""Collectives of a dump: the recorder keeps 2,000 unless it is told otherwise."""
FLIGHT_MEMBERS = 4_000_000
"""Ranks of all groups of a dump together."""
FLIGHT_TENSORS = 4096
"""Tensors of one collective of a dump."""
TENSOR_DIMENSIONS = 64
"""Dimensions of one tensor of a dump."""
FLIGHT_FRAMES = 40
"""Frames kept of the stack of a collective."""
SNAPSHOT_BYTES = 128 * MiB
"""Largest snapshot of device memory, in bytes, inflated: some 1.4 million events."""
SNAPSHOT_FRAMES = 64
"""Frames kept of the stack of an allocation."""
PICKLED_BYTES = READING_BYTES // 2
"""Memory of the empty containers and the memo of a dump or snapshot: a byte of a pickle can ask for
two hundred. The largest snapshot takes 0.6 GB (four for each of its events)."""
PICKLED_CHARACTERS = 300
"""Characters kept of a text of a dump or snapshot."""

# Metrics.
METRIC_SAMPLES = 10_000_000
"""Samples kept of all metrics together."""
METRIC_SERIES = 500_000
"""Series of all metrics together: twenty each of 25,000 GPUs."""
METRIC_DEVICES = 100_000
"""GPUs and nodes of metrics together, as many as `NODES`. Until its figures are JSON a GPU takes
8 KiB with one series and 12 with five, which is `METRIC_SERIES` for all: 1.2 GiB of `READING_BYTES`."""
METRIC_NAMES_BYTES = 128 * MiB
"""Memory of the series as they are written, and of the names of GPUs, nodes and jobs in them:
`METRIC_SERIES` of 268 characters."""
METRIC_ANSWER_BYTES = 64 * MiB
"""Largest answer of a server, in bytes."""
METRIC_ANSWER_SAMPLES = 200_000
"""Samples that one query asks for."""
REDIRECTS = 3
"""Redirections that are followed for one request."""

# Logs.
LOG_HEAD_BYTES = 1 * MiB
"""Beginning of a log, in bytes, by which its framework is recognised."""
LOG_HEAD_LINES = 400_000
"""Lines of a log that are searched for its first step, to put logs in order."""
LOG_TAIL_BYTES = 1 * MiB
"""End of a log, in bytes, that is searched for its last time."""
LOG_STREAMS = 1 << 16
"""Ranks, or other writers, that are told apart."""
LOG_STEPS = 8192
"""Step times that are kept; of more, every second one, and so on."""
LOG_LIST_ITEMS = 1000
"""Items kept of each list of events; further ones are only counted."""
LOG_FAULTS = 1 << 16
"""Distinct faults that are told apart in a log."""
LOG_SETTINGS = 64
"""Settings kept of a log."""
LOG_TIMERS = 256
"""Timers kept of a log."""
LOG_TEMPLATES = 512
"""Templates of lines that are told apart while a log's format is learned; rarer ones are dropped."""
LOG_LEARNED_ROWS = 512
"""Lines of a template that are kept while a log's format is learned."""
LOG_LEARN_BYTES = MiB // 4
"""Beginning of a log that its format is learned from where it has so many lines of one template; else
it is learned from `LOG_HEAD_BYTES`."""
BANDWIDTH_ROWS = 10_000
"""Rows kept of a bandwidth test."""

# Run folders.
RUN_BYTES = 1024 * MiB
"""Files of the ranks of a run that are read, all together: a million and a half steps of 700 bytes.
Columns of them take a third of that; of larger ones the end is read."""
RUN_HEAD_BYTES = 1 * MiB
"""Beginning of the file of a rank that is read where the rest is too large."""
RUN_EVENTS = 10_000
"""Events, and heart beats after the last step, that are kept of the file of a rank."""
RUN_PHASE_NAMES = 256
"""Names of a user's own phases, and places of errors, that are kept of the file of a rank."""
