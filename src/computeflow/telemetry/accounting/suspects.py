"""Nodes on which more jobs failed than those who ran there explain.

A job counts once on a node, however many tasks or attempts it had there; it failed there if most of
them did. Each job is expected to fail as often as its user's jobs do on other nodes (drawn to the
rate of all, as if by `PRIOR` more jobs). Of n such jobs, f or more fail with a probability of at most

    exp(-n KL(f/n || p)),   KL(a || b) = a ln(a/b) + (1 - a) ln((1 - a)/(1 - b)),   p their mean

(Hoeffding 1963, theorem 1: independent, not identical). A node is named where that, times the number
of nodes, is below `LEVEL`, where at least `TIMES` as many failed as expected, at least `FEWEST`, and
of two users or more where there are several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.accounting.jobs import Floats, Indices, Jobs
from computeflow.telemetry.accounting.nodes import ByNode

PRIOR = 5.0
LEVEL = 0.01
TIMES = 1.5
"""A third of the jobs fail in published clusters whatever the node: more would leave no room."""
FEWEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    node: str
    jobs: int
    failed: int
    expected: float
    chance: float
    """At most this: that so many fail on some node if all nodes are alike."""


def find_suspects(jobs: Jobs, pairs: ByNode | None) -> tuple[tuple[Suspect, ...], str]:
    """Least likely first; or none, and why."""
    if pairs is None:
        return (), "too many jobs on too many nodes"
    if len(pairs.names) < 2:
        return (), "the nodes of jobs are not known" if not pairs.names else "one node only"
    ended = jobs.having("done", "failed")[pairs.attempt]
    node, attempt = pairs.node[ended], pairs.attempt[ended]
    if not len(node):
        return (), "no job ended by itself"
    node, user, failed = _folded(node, attempt, jobs)
    expected = _expected(node, user, failed)
    told = ~np.isnan(expected)
    node, user, failed, expected = node[told], user[told], failed[told], expected[told]
    count = len(pairs.names)
    sums = [
        np.bincount(node, weights=column, minlength=count)
        for column in (np.ones(len(node)), failed.astype(np.float64), expected)
    ]
    users = _users_failing(node, user, failed, count)
    several = len(np.unique(user)) > 1
    found = []
    for at in np.flatnonzero((sums[1] >= FEWEST) & (sums[1] >= TIMES * sums[2])):
        ran, fell, mean = (float(column[at]) for column in sums)
        chance = min(1.0, count * _bound(ran, fell, mean / ran))
        if chance < LEVEL and (users[at] > 1 or not several):
            found.append(
                Suspect(
                    node=pairs.names[at],
                    jobs=int(ran),
                    failed=int(fell),
                    expected=mean,
                    chance=chance,
                )
            )
    found.sort(key=lambda suspect: (suspect.chance, suspect.node))
    return tuple(found), "" if found else "no node stands out from what its jobs explain"


def _folded(node: Indices, attempt: Indices, jobs: Jobs) -> tuple[Indices, Indices, Indices]:
    """One row for each job on a node: node, user, whether most of it failed there."""
    base = jobs.base_of[attempt]
    key = node * (int(base.max()) + 1) + base
    _, first, inverse, tasks = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    fell = np.bincount(inverse.reshape(-1), weights=jobs.having("failed")[attempt])
    return node[first], jobs.user_of[attempt][first], (2 * fell > tasks).astype(np.int64)


def _expected(node: Indices, user: Indices, failed: Indices) -> Floats:
    """How often each job should fail, by its user's jobs on other nodes; NaN where there are none."""
    key = node * (int(user.max()) + 1) + user
    _, here = np.unique(key, return_inverse=True)
    here = here.reshape(-1)
    ran_here = np.bincount(here)[here]
    fell_here = np.bincount(here, weights=failed)[here]
    ran = np.bincount(user)[user] - ran_here
    fell = np.bincount(user, weights=failed)[user] - fell_here
    overall = failed.mean()
    return np.where(ran > 0, (fell + PRIOR * overall) / (ran + PRIOR), math.nan)


def _users_failing(node: Indices, user: Indices, failed: Indices, count: int) -> Indices:
    fell = np.flatnonzero(failed)
    who = np.unique(np.stack([node[fell], user[fell]]), axis=1)
    return np.bincount(who[0], minlength=count)


def _bound(ran: float, fell: float, p: float) -> float:
    share = fell / ran
    if p <= 0 or share <= p:
        return 1.0
    distance = share * math.log(share / p)
    if share < 1:
        distance += (1 - share) * math.log((1 - share) / (1 - p))
    return math.exp(-ran * distance)
