"""Readers on hostile recordings: time, memory, names, numbers and broken ends."""

from __future__ import annotations

import gzip
import json
import math
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.errors import InputError
from computeflow.telemetry.accounting import slurm_json
from computeflow.telemetry.accounting.accounting_source import read_jobs
from computeflow.telemetry.accounting.scheduler_values import unix_seconds
from computeflow.telemetry.correlation import correlate
from computeflow.telemetry.kernel_logs.kernel_log_source import KernelLogSource
from computeflow.telemetry.kernel_logs.line_stamps import Stamp, stamp_of
from computeflow.telemetry.kernel_logs.messages import classify_message
from computeflow.telemetry.kernel_logs.node_faults import Folding
from computeflow.telemetry.kineto import chunks
from computeflow.telemetry.kineto.kineto_reader import read_trace
from computeflow.telemetry.logs import mlperf_lines, run_files
from computeflow.telemetry.logs.run_files import Piece, group
from computeflow.telemetry.memory.device_memory import device_memory
from computeflow.telemetry.memory.snapshot import read_snapshot
from computeflow.telemetry.metrics.lookalikes import describe_lookalike
from computeflow.telemetry.metrics.metrics_source import MetricsSource
from computeflow.telemetry.metrics.samples import SampledFleet
from computeflow.telemetry.metrics.superbench import read_monitor
from computeflow.telemetry.nsys.database import Database, beside
from computeflow.telemetry.nsys.nsys_reader import _SIGNS
from computeflow.telemetry.op_timelines.timeline_file import read_timeline
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_registry import observe, sort_files
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest
from computeflow.telemetry.trace_audit import _key as measured_key
from computeflow.telemetry.trace_audit import measure_cached
from computeflow.telemetry.trace_formats import TraceFile
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from growing import growth

GOOD_JOB = '{"job_id": 1, "state": "COMPLETED", "time": {"start": 1, "end": 2}, "tres": {}}'


def launches(monkeypatch: pytest.MonkeyPatch, count: int, job: Callable[[int], str]) -> Any:
    """Files that all resume a checkpoint, each before the previous one has ended."""
    pieces = {
        Path(f"run{n}.log"): Piece(
            path=Path(f"run{n}.log"),
            first=float(n),
            last=float(10 * count),
            iteration=n,
            job=(job(n), "8", "", ""),
            resumes=True,
        )
        for n in range(count)
    }
    monkeypatch.setattr(run_files, "look", pieces.__getitem__)
    return group(list(pieces))


@pytest.mark.parametrize("job", [str, lambda _: "save"])
def test_launches_find_their_run_in_time_by_their_number(
    monkeypatch: pytest.MonkeyPatch, job: Callable[[int], str]
) -> None:
    assert len(launches(monkeypatch, 50, job)) == 50
    assert growth(lambda size: launches(monkeypatch, size, job), 400) < 8


def test_a_launch_goes_on_with_the_first_run_that_had_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = [(0, 10, False), (1, 5, False), (7, 20, True), (12, 15, True), (16, 18, True)]
    pieces = {
        Path(f"{n}.log"): Piece(
            path=Path(f"{n}.log"),
            first=float(first),
            last=float(last),
            iteration=n,
            job=("save", "8", "", ""),
            resumes=resumes,
        )
        for n, (first, last, resumes) in enumerate(spans)
    }
    monkeypatch.setattr(run_files, "look", pieces.__getitem__)
    runs = [[piece.iteration for piece in run.pieces] for run in group(list(pieces))]
    assert runs == [[0, 3, 4], [1, 2]]


def test_what_happened_together_is_found_in_time_by_its_number() -> None:
    def work(count: int) -> None:
        happened = [Event(seconds=1.0 + n, what="x", node="n", fault=True) for n in range(count)]
        found = correlate(
            [
                SourceReport(kind="a", sources=(), facts=None, happenings=tuple(happened)),
                SourceReport(kind="b", sources=(), facts=None, happenings=tuple(happened[:1])),
            ]
        )
        assert len(found) == 1 and found[0].node == "n"

    assert growth(work, 500) < 8


