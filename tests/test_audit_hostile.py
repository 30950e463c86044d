"""Traces that are broken, strange or made to harm: no traceback, what is left out is named, the rest
is measured and its ledger closes.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.errors import ComputeFlowError, InputError, LedgerError
from computeflow.files.cache import cache_home
from computeflow.telemetry.kineto import chunks
from computeflow.telemetry.kineto.kineto_reader import read_trace
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.job_ledgers import job_ledger
from computeflow.telemetry.traces.operator_flops import mask_size, operator_work
from computeflow.telemetry.traces.rank import measure_trace
from computeflow.telemetry.traces.rank_measurements import RankMeasurement, TraceOptions

FACTS = load_catalog()
NOON = 1_700_000_000_000_000.0
"""Start of the small traces, in microseconds."""
DAY = 86_400e6
Event = dict[str, Any]


def host(name: str, at: float, length: float, kind: str = "cpu_op", **arguments: Any) -> Event:
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": at,
        "dur": length,
        "args": arguments,
    }


def kernel(name: str, at: float, length: float, correlation: int, **arguments: Any) -> Event:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": at,
        "dur": length,
        "args": {"correlation": correlation, "stream": 7, "device": 0, **arguments},
    }


def launch(at: float, correlation: int) -> Event:
    return host("cudaLaunchKernel", at, 2.0, "cuda_runtime", correlation=correlation)


def product(at: float, length: float, forward_thread: int = 0) -> Event:
    arguments: dict[str, Any] = {
        "Input Dims": [[256, 256], [256, 256]],
        "Input type": ["c10::BFloat16"] * 2,
        "Sequence number": 1,
        "Fwd thread id": forward_thread,
    }
    return host("aten::mm", at, length, **arguments)


def collective(at: float, length: float, correlation: int, group: str = "0") -> Event:
    return kernel(
        "ncclDevKernel_AllReduce",
        at,
        length,
        correlation,
        **{
            "Collective name": "allreduce",
            "Process Group Name": group,
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]",
            "Group size": 2,
            "In msg nelems": 4096,
            "Out msg nelems": 4096,
            "dtype": "BFloat16",
        },
    )


def step(number: int, at: float) -> list[Event]:
    """A step of 1 ms: forward, backward beside a collective, optimizer; no two starts equal."""
    first = 10 * number
    return [
        host(f"ProfilerStep#{number}", at, 1000.0, "user_annotation"),
        product(at + 10, 40),
        launch(at + 20, first),
        host("autograd::engine::evaluate_function: MmBackward0", at + 60, 90),
        product(at + 70, 40.5, 1),
        launch(at + 80, first + 1),
        launch(at + 120, first + 2),
        host("Optimizer.step#AdamW.step", at + 200, 100, "user_annotation"),
        launch(at + 210, first + 3),
        host("cudaDeviceSynchronize", at + 320, 500, "cuda_runtime"),
        kernel("sm90_gemm", at + 30, 150, first),
        kernel("sm90_gemm", at + 190, 200.25, first + 1),
        collective(at + 350, 150, first + 2),
        kernel("multi_tensor_apply", at + 520, 130, first + 3),
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    ]


def trace(rank: int = 0, world: int = 2, at: float = NOON, late: float = 0.0) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": [*step(1, at), *step(2, at + 1010 + late)],
    }


def write(path: Path, data: Any) -> Path:
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def audited(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The answer, once its ledgers are checked to close."""
    code = run(["audit", *map(str, arguments), "-o", "json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    data: dict[str, Any] = json.loads(printed.out)
    for ledger in (data["ledger"], *(rank["ledger"] for rank in data["per_rank"])):
        seconds = ledger["accounts"].values()
        assert min(seconds) >= 0
        assert sum(seconds) == pytest.approx(ledger["gpus"] * ledger["wall_seconds"], rel=1e-9)
    return data


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that says why a trace is refused."""
    code = run(["audit", *map(str, arguments)])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("computeflow: ")
    assert printed.err.count("\n") == 1
    return printed.err


def left_out(data: dict[str, Any]) -> str:
    return "; ".join(data["left_out"])


def accounts(path: Path) -> dict[str, float]:
    """Accounts of one rank, closed to the nanosecond."""
    found = measure_trace(read_trace(path), TraceOptions())
    assert_closed(found)
    return found.accounts


def assert_closed(found: RankMeasurement) -> None:
    assert all(seconds >= 0 for seconds in found.accounts.values())
    whole = sum(round(1e9 * seconds) for seconds in found.accounts.values())
    assert whole == found.window_end - found.window_start


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "rank0.json", trace())


def test_the_small_trace_is_complete(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = audited(capsys, good, "--details")
    assert data["left_out"] == []
    assert data["ledger"]["mfu"] > 0
    assert data["ledger"]["accounts"].keys() == {
        "compute.model",
        "compute.kernel",
        "optimizer",
        "comm.dp",
        "host",
        "unexplained",
    }


# Files that end too early, or are something else


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.99])
def test_a_gzip_that_is_cut_gives_what_came_before_or_says_so(
    share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = random.Random(1)
    events = [*trace()["traceEvents"]]
    events += [host(f"aten::{noise.random()}", NOON + 20 * i, 1) for i in range(500)]
    whole = gzip.compress(json.dumps(trace() | {"traceEvents": events}).encode())
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(whole[: int(share * len(whole))])
    if share < 0.1:
        assert "rank0.json.gz" in refused(capsys, path, "--no-cache")
    else:
        assert "rank0.json.gz: gzip: the file ends in the middle" in left_out(
            audited(capsys, path, "--no-cache")
        )


HALF = (
    '"autograd::engine',  # in a string
    '"Optimizer.step#AdamW.step", "pid": 1, "tid": 1, "ts": 17000000',  # in a number
    '{"ph": "M"',  # behind a comma
    '"multi_tensor_apply"',  # behind a value
)


@pytest.mark.parametrize("mark", HALF)
@pytest.mark.parametrize("wrapped", [True, False], ids=["object", "array"])
def test_half_a_file_gives_its_events(
    mark: str, wrapped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(trace() if wrapped else trace()["traceEvents"])
    end = text.rindex(mark) + (0 if mark.startswith('{"ph"') else len(mark))
    path = tmp_path / "rank0.json"
    path.write_text(text[:end])
    data = audited(capsys, path, "--no-cache")
    assert data["left_out"][0] == (
        "rank0.json: the file ends in the middle of its events; what came before is kept"
    )
    kept = sum(text[:end].count(f'"{kind}"') for kind in ("ph",)) - (not mark.startswith('{"ph"'))
    assert data["sources"][0]["events"] == kept


OTHERS: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t" * 100,
    "half a mark": b"\xef\xbb",
    "null": b"null",
    "number": b"17",
    "text": b"once upon a time",
    "other JSON": b'{"model": "llama", "layers": [1, 2, 3]}',
    "other array": b"[1, 2, 3]",
    "no events": b'{"traceEvents": []}',
    "no list": b'{"traceEvents": {"a": 1}}',
    "only metadata": b'{"traceEvents": [{"ph": "M", "name": "x"}]}',
    "open": b'{"traceEvents": [',
    "brackets": b'{"traceEvents": ' + b"[" * 100_000,
    "braces": b'{"traceEvents": [' + b'{"a":' * 100_000,
    "zeros": bytes(100_000),
    "another gzip": gzip.compress(b"not a trace at all" * 100),
    "gzip of nothing": gzip.compress(b""),
    "no gzip": b"\x1f\x8b" + b"nonsense" * 10,
    "UTF-16": '{"traceEvents": []}'.encode("utf-16"),
    "only handed over": json.dumps([host("record_param_comms", NOON, 9)]).encode(),
    "no time": json.dumps([host("aten::mm", NOON, 0)]).encode(),
    "ELF": b"\x7fELF" + bytes(range(256)) * 20,
    "pickle": b"\x80\x04cos\nsystem\n(S'touch executed'\ntR.",
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_no_trace_is_refused_in_one_line(
    content: bytes, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    assert str(path) in refused(capsys, path)
    assert "other.json" in left_out(audited(capsys, good, path))
    assert not (tmp_path / "executed").exists()


WRAPPINGS: dict[str, Callable[[str], bytes]] = {
    "array": lambda text: json.dumps(json.loads(text)["traceEvents"]).encode(),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "on many lines": lambda text: json.dumps(json.loads(text), indent=8).encode(),
    "carriage returns": lambda text: text.replace(", {", ",\r\n{").encode(),
    "keys behind": lambda text: json.dumps(dict(reversed(json.loads(text).items()))).encode(),
    "lists behind": lambda text: (text[:-1] + ', "x": [' + "[{}]," * 40 + "[]]}").encode(),
    "two members": lambda text: (
        gzip.compress(text[:999].encode()) + gzip.compress(text[999:].encode())
    ),
    "stored": lambda text: gzip.compress(text.encode(), 0),
    "strange header": lambda text: text.replace(
        '"schemaVersion": 1', '"x": NaN, "y": "\\ud800", "z": 1e999'
    ).encode(),
    "nonsense header": lambda text: text.replace(
        '"schemaVersion": 1', '"trace_id": [[]], "baseTimeNanoseconds": 1e30'
    ).encode(),
}


@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS.keys())
def test_the_same_events_in_another_wrapping_are_the_same(
    wrap: Callable[[str], bytes], good: Path, tmp_path: Path
) -> None:
    other = tmp_path / "again_rank0.json"
    other.write_bytes(wrap(good.read_text()))
    assert accounts(other) == accounts(good)
    found = measure_trace(read_trace(other), TraceOptions())
    assert (found.rank, found.left_out) == (0, ())
    if "deviceProperties" in good.read_text() and wrap is not WRAPPINGS["array"]:
        assert (found.device, found.world) == ("NVIDIA H200", 2)


# Events that are none


def event(**changed: Any) -> str:
    return json.dumps(kernel("strange", NOON + 700, 50.0, 77) | changed)


DROPPED: dict[str, str] = {
    "NaN": event(ts=float("nan")),
    "infinite": event(ts=float("inf")),
    "minus infinite": event(dur=float("-inf")),
    "negative": event(dur=-1.0),
    "too large a number": event(ts="HERE").replace('"HERE"', "1e400"),
    "too large an integer": event(ts=2**70),
    "thousands of digits": event(ts="HERE").replace('"HERE"', "9" * 6000),
    "years": event(dur=1e15),
    "no start": json.dumps({"ph": "X", "cat": "kernel", "name": "k", "dur": 9}),
    "words for a time": event(ts="noon"),
    "empty time": event(ts=""),
    "a list for a time": event(dur=[1, 2]),
    "null": event(ts=None),
    "a number for a name": event(name=17),
    "no phase": json.dumps({"cat": "kernel", "name": "k", "ts": NOON, "dur": 9}),
    "unknown phase": event(ph="?"),
    "long phase": event(ph="XX"),
    "number for a phase": event(ph=9),
    "list for a phase": event(ph=[]),
    "entry 5": "5",
    "entry null": "null",
    "entry text": '"x"',
    "entry list": "[[], {}]",
    "entry object": "{}",
    "half a surrogate": event(name="HERE").replace("HERE", "\\ud800"),
    "deep": event(args="HERE").replace('"HERE"', '{"a":' * 50_000 + "1" + "}" * 50_000),
    "broken off": event()[:-30],
    "broken in a list": event(args={"a": ["HERE", {"b": 1}], "c": 2}).replace('"HERE"', "@"),
    "no quotes": event().replace('"cat"', "cat"),
    "two commas": ",,",
    "unknown category": event(cat="novelty"),
}


@pytest.mark.parametrize("text", DROPPED.values(), ids=DROPPED.keys())
def test_an_event_that_is_none_leaves_the_others_as_they_are(
    text: str,
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clean = accounts(good)
    path = tmp_path / "strange.json"
    path.write_text(good.read_text().replace('[{"ph"', f'[{text}, {{"ph"', 1))
    data = audited(capsys, path, "--no-cache")
    assert accounts(path) == clean
    quiet = ("unknown", "long phase", "for a phase", "two commas")
    kind = next(name for name, value in DROPPED.items() if value == text)
    if not any(word in kind for word in quiet):
        assert re.search("strange.json: [1-9] (unreadable events|events without)", left_out(data))
    for size in (1, 7, 64, 333):
        monkeypatch.setattr(chunks, "PIECE", size)
        monkeypatch.setattr(chunks, "_READ", size)
        assert accounts(path) == clean


KEPT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "numbers in quotes": {"ts": f"{NOON + 700}", "dur": "50.0", "args": {"correlation": "77"}},
    "negative correlation": {"args": {"correlation": -5}},
    "large correlation": {"args": {"correlation": 2**70}},
    "correlation of another": {"args": {"correlation": 11}},
    "list for a correlation": {"args": {"correlation": []}},
    "words for a stream": {"args": {"stream": "default", "correlation": 77}},
    "hexadecimal stream": {"args": {"stream": "0x7"}},
    "large stream": {"args": {"stream": 2**70}},
    "args null": {"args": None},
    "args list": {"args": [1, 2]},
    "args text": {"args": "none"},
    "nested": {"args": {"a": [[[[[[{"b": {"c": [1, {"d": {}}]}}]]]]]]}},
    "large thread": {"tid": 2**70},
    "thread in words": {"tid": "stream 7"},
    "control characters": {"name": "k\x00\x01\x1b[31m\n\t\x7f"},
    "markup": {"name": "[/bold] <script>alert(1)</script> %s {0} $(id) `id`"},
    "other scripts": {"name": "ядро 内核 🚀 \u202e"},
    "very long name": {"name": "dataloader" * 100_000},
    "no category's case": {"cat": "KERNEL"},
    "group of many digits": {"args": {"Collective name": "x", "Process Group Ranks": "9" * 9999}},
    "ranks of nonsense": {"args": {"Collective name": "x", "Process Group Ranks": [[], {}, "a"]}},
    "negative message": {"args": {"Collective name": "x", "In msg nelems": -(2**63)}},
    "no length": {"dur": 0},
    "longer than the trace": {"dur": 5e8},
    "before the trace": {"ts": NOON - 1e6},
}


@pytest.mark.parametrize("changed", KEPT.values(), ids=KEPT.keys())
def test_a_strange_event_is_measured_and_the_ledger_closes(
    changed: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = trace()
    whole["traceEvents"].insert(5, json.loads(event()) | changed)
    path = write(tmp_path / "rank0.json", whole)
    data = audited(capsys, path, "--no-cache", "--details")
    assert data["left_out"] == []
    assert run(["audit", str(path), "--no-cache", "--details"]) == 0
    accounts(path)


def test_a_number_in_quotes_is_a_number(good: Path, tmp_path: Path) -> None:
    quoted = re.sub(r'("(?:ts|dur|correlation)": )([\d.]+)', r'\1"\2"', good.read_text())
    assert quoted != good.read_text()
    assert accounts(write(tmp_path / "quoted.json", quoted.encode())) == accounts(good)


def test_bytes_that_are_no_text_stay_in_the_name(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = accounts(good)
    good.write_bytes(good.read_bytes().replace(b"sm90_gemm", b"sm90\xff\xfe\xc3_gemm"))
    data = audited(capsys, good)
    assert accounts(good) == clean
    assert any("\ufffd" in row["name"] for row in data["per_rank"][0]["kernels"])


SHAPES: dict[str, tuple[str, str, str, str]] = {
    "no list": ("aten::mm", "7", "", ""),
    "null": ("aten::mm", "null", "null", "null"),
    "types are a number": ("aten::mm", "[[2,2],[2,2]]", "5", ""),
    "do not fit": ("aten::mm", "[[2,3],[4,5]]", "", ""),
    "words": ("aten::mm", '[["a","b"],["b","c"]]', "", ""),
    "negative": ("aten::mm", "[[-2,3],[3,5]]", "", ""),
    "too large": ("aten::mm", f"[[{2**70},{2**70}],[{2**70},{2**70}]]", "", ""),
    "more than a float": ("aten::mm", f"[[{10**400},2],[2,2]]", "", ""),
    "infinite operands": ("aten::mm", "[[1e-300,1e200],[1e200,1e120]]", "", ""),
    "fractions": ("aten::bmm", f"[[1,{10**21},{10**21}],[1,{10**21},1e-30]]", "", ""),
    "objects": ("aten::mm", '[{"a":1,"b":2},{"a":1,"b":2}]', "", ""),
    "deep": ("aten::mm", "[" * 100_000, "", ""),
    "stride of zero": ("aten::convolution", "[[1,1,4,4],[1,1,2,2]]", "",
                       '["","","","[0, 0]","[0, 0]","[1, 1]","False"]'),
    "no stride": ("aten::convolution", "[[1,1,4,4],[1,1,2,2]]", "",
                  '["","","","[]","[]","[]","False"]'),
    "values are an object": ("aten::_flash_attention_forward", "[[1,2,3,4],[1,2,3,4],[1,2,3,4]]",
                             "", '{"a": 1}'),
    "cut": ("aten::mm", "[[2,2],[2,", "", ""),
    "no text": ("aten::mm", "\udcff", "", ""),
}  # fmt: skip


@pytest.mark.parametrize(("name", "dims", "types", "values"), SHAPES.values(), ids=SHAPES.keys())
def test_shapes_that_are_none_count_nothing_or_something_finite(
    name: str, dims: str, types: str, values: str
) -> None:
    raw = [text.encode("utf-8", "surrogateescape") for text in (dims, types, values)]
    found = operator_work(name, *raw)
    assert 0 <= found.flops < 1e24
    assert 0 <= found.elements < 1e24
    assert found.type == ""
    assert 0 <= mask_size(raw[0]) < 2**63


def test_masks_may_be_as_strange() -> None:
    for text in ("[[3,3]]", f"[[{2**70},{2**70}]]", '[{"a":1,"b":2}]', "[[[],[]]]", "[[2.5,2.5]]"):
        assert mask_size(text.encode()) in (0, 3)


# Ranks and jobs


def job(folder: Path, *ranks: dict[str, Any]) -> Path:
    for number, data in enumerate(ranks):
        write(folder / f"part{number}.json", data)
    return folder


MIXED: dict[str, tuple[list[dict[str, Any]], list[int], str]] = {
    "one rank twice": ([trace(0), trace(0), trace(1)], [0, 1], "part1.json: rank 0 .trace. again"),
    "two sizes": ([trace(0), trace(1), trace(2, world=8)], [0, 1], "part2.json: of a job of 8 ranks"),
    "no size": ([trace(0), trace(1), {"traceEvents": step(1, NOON)}], [0, 1], "not state its size"),
    "another day": ([trace(0), trace(1), trace(2, at=NOON - DAY)], [0, 1], "part2.json: recorded -24"),
    "a broken one": ([trace(0), {"traceEvents": []}, trace(1)], [0, 1], "part1.json: an empty trace"),
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "kept", "said"), MIXED.values(), ids=MIXED.keys())
def test_of_mixed_traces_one_job_is_measured_and_the_others_are_named(
    ranks: list[dict[str, Any]],
    kept: list[int],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = audited(capsys, job(tmp_path, *ranks), "--no-cache")
    assert [rank["rank"] for rank in data["per_rank"]] == kept
    assert re.search(said, left_out(data))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("jump", [DAY, -DAY, 2.2e15, -1.6e15])
def test_events_on_the_other_side_of_a_jump_are_left_out(
    jump: float, first: bool, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = trace()
    far = [kernel("far", NOON + jump, 10, 98), launch(NOON + jump - 5, 98)]
    events = whole["traceEvents"]
    whole["traceEvents"] = [*far, *events] if first else [*events, *far]
    path = write(tmp_path / "jump.json", whole)
    assert accounts(path) == accounts(good)
    assert "jump.json: the clock jumps; 2 events" in left_out(audited(capsys, path, "--no-cache"))


@pytest.mark.parametrize(
    "info",
    [
        {"rank": -1},
        {"rank": "0"},
        {"rank": 2**70},
        {"rank": None},
        [],
        "nccl",
        {"world_size": 0},
        {"rank": 3, "world_size": 2**70},
        {"pg_config": [{"pg_name": [], "pg_desc": {}}]},
        {"pg_config": {"a": 1}},
    ],
)
def test_what_a_trace_says_of_its_job_may_be_nonsense(
    info: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t.json", trace() | {"distributedInfo": info, "deviceProperties": [7]})
    assert audited(capsys, path, "--no-cache")["per_rank"][0]["rank"] in (0, 3)


def test_steps_that_are_written_again_and_again_are_one(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = trace()
    whole["traceEvents"] = [copy.deepcopy(e) for e in whole["traceEvents"] for _ in range(4)]
    data = audited(capsys, write(tmp_path / "again.json", whole), "--no-cache", "--details")
    assert [row["step"] for row in data["per_rank"][0]["steps"]] == [1, 2]
    assert run(["audit", str(tmp_path / "again.json"), "--no-cache", "--details"]) == 0


# Folders


def test_folders_without_a_trace_say_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing to read in it" in refused(capsys, tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    write(tmp_path / "config.json", {"layers": 3})
    assert "1 .txt" in refused(capsys, tmp_path)
    assert "No such file" in refused(capsys, tmp_path / "nowhere")
    assert "too long" in refused(capsys, "a" * 5000)
    with pytest.raises(InputError, match="null byte"):
        audit([Path("a\0b")], FACTS)


def test_one_trace_among_thousands_of_files_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    place = os.open(folder, os.O_RDONLY)
    for number in range(2_000):
        ending = (".txt", ".json", ".pt", ".gz", "")[number % 5]
        os.close(os.open(f"{number}{ending}", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)
    write(folder / "worker0.pt.trace.json.gz", trace())
    data = audited(capsys, folder, "--no-cache")
    assert len(data["sources"]) == 1
    assert "800 empty files (1.json, " in left_out(data)
    assert "400 .pt" in left_out(data)


def test_pipes_sockets_links_and_closed_files_do_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "good.json", trace())
    closed = write(tmp_path / "closed.json", trace(1))
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "turn.json").symlink_to(tmp_path / "turn.json")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "gone")
    (tmp_path / "folder.json").mkdir()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind("plug.json")
        opened = os.open

        def refusing(path: Any, *arguments: Any, **named: Any) -> int:
            if path == closed:
                raise PermissionError(13, "Permission denied", str(path))
            return opened(path, *arguments, **named)

        monkeypatch.setattr(os, "open", refusing)
        data = audited(capsys, tmp_path, "--no-cache")
        for name in ("pipe.json", "plug.json", "/dev/zero"):
            assert "not a file" in refused(capsys, tmp_path / name)
    assert [Path(rank["source"]).name for rank in data["per_rank"]] == ["good.json"]
    assert "closed.json: Permission denied" in left_out(data)
    assert "turn.json" in left_out(data)
    assert "dangling.json: No such file" in left_out(data)
    assert refused(capsys, tmp_path / "turn.json")


def test_a_name_that_is_no_text_is_read(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/trace\xff.json"))
    write(path, trace())
    program = "import sys; from computeflow.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "audit", str(path), "-o", "json"],
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["left_out"] == []


# Size


def members(head: bytes, part: bytes, times: int, tail: bytes) -> bytes:
    """A gzip file of many members, quick to make however much it unpacks to."""
    return gzip.compress(head) + gzip.compress(part, 1) * times + gzip.compress(tail)


MIB = 1 << 20
FILL = b'{"traceEvents": [' + b",".join(json.dumps(e).encode() for e in step(1, NOON))
BOMBS: dict[str, tuple[bytes, str]] = {
    "zeros": (members(b"", bytes(16 * MIB), 16, b""), "no traceEvents"),
    "blanks": (members(FILL, b" " * 16 * MIB, 16, b"]}"), ""),
    "zeros for events": (members(FILL, bytes(16 * MIB), 16, b"]}"), "unreadable"),
    "no events": (members(FILL + b",", b"{}," * (4 * MIB), 16, b"]}"), "not a trace"),
    "numbers": (members(b"[", b"1," * (8 * MIB), 16, b"1]"), "not a trace"),
    "a key behind": (members(FILL + b'], "x": "', b"x" * 16 * MIB, 16, b'"}'), "too long"),
    "brackets": (members(FILL + b",", b'{"a":[' * (MIB // 4), 1, b"]}"), "in the middle"),
    "half strings": (members(FILL + b",", b'{"a":"{' * (MIB // 4), 2, b"]}"), "not a trace"),
}
BOUNDED = """
import resource, sys, time
from pathlib import Path
from computeflow.catalog import load_catalog
from computeflow.errors import ComputeFlowError
from computeflow.telemetry.trace_audit import audit
facts = load_catalog()
audit([Path(sys.argv[1])], facts, cache=False)
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    print(*audit([Path(sys.argv[2])], facts, cache=False).left_out, sep="; ")
except ComputeFlowError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
print(time.process_time() - began)
"""


def bounded(good: Path, path: Path) -> tuple[str, int, float]:
    """The output, MiB that memory grew by, and CPU-seconds."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(good), str(path)],
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
    )
    said, grown, seconds = done.stdout.splitlines()
    return said, int(grown), float(seconds)


@pytest.mark.parametrize(("content", "said"), BOMBS.values(), ids=BOMBS.keys())
def test_a_small_file_that_unpacks_to_a_large_one_takes_neither_memory_nor_hours(
    content: bytes, said: str, good: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(content)
    found, grown, seconds = bounded(good, path)
    assert said in found
    assert grown < 200
    assert seconds < 20


def lines(size: int) -> Iterator[bytes]:
    """A trace of so many bytes without a single line break."""
    some = b"".join(
        b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":%.3f,"dur":1.5,'
        b'"args":{"External id":%d}},' % (NOON + i / 10, i)
        for i in range(5000)
    )
    yield b'{"deviceProperties":[{"name":"NVIDIA H200"}],"traceEvents":['
    for _ in range(size // len(some)):
        yield some
    yield json.dumps(trace())[1:].partition('"traceEvents": [')[2].encode()


def value(size: int) -> Iterator[bytes]:
    """One event with a text of so many bytes in it, between others."""
    text = FILL + b',{"ph":"X","cat":"cpu_op","name":"big","ts":1,"dur":1,"args":{"Call stack":"'
    yield text
    for _ in range(size >> 20):
        yield b"x" * MIB
    yield b'"}}' + b"".join(b"," + json.dumps(e).encode() for e in step(2, NOON + 1010)) + b"]}"


@pytest.mark.parametrize(
    ("written", "size", "said"), [(lines, 20 * MIB, ""), (value, 40 * MIB, "unreadable")]
)
def test_one_very_long_line_is_read_in_pieces(
    written: Callable[[int], Iterator[bytes]], size: int, said: str, good: Path, tmp_path: Path
) -> None:
    path = tmp_path / "long.json"
    with path.open("wb") as file:
        file.writelines(written(size))
    found, grown, seconds = bounded(good, path)
    assert said in found
    assert grown < 100
    assert seconds < 20
    assert measure_trace(read_trace(path), TraceOptions()).steps == (1, 2)


# What is kept, asked and written


def kept_files() -> list[Path]:
    return sorted((cache_home() / "traces").iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b[:20],
        lambda b: b[:-1],
        lambda b: b + b"x",
        lambda b: b[: len(b) // 2] + bytes([b[len(b) // 2] ^ 1]) + b[len(b) // 2 + 1 :],
        lambda b: bytes(len(b)),
        lambda b: b"\x80\x04cos\nsystem\n(S'touch executed'\ntR.",
    ],
)
def test_a_damaged_result_is_measured_again(
    damage: Callable[[bytes], bytes], good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = audited(capsys, good)
    (kept,) = kept_files()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert audited(capsys, good) == data
    assert kept.read_bytes() == whole
    assert not Path("executed").exists()


def test_where_nothing_can_be_kept_nothing_is(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache_home().parent.mkdir()
    cache_home().write_text("a file, no folder")
    data = audited(capsys, good)
    assert data == audited(capsys, good, "--no-cache")
    cache_home().unlink()
    audited(capsys, good)
    (kept,) = kept_files()
    kept.unlink()
    kept.mkdir()
    assert audited(capsys, good) == data


def test_a_folder_that_is_closed_to_writing_is_read(
    good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    for verb in ("mkdir", "write_bytes", "unlink"):
        monkeypatch.setattr(Path, verb, closed)
    assert audited(capsys, good)["left_out"] == []


ASKED: dict[str, tuple[list[str], str]] = {
    "half a pattern": (["--rank-from", "rank("], "--rank-from rank("),
    "endless repetition": (["--rank-from", "a{99999999999999999999}"], "--rank-from"),
    "no group": (["--rank-from", "rank"], "finds no rank"),
    "no number": (["--rank-from", "(rank)"], "finds no rank"),
    "no match": (["--rank-from", r"host(\d+)"], "finds no rank"),
    "steps in words": (["--steps", "first:last"], "--steps first:last"),
    "steps backwards": (["--steps", "5:1"], "ends before it starts"),
    "steps of three": (["--steps", "1:2:3"], "--steps 1:2:3"),
    "negative steps": (["--steps", "-1:2"], "--steps -1:2"),
    "no steps": (["--steps", ":"], "--steps :"),
    "empty steps": (["--steps", ""], "steps must not be an empty text"),
    "raised steps": (["--steps", "²:3"], "--steps ²:3"),
    "steps that are not there": (["--steps", "7:9"], "none of its steps (1 to 2)"),
    "steps far away": (["--steps", f"{10**30}:"], "write A:B"),
    "steps without end": (["--steps", "9" * 5000 + ":"], "write A:B"),
    "unknown device": (["--on", "h2000"], "unknown accelerator 'h2000'"),
    "empty pattern": (["--rank-from", ""], "rank_from must not be an empty text"),
    "long pattern": (["--rank-from", "x" * 1001], "--rank-from: longer than 1,000 characters"),
    "long count": (["--on", "h100-sxm:" + "7" * 5000], "write accelerator or accelerator:count"),
    "unknown model": (["--model", "x", "--global-batch", "1", "--seq-len", "1"], "unknown model"),
    "half a model": (["--model", "llama-3.1-8b"], "--model needs"),
    "no batch": (["--model", "llama-3.1-8b", "--global-batch", "0", "--seq-len", "1"], "between 1 and"),
    "too much work": (
        ["--model", "llama-3.1-405b", "--global-batch", "99999", "--seq-len", "99999"], "are more than"
    ),
    "against nothing": (["--against", "nowhere"], "nowhere: No such file"),
    "expecting nothing": (["--expect", "nowhere"], "nowhere"),
    "unknown window": (["--window", "door"], "--window"),
    "unknown engine": (["--engine", "steam"], "--engine"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), ASKED.values(), ids=ASKED.keys())
def test_wrong_options_end_in_one_line(
    arguments: list[str], said: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, good, *arguments)


@pytest.mark.parametrize("steps", ["1", "1:1", "1:", ":1", ":99999999999", "01:1"])
def test_some_steps_are_a_window_that_closes(
    steps: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audited(capsys, good, "--steps", steps)["window"]["first_step"] == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema": 1}',
        '{"plans": []}',
        '{"plans": [1]}',
        '{"ledger": {}}',
        "null",
        "[" * 10**5,
        '{"schema": "computeflow.ledger/1"}',
    ],
)
def test_what_is_expected_must_be_a_ledger(
    content: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "expected.json"
    other.write_text(content)
    assert "expected.json" in refused(capsys, good, "--expect", other)
    assert refused(capsys, good, "--expect", good)
    assert refused(capsys, good, "--expect", tmp_path)


def test_the_annotated_trace_never_replaces_the_trace(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = good.read_bytes()
    (tmp_path / "soft").symlink_to(good)
    (tmp_path / "hard").hardlink_to(good)
    for name in ("rank0.json", "soft", "hard", ".", "nowhere/x.json", "rank0.json/x"):
        assert refused(capsys, good, "--perfetto", tmp_path / name)
    assert "a device" in refused(capsys, good, "--perfetto", "/dev/full")
    assert good.read_bytes() == before


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_the_annotated_trace_of_a_strange_one_is_a_trace(
    ending: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = good.read_text().replace('"schemaVersion": 1', '"x": NaN, "y": "\\ud800"')
    strange = ", ".join(DROPPED[name] for name in ("NaN", "entry 5", "unknown phase", "broken off"))
    path = tmp_path / "strange.json"
    path.write_text(text.replace('[{"ph"', f'[{strange}, {{"ph"', 1)[:-40])
    target = tmp_path / f"annotated.{ending}"
    audited(capsys, path, "--no-cache", "--perfetto", target)
    content = gzip.decompress(target.read_bytes()) if ending == "json.gz" else target.read_bytes()
    assert any(e.get("cat") == "computeflow" for e in json.loads(content)["traceEvents"] if e != 5)
    assert accounts(target) == accounts(path)


# Anything at all

MOMENTS = st.sampled_from([0.0, 1.0, 10.0, 10.25, 55.5, 300.0, 1e3, 2e3, 5e9])
TIMES = MOMENTS.map(lambda at: NOON + at)
NOTHING: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 0, 2**70, -(2**70), 1e300, "", "7", "x\u0000", [], {}, [[1]], True]
)
NAMES = st.sampled_from(
    ["aten::mm", "aten::bmm", "aten::where", "sm90_gemm", "ncclDevKernel", "ProfilerStep#1",
     "ProfilerStep#2", "ProfilerStep#x", "autograd::engine::evaluate_function: X", "gloo:all_reduce",
     "Optimizer.step#A", "cudaLaunchKernel", "cudaMalloc", "cudaStreamSynchronize", "checkpoint",
     "record_param_comms", "Memcpy HtoD", "Memset", "enumerate(DataLoader)#x", "eval", "gc"]
)  # fmt: skip
KINDS = st.sampled_from(
    ["kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "user_annotation",
     "python_function", "overhead", "", "x"]
)  # fmt: skip
DIMS: st.SearchStrategy[Any] = st.sampled_from(
    [[[4, 4], [4, 4]], [[2, 4, 4], [2, 4, 4]], [[]], [7], [[4, 4]], None]
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "correlation": st.integers(-2, 6) | NOTHING,
        "stream": st.integers(0, 3) | NOTHING,
        "bytes": NOTHING,
        "Sequence number": st.integers(-1, 3) | NOTHING,
        "Fwd thread id": st.integers(-1, 2) | NOTHING,
        "Collective name": st.sampled_from(["allreduce", "send", "all_to_all", "allgather", ""]),
        "Process Group Name": st.sampled_from(["0", "dp", "tp"]) | NOTHING,
        "Process Group Ranks": st.sampled_from(["[0, 1]", [0, 1], "[0, ...]"]) | NOTHING,
        "In msg nelems": st.integers(0, 9) | NOTHING,
        "Input Dims": DIMS | NOTHING,
        "Input type": st.sampled_from([["float"], ["c10::BFloat16"] * 2]) | NOTHING,
        "Concrete Inputs": NOTHING,
    },
)
WELL_FORMED = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": KINDS, "name": NAMES, "ts": TIMES, "dur": MOMENTS},
    optional={"tid": st.integers(0, 2), "pid": st.integers(0, 1), "args": ARGUMENTS},
)
MALFORMED = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "X", "M", "?"]) | NOTHING,
        "cat": KINDS | NOTHING,
        "name": NAMES | NOTHING,
        "ts": TIMES | NOTHING,
        "dur": MOMENTS | NOTHING,
        "tid": st.integers(0, 2) | NOTHING,
        "args": ARGUMENTS | NOTHING,
    },
)
EVENTS = st.lists(WELL_FORMED | MALFORMED | NOTHING, min_size=1, max_size=14)
often = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@often
@given(EVENTS, st.sampled_from(["steps", "whole", "hta"]))
def test_any_events_are_refused_or_their_ledger_closes(
    tmp_path: Path, events: list[Any], window: str
) -> None:
    path = write(tmp_path / "any.json", {"traceEvents": events})
    try:
        found = audit([path], FACTS, options=TraceOptions(window=window), cache=False)
    except LedgerError:
        raise
    except ComputeFlowError:
        return
    assert_closed(found.ranks[0])
    assert sum(found.job.ledger.accounts.values()) == pytest.approx(found.job.ledger.gpu_seconds)


