"""Profiles of JAX, as protobuf and as Chrome traces."""

from __future__ import annotations

import gzip
import json
from functools import partial

from benchmarks.readers.auditing import audit_reader
from benchmarks.readers.reader import Build, Reader, files, json_shapes, records, repeated


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return _number(number << 3 | 2) + _number(len(value)) + value
    return _number(number << 3) + _number(value)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _xplane(size: int, names: int = 8, shift: int = 50) -> bytes:
    """Two planes: a GPU's stream and the host's thread, with steps."""
    events, calls, steps, known = [], [], [], {}
    total, number = 0, 0
    while total < size:
        name = 1 + number % names
        known[name] = f"gemm_{name}"
        at = number * shift * 1_000_000
        events.append(_field(4, _field(1, name) + _field(2, at) + _field(3, 40_000_000)))
        calls.append(_field(4, _field(1, name) + _field(2, at) + _field(3, 5_000_000)))
        if number % 20 == 0:
            stat = _field(4, _field(1, 1) + _field(4, number // 20))
            steps.append(
                _field(4, _field(1, 10**6) + _field(2, at) + _field(3, 950_000_000) + stat)
            )
        total += 2 * len(events[-1]) + (24 if names > 8 else 0)
        number += 1
    known[10**6] = "train"
    named = b"".join(
        _field(4, _field(1, key) + _field(2, _field(1, key) + _field(2, text.encode())))
        for key, text in known.items()
    )
    stats = _field(5, _field(1, 1) + _field(2, _field(1, 1) + _field(2, b"step_num")))
    device = (
        _field(2, b"/device:GPU:0")
        + named
        + stats
        + _field(3, _field(2, b"Stream #7(Compute)") + _field(3, 10**9) + b"".join(events))
    )
    host = (
        _field(2, b"/host:CPU")
        + named
        + stats
        + _field(3, _field(2, b"python") + _field(3, 10**9) + b"".join([*steps, *calls]))
    )
    return _field(1, device) + _field(1, host)


def _chrome(number: int) -> bytes:
    return json.dumps(
        {
            "ph": "X",
            "pid": 2,
            "tid": 1,
            "ts": number * 50.0,
            "dur": 40.0,
            "name": f"fusion.{number % 9}",
            "args": {"hlo_op": "fusion", "hlo_module": "jit_train"},
        }
    ).encode()


_CHROME = (
    b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":['
    b'{"ph":"M","pid":2,"name":"process_name","args":{"name":"/device:TPU:0"}},'
    b'{"ph":"M","pid":2,"tid":1,"name":"thread_name","args":{"name":"XLA Ops"}},'
)


def readers() -> list[Reader]:
    shapes: dict[str, Build] = {
        "natural": _xplane,
        "distinct names": partial(_xplane, names=10**6),
        "same time": partial(_xplane, shift=0),
        "zeros": repeated(b"\x0a\x00"),
        "one text": lambda size: _field(1, _field(2, b"/device:GPU:0" + b"x" * size)),
    }
    chrome = {"natural": records(_chrome, _CHROME, b"]}", b","), **json_shapes(_CHROME, b"]}")}
    recorded = files("xplane/*.gz")
    return [
        audit_reader(
            "xplane", "host.xplane.pb", shapes, lambda: list(map(gzip.decompress, recorded()))
        ),
        audit_reader("xplane-chrome", "host.trace.json", chrome),
    ]
