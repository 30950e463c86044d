"""What a decision needs to know of a live job, from the store, the engine and the run's own files."""

from __future__ import annotations

import pwd
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computeflow.actions.engine import ClusterState, EngineJob
from computeflow.actions.recorded_steps import (
    WARM_STEPS,
    AttemptSteps,
    node_of_rank,
    read_attempts,
)
from computeflow.actions.saved_checkpoints import SavedCheckpoint, latest_checkpoint, saved_times
from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.scheduling import ExcludedNode, JobState, Trouble, trouble_from
from computeflow.scheduling.job_state import RESTART_SECONDS

_PRESENT_SECONDS = 60.0
"""How far back the present step is measured."""
_SAVES = 5
"""Last checkpoints that the interval is taken from."""
_DEGRADED = ("xid", "remapped", "retired", "ecc", "link width", "link speed")
"""Words in the evidence of hardware that does not mend itself."""
_CRASHED = frozenset({"NODE_FAIL", "FAILED", "BOOT_FAIL"})
"""Ends of a job that a dead node or rank explains; one that a person or a limit ended stays so."""
VALID_SECONDS = 120.0
"""How long the engine's word on a node holds: as a finding does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """A run with the job that runs it."""

    run: LiveRun
    job: EngineJob
    findings: tuple[LiveFinding, ...]
    attempts: tuple[AttemptSteps, ...]
    saved: SavedCheckpoint | None
    state: JobState
    troubles: tuple[Trouble, ...]

    @property
    def attempt(self) -> int:
        return self.attempts[-1].attempt if self.attempts else self.run.attempt


def live_job(
    run: LiveRun,
    findings: Sequence[LiveFinding],
    cluster: ClusterState,
    excluded: Sequence[ExcludedNode],
) -> LiveJob | None:
    """The run as a job; None where no decision is possible: no job, no nodes, or an end of its own."""
    job = cluster.jobs.get(run.job)
    if job is None or not job.nodes or job.phase in ("pending", "done"):
        return None
    if job.phase == "failed" and job.state not in _CRASHED:
        return None
    own = tuple(each for each in findings if each.run == run.run)
    if run.run_folder and not _belongs_to(Path(run.run_folder), job.user):
        run = replace(run, run_folder="", checkpoints="")
    attempts = tuple(read_attempts(Path(run.run_folder))) if run.run_folder else ()
    saved = latest_checkpoint(Path(run.checkpoints)) if run.checkpoints else None
    state = _job_state(run, job, own, cluster, attempts, saved, excluded)
    troubles = [*_troubles(state, run, own, cluster), *_dead_nodes(state, cluster, attempts)]
    return LiveJob(
        run=run,
        job=job,
        findings=own,
        attempts=attempts,
        saved=saved,
        state=state,
        troubles=tuple(troubles),
    )


def _belongs_to(folder: Path, user: str) -> bool:
    """Whether a folder that was named over the wire is the job's user's: nobody else's is touched."""
    try:
        return pwd.getpwuid(folder.stat().st_uid).pw_name == user
    except (OSError, KeyError):
        return False


def _job_state(
    run: LiveRun,
    job: EngineJob,
    findings: Sequence[LiveFinding],
    cluster: ClusterState,
    attempts: Sequence[AttemptSteps],
    saved: SavedCheckpoint | None,
    excluded: Sequence[ExcludedNode],
) -> JobState:
    now = cluster.at
    latest = attempts[-1] if attempts else None
    parts = [each for each in findings if each.is_open and 0 < len(each.ranks) < run.world]
    onset = min((each.onset for each in parts), default=None)
    present, healthy = _step_times(run, latest, attempts, onset, now)
    done = latest.done if latest is not None else run.step
    restart = _restart_seconds(job, latest)
    whole = saved is not None and not saved.fault
    assumed = ["failures_per_node_day", "repair_seconds"]
    return JobState(
        run=run.run,
        job=job.job,
        now=now,
        nodes=job.nodes,
        gpus=max(job.gpus, run.world, 1),
        done_steps=done,
        remaining_steps=None if run.total_steps is None else max(run.total_steps - done, 0),
        healthy_step_seconds=healthy,
        step_seconds=present,
        checkpoint_age_seconds=max(now - saved.saved, 0.0) if saved is not None and whole else None,
        checkpoint_interval_seconds=_interval(run),
        save_seconds=_save_seconds(latest),
        restart_seconds=RESTART_SECONDS if restart is None else restart,
        spares=tuple(node for node in cluster.spares(job.partition) if node not in job.nodes),
        can_checkpoint=latest is not None and "checkpoint" in latest.takes,
        usd_per_gpu_hour=run.usd_per_gpu_hour,
        excluded=tuple(excluded),
        assumed=tuple(assumed if restart is not None else ["restart_seconds", *assumed]),
    )


