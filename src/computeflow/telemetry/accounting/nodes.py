"""Which attempt had which nodes: pairs of both, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.topology.hostlist import expand
from computeflow.errors import InputError
from computeflow.telemetry.accounting.jobs import Floats, Indices, Jobs, Names

_MOST_PAIRS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ByNode:
    """One row for each attempt and node of it."""

    attempt: Indices
    node: Indices
    part: Floats
    """Of the attempt's GPUs: an equal part on each node."""
    names: tuple[str, ...]
    unread: int
    """Attempts whose nodes are written in a way that is not understood."""


def short_name(node: str) -> str:
    """Without its domain, unless it is an address."""
    head, _, rest = node.partition(".")
    return node if not rest or head.isdigit() else head


def node_names(text: str) -> list[str]:
    """Of a host list, each once; none where it is not one."""
    try:
        return list(dict.fromkeys(short_name(name) for name in expand(text.strip())))
    except InputError:
        return []


def _named(jobs: Jobs) -> list[int]:
    return [index for index, text in enumerate(jobs.words["nodes"]) if text]


def pairs_of(jobs: Jobs, which: NDArray[np.bool_]) -> ByNode | None:
    """Of the attempts in `which`; None where there would be too many pairs."""
    names = Names()
    at = np.flatnonzero(which)
    lists, inverse = np.unique(jobs.nodes_of[at], return_inverse=True)
    expanded = [
        np.array([names.of(name) for name in node_names(jobs.words["nodes"][index])], np.int64)
        for index in lists
    ]
    sizes = np.array([len(nodes) for nodes in expanded] or [0], np.int64)
    count = sizes[inverse] if len(at) else np.zeros(0, np.int64)
    if count.sum() > _MOST_PAIRS:
        return None
    flat = np.concatenate([*expanded, np.zeros(0, np.int64)])
    begin = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    row = np.repeat(np.arange(len(at)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return ByNode(
        attempt=at[row],
        node=flat[begin[inverse][row] + within] if len(row) else np.zeros(0, np.int64),
        part=1.0 / np.maximum(count[row], 1),
        names=names.words,
        unread=int((count == 0)[np.isin(jobs.nodes_of[at], _named(jobs))].sum()),
    )