@often
@given(st.lists(st.lists(WELL_FORMED, max_size=8), min_size=2, max_size=3), st.booleans())
def test_the_ledger_of_any_ranks_closes(
    tmp_path: Path, ranks: list[list[Event]], late: bool
) -> None:
    """Collectives that overlap, of several groups, in steps of their own."""
    found = []
    for rank, events in enumerate(ranks):
        whole = trace(rank, len(ranks), late=500.0 * rank * late)
        whole["traceEvents"] += [
            collective(NOON + 360 + 10 * rank, 400, 81, "1"),
            launch(NOON + 130, 81),
            *events,
        ]
        try:
            found.append(
                measure_trace(read_trace(write(tmp_path / "any.json", whole)), TraceOptions())
            )
        except InputError:
            return
    job = job_ledger(found, None)
    assert sum(job.ledger.accounts.values()) == pytest.approx(job.ledger.gpu_seconds, rel=1e-9)


def test_collectives_side_by_side_make_a_rank_wait_once(tmp_path: Path) -> None:
    found = []
    for rank in (0, 1):
        late, events = 130.0 * rank, [host("ProfilerStep#1", NOON, 600, "user_annotation")]
        for group in (0, 1):
            begun = NOON + 350 + group + late
            events += [
                launch(NOON + 20 + group, group),
                collective(begun, 150 - late, group, f"{group}"),
            ]
        events.append(kernel("sm90_gemm", NOON + 30, 320, 9))
        path = write(tmp_path / "trace.json", trace(rank) | {"traceEvents": events})
        found.append(measure_trace(read_trace(path), TraceOptions()))
    first = job_ledger(found, None).ranks[0].ledger
    assert first.booked("straggler") == pytest.approx(131e-6)
    assert first.booked("comm") == pytest.approx(20e-6)