def _step_times(
    run: LiveRun,
    latest: AttemptSteps | None,
    attempts: Sequence[AttemptSteps],
    onset: float | None,
    now: float,
) -> tuple[float | None, float | None]:
    """The present step, and the run's own usual one: before the onset, in this attempt or earlier."""
    if latest is None:
        return run.step_seconds, None
    begin = now - _PRESENT_SECONDS if onset is None else max(onset, now - _PRESENT_SECONDS)
    present = latest.usual_seconds(begin, now) or run.step_seconds
    if onset is None:
        return present, present
    before = [each.usual_seconds(0.0, onset) for each in reversed(attempts)]
    return present, next((each for each in before if each is not None), None)


def _restart_seconds(job: EngineJob, latest: AttemptSteps | None) -> float | None:
    """From the job's start to steady steps, as it was the last time."""
    if latest is None or job.started is None or len(latest.steps) <= WARM_STEPS:
        return None
    seconds = latest.steps[WARM_STEPS].end - job.started
    return seconds if seconds > 0 else None


def _interval(run: LiveRun) -> float | None:
    times = saved_times(Path(run.checkpoints)) if run.checkpoints else []
    between = [b - a for a, b in zip(times[-_SAVES - 1 :], times[-_SAVES:], strict=False)]
    positive = [seconds for seconds in between if seconds > 0]
    return statistics.median(positive) if positive else None


def _save_seconds(latest: AttemptSteps | None) -> float:
    return statistics.median([s for _, s in latest.saves]) if latest and latest.saves else 0.0


def _troubles(
    state: JobState, run: LiveRun, findings: Sequence[LiveFinding], cluster: ClusterState
) -> list[Trouble]:
    found = [
        trouble_from(
            state,
            rule=each.rule,
            nodes=nodes_of(each, run, cluster),
            ranks=each.ranks,
            share=max(each.share, 0.0),
            onset=each.onset,
            seen=each.seen,
            key=each.key,
            confidence=each.confidence,
            closed=not each.is_open,
            degraded=_is_degraded(each),
        )
        for each in findings
        if each.is_open
    ]
    return [trouble for trouble in found if trouble is not None]


def nodes_of(finding: LiveFinding, run: LiveRun, cluster: ClusterState) -> tuple[str, ...]:
    """The engine's nodes of a finding: those of its ranks, else those with its nodes' host names."""
    known = [node_of_rank(Path(run.run_folder), rank) for rank in finding.ranks if run.run_folder]
    if known and all(name in cluster.nodes for name in known):
        return tuple(dict.fromkeys(known))
    named = {*finding.nodes, *(name.partition(".")[0] for name in finding.nodes)}
    hosts = [node for node in cluster.nodes.values() if {node.name, node.hostname} & named]
    return tuple(node.name for node in hosts)


def _is_degraded(finding: LiveFinding) -> bool:
    said = " ".join(each.what.lower() for each in finding.evidence)
    return any(word in said for word in _DEGRADED)


def _dead_nodes(
    state: JobState, cluster: ClusterState, attempts: Sequence[AttemptSteps]
) -> list[Trouble]:
    """Nodes of the job that the engine itself holds for dead."""
    gone = tuple(n for n in state.nodes if n in cluster.nodes and not cluster.nodes[n].is_up)
    if not gone:
        return []
    last = attempts[-1].last_end if attempts else None
    since = min(last or state.now, state.now)
    return [
        Trouble(
            kind="dead-node",
            run=state.run,
            nodes=gone,
            since=since,
            seen=state.now,
            valid_until=state.now + VALID_SECONDS,
            rule="node-out",
            key=f"engine-{state.job}-{'-'.join(gone)}"[:80],
        )
    ]
