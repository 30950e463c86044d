"""Pairs of attempts and their nodes, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.topology.hostlist import expand
from computeflow.errors import InputError
from computeflow.telemetry.accounting.jobs import Floats, Indices, JobAttempts, NameTable

_MAX_PAIRS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ByNode:
    """One row per attempt and node."""

    attempt: Indices
    node: Indices
    part: Floats
    """Share of the attempt's GPUs on the node, equal on all of its nodes."""
    names: tuple[str, ...]
    unread: int
    """Attempts whose list of nodes could not be parsed."""


def short_name(node: str) -> str:
    """A node's name without its domain; an address stays whole."""
    head, _, rest = node.partition(".")
    return node if not rest or head.isdigit() else head


def node_names(text: str) -> list[str]:
    """Names in a host list, each once; none where it cannot be parsed."""
    try:
        return list(dict.fromkeys(short_name(name) for name in expand(text.strip())))
    except InputError:
        return []


def _listed(jobs: JobAttempts) -> list[int]:
    return [index for index, text in enumerate(jobs.words["nodes"]) if text]


def pairs_of(jobs: JobAttempts, which: NDArray[np.bool_]) -> ByNode | None:
    """Pairs of the attempts in `which` and their nodes; None where there are too many."""
    names = NameTable()
    attempts = np.flatnonzero(which)
    lists, inverse = np.unique(jobs.nodes_of[attempts], return_inverse=True)
    expanded = [
        np.array([names.of(name) for name in node_names(jobs.words["nodes"][index])], np.int64)
        for index in lists
    ]
    sizes = np.array([len(nodes) for nodes in expanded] or [0], np.int64)
    count = sizes[inverse] if len(attempts) else np.zeros(0, np.int64)
    if count.sum() > _MAX_PAIRS:
        return None
    flat = np.concatenate([*expanded, np.zeros(0, np.int64)])
    begin = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    row = np.repeat(np.arange(len(attempts)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return ByNode(
        attempt=attempts[row],
        node=flat[begin[inverse][row] + within] if len(row) else np.zeros(0, np.int64),
        part=1.0 / np.maximum(count[row], 1),
        names=names.words,
        unread=int((count == 0)[np.isin(jobs.nodes_of[attempts], _listed(jobs))].sum()),
    )
