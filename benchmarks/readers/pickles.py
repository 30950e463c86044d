"""Dumps of the flight recorder and memory snapshots, pickled and as JSON."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.readers.auditing import audit_reader
from benchmarks.readers.reader import Build, Reader, files, json_shapes, records, repeated


def _flight(number: int, groups: int = 2, names: int = 3) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": number % groups,
        "process_group": [str(number % groups), "dp"],
        "collective_seq_id": 1 + number // groups,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:all_reduce_{number % names}" if names > 3 else "nccl:all_reduce",
        "time_created_ns": 1_790_000_000_000_000_000 + number * 10**6,
        "input_sizes": [[64, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[64, 8]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": 1_790_000_000_000_000_000 + number * 10**6,
        "time_discovered_completed_ns": 1_790_000_000_000_000_500 + number * 10**6,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": [{"name": "forward", "filename": "model.py", "line": 10}],
    }


def _dump(entries: list[dict[str, Any]], groups: int = 2) -> dict[str, Any]:
    return {
        "version": "2.5",
        "pg_config": {
            str(g): {"name": str(g), "desc": "dp", "ranks": "[0, 1, 2, 3]"} for g in range(groups)
        },
        "pg_status": {
            str(g): {
                "last_enqueued_collective": 9,
                "last_started_collective": 9,
                "last_completed_collective": 8,
            }
            for g in range(groups)
        },
        "entries": entries,
    }


def _of_entries(
    one: Callable[[int], Any], whole: Callable[[list[Any]], Any], dumps: Callable[[Any], bytes]
) -> Build:
    def build(size: int) -> bytes:
        each = len(dumps([one(n) for n in range(8)])) / 8
        return dumps(whole([one(n) for n in range(max(int(size / each), 1))]))

    return build


def _pickled(data: Any) -> bytes:
    return pickle.dumps(data, protocol=2)


def _json(data: Any) -> bytes:
    return json.dumps(data).encode()


def _many_groups(entries: list[Any]) -> Any:
    return _dump(entries, groups=max(len(entries), 1))


def _flight_shapes(dumps: Callable[[Any], bytes]) -> dict[str, Build]:
    return {
        "natural": _of_entries(_flight, _dump, dumps),
        "groups": _of_entries(partial(_flight, groups=10**9), _many_groups, dumps),
        "distinct names": _of_entries(partial(_flight, names=10**9), _dump, dumps),
    }


def _history(number: int, stacks: int = 5) -> dict[str, Any]:
    frames = [
        {"filename": "model.py", "line": number % stacks, "name": f"forward_{number % stacks}"}
    ]
    # a block of one size after the other, the first freed eight later
    action = "alloc" if number % 2 == 0 else "free_completed"
    behind = number if number % 2 == 0 else max(number - 9, 0) // 2 * 2
    return {
        "action": action,
        "addr": 0x7F0000000000 + behind * 512,
        "size": 512,
        "stream": 0,
        "time_us": 1_790_000_000_000_000 + number * 100,
        "frames": frames,
    }


def _snapshot(history: list[dict[str, Any]]) -> dict[str, Any]:
    blocks = [
        {
            "size": 512,
            "requested_size": 500,
            "address": 0x7F0000000000 + n * 512,
            "state": "active_allocated",
            "frames": [],
        }
        for n in range(max(len(history) // 8, 1))
    ]
    segment = {
        "device": 0,
        "address": 0x7F0000000000,
        "total_size": 512 * len(blocks),
        "stream": 0,
        "allocated_size": 512 * len(blocks),
        "active_size": 512 * len(blocks),
        "requested_size": 500 * len(blocks),
        "segment_type": "large",
        "is_expandable": False,
        "segment_pool_id": [0, 0],
        "frames": [],
        "blocks": blocks,
    }
    return {
        "segments": [segment],
        "device_traces": [history],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
    }


def _held(number: int) -> dict[str, Any]:
    return _history(2 * number, stacks=10**9)


def _memory_shapes(dumps: Callable[[Any], bytes]) -> dict[str, Build]:
    return {
        "natural": _of_entries(_history, _snapshot, dumps),
        "stacks": _of_entries(partial(_history, stacks=10**9), _snapshot, dumps),
        "nothing freed": _of_entries(_held, _snapshot, dumps),
    }


_WORDS = b"\x80\x02X\x1d\x00\x00\x00pg_config segments total_size"
_PICKLES: dict[str, Build] = {
    "deep lists": repeated(b"]", b"\x80\x02}X\x09\x00\x00\x00pg_config", b"a" * 9 + b"s."),
    "opened": repeated(b"(", _WORDS, b"."),
    "memoized": repeated(b"\x94", _WORDS, b"."),
    "sets": repeated(b"\x8f", _WORDS, b"."),
    "tuples": repeated(b"\x85", _WORDS, b"."),
    "memo": records(lambda n: b"K\x01r" + n.to_bytes(4, "little") + b"0",
                    b"\x80\x02(X\x09\x00\x00\x00pg_configX\x0f\x00\x00\x00segments blocks", b".", b""),
    "copies": repeated(b"2", _WORDS, b"."),
}  # fmt: skip


def readers() -> list[Reader]:
    entries = json_shapes(b'{"pg_config":{},"entries":', b"}")
    traces = json_shapes(b'{"segments":[],"device_traces":', b"}")
    return [
        audit_reader(
            "flight-pickle",
            "rank_0",
            {**_flight_shapes(_pickled), **_PICKLES},
            files("gloo_hangs/*/rank_*"),
        ),
        audit_reader("flight-json", "rank_0.json", {**_flight_shapes(_json), **entries}),
        audit_reader("memory-pickle", "x.pickle", {**_memory_shapes(_pickled), **_PICKLES}),
        audit_reader("memory-json", "x.json", {**_memory_shapes(_json), **traces}),
    ]