def test_a_job_of_many_pieces_is_not_parsed_at_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_json, "_PIECE", 1 << 10)
    parsed = []

    class Counting:
        def raw_decode(self, text: str, at: int) -> Any:
            parsed.append(len(text) - at)
            return json.JSONDecoder().raw_decode(text, at)

    monkeypatch.setattr(slurm_json, "_PARSER", Counting())
    path = tmp_path / "sacct.json"
    large = GOOD_JOB[:-1] + ', "comment": "' + "x" * (1 << 20) + '"}'
    path.write_text(
        '{"slurm": {}, "jobs": [' + ",".join([large, GOOD_JOB.replace("1", "2")]) + "]}"
    )
    assert read_jobs([path]).jobs.words["job"] == ("1", "2")
    assert sum(parsed) < 6 * path.stat().st_size


def cut_gzip(path: Path, text: str) -> Path:
    """A gzip file whose text is complete and whose end is broken."""
    path.write_bytes(gzip.compress(text.encode())[:-4])
    return path


def test_a_broken_end_of_accounting_is_said_between_objects_too(tmp_path: Path) -> None:
    text = '{"slurm": {}, "jobs": [' + GOOD_JOB + "]}"
    read = read_jobs([cut_gzip(tmp_path / "sacct.json", text)])
    assert read.jobs.words["job"] == ("1",)
    assert read.left_out and "gzip: the file ends in the middle" in read.left_out[0]


def test_a_broken_end_of_a_list_of_counters_is_said(tmp_path: Path) -> None:
    path = cut_gzip(tmp_path / "counters.csv", "DCGM_FI_DEV_GPU_UTIL, gauge, Utilisation.\n")
    assert "compressed end is broken" in describe_lookalike(path, head_of(path))


COLUMNS = "step,dp_rank,stage,optype,start_ts,duration"
ROW = "0,0,0,forward-compute,0.0,1.0"


