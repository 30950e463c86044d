"""Profiles of JAX and XLA: a trace for every device in them."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.recording_files import ENDINGS as CHROME
from computeflow.telemetry.recording_files import is_xla_trace
from computeflow.telemetry.traces.trace import Trace
from computeflow.telemetry.xplane.chrome import open_chrome
from computeflow.telemetry.xplane.planes import Plane
from computeflow.telemetry.xplane.protobuf import open_planes
from computeflow.telemetry.xplane.xplane_trace import read_devices

ENDINGS = (".xplane.pb", ".xplane.pb.gz")
_HEAD = 4096
_PLANE = re.compile(rb"\x12.{1,2}(/(device|host):[\w-]+|Task Environment)", re.DOTALL)
"""The name of a plane: field 2, its length, its text (openxla/xla, xplane.proto)."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file is a profile, by its ending and its beginning: protobuf has no magic number."""
    if path.name.endswith(ENDINGS):
        return head[:1] == b"\n" and _PLANE.search(head[:_HEAD]) is not None
    return path.name.endswith(CHROME) and is_xla_trace(head)


def read(path: Path, *, detailed: bool = False) -> Generator[Trace | InputError]:
    if path.name.endswith(ENDINGS):
        return read_planes(path, open_planes(path))
    return read_planes(path, *open_chrome(path))


def read_planes(
    path: Path, planes: Iterable[Plane], left_out: Sequence[str] = ()
) -> Generator[Trace | InputError]:
    """A trace for each device; notes on the whole file stand in each."""
    traces, notes = read_devices(path, planes)
    notes = [*left_out, *notes]
    if not traces:
        why = "; ".join(notes)
        raise InputError(
            f"{path}: no work of a device, and none of XLA on the host"
            + (f" ({why})" if why else "")
        )
    for part, trace in enumerate(traces):
        texts = (f"{path.name}: {text}" for text in (*notes, *trace.left_out))
        yield replace(trace, left_out=tuple(texts), origin=replace(trace.origin, part=part))
