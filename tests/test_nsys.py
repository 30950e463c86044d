"""Nsight exports: the ledger closes and equals SQL's own sums; steps, ranks and hostile files."""

from __future__ import annotations

import gzip
import json
import math
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.errors import InputError
from computeflow.files.cache import cache_home
from computeflow.ledger import Ledger
from computeflow.telemetry.kineto.kineto_reader import read_trace
from computeflow.telemetry.nsys.database import Database
from computeflow.telemetry.nsys.nsys_reader import recognises
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.trace_formats import read_rank
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.rank import measure_trace
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from computeflow.telemetry.traces.step_timelines import step_timeline
from computeflow.views.audits import audit_tables
from computeflow.views.tables import to_html, to_text
from kineto_maker import Maker

FACTS = load_catalog()
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL,
    text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
CREATE TABLE ANALYSIS_DETAILS (startTime INTEGER);
"""
US = 1000


@dataclass
class Process:
    """One process that launches ahead of its GPU; times in nanoseconds."""

    pid: int
    device: int = 0
    host: int = 1_000_000
    free: int = 1_000_000
    correlation: int = 1

    @property
    def everywhere(self) -> int:
        return (1 << 48) | (self.pid << 24)

    @property
    def thread(self) -> int:
        return self.everywhere | self.pid


@dataclass
class Export:
    path: Path
    strings: dict[str, int] = field(default_factory=dict)
    rows: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)
    schema: str = SCHEMA
    utc: int = 1_790_000_000 * 10**9

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def put(self, table: str, *row: object) -> None:
        self.rows.setdefault(table, []).append(row)

    def launch(self, process: Process, call: str = "cudaLaunchKernel_v7000") -> int:
        number, process.correlation = process.correlation, process.correlation + 1
        self.put(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            process.host,
            process.host + 2 * US,
            process.thread,
            number,
            self.string(call),
        )
        process.host += 3 * US
        return number

    def kernel(
        self, process: Process, name: str, length: int, *, stream: int = 7, at: int | None = None
    ) -> tuple[int, int]:
        number = self.launch(process)
        start = max(process.free, process.host) if at is None else at
        if stream == 7:
            process.free = start + length
        self.put(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start,
            start + length,
            process.device,
            1,
            stream,
            number,
            process.everywhere,
            self.string(name),
            self.string(name),
        )
        return start, start + length

    def copy(self, process: Process, length: int, size: int, kind: int = 1) -> None:
        number = self.launch(process, "cudaMemcpyAsync_v3020")
        start = max(process.free, process.host)
        process.free = start + length
        self.put(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start,
            start + length,
            process.device,
            7,
            number,
            process.everywhere,
            size,
            kind,
            1,
            2,
        )

    def mark(
        self, process: Process, text: str, start: int, end: int, *, registered: bool = False
    ) -> None:
        said = (None, self.string(text)) if registered else (text, None)
        self.put("NVTX_EVENTS", start, end, 59, said[0], process.thread, said[1])

    def write(self) -> Path:
        self.path.unlink(missing_ok=True)
        with closing(sqlite3.connect(self.path)) as made:
            made.executescript(self.schema)
            if "TARGET_INFO_SESSION_START_TIME" in self.schema:
                self.put("TARGET_INFO_SESSION_START_TIME", self.utc)
                self.put("ANALYSIS_DETAILS", 0)
            for text, number in self.strings.items():
                self.put("StringIds", number, text)
            for table, rows in self.rows.items():
                marks = ", ".join("?" for _ in rows[0])
                made.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            made.commit()
        return self.path


def observe(*paths: Path) -> TracedJob:
    return audit(paths, FACTS, cache=False)


def closes(found: TracedJob) -> Ledger:
    ledger = found.job.ledger
    assert math.fsum(ledger.accounts.values()) == pytest.approx(ledger.gpu_seconds, rel=1e-9)
    for rank in found.job.ranks:
        seconds = math.fsum(rank.ledger.accounts.values())
        assert seconds == pytest.approx(rank.ledger.gpu_seconds, rel=1e-9)
    return ledger


def train(
    export: Export,
    process: Process,
    steps: int,
    name: str = "step {}",
    *,
    late: int = 0,
    registered: bool = False,
) -> None:
    """Steps of two products, a collective, an update and a copy; `late`: the host sleeps in each."""
    for number in range(steps):
        begun = process.host
        process.host += late
        export.kernel(process, "gemm", 400 * US)
        export.kernel(process, "gemm", 600 * US)
        export.kernel(process, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 200 * US)
        start = process.host
        export.kernel(process, "adam", 100 * US)
        export.mark(process, "optimizer_step", start, process.host)
        export.copy(process, 50 * US, 1 << 20)
        process.host = max(process.host, process.free)
        export.mark(process, name.format(number), begun, process.host, registered=registered)


def test_accounts_are_those_that_were_made(tmp_path: Path) -> None:
    export, process = Export(tmp_path / "run.sqlite"), Process(pid=111)
    train(export, process, 5, late=300 * US)
    found = observe(export.write())
    closes(found)
    accounts = found.job.ledger.accounts
    assert accounts["compute"] == pytest.approx(5 * 1000e-6)
    assert accounts["optimizer"] == pytest.approx(5 * 100e-6)
    assert accounts["comm"] == pytest.approx(5 * 200e-6)
    assert accounts["copy"] == pytest.approx(5 * 50e-6)
    assert accounts["host"] == pytest.approx(5 * 300e-6, rel=0.05)
    assert found.ranks[0].steps == (0, 1, 2, 3, 4)
    assert any("'step #', 5 of them, by their name and number" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("step {}", True),
        ("Iteration {}", True),
        ("train_step", True),
        ("ProfilerStep#{}", True),
        ("forward {}", True),
        ("do it", True),
        ("layer {}", False),
        ("micro-batch {}", False),
        ("optimizer.step {}", False),
        ("epoch {}", False),
    ],
)
def test_steps_are_ranges_that_look_like_steps(tmp_path: Path, name: str, found: bool) -> None:
    export, process = Export(tmp_path / "run.sqlite"), Process(pid=111)
    train(export, process, 6, name, registered=True)
    (gpu,) = observe(export.write()).ranks
    assert len(gpu.steps) == (6 if found else 0)


def test_ranges_inside_steps_and_around_them_are_no_steps(tmp_path: Path) -> None:
    export, process = Export(tmp_path / "run.sqlite"), Process(pid=111)
    train(export, process, 6, "iteration {}")
    begun = process.host
    export.mark(process, "epoch 0", 1_000_000, begun)
    for start, end, _, text, *_ in list(export.rows["NVTX_EVENTS"]):
        if str(text).startswith("iteration"):
            assert isinstance(start, int) and isinstance(end, int)
            export.mark(process, "forward step", start, (start + end) // 2)
    (gpu,) = observe(export.write()).ranks
    assert "'iteration #'" in gpu.origin.steps_from


def test_operators_of_torch_are_no_steps_and_tell_recomputation(tmp_path: Path) -> None:
    export, process = Export(tmp_path / "run.sqlite"), Process(pid=111)
    for number in range(6):
        begun = process.host
        export.kernel(process, "gemm", 100 * US)
        export.mark(process, f"aten::mm, seq = {number}, op_id = {number}", begun, process.host)
        begun = process.host
        export.kernel(process, "gemm", 50 * US)  # again, as it runs backward
        export.mark(
            process, f"aten::mm, seq = {number}, op_id = 9{number}", begun, process.host - 1
        )
        export.kernel(process, "gemm", 200 * US)
        name = f"autograd::engine::evaluate_function: MmBackward0, op_id = {number}"
        export.mark(process, name, begun, process.host)
    found = observe(export.write())
    closes(found)
    assert not found.ranks[0].steps
    assert found.job.ledger.accounts["compute.recompute"] == pytest.approx(6 * 50e-6)
    assert found.job.ledger.accounts["compute"] == pytest.approx(6 * 300e-6)


def test_processes_are_ranks_and_who_came_last_is_named(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    ranks = [Process(pid=111, device=0), Process(pid=112, device=1)]
    for number in range(8):
        ends = []
        for rank, process in enumerate(ranks):
            begun = process.host
            export.kernel(process, "gemm", (500 + 200 * rank) * US)
            ends.append(process.free)
            export.mark(process, f"step {number}", begun, process.host + 10 * US)
        until = max(ends) + 100 * US
        for process in ranks:
            start = max(process.free, process.host)
            export.kernel(process, "ncclDevKernel_AllReduce", until - start, at=start)
            process.host = process.free = until
    found = observe(export.write())
    closes(found)
    assert [rank.origin.process for rank in found.ranks] == [111, 112]
    assert found.job.shared_collectives > 0
    waits = [e for e in found.job.ledger.entries if e.account == "straggler" and e.cause]
    assert {entry.cause.rank for entry in waits if entry.cause} == {1}


def test_kernels_of_one_name_in_several_groups_blame_nobody(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    for pid, shift in ((1, 0), (2, 0), (3, 700), (4, 700)):
        process = Process(pid=pid, device=pid, host=1_000_000 + shift * US)
        process.free = process.host
        for number in range(10):
            export.kernel(process, "gemm", (300 + 37 * (number * pid % 5)) * US)
            export.kernel(process, "ncclDevKernel_AllReduce", 100 * US)
            process.host = process.free
    found = observe(export.write())
    closes(found)
    assert "straggler" in found.job.ledger.unavailable
    assert any("do not end together" in note for note in found.notes)


def test_a_process_that_touches_anothers_gpu_makes_no_rank_of_its_own(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    one, two = Process(pid=1, device=0), Process(pid=2, device=1)
    train(export, one, 4)
    train(export, two, 4)
    stray = Process(pid=2, device=0, host=two.host, correlation=5000)
    export.kernel(stray, "fill", 5 * US, at=one.free - 500 * US, stream=9)
    assert len(observe(export.write()).ranks) == 2


def test_equal_device_numbers_of_two_processes_are_two_gpus_unless_the_export_says_else(
    tmp_path: Path,
) -> None:
    export = Export(tmp_path / "run.sqlite")
    train(export, Process(pid=1), 4)
    train(export, Process(pid=2), 4)
    found = observe(export.write())
    assert len(found.ranks) == 2
    assert any("same device number" in note for note in found.notes)
    export = Export(
        tmp_path / "said.sqlite",
        schema=SCHEMA
        + (
            "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);"
            "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);"
        ),
    )
    for pid in (1, 2):
        train(export, Process(pid=pid), 4)
        export.put("TARGET_INFO_CUDA_DEVICE", 5, 0, pid)
    export.put("TARGET_INFO_GPU", 5, "NVIDIA H100 80GB HBM3")
    (gpu,) = observe(export.write()).ranks
    assert gpu.device == "NVIDIA H100 80GB HBM3"


def test_files_of_one_time_and_folder_are_one_job(tmp_path: Path) -> None:
    for rank in range(2):
        export = Export(tmp_path / f"report_rank{rank}.sqlite")
        train(export, Process(pid=100 + rank), 4)
        export.write()
    later = Export(tmp_path / "later.sqlite", utc=1_790_009_000 * 10**9)
    train(later, Process(pid=7), 4)
    later.write()
    both = observe(tmp_path)
    assert [rank.rank_from for rank in both.ranks] == ["file name"] * 2
    assert any("later.sqlite: of another job" in text for text in both.left_out)
    closes(both)


def test_overlap_is_measured(tmp_path: Path) -> None:
    export, process = Export(tmp_path / "run.sqlite"), Process(pid=1)
    start, _ = export.kernel(process, "gemm", 1000 * US)
    export.kernel(process, "ncclDevKernel_AllGather", 600 * US, at=start + 700 * US, stream=8)
    found = observe(export.write())
    (gpu,) = found.ranks
    assert gpu.activity.comm_seconds == pytest.approx(600e-6)
    assert gpu.activity.comm_hidden_seconds == pytest.approx(300e-6)
    assert found.job.ledger.accounts["comm"] == pytest.approx(300e-6)


def test_an_export_and_a_trace_of_the_same_run_have_the_same_accounts(tmp_path: Path) -> None:
    maker, export = Maker(), Export(tmp_path / "run.sqlite")
    draw = random.Random(3)
    names = ["gemm", "ncclDevKernel_AllReduce", "elementwise"]
    for _ in range(60):
        maker.host += draw.choice([0, 0, 40, 200])
        maker.kernel(draw.choice(names), draw.randint(5, 90))
    trace = maker.write(tmp_path)
    process = Process(pid=1)
    for event in maker.events:
        start, end = round(event["ts"] * US), round((event["ts"] + event["dur"]) * US)
        if event["cat"] == "kernel":
            export.put(
                "CUPTI_ACTIVITY_KIND_KERNEL",
                start,
                end,
                0,
                1,
                event["args"]["stream"],
                event["args"]["correlation"],
                process.everywhere,
                export.string(event["name"]),
                export.string(event["name"]),
            )
        elif event["cat"] == "cuda_runtime":
            export.put(
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                start,
                end,
                process.thread,
                event["args"]["correlation"],
                export.string(event["name"]),
            )
    found = observe(export.write())
    expected = measure_trace(read_trace(trace), TraceOptions(window="whole")).accounts
    assert found.job.ranks[0].ledger.accounts == pytest.approx(expected, abs=2e-9)


def test_what_other_releases_lack_is_said(tmp_path: Path) -> None:
    schema = """
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, "end" INT, deviceId INT, shortName INT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INT, "end" INT, deviceId INT, syncType INT);
    """
    export = Export(tmp_path / "old.sqlite", schema=schema)
    for number in range(5):
        export.put(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            number * 1000,
            number * 1000 + 600,
            0,
            export.string("gemm"),
        )
    export.put("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", 600, 900, 0, 3)
    found = observe(export.write())
    closes(found)
    assert found.job.ledger.accounts == pytest.approx({"compute": 3e-6, "unexplained": 1.6e-6})
    said = " ".join(found.left_out)
    assert "no NVTX ranges" in said
    assert "no CUDA API calls" in said
    assert "kernels without correlationId, globalPid, streamId" in said


def test_graphs_recorded_whole_and_counters_are_shown(tmp_path: Path) -> None:
    schema = (
        SCHEMA
        + """
    CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, "end" INT, deviceId INT, streamId INT,
        correlationId INT, globalPid INT, graphId INT);
    CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT);
    CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INT, metricId INT, metricName TEXT);
    """
    )
    export, process = Export(tmp_path / "run.sqlite", schema=schema), Process(pid=1)
    for number in range(4):
        call = export.launch(process, "cudaGraphLaunch_v10000")
        start = (1 + number) * 10**6
        export.put(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            start,
            start + 800 * US,
            0,
            7,
            call,
            process.everywhere,
            3,
        )
        export.put("GPU_METRICS", number, 0x500000001, 9, 25 * number)
    export.put("TARGET_INFO_GPU_METRICS", 0x500000001, 9, "SMs Active [Throughput %]")
    found = observe(export.write())
    closes(found)
    assert found.job.ledger.accounts["compute"] == pytest.approx(4 * 800e-6)
    assert any("--cuda-graph-trace=node" in note for note in found.notes)
    (metric,) = found.counters
    assert (metric.gpu, metric.mean, metric.samples) == (1, 37.5, 4)
    assert any("SMs Active" in to_text(table) for table in audit_tables(found, details=True))


# --- files that are none, or worse


def spoiled(tmp_path: Path, change: Callable[[sqlite3.Connection], object]) -> Path:
    export = Export(tmp_path / "bad.sqlite")
    train(export, Process(pid=1), 3)
    path = export.write()
    with closing(sqlite3.connect(path)) as made:
        change(made)
        made.commit()
    return path


def test_views_and_virtual_tables_in_the_place_of_tables_are_not_read(tmp_path: Path) -> None:
    def view(made: sqlite3.Connection) -> None:
        made.execute("DROP TABLE NVTX_EVENTS")
        made.execute(
            "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT "
            "start + 1 FROM n) SELECT start, start + 1 AS \"end\", 59 AS eventType, 'x' AS text, "
            "1 AS globalTid, 1 AS textId FROM n"
        )
        made.execute("CREATE VIRTUAL TABLE GPU_METRICS USING fts5(typeId, metricId, value)")

    found = observe(spoiled(tmp_path, view))
    closes(found)
    assert any("no NVTX ranges" in text for text in found.left_out)
    assert not found.counters


def test_functions_in_a_schema_are_not_called(tmp_path: Path) -> None:
    def generated(made: sqlite3.Connection) -> None:
        made.execute("DROP TABLE NVTX_EVENTS")
        made.execute(
            'CREATE TABLE NVTX_EVENTS (start INT, "end" INT, eventType INT, globalTid INT, textId INT, '
            "text TEXT GENERATED ALWAYS AS (hex(zeroblob(start))) VIRTUAL)"
        )
        made.execute("INSERT INTO NVTX_EVENTS VALUES (20000000, 20000001, 59, 3, 4)")

    path = spoiled(tmp_path, generated)
    closes(observe(path))
    with Database(path) as database, pytest.raises(InputError, match="too big"):
        list(database.rows("SELECT text FROM NVTX_EVENTS"))


def test_nothing_can_be_written_or_attached(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    train(export, Process(pid=1), 3)
    path = export.write()
    before = path.read_bytes()
    with Database(path) as database:
        for query in (
            "DELETE FROM StringIds",
            "ATTACH DATABASE '/tmp/other' AS other",
            "SELECT load_extension('x')",
            "PRAGMA writable_schema=ON",
            "CREATE TEMP TABLE t (x)",
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n",
        ):
            with pytest.raises(InputError):
                list(database.rows(query))
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["run.sqlite"]


def test_columns_of_other_types_do_not_break_the_reading(tmp_path: Path) -> None:
    def words(made: sqlite3.Connection) -> None:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        made.execute(f"UPDATE {table} SET streamId = 'seven', correlationId = NULL")
        made.execute(f"INSERT INTO {table} SELECT 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', x'00ff'")
        made.execute(f'UPDATE {table} SET "end" = 9223372036854775807 WHERE rowid = 2')
        made.execute("UPDATE StringIds SET value = CAST(x'fffe41' AS TEXT) WHERE id = 1")

    found = observe(spoiled(tmp_path, words))
    closes(found)
    assert any("without a valid time" in text for text in found.left_out)


def test_other_databases_and_broken_files_are_one_line(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as made:
        made.execute("CREATE TABLE runs (id INT)")
        made.commit()
    assert not recognises(other, head_of(other))
    export = Export(tmp_path / "run.sqlite")
    train(export, Process(pid=1), 30)
    whole = export.write().read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[: len(whole) // 2])
    packed = tmp_path / "packed.sqlite.gz"
    packed.write_bytes(gzip.compress(whole))
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"\x00\x01")
    for path in (other, cut, packed, report):
        with pytest.raises(InputError) as error:
            observe(path)
        assert "\n" not in str(error.value)
        assert path.name in str(error.value)
    assert recognises(report, b"")
    with pytest.raises(InputError, match="nsys export"):
        observe(report)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 200))
def test_spoiled_bytes_are_an_answer_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    folder = tmp_path_factory.mktemp("spoiled")
    export = Export(folder / "run.sqlite")
    train(export, Process(pid=1), 4)
    content = bytearray(export.write().read_bytes())
    draw = random.Random(seed)
    for _ in range(count):
        content[draw.randrange(100, len(content))] = draw.randrange(256)
    path = folder / "spoiled.sqlite"
    path.write_bytes(content)
    try:
        recognises(path, head_of(path))
        closes(observe(path))
    except InputError as error:
        assert "\n" not in str(error)
    shutil.rmtree(folder)


# --- the real one

UNION = """
WITH work AS ({parts}), swept AS (
    SELECT start, "end", coalesce(max("end") OVER (ORDER BY start, "end" ROWS BETWEEN UNBOUNDED
        PRECEDING AND 1 PRECEDING), 0) AS reach FROM work)