def test_a_broken_end_of_the_meta_file_beside_an_op_timeline_is_said(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(f"{COLUMNS}\n{ROW}\n")
    cut_gzip(tmp_path / "meta.yaml", "pp_size: 1\n")
    notes = read_timeline(tmp_path / "trace.csv").notes
    assert any("compressed end is broken" in note for note in notes)


@pytest.mark.parametrize("name", ["a[1].parquet", "b*.parquet", "c?.parquet", "d'\";--.parquet"])
def test_the_name_of_a_parquet_is_no_pattern(tmp_path: Path, name: str) -> None:
    duckdb = pytest.importorskip("duckdb")

    def write(name: str, steps: int) -> Path:
        made = ", ".join(
            f"({n}, {ROW[2:].replace('forward-compute', repr('fwd'))})" for n in range(steps)
        )
        query = f"SELECT * FROM (VALUES {made}) AS rows({COLUMNS})"
        with duckdb.connect() as engine:
            engine.execute(f"COPY ({query}) TO '{tmp_path}/made' (FORMAT parquet)")
        (tmp_path / "made").rename(tmp_path / name)
        return tmp_path / name

    for other in ("a1.parquet", "bx.parquet", "cx.parquet"):
        write(other, 5)
    assert read_timeline(write(name, 2)).steps == (0, 1)


@pytest.mark.parametrize("content", [b"PAR1" + b"x" * 500 + b"PAR1", b"x" * 500, b"PAR1"])
def test_a_broken_parquet_is_named_once(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_timeline(path)
    assert str(refused.value).count("broken.parquet") == 1


def test_a_folder_s_name_is_no_column_of_a_parquet(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "mb_id=9").mkdir()
    path = tmp_path / "mb_id=9" / "trace.parquet"
    with duckdb.connect() as engine:
        query = f"SELECT * FROM (VALUES (0, 0, 0, 'fwd', 0.0, 1.0)) AS rows({COLUMNS})"
        engine.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    assert read_timeline(path).micro_batch is None


@pytest.mark.parametrize(
    "name, text",
    [
        ("trace.csv", f"{COLUMNS},step\n{ROW},1\n"),
        ("sacct.txt", "JobID|State|Start|End|AllocTRES|Start\n1|FAILED|1|2|gres/gpu=1|3\n"),
        ("jobs.csv", "job,gpus,start,end,Start\n1,8,0,5,9\n"),
        ("metrics.csv", "epoch,step,train_loss,step\n0,1,2.0,3\n"),
    ],
)
def test_a_table_with_a_column_twice_is_refused(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    sorted_files = sort_files([path]).files
    assert sorted_files
    found, left_out = observe(sorted_files, [], SourceRequest(catalog=load_catalog()))
    assert not found and "2 columns" in left_out[0]


def test_a_pipe_in_the_place_of_a_trace_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    os.mkfifo(path)
    file = TraceFile(kind="nsys", path=path)
    with pytest.raises(InputError, match="a device or a pipe"):
        Database(path)
    with pytest.raises(InputError, match="a device or a pipe"):
        measure_cached(file, options=TraceOptions(), cache=True)


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    made, path = tmp_path / "made", tmp_path / "a.sqlite"
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE a (b)")
        connection.commit()
        path.write_bytes(made.read_bytes())
    os.mkfifo(beside(path, "-wal"))
    Database(path).__exit__(None, None, None)
    measured_key(TraceFile(kind="nsys", path=path), TraceOptions())


@pytest.mark.parametrize("before", [0, 200])
def test_an_export_whose_tables_are_only_in_its_log_is_recognised(
    tmp_path: Path, before: int
) -> None:
    """The first pages may be of other tables, beyond what is read of the log's beginning."""
    made, path = tmp_path / "made.sqlite", tmp_path / "a.sqlite"
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        for number in range(before):
            connection.execute(f"CREATE TABLE other{number} (a, b, c, d)")
            connection.commit()
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT)")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2)")
        connection.commit()
        path.write_bytes(made.read_bytes())
        beside(path, "-wal").write_bytes(beside(made, "-wal").read_bytes())
    assert not any(sign.encode() in path.read_bytes() for sign in _SIGNS)
    assert sort_files([path]).files == {"nsys": (path,)}
    with Database(path) as database:
        assert database.has("CUPTI_ACTIVITY_KIND_KERNEL", "start", "end")


def kernel_event(number: int) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"kernel{number}",
        "ts": number,
        "dur": 1,
        "tid": 7,
        "args": {"stream": 7, "correlation": number},
    }


def test_names_of_a_trace_are_kept_to_a_limit_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("computeflow.telemetry.kineto.kineto_reader.NAMES", 10)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [kernel_event(n) for n in range(50)]}))
    trace = read_trace(path)
    assert len(trace.names) == 11 and len(trace.device.start) == 50
    assert trace.left_out == ("rank0.json: names beyond the first 10: 40 times, all taken as one",)


