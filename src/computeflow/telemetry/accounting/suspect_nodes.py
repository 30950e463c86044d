"""Nodes on which more jobs failed than the users who ran there explain.

A job counts once on a node, however many tasks or attempts it had there; it failed there if most of
them did. Each job is expected to fail as often as its user's jobs do on other nodes (shrunk to the
rate of all, as if by `PRIOR` more jobs). Of n such jobs, f or more fail with a probability of at most

    exp(-n KL(f/n || p)),   KL(a || b) = a ln(a/b) + (1 - a) ln((1 - a)/(1 - b)),   p their mean

(Hoeffding 1963, theorem 1: independent, not identical). A node is named where that, times the number
of nodes, is below `LEVEL`, where at least `TIMES` as many failed as expected, at least `MIN_FAILURES`,
and of two users or more where there are several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.accounting.attempts_by_node import ByNode
from computeflow.telemetry.accounting.jobs import Floats, Indices, JobAttempts

PRIOR = 5.0
LEVEL = 0.01
TIMES = 1.5
"""A third of jobs fail in published clusters whatever the node: a higher factor leaves no room."""
MIN_FAILURES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectNode:
    node: str
    jobs: int
    failed: int
    expected: float
    chance: float
    """Upper bound of the probability that so many fail on some node if all nodes are alike."""


def find_suspect_nodes(
    jobs: JobAttempts, pairs: ByNode | None
) -> tuple[tuple[SuspectNode, ...], str]:
    """Suspect nodes, least likely by chance first; or none, and why."""
    if pairs is None:
        return (), "too many jobs on too many nodes"
    if len(pairs.names) < 2:
        return (), "the nodes of jobs are unknown" if not pairs.names else "one node only"
    ended = jobs.having("done", "failed")[pairs.attempt]
    node, attempt = pairs.node[ended], pairs.attempt[ended]
    if not len(node):
        return (), "no job ended by itself"
    node, user, failed = _folded(node, attempt, jobs)
    expected = _expected(node, user, failed)
    known = ~np.isnan(expected)
    node, user, failed, expected = node[known], user[known], failed[known], expected[known]
    count = len(pairs.names)
    sums = [
        np.bincount(node, weights=column, minlength=count)
        for column in (np.ones(len(node)), failed.astype(np.float64), expected)
    ]
    users = _users_failing(node, user, failed, count)
    several = len(np.unique(user)) > 1
    suspects = []
    for index in np.flatnonzero((sums[1] >= MIN_FAILURES) & (sums[1] >= TIMES * sums[2])):
        ran, failures, mean = (float(column[index]) for column in sums)
        chance = min(1.0, count * _bound(ran, failures, mean / ran))
        if chance < LEVEL and (users[index] > 1 or not several):
            suspects.append(
                SuspectNode(
                    node=pairs.names[index],
                    jobs=int(ran),
                    failed=int(failures),
                    expected=mean,
                    chance=chance,
                )
            )
    suspects.sort(key=lambda suspect: (suspect.chance, suspect.node))
    return tuple(suspects), "" if suspects else "no node stands out from what its jobs explain"


def _folded(node: Indices, attempt: Indices, jobs: JobAttempts) -> tuple[Indices, Indices, Indices]:
    """One row for each job on a node: node, user, whether most of it failed there."""
    base = jobs.base_of[attempt]
    key = node * (int(base.max()) + 1) + base
    _, first, inverse, tasks = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    failures = np.bincount(inverse.reshape(-1), weights=jobs.having("failed")[attempt])
    return node[first], jobs.user_of[attempt][first], (2 * failures > tasks).astype(np.int64)


def _expected(node: Indices, user: Indices, failed: Indices) -> Floats:
    """Expected failure rate of each job, from its user's jobs on other nodes; NaN without any."""
    key = node * (int(user.max()) + 1) + user
    _, here = np.unique(key, return_inverse=True)
    here = here.reshape(-1)
    ran_here = np.bincount(here)[here]
    failures_here = np.bincount(here, weights=failed)[here]
    ran = np.bincount(user)[user] - ran_here
    failures = np.bincount(user, weights=failed)[user] - failures_here
    overall = failed.mean()
    return np.where(ran > 0, (failures + PRIOR * overall) / (ran + PRIOR), math.nan)


def _users_failing(node: Indices, user: Indices, failed: Indices, count: int) -> Indices:
    failing = np.flatnonzero(failed)
    pairs = np.unique(np.stack([node[failing], user[failing]]), axis=1)
    return np.bincount(pairs[0], minlength=count)


def _bound(ran: float, failures: float, p: float) -> float:
    share = failures / ran
    if p <= 0 or share <= p:
        return 1.0
    distance = share * math.log(share / p)
    if share < 1:
        distance += (1 - share) * math.log((1 - share) / (1 - p))
    return math.exp(-ran * distance)
