"""Accounts of collectives by their parallel group: `group_accounts`.

The description of a process group decides first (`pg_config`, names given by Megatron and torch's
device meshes), then the collectives it is used for. A group that fits no pattern is `comm.other`;
where a trace names no groups at all, everything is `comm`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.event_names import MAX_READ, WorkKind
from computeflow.telemetry.traces.trace import Trace, TracedCollective

_AXES = (
    ("comm.ep", r"expert(?!.{0,100}data)|(^|[_\W])e?ep([_\W]|$)|moe"),
    ("comm.dp", r"data|(^|[_\W])(dp|fsdp|ddp|hsdp)([_\W]|$)|shard|replicate"),
    ("comm.cp", r"context|(^|[_\W])cp([_\W]|$)|ulysses|sequence_parallel"),
    ("comm.tp", r"tensor|(^|[_\W])tp([_\W]|$)"),
    ("comm.pp", r"pipeline|(^|[_\W])pp([_\W]|$)|embedding_group"),
)
_PATTERNS = [(account, re.compile(pattern, re.IGNORECASE)) for account, pattern in _AXES]
_UNNAMED = ("", ())
_POINT = re.compile(r"send|recv|p2p", re.IGNORECASE)
_EXCHANGE = re.compile(r"all_?to_?all", re.IGNORECASE)
_GATHER = re.compile(r"all_?gather", re.IGNORECASE)
_SCATTER = re.compile(r"reduce_?scatter", re.IGNORECASE)
_BROADCAST = re.compile(r"broadcast", re.IGNORECASE)
_REDUCE = re.compile(r"all_?reduce", re.IGNORECASE)


def group_accounts(trace: Trace, backward: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    """Communication rows of `Trace.device` by account; `backward` marks rows launched in that pass."""
    device = trace.device
    comm = device.work == WorkKind.COMM
    if not comm.any():
        return {}
    if not trace.collectives:
        return {"comm": comm}
    rows = np.flatnonzero(comm & backward)
    accounts = _accounts(trace, {int(number) for number in device.correlation[rows]})
    alone = next(iter(accounts.values())) if len(accounts) == 1 else "comm.other"
    names = sorted({*accounts.values(), alone})
    codes = {name: code for code, name in enumerate(names)}
    code = np.full(len(device), -1, np.int64)
    for row in np.flatnonzero(comm):
        collective = trace.collectives.get(int(device.correlation[row]))
        code[row] = codes[accounts[_key(collective)] if collective else alone]
    return {name: code == codes[name] for name in names if (code == codes[name]).any()}


def _key(collective: TracedCollective) -> tuple[str, tuple[int, ...]]:
    """The process group; where none is named, messages and collectives are told apart."""
    if not collective.group and not collective.ranks:
        return ("messages" if _POINT.search(collective.name) else ""), ()
    return collective.group, collective.ranks


def _accounts(trace: Trace, backward: set[int]) -> dict[tuple[str, tuple[int, ...]], str]:
    """The account of each process group in the trace; `backward` holds the correlation numbers of
    collectives launched in the backward pass.
    """
    stated = _stated(trace.header)
    uses: dict[tuple[str, tuple[int, ...]], Counter[str]] = {}
    docs: dict[tuple[str, tuple[int, ...]], str] = {}
    late: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for correlation, collective in trace.collectives.items():
        key = _key(collective)
        uses.setdefault(key, Counter())[collective.name] += 1
        late[key] += correlation in backward and bool(_REDUCE.search(collective.name))
        docs[key] = collective.group_doc or stated.get(collective.group, "")
    return {
        key: "comm" if key == _UNNAMED else account_of(docs[key]) or _by_use(use, late[key])
        for key, use in uses.items()
    }


def _stated(header: dict[str, Any]) -> dict[str, str]:
    """Descriptions in `pg_config` by name of the process group."""
    info = header.get("distributedInfo")
    config = info.get("pg_config") if isinstance(info, dict) else None
    if isinstance(config, dict):
        config = list(config.values())
    descriptions = {}
    for group in config if isinstance(config, list) else []:
        if isinstance(group, dict):
            name, description = group.get("pg_name", ""), group.get("pg_desc", "")
            if isinstance(name, str | int) and isinstance(description, str):
                descriptions[str(name)] = description
    return descriptions


def account_of(description: str) -> str | None:
    """The account that a framework's description of a group names; None where it says nothing
    (default_pg).
    """
    for account, pattern in _PATTERNS:
        if pattern.search(description[:MAX_READ]):
            return account
    return None


def _by_use(use: Counter[str], backward: int) -> str:
    """The account of a group by the collectives it is used for, where that is unmistakable.

    Point-to-point messages mean a pipeline, an all-to-all exchange means experts; gathering and
    scattering shards means data parallelism, and so does reducing in the backward pass alone
    (broadcasts beside it are of buffers). `backward` counts the reductions launched there.
    """

    def count(pattern: re.Pattern[str]) -> int:
        return sum(n for name, n in use.items() if pattern.search(name))

    total, reductions = sum(use.values()), count(_REDUCE)
    if count(_POINT) > 0.9 * total:
        return "comm.pp"
    if count(_EXCHANGE) > 0.5 * total:
        return "comm.ep"
    shards = count(_GATHER) > 0 and count(_SCATTER) > 0
    reduces = reductions > 0 and reductions + count(_BROADCAST) > 0.9 * total
    if shards or (reduces and backward > 0.9 * reductions):
        return "comm.dp"
    return "comm.other"