@often
@given(st.randoms(use_true_random=False), st.integers(-(10**9), 10**9))
def test_order_and_hour_of_the_events_change_nothing(
    tmp_path: Path, chance: random.Random, later: int
) -> None:
    usual = accounts(write(tmp_path / "usual.json", trace()))
    whole = trace(at=NOON + later)
    chance.shuffle(whole["traceEvents"])
    assert accounts(write(tmp_path / "other.json", whole)) == usual


@often
@given(EVENTS, st.integers(1, 400), st.integers(1, 400))
def test_the_size_of_the_pieces_changes_nothing(
    tmp_path: Path, events: list[Any], piece: int, read: int
) -> None:
    whole = trace()
    for place, some in enumerate(events):  # which of two goes first that start together is open
        if isinstance(some, dict) and isinstance(some.get("ts"), float):
            some["ts"] += 3 * place + 0.5
    whole["traceEvents"] += [*events, *step(3, NOON + 2020), {"ph": "X", "name": "ядро 内核 🚀"}]
    text = json.dumps(whole | {"last": [[{}, []]]}, ensure_ascii=False).encode()
    for name in ("any.json", "any.json.gz"):
        path = write(tmp_path / name, text)
        usual = measure_trace(read_trace(path), TraceOptions())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunks, "PIECE", piece)
            patch.setattr(chunks, "_READ", read)
            tiny = measure_trace(read_trace(path), TraceOptions())
        assert (tiny.accounts, tiny.events) == (usual.accounts, usual.events)
        assert (tiny.left_out, tiny.kernels) == (usual.left_out, usual.kernels)


@often
@given(st.binary(max_size=300), st.integers(0, 4000), st.integers(0, 60), st.booleans())
def test_any_bytes_in_a_trace_are_refused_or_its_ledger_closes(
    tmp_path: Path, some: bytes, at: int, over: int, zipped: bool
) -> None:
    content = json.dumps(trace()).encode()
    content = zlib.compress(content, wbits=31) if zipped else content
    path = tmp_path / "any.json"
    path.write_bytes(content[:at] + some + content[at + over :])
    with suppress(InputError):
        assert_closed(measure_trace(read_trace(path), TraceOptions()))
