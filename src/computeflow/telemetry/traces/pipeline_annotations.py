"""Partners of messages by the annotations of torch.distributed.pipelining.

`PP:1SEND_B0` is around the send of stage 1's gradient of the first micro-batch, which goes to stage
0. Stages are dealt out to ranks in turn, so a rank with several tells how many ranks there are.
"""

from __future__ import annotations

import re

import numpy as np

from computeflow.telemetry.traces.event_names import MAX_READ
from computeflow.telemetry.traces.trace import HostMessages, Ints, Trace

_MESSAGE = re.compile(r"^PP:(\d{1,6})(SEND|RECV)_([FB])(\d{1,6})$")
_NEXT = {("SEND", "F"): 1, ("RECV", "F"): -1, ("SEND", "B"): -1, ("RECV", "B"): 1}
"""How many stages further the partner is."""
_STAGES = 1 << 20


def partners_by_annotation(trace: Trace, rows: HostMessages) -> tuple[Ints, Ints]:
    """The partner of each message as its process group counts, and a tag that only one message of a
    step has; -1 and 0 where no annotation tells.
    """
    peers, tags = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64)
    spans = trace.annotations
    known = {
        code: match
        for code, name in enumerate(trace.names)
        if (match := _MESSAGE.match(name[:MAX_READ]))
    }
    said = np.flatnonzero(np.isin(spans.name, np.array(list(known), np.int32)))
    stages = sorted({int(known[code][1]) for code in spans.name[said].tolist()})
    if len(stages) < 2:
        return peers, tags
    ranks = min(np.diff(stages))
    at = np.searchsorted(spans.start[said], rows.start, side="right") - 1
    for row, place in enumerate(at.tolist()):
        span = said[max(place, 0)]
        if place < 0 or rows.start[row] > spans.end[span] or rows.thread[row] != spans.thread[span]:
            continue
        stage, way, kind, batch = known[int(spans.name[span])].groups()
        partner = int(stage) + _NEXT[way, kind]
        sender = int(stage) if way == "SEND" else partner
        peers[row] = partner % ranks
        tags[row] = (2 * (sender % _STAGES) + (kind == "B")) * 1024 + int(batch) % 1024
    return peers, tags
