"""The source `accounting`: exports of schedulers, all files of a call as one cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import InputError
from computeflow.telemetry.accounting.cluster_ledger import account_usage
from computeflow.telemetry.accounting.job_tables import is_export, read_export
from computeflow.telemetry.accounting.jobs import AttemptRows, JobAttempts
from computeflow.telemetry.accounting.scheduler_values import SITE_FAILURES
from computeflow.telemetry.accounting.slurm_json import is_slurm_json, read_slurm_json
from computeflow.telemetry.accounting.slurm_text import (
    NodeState,
    is_sacct,
    is_scontrol,
    read_sacct,
    read_scontrol,
)
from computeflow.telemetry.accounting.usage import Accounting, AttemptShares
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest

MAX_HAPPENINGS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingFiles:
    """The contents of the files, before any conclusion."""

    jobs: JobAttempts
    nodes: tuple[NodeState, ...]
    sources: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    slurm: bool
    """Whether Slurm wrote any of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobColumns:
    """Attempts and nodes behind the facts, by which other sources are joined."""

    jobs: JobAttempts
    nodes: tuple[NodeState, ...]
    share: AttemptShares
    slurm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingSource:
    gpus: int | None = None
    """GPUs of the cluster, where the user states them."""
    kind: str = "accounting"

    def recognises(self, path: Path, head: bytes) -> bool:
        text = head.decode("utf-8", "replace").lstrip("\ufeff\r\n\t ")
        return is_sacct(text) or is_scontrol(text) or is_slurm_json(text) or is_export(text)

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        read = read_jobs(paths)
        books = account_usage(
            read.jobs, read.nodes, start=request.start, end=request.end, gpus=self.gpus
        )
        happenings = _happenings(books.facts)
        notes = [*read.notes, *books.notes]
        if len(happenings) > MAX_HAPPENINGS:
            notes.append(f"{len(happenings) - MAX_HAPPENINGS:,} more failures of nodes: not listed")
        return [
            SourceReport(
                kind=self.kind,
                sources=read.sources,
                facts=books.facts,
                ledger=books.ledger,
                ledger_reason=books.reason,
                happenings=tuple(happenings[:MAX_HAPPENINGS]),
                left_out=read.left_out,
                notes=tuple(notes),
                columns=JobColumns(
                    jobs=read.jobs, nodes=read.nodes, share=books.share, slurm=read.slurm
                ),
            )
        ]


def read_jobs(paths: Sequence[Path]) -> AccountingFiles:
    """Read all files as one cluster; a file that cannot be read is named in `left_out`."""
    rows, nodes = AttemptRows(), dict[str, NodeState]()
    sources, left_out, notes, slurm = [], [], [], False
    for path in paths:
        before = len(rows)
        try:
            file_nodes, file_notes = _read(path, rows)
        except InputError as error:
            text = str(error) if str(path) in str(error) else f"{path}: {error}"
            if len(rows) > before:
                sources.append(str(path))
                text += f"; {len(rows) - before:,} jobs before that are kept"
            left_out.append(text)
            continue
        sources.append(str(path))
        nodes.update((node.name, node) for node in file_nodes)
        notes += file_notes
        slurm = slurm or not is_export(_head(path))
    if not sources:
        raise InputError("; ".join(left_out) or "no accounting to read")
    jobs, repeats = rows.finish()
    left_out += rows.left_out
    if rows.broken:
        left_out.append(f"{rows.broken:,} lines that are not jobs")
    if repeats:
        left_out.append(f"{repeats:,} repeated jobs (the same ID and start)")
    if rows.zoneless:
        notes.append("times without a zone are taken as UTC")
    return AccountingFiles(
        jobs=jobs,
        nodes=tuple(nodes.values()),
        sources=tuple(sources),
        left_out=tuple(left_out),
        notes=tuple(notes),
        slurm=slurm,
    )


def _head(path: Path) -> str:
    return head_of(path).decode("utf-8", "replace").lstrip("\ufeff\r\n\t ")


def _read(path: Path, rows: AttemptRows) -> tuple[list[NodeState], list[str]]:
    head = _head(path)
    if is_sacct(head):
        read_sacct(path, rows)
        return [], []
    if is_scontrol(head):
        return read_scontrol(path, rows), []
    if is_slurm_json(head):
        return read_slurm_json(path, rows), []
    if is_export(head):
        return [], read_export(path, rows)
    raise InputError(f"{path}: neither sacct -P, sacct --json, scontrol show nor a table of jobs")


def _happenings(facts: Accounting) -> list[Event]:
    """Jobs that a node ended, and nodes that are out of service."""
    events = [
        Event(
            seconds=job.end,
            what=f"job ended: {job.state}",
            job=job.job,
            fault=True,
            detail=f"nodes {job.nodes}" if job.nodes else "",
        )
        for job in facts.failed
        if job.state in SITE_FAILURES
    ]
    events += [
        Event(
            seconds=node.since,
            what=f"node {node.state.lower()}",
            node=node.name,
            fault=True,
            detail=node.reason,
        )
        for node in facts.nodes_out
    ]
    return sorted(events, key=lambda event: (event.seconds is None, event.seconds or 0.0))