SELECT sum(max("end" - max(start, reach), 0)) FROM swept
"""


def sql_seconds(path: Path, device: int, tables: Sequence[str]) -> float:
    """Seconds of the union of a device's work, by SQL alone; tables with a condition each."""
    parts = " UNION ALL ".join(
        f'SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_{table} AND deviceId = {device}'
        for table in tables
    )
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as opened:
        (found,) = opened.execute(UNION.format(parts=parts)).fetchone()
    return float(found) / 1e9


@pytest.mark.shared
def test_a_real_export_closes_and_equals_the_sums_of_sql(data_folder: Path) -> None:
    path = data_folder / "recordings/nsys/h100_2gpu_1s.sqlite"
    assert recognises(path, head_of(path))
    found = observe(path)
    closes(found)
    assert [(r.origin.process, r.origin.device) for r in found.ranks] == [(111, 0), (112, 1)]
    assert found.versions == ("Nsight Systems 2026.2.1.210", "schema 3.25.0")
    kernels, moved = "KERNEL WHERE 1", "MEMCPY WHERE copyKind = 8"
    for gpu, part in zip(found.ranks, found.job.ranks, strict=True):
        accounts, device = part.ledger.accounts, gpu.origin.device or 0
        computed = sql_seconds(path, device, (kernels, moved, "MEMSET WHERE 1"))
        busy = sql_seconds(path, device, (kernels, "MEMCPY WHERE 1", "MEMSET WHERE 1"))
        assert accounts["compute"] == pytest.approx(computed, abs=1e-9)
        assert gpu.activity.busy_seconds == pytest.approx(busy, abs=1e-9)
        blocked = accounts["copy"] - (busy - computed)  # the host in cudaMemcpyAsync, GPU idle
        assert 0 <= blocked < 0.001
        assert "comm" not in accounts
        assert gpu.activity.copies[0].bytes == 25_475_252_224
        assert accounts["unexplained"] < 0.01 * part.ledger.gpu_seconds
    assert found.ranks[0].steps == ()
    text = "\n".join(to_text(table) for table in audit_tables(found, details=True))
    assert "HtoD (Pinned -> Device)" in text
    assert max(map(len, text.splitlines())) <= 80
    assert all(to_html(table) for table in audit_tables(found, details=True))


