"""Exports of Nsight Systems: as lines of SQL, each run for itself, and as bytes."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from benchmarks.readers.auditing import audit_reader, audited
from benchmarks.readers.reader import Reader, records

_SQL_STEPS = 20_000
"""Steps of SQLite's virtual machine, in thousands, that a fuzzed script may take."""


_SCHEMA = b"""\
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, "end" INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
CREATE TABLE ANALYSIS_DETAILS (startTime INTEGER);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790000000000000000);
INSERT INTO ANALYSIS_DETAILS VALUES (0);
INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllReduce_Sum_bf16_RING_LL'), (3, 'cudaLaunchKernel_v7000');
"""
_MORE_TABLES = b"""\
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INT, "end" INT, deviceId INT, syncType INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, "end" INT, deviceId INT, streamId INT, graphId INT);
CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT);
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INT, metricId INT, metricName TEXT);
INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 5);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3');
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1000000, 1900000, 0, 7, 1);
INSERT INTO GPU_METRICS VALUES (1000000, 1, 2, 50);
INSERT INTO TARGET_INFO_GPU_METRICS VALUES (1, 2, 'SM Active [Throughput %]');
"""
_PID = (1 << 48) | (5 << 24)


def _nsys_rows(number: int, names: int = 1) -> bytes:
    at = 1_000_000 + 50_000 * number
    name = 1 + number % 2
    rows = [
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({at},{at + 2000},{_PID | 5},{number},3);",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({at + 3000},{at + 43000},0,1,7,{number},"
        f"{_PID},{name},{name});",
    ]
    if names > 1:
        rows.append(f"INSERT INTO StringIds VALUES ({10 + number}, 'kernel_{number}');")
    if number % 10 == 0:
        rows.append(
            f"INSERT INTO NVTX_EVENTS VALUES ({at},{at + 480_000},59,'step {number // 10}',"
            f"{_PID | 5},NULL);"
        )
        rows.append(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({at + 44000},{at + 46000},0,7,"
            f"{number},{_PID},1048576,1,1,2);"
        )
    return "\n".join(rows).encode()


def database(script: bytes, path: Path) -> None:
    """A database made by those lines of a script that are valid SQL to make and fill tables."""
    allowed = {
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_READ,
    }
    left = [_SQL_STEPS]

    def permit(action: int, *_: object) -> int:
        return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY

    def tick() -> int:
        left[0] -= 1
        return left[0] < 0

    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("PRAGMA page_size=512")
        made.execute("PRAGMA journal_mode=OFF")
        made.execute("PRAGMA synchronous=OFF")
        made.execute("BEGIN")
        made.set_authorizer(permit)
        made.set_progress_handler(tick, 1000)
        for line in script.decode("utf-8", "replace").split("\n"):
            with suppress(sqlite3.Error, sqlite3.Warning, ValueError, OverflowError):
                made.execute(line)
        made.set_authorizer(None)
        with suppress(sqlite3.Error):
            made.execute("COMMIT")


def _nsys(script: bytes, folder: Path) -> object:
    path = folder / "report.sqlite"
    database(script, path)
    return audited(path.read_bytes(), folder, "report.sqlite")


def small_databases() -> list[bytes]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "x.sqlite"
        database(_SCHEMA + b"\n".join(map(_nsys_rows, range(12))), path)
        return [path.read_bytes()]


def readers() -> list[Reader]:
    ranges = records(
        lambda n: (
            b"INSERT INTO NVTX_EVENTS VALUES (%d,%d,59,'step %d',%d,NULL);"
            % (10**6 + n, 10**9 - n, n, _PID | 5)
        ),
        _SCHEMA + b"\n".join(map(_nsys_rows, range(30))) + b"\n",
        b"\n",
    )
    shapes = {
        "natural": records(_nsys_rows, _SCHEMA, b"\n"),
        "distinct names": records(partial(_nsys_rows, names=2), _SCHEMA + _MORE_TABLES, b"\n"),
        "ranges": ranges,
    }
    return [
        Reader(name="nsys", read=_nsys, shapes=shapes),
        audit_reader("nsys-bytes", "report.sqlite", {}, small_databases),
    ]
