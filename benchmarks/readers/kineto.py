"""Traces of the PyTorch profiler, plain and compressed."""

from __future__ import annotations

import gzip
import json
import random
from functools import partial
from typing import Any

from benchmarks.readers.auditing import audit_reader
from benchmarks.readers.reader import DATA, Build, Reader, json_shapes, records, repeated


def _kineto_events(number: int, kernel: str = "gemm", names: int = 8) -> bytes:
    """Events of launches, each with operator and kernel; a step around every twentieth."""
    at = 1.7e15 + number * 50
    shape = [[128, 256], [256, 64 + number % 7]]
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 1,
            "tid": 1,
            "ts": at,
            "dur": 20,
            "args": {"External id": number, "Input Dims": shape, "Sequence number": number},
        },
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": at + 2,
            "dur": 5,
            "args": {"correlation": number, "External id": number},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"{kernel}_{number % names}",
            "pid": 0,
            "tid": 7,
            "ts": at + 30,
            "dur": 40,
            "args": {"correlation": number, "stream": 7, "device": 0, "External id": number},
        },
    ]
    if number % 20 == 0:
        events.insert(
            0,
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{number // 20}",
                "pid": 1,
                "tid": 1,
                "ts": at,
                "dur": 950,
            },
        )
    return b",".join(json.dumps(event).encode() for event in events)


_KINETO = b'{"deviceProperties":[{"id":0,"name":"NVIDIA H200"}],"distributedInfo":{"rank":0},'
_EVENTS = _KINETO + b'"traceEvents":['
_SHORT = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":1,"args":{"stream":7}}'


def small_traces() -> list[bytes]:
    """Small traces: some consecutive events of a recording, with its steps and header."""
    chance = random.Random(1)
    seeds = []
    for path in sorted((DATA / "h200_traces").glob("*.gz"), key=lambda p: p.stat().st_size)[:4]:
        whole = json.loads(gzip.decompress(path.read_bytes()))
        events = whole["traceEvents"]
        steps = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep")]
        for _ in range(6):
            at = chance.randrange(len(events))
            chosen = [*steps[:2], *events[at : at + 6]]
            launched = {e.get("args", {}).get("correlation") for e in chosen} - {None}
            chosen += [e for e in events if e.get("args", {}).get("correlation") in launched][:12]
            seeds.append(json.dumps(whole | {"traceEvents": chosen}).encode())
    return seeds


def _kineto_shapes() -> dict[str, Build]:
    short = records(lambda n: _SHORT % (1700000000000000 + n), _EVENTS, b"]}", b",")
    same = records(lambda n: _SHORT % 1700000000000000, _EVENTS, b"]}", b",")
    nested = records(
        lambda n: (
            b'{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":1,"ts":%d,"dur":%d}'
            % (1700000000000000 + n, 10**9 - 2 * n)
        ),
        _EVENTS,
        b"]}",
        b",",
    )
    threads = records(
        lambda n: (
            b'{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":%d,"ts":%d,"dur":5}'
            % (n, 1700000000000000 + n)
        ),
        _EVENTS,
        b"]}",
        b",",
    )
    steps = records(
        lambda n: (
            b'{"ph":"X","cat":"user_annotation","name":"ProfilerStep#%d","pid":1,"tid":1,"ts":%d,'
            b'"dur":9},' % (n, 1700000000000000 + 10 * n) + _SHORT % (1700000000000000 + 10 * n)
        ),
        _EVENTS,
        b"]}",
        b",",
    )
    header = json_shapes(_KINETO + b'"x":', b',"traceEvents":[]}')
    return {
        "natural": records(_kineto_events, _EVENTS, b"]}", b","),
        "distinct names": records(partial(_kineto_events, names=10**9), _EVENTS, b"]}", b","),
        "collectives": records(
            partial(_kineto_events, kernel="ncclDevKernel_AllReduce_Sum_bf16"), _EVENTS, b"]}", b","
        ),
        "short kernels": short,
        "same time": same,
        "nested": nested,
        "threads": threads,
        "steps": steps,
        **json_shapes(_EVENTS, b"]}"),
        **{f"header, {name}": build for name, build in header.items()},
    }


def _zipped(build: Build) -> Build:
    """A compressed trace of that size before compression."""
    return lambda size: gzip.compress(build(size), 1)


def readers() -> list[Reader]:
    shapes = _kineto_shapes()
    zipped = {
        "natural": _zipped(shapes["natural"]),
        "bomb": _zipped(repeated(b" ", _EVENTS, b"]}")),
        "bomb in a text": _zipped(repeated(b"x", _EVENTS + b'{"name":"', b'"}]}')),
    }
    return [
        audit_reader("kineto", "trace.json", shapes, small_traces),
        audit_reader(
            "kineto-gzip",
            "trace.json.gz",
            zipped,
            lambda: [gzip.compress(seed) for seed in small_traces()[:6]],
        ),
    ]