@pytest.mark.shared
def test_a_real_export_goes_the_whole_way(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(data_folder / "recordings/nsys/h100_2gpu_1s.sqlite")
    html, perfetto = tmp_path / "report.html", tmp_path / "run.json.gz"
    words = [
        "audit",
        path,
        "--no-cache",
        "--on",
        "h100-sxm",
        "--model",
        "llama-3.2-1b",
        "--global-batch",
        "1",
        "--seq-len",
        "512",
        "--html",
        str(html),
        "--perfetto",
        str(perfetto),
        "--against",
        path,
        "-o",
        "json",
    ]
    assert run(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert {source["kind"] for source in data["sources"]} == {"nsys"}
    assert data["ledger"]["accounts"]["compute.model"] > 0
    assert data["ledger"]["mfu"] > 0
    assert not data["findings"]
    assert {"input-stall", "checkpoint-stall"} <= {one["rule"] for one in data["abstained"]}
    assert all(gap["measured"] == gap["expected"] for gap in data["gaps"])
    assert "What was audited" in html.read_text()
    events = json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    assert {"ComputeFlow: accounts", "the device: streams", "the host: calls"} <= {
        event["args"]["name"] for event in events if event["ph"] == "M"
    }


def test_what_is_kept_of_an_export_is_what_was_measured(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    train(export, Process(pid=1), 4)
    train(export, Process(pid=2, device=1), 4)
    path = export.write()
    first, second = audit([path], FACTS), audit([path], FACTS)
    assert list((cache_home() / "traces").iterdir())
    assert first.job.ledger == second.job.ledger
    assert [rank.origin for rank in first.ranks] == [rank.origin for rank in second.ranks]


def test_a_rank_s_own_trace_is_read_again_by_its_part(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    train(export, Process(pid=1), 4)
    train(export, Process(pid=2, device=1), 4, late=500 * US)
    found = observe(export.write())
    for rank in found.ranks:
        trace = read_rank(rank)
        assert trace.origin == rank.origin
        assert measure_trace(trace, TraceOptions()).accounts == rank.accounts
    timeline = step_timeline(read_rank(found.ranks[1]), TraceOptions(), 1)
    assert (timeline.rank, timeline.accounts["host"] > 400e-6) == (1, True)


def test_steps_are_chosen_and_options_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    export = Export(tmp_path / "run_rank3.sqlite")
    train(export, Process(pid=1), 6)
    path = export.write()
    found = audit([path], FACTS, cache=False, options=TraceOptions(first_step=2, last_step=3))
    assert found.ranks[0].steps == (2, 3)
    numbered = audit([path], FACTS, cache=False, options=TraceOptions(rank_from=r"rank(\d)"))
    assert (numbered.ranks[0].rank, numbered.ranks[0].rank_from) == (3, "file name")
    train(export, Process(pid=2, device=1), 6)
    del export.rows["TARGET_INFO_SESSION_START_TIME"], export.rows["StringIds"]
    with pytest.raises(InputError, match="--rank-from: it holds 2 devices"):
        audit([export.write()], FACTS, cache=False, options=TraceOptions(rank_from=r"rank(\d)"))