def test_long_names_of_a_trace_are_kept_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("computeflow.telemetry.kineto.kineto_reader.NAMES_CHARACTERS", 10_000)
    events = [kernel_event(n) | {"name": f"{n}" + "x" * 5000} for n in range(9)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert sum(map(len, read_trace(path).names)) < 20_000


SHAPES: dict[str, Callable[[int], bytes]] = {
    "one event of many keys": lambda size: (
        b'{"traceEvents":[{"ph":"X","args":{'
        + b",".join(b'"key%d":[1]' % n for n in range(size // 16))
        + b"}}]}"
    ),
    "deep lists": lambda size: (
        b'{"traceEvents":['
        + b",".join([b'{"a":' + b"[" * 90 + b"]" * 90 + b"}"] * (size // 190))
        + b"]}"
    ),
    "many events": lambda size: (
        b'{"traceEvents":['
        + b",".join([json.dumps(kernel_event(1)).encode()] * (size // 120))
        + b"]}"
    ),
    "a header of many keys": lambda size: (
        b"{" + b",".join(b'"key%d":[1]' % n for n in range(size // 16)) + b',"traceEvents":[]}'
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_trace_is_parsed_in_proportion_to_its_size(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that parsers are given, of which time that caches and the collector take is no part."""
    parsed = 0

    def counted(parse: Callable[..., Any]) -> Callable[..., Any]:
        def call(text: Any, *at: int) -> Any:
            nonlocal parsed
            parsed += len(text) - sum(at)
            found = parse(text, *at)
            if at:
                parsed -= len(text) - found[1]
            return found

        return call

    for name in ("decode_events", "decode_keys"):
        monkeypatch.setattr(chunks, name, counted(getattr(chunks, name)))
    monkeypatch.setattr(chunks._PARSER, "raw_decode", counted(chunks._PARSER.raw_decode))
    path = tmp_path / "trace.json"
    shares = []
    for size in (1 << 20, 1 << 22):
        content = SHAPES[shape](size)
        path.write_bytes(content)
        parsed = 0
        with suppress(InputError):
            read_trace(path)
        shares.append(parsed / len(content))
    assert shares[0] > 0.5 and shares[1] < 1.3 * shares[0] + 0.2
    assert max(shares) < 12


def test_an_event_longer_than_a_piece_is_parsed_when_all_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow parser gets the first piece, in vain, and the whole event: not each piece on the way."""
    parsed: list[int] = []
    parse = chunks._PARSER.raw_decode

    def counted(text: str, at: int) -> Any:
        parsed.append(len(text) - at)
        return parse(text, at)

    monkeypatch.setattr(chunks._PARSER, "raw_decode", counted)
    path = tmp_path / "trace.json"
    keys = b",".join(b'"key%d":[1]' % n for n in range(1 << 17))  # no phase: no event for msgspec
    path.write_bytes(b'{"traceEvents":[{' + keys + b"}]}")
    reading = chunks.FileReading(path)
    assert [list(events) for events in chunks.pieces(reading)] == [[]]
    assert reading.unreadable == 1
    assert sum(parsed) < len(keys) + 2 * chunks.PIECE


def collective_event(number: int, group: int) -> dict[str, Any]:
    event: dict[str, Any] = kernel_event(number)
    event["args"] |= {
        "Collective name": "allreduce",
        "Process Group Name": str(group),
        "Process Group Ranks": "[" + ", ".join(map(str, range(group, group + 8))) + "]",
        "dtype": "BFloat16",
    }
    return event


def test_collectives_that_say_the_same_are_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [collective_event(n, n % 3) for n in range(1, 91)]}))
    collectives = read_trace(path).collectives
    assert len(collectives) == 90 and len({id(value) for value in collectives.values()}) == 3
    assert collectives[5].ranks == tuple(range(2, 10)) and collectives[5].group == "2"


@pytest.mark.parametrize("limit", ["COLLECTIVES", "NAMES_CHARACTERS"])
def test_collectives_are_kept_to_a_limit_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"computeflow.telemetry.kineto.kineto_reader.{limit}", 10)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [collective_event(n, n) for n in range(1, 51)]}))
    trace = read_trace(path)
    assert len(trace.collectives) == 50
    assert sum(1 for value in trace.collectives.values() if value.ranks) <= 10
    assert any("names of collectives beyond the first" in note for note in trace.left_out)


def test_names_in_accounting_are_kept_to_a_limit_and_jobs_before_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("computeflow.telemetry.accounting.jobs.NAMES_CHARACTERS", 1000)
    lines = [f"{n}|COMPLETED|1|2|gres/gpu=1|{'x' * 100}{n}" for n in range(50)]
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(["JobID|State|Start|End|AllocTRES|JobName", *lines]))
    read = read_jobs([path])
    assert len(read.jobs) == 9
    assert "take a shorter period; 9 jobs before that are kept" in read.left_out[0]


def xid(node: str, device: int) -> str:
    stamp = "2026-01-01T00:00:00+00:00"
    return f"{stamp} {node} kernel: NVRM: Xid (PCI:0000:{device:02x}:00): 79, pid=1, gone\n"


def test_faults_and_nodes_of_kernel_logs_are_kept_to_a_limit_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("computeflow.telemetry.kernel_logs.node_faults.FAULTS", 5)
    monkeypatch.setattr("computeflow.telemetry.kernel_logs.node_faults.NODES", 5)
    path = tmp_path / "kern.log"
    path.write_text("".join(xid(f"node{n}", 1) for n in range(9)) + xid("x" * 300, 1))
    (observed,) = KernelLogSource().observe([path], SourceRequest(catalog=load_catalog()))
    assert len(observed.facts.faults) == len(observed.facts.spans) == 5
    assert any("10 messages of faults, nodes or devices" in text for text in observed.left_out)


def test_faults_are_told_in_time_by_their_number() -> None:
    def work(count: int) -> None:
        folding = Folding()
        file = folding.file("kern.log")
        for n in range(count):
            text = f"NVRM: GPU 0000:{n:08x}:00.0: GPU has fallen off the bus."
            stamp = Stamp(clock="unix", seconds=1.0, node=f"node{n}", tag="kernel", text=text)
            read = classify_message(text)
            assert read is not None
            file.add(stamp, text, read, 1)
        file.close()
        assert len(folding.faults()) == count

    assert growth(work, 400) < 8


def test_labels_of_metrics_are_kept_to_a_limit_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f'DCGM_FI_DEV_GPU_TEMP{{UUID="{n}{"x" * 100}"}} 40\n' for n in range(50)]
    path = tmp_path / "metrics.txt"
    path.write_text("".join(lines))
    for module in ("prometheus_text", "samples"):
        with monkeypatch.context() as patched:
            patched.setattr(f"computeflow.telemetry.metrics.{module}.METRIC_NAMES_BYTES", 1000)
            (observed,) = MetricsSource().observe([path], SourceRequest(catalog=load_catalog()))
        assert len(observed.facts.gpus) < 12
        assert any("beyond the limits" in text for text in observed.left_out)


def test_holders_of_gpus_are_named_in_linear_time() -> None:
    def work(count: int) -> None:
        fleet = SampledFleet()
        for n in range(count):
            labels = {"gpu": str(n), "pod": f"pod-{n}"}
            assert fleet.slot("DCGM_FI_DEV_GPU_UTIL", labels, "file") is not None
        named = [fleet.names_of(gpu) for gpu in fleet.gpus.values()]
        assert named[-1] == (f"pod-{count - 1}",)

    assert growth(work, 2000) < 8


TWICE = {
    "a.json": '{"status":"success","data":{"resultType":"vector","resultType":"matrix","result":[]}}',
    "fr_0.json": '{"version":"2.5","entries":[{"record_id":1,"record_id":2,"profiling_name":"nccl:a",'
    '"collective_seq_id":1,"state":"completed"}],"pg_config":{}}',
    "snapshot.json": '{"segments":[{"address":0,"address":1,"total_size":2,"blocks":[]}],'
    '"device_traces":[[]]}',
    "trainer_state.json": '{"log_history":[{"step":1,"loss":2.0,"loss":0.1}],"max_steps":9}',
}


@pytest.mark.parametrize("name", TWICE)
def test_an_object_with_a_key_twice_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(TWICE[name])
    try:
        files = sort_files([path]).files
        found, left_out = observe(files, [], SourceRequest(catalog=load_catalog()))
    except InputError as error:
        found, left_out = [], [str(error)]
    assert not found and "appears twice" in left_out[0], (files, left_out)


def test_a_line_with_a_key_twice_is_no_entry(tmp_path: Path) -> None:
    good = ':::MLLOG {"key": "train_loss", "time_ms": 1, "value": 2.0}'
    assert mlperf_lines.time_of(good) == 1e-3
    assert mlperf_lines.time_of(good.replace('"value"', '"time_ms"')) is None
    journal = '{"MESSAGE": "NVRM: Xid", "__REALTIME_TIMESTAMP": "1", "_HOSTNAME": "a"}'
    assert stamp_of(journal) is not None
    assert stamp_of(journal.replace("}", ', "_HOSTNAME": "b"}')) is None
    monitor = '{"time": "2026-01-01 00:00:00", "gpu_usage:0": 5, "gpu_usage:0": 99}\n'
    path = tmp_path / "monitor.jsonl"
    path.write_text(monitor)
    assert read_monitor(path, SampledFleet()) == [f"{path}: 1 lines that are not samples"]


def flight_dump(sequence: str) -> str:
    return (
        '{"version":"2.5","rank":0,"pg_config":{"0":{"name":"0","desc":"","ranks":"[0, 1]"}},'
        '"entries":[{"record_id":1,"process_group":["0",""],"profiling_name":"nccl:all_reduce",'
        f'"collective_seq_id":{sequence},"state":"scheduled","time_created_ns":1}}]}}'
    )


def snapshot(device: str, size: str) -> str:
    block = f'{{"size":{size},"state":"active_allocated","frames":[]}}'
    return (
        f'{{"segments":[{{"device":{device},"address":0,"total_size":9,"blocks":[{block}]}}],'
        '"device_traces":[[{"action":"alloc","addr":0,"size":9,"time_us":1,"frames":[]}]]}'
    )


def trainer_state(runtime: str, loss: str = "2.0") -> str:
    first, last = f'{{"step":1,"loss":{loss}}}', f'{{"step":2,"train_runtime":{runtime}}}'
    return f'{{"log_history":[{first},{{"step":2,"loss":1.0}},{last}],"max_steps":9}}'


ODD: dict[str, tuple[str, str, bool]] = {
    "sequence beyond 64 bits": ("fr_0.json", flight_dump("18446744073709551616"), False),
    "sequence below 0": ("fr_0.json", flight_dump("-5"), False),
    "device below 0": ("snapshot.json", snapshot("-1000000000000000000", "9"), False),
    "size below 0": ("snapshot.json", snapshot("0", "-9"), False),
    "runtime below 0": ("trainer_state.json", trainer_state("-1"), True),
    "runtime of nothing": ("trainer_state.json", trainer_state("1e-320"), True),
    "loss of lists": ("trainer_state.json", trainer_state("9.0", "[" * 5000 + "]" * 5000), False),
}


@pytest.mark.parametrize("case", ODD)
def test_numbers_that_no_run_has_are_an_answer_or_one_line(tmp_path: Path, case: str) -> None:
    name, text, is_read = ODD[case]
    path = tmp_path / name
    path.write_text(text)
    found, left_out = observe(sort_files([path]).files, [], SourceRequest(catalog=load_catalog()))
    assert bool(found) is is_read
    assert is_read or (str(path) in left_out[0] and len(left_out[0]) < 400)


@pytest.mark.parametrize("loss", ["nan", "inf", "9" * 400])
@pytest.mark.parametrize("column", ["train_loss", "val_loss"])
def test_a_loss_that_is_no_number_is_counted_and_no_value(
    tmp_path: Path, column: str, loss: str
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(f"epoch,step,{column}\n0,1,2.0\n0,2,{loss}\n0,3,{loss}\n")
    found, _ = observe(sort_files([path]).files, [], SourceRequest(catalog=load_catalog()))
    codec.to_json(codec.encode(found))
    assert found


def test_a_batch_below_one_gives_no_steps() -> None:
    events = mlperf_lines.MlperfLines()
    events.event(':::MLLOG {"key": "global_batch_size", "value": 1e-320}')
    loss = ':::MLLOG {"key": "train_loss", "value": 2.0, "metadata": {"samples_count": 8}}'
    assert events.event(loss) is None


def test_a_clock_that_goes_back_in_a_snapshot_tells_no_seconds(tmp_path: Path) -> None:
    events: list[Any] = [
        {"action": "alloc", "addr": 0, "size": 9, "time_us": time, "frames": []}
        for time in (4_000_000_000_000_000, 1_700_000_000_000_000)
    ]
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps({"segments": [], "device_traces": [events]}))
    read = read_snapshot(path)
    assert device_memory(read, read.devices[0]).seconds is None


@pytest.mark.parametrize("text", ["-1", "1e30", "0001-01-01T00:00:00", "1e400"])
def test_a_moment_that_no_cluster_has_seen_is_not_known(text: str) -> None:
    assert math.isnan(unix_seconds(text))
