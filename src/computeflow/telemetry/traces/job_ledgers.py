"""Ranks to a job: `job_ledger` books what every rank measured into one closed ledger.

A wait stays in the ledger of the rank where it passed; its cause names the rank that came last, and
the account in which that rank lost its time. Waits are `straggler` where ranks had equal work and
`imbalance` as far as unequal work explains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from computeflow.catalog.rows import Accelerator
from computeflow.errors import InputError
from computeflow.ledger import Cause, Entry, Ledger, PeakFlops, Window
from computeflow.telemetry.source_reports import ModelWork
from computeflow.telemetry.traces.collective_waits import CollectiveWaits, Wait, find_waits
from computeflow.telemetry.traces.rank_measurements import RankMeasurement
from computeflow.telemetry.traces.trace import CounterRow

_MOSTLY = 0.5
_UNEQUAL = 0.005
"""Relative difference of two ranks' FLOPs that is more than rounding of shapes."""
TYPES = {
    "c10::BFloat16": "bf16", "bf16": "bf16", "c10::Half": "fp16", "float": "fp32",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8", "double": "fp64", "signed char": "int8",
}  # fmt: skip
"""Precision in the catalog by the type's name in a trace, as torch writes it."""
_NO_OTHERS = "traces of other ranks that share collectives"
PIPELINE = "comm.pp"
OWN_ACCOUNTS = (
    "compute",
    "compute.recompute",
    "optimizer",
    "copy",
    "host",
    "input",
    "checkpoint",
    "evaluation",
    "unexplained",
)
"""Accounts of a rank's own time: neither communication nor waiting for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLedger:
    rank: int
    source: str
    ledger: Ledger
    came_last: float | None
    """Share of the matched collectives in which this rank came last; None where none were matched."""
    waited_for_seconds: float
    """Time that other ranks waited for this one, summed over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLedger:
    ledger: Ledger
    ranks: tuple[RankLedger, ...]
    clock_offsets_seconds: tuple[float, ...]
    """Offset of each rank's clock against the first one's."""
    clock_spread_seconds: float
    shared_collectives: int
    notes: tuple[str, ...]
    waits: CollectiveWaits


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """The ledgers and measurements of one job's traces, and what was left out."""

    job: JobLedger
    ranks: tuple[RankMeasurement, ...]
    accelerator: Accelerator | None
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The format of its traces."""
        return self.ranks[0].origin.kind

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a step; None where steps are not marked on every rank."""
        steps = sum(len(rank.steps) for rank in self.ranks)
        marked = all(rank.steps for rank in self.ranks)
        return self.job.ledger.gpu_seconds / steps if marked else None

    @property
    def versions(self) -> tuple[str, ...]:
        """Versions of the profiler and its format, as far as the traces say."""
        return tuple(dict.fromkeys(text for rank in self.ranks for text in rank.origin.versions))

    @property
    def counters(self) -> tuple[CounterRow, ...]:
        """Counters sampled over the whole recording, once for each file."""
        return tuple(dict.fromkeys(row for rank in self.ranks for row in rank.counters))


def job_ledger(
    ranks: Sequence[RankMeasurement],
    accelerator: Accelerator | None,
    *,
    work: ModelWork | None = None,
) -> JobLedger:
    ranks = _check_one_job(ranks)
    if work is not None:
        world = max([rank.world or 0 for rank in ranks] + [len(ranks)])
        ranks = [_with_work(rank, work, world) for rank in ranks]
    waits = find_waits(ranks)
    peak, why = _find_peak(ranks, accelerator)
    if peak is not None and (faster := _faster_than(peak, ranks)):
        if work is not None:
            raise InputError(f"{faster}: wrong device or model")
        peak, why = None, f"FLOPs that the device can compute: {faster}"
    causes = _WaitCauses(ranks, waits)
    window = _job_window(ranks)
    parts = [
        _rank_ledger(rank, index, waits, causes, peak, why, window)
        for index, rank in enumerate(ranks)
    ]
    caused: dict[int, float] = {}
    for wait in waits.waits:
        caused[wait.culprit] = caused.get(wait.culprit, 0.0) + wait.seconds
    shared = sum(waits.last)
    return JobLedger(
        ledger=_whole_ledger(ranks, parts, window),
        ranks=tuple(
            RankLedger(
                rank=rank.rank,
                source=rank.source,
                ledger=part,
                came_last=waits.last[index] / shared if shared else None,
                waited_for_seconds=caused.get(index, 0.0),
            )
            for index, (rank, part) in enumerate(zip(ranks, parts, strict=True))
        ),
        clock_offsets_seconds=tuple(offset / 1e9 for offset in waits.offsets),
        clock_spread_seconds=waits.spread_seconds,
        shared_collectives=waits.shared,
        notes=(*waits.notes, *_flops_notes(ranks, work, peak)),
        waits=waits,
    )


def _whole_ledger(
    ranks: Sequence[RankMeasurement], parts: Sequence[Ledger], window: Window
) -> Ledger:
    """The ranks' entries summed by account and cause."""
    entries: dict[tuple[str, Cause | None], list[float]] = {}
    missing: dict[str, str] = {}
    for part in parts:
        missing |= part.unavailable
        for entry in part.entries:
            entries.setdefault((entry.account, entry.cause), []).append(entry.gpu_seconds)
    world = max(rank.world or 0 for rank in ranks)
    return Ledger.closed(
        [
            Entry(account=account, gpu_seconds=float(np.sum(values)), cause=cause)
            for (account, cause), values in entries.items()
        ],
        gpus=len(ranks),
        wall_seconds=sum(part.gpu_seconds for part in parts) / len(ranks),
        basis="measured",
        window=window,
        gpus_total=max(world, len(ranks)) if world else None,
        peak=parts[0].peak,
        unavailable=missing,
        on_host=all(part.on_host for part in parts),
    )


def _flops_notes(
    ranks: Sequence[RankMeasurement], work: ModelWork | None, peak: PeakFlops | None
) -> list[str]:
    """Notes on assumptions about FLOPs that the recording does not state."""
    notes = []
    if work is not None and not any(rank.steps for rank in ranks):
        notes.append(
            "no steps are marked: the window is assumed to hold one step of the model's FLOPs"
        )
    typed = any(kind for rank in ranks for kind in rank.types)
    if peak is not None and not typed and any(rank.flops for rank in ranks):
        notes.append("types of matrix products are not stated: the bf16 peak is assumed")
    return notes


def _check_one_job(ranks: Sequence[RankMeasurement]) -> list[RankMeasurement]:
    by_rank: dict[int, RankMeasurement] = {}
    for rank in sorted(ranks, key=lambda rank: (rank.rank, rank.source)):
        if rank.rank in by_rank:
            raise InputError(
                f"rank {rank.rank} twice: {by_rank[rank.rank].source} and {rank.source}"
            )
        by_rank[rank.rank] = rank
    worlds = {rank.world for rank in by_rank.values()} - {None}
    if len(worlds) > 1:
        sizes = ", ".join(str(world) for world in sorted(worlds, key=str))
        raise InputError(f"traces of several jobs, of {sizes} ranks: give those of one")
    return list(by_rank.values())


def _with_work(rank: RankMeasurement, work: ModelWork, world: int) -> RankMeasurement:
    """The rank with an equal share of the model's FLOPs."""
    steps = max(len(rank.steps), 1)
    flops, full = work.flops_per_step / world, work.full_flops_per_step / world
    missing = {name: why for name, why in rank.missing.items() if name != "compute.model"}
    return replace(
        rank,
        flops=steps * flops,
        flops_full=steps * full,
        flops_by_step=(flops,) * steps,
        missing=missing,
    )


def _job_window(ranks: Sequence[RankMeasurement]) -> Window:
    steps = sorted({step for rank in ranks for step in rank.steps})
    if not steps:
        return Window(label="the whole recording")
    label = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Window(label=label, first_step=steps[0], last_step=steps[-1])


def _find_peak(
    ranks: Sequence[RankMeasurement], accelerator: Accelerator | None
) -> tuple[PeakFlops | None, str]:
    """The dense peak of the precision that most FLOPs have; or what is missing."""
    if not any(rank.on_device for rank in ranks):
        return None, "a dense peak: the host computed"
    if accelerator is None:
        return None, f"a dense peak of {ranks[0].device or 'the device'}: name it with --on"
    kind = _main_type(ranks)
    precision = _precision(kind, ranks, accelerator)
    dense = accelerator.dense_flops.get(precision)
    if dense is None:
        return None, f"the catalog's dense peak of {accelerator.name} for {kind or 'no type'}"
    total = sum(rank.flops for rank in ranks)
    full = sum(rank.flops_full for rank in ranks)
    return PeakFlops(
        flops=dense, precision=precision, palm_ratio=full / total if total else None
    ), ""


def _faster_than(peak: PeakFlops, ranks: Sequence[RankMeasurement]) -> str:
    """The rank that computed faster than its device can, in words: its FLOPs or their type are
    misread. "" where none did.
    """
    for rank in ranks:
        busy = rank.accounts.get("compute", 0.0)
        if rank.flops > peak.flops * busy:
            return (
                f"{rank.source}: {rank.flops:.4g} FLOPs in {busy:.4g} s are more than "
                f"{peak.flops:.4g} FLOP/s dense {peak.precision}"
            )
    return ""


def _main_type(ranks: Sequence[RankMeasurement]) -> str:
    """The type of most FLOPs; bf16 where the format does not state types."""
    types: dict[str, float] = {}
    for rank in ranks:
        for kind, flops in rank.types.items():
            if kind or rank.origin.kind == "kineto":
                types[kind] = types.get(kind, 0.0) + flops
    return max(types, key=lambda name: types[name], default="c10::BFloat16")


def _precision(kind: str, ranks: Sequence[RankMeasurement], accelerator: Accelerator) -> str:
    precision = TYPES.get(kind, "")
    if precision == "fp32" and _is_tf32(ranks, accelerator):
        return "tf32"
    if precision == "fp16" and "fp16" not in accelerator.dense_flops:
        return "bf16"
    return precision


def _is_tf32(ranks: Sequence[RankMeasurement], accelerator: Accelerator) -> bool:
    """Whether float32 products ran on tensor cores: a kernel says so, or they were too fast
    otherwise.
    """
    plain = accelerator.dense_flops.get("fp32")
    return any(
        rank.precision_hint == "tf32"
        or (plain is not None and rank.flops / plain > rank.accounts.get("compute", 0.0))
        for rank in ranks
    )


def _rank_ledger(
    rank: RankMeasurement,
    index: int,
    waits: CollectiveWaits,
    causes: _WaitCauses,
    peak: PeakFlops | None,
    why: str,
    window: Window,
) -> Ledger:
    """The closed ledger of one rank."""
    seconds = dict(rank.accounts)
    missing = dict(rank.missing)
    entries = []
    for wait in waits.waits:
        if wait.rank == index:
            entries += causes.entries(wait)
            seconds[wait.account] -= wait.seconds
    if not waits.shared:
        missing |= dict.fromkeys(("straggler", "imbalance"), _NO_OTHERS)
    busy = seconds.pop("compute", 0.0)
    if rank.flops and peak is not None:
        entries += _split_compute(rank, busy, peak)
    else:
        missing.setdefault("compute.model", why or "shapes of operators, or --model")
        entries.append(Entry(account="compute", gpu_seconds=busy))
        missing.pop("compute.clock", None)
    entries += [
        Entry(account=name, gpu_seconds=value)
        for name, value in seconds.items()
        if value > 1e-12 and name != "unexplained"
    ]
    return Ledger.closed(
        entries,
        gpus=1,
        wall_seconds=(rank.window_end - rank.window_start) / 1e9,
        basis="measured",
        window=window,
        peak=peak if rank.flops else None,
        unavailable=missing,
        on_host=not rank.on_device,
    )


def _split_compute(rank: RankMeasurement, busy: float, peak: PeakFlops) -> list[Entry]:
    model = rank.flops / peak.flops
    return [
        Entry(account="compute.model", gpu_seconds=model),
        Entry(account="compute.kernel", gpu_seconds=busy - model),
    ]


class _WaitCauses:
    """Attribution of waits: equal work at unequal speed, or unequal work."""

    def __init__(self, ranks: Sequence[RankMeasurement], waits: CollectiveWaits) -> None:
        self._ranks = ranks
        self._caused: dict[tuple[int, int, int], float] = {}
        for wait in waits.waits:
            key = wait.culprit, wait.rank, wait.step
            self._caused[key] = self._caused.get(key, 0.0) + wait.seconds
        self._shares: dict[tuple[int, int, int], float] = {}
        self._accounts: dict[int, str] = {}
        self._own = [sum(rank.accounts.get(name, 0.0) for name in OWN_ACCOUNTS) for rank in ranks]
        self._bubbles: dict[int, float] = {}
        for wait in waits.waits:
            if wait.account == PIPELINE:
                self._bubbles[wait.rank] = self._bubbles.get(wait.rank, 0.0) + wait.seconds

    def entries(self, wait: Wait) -> list[Entry]:
        """The entries of one wait, by account and cause."""
        culprit = self._ranks[wait.culprit]
        more = Cause(rank=culprit.rank, account="compute")
        if wait.account == PIPELINE:
            return self._pipeline_entries(wait, more)
        unequal = self._unequal((wait.culprit, wait.rank, wait.step))
        slower = Cause(rank=culprit.rank, account=self._account(wait.culprit))
        parts = [("imbalance", more, unequal), ("straggler", slower, 1.0 - unequal)]
        return [
            Entry(account=account, gpu_seconds=share * wait.seconds, cause=cause)
            for account, cause, share in parts
            if share > 0
        ]

    def _pipeline_entries(self, wait: Wait, sender: Cause) -> list[Entry]:
        """A wait between stages: what the busiest stage waits, too, is the schedule's bubble; what a
        stage with less to do waits beyond that is for the busiest one.
        """
        busiest = int(np.argmax(self._own))
        beyond = self._own[busiest] - self._own[wait.rank]
        waited = self._bubbles[wait.rank]
        longer = min(beyond / waited, 1.0) if waited > 0 else 0.0
        unequal = longer * self._more_work(busiest, wait.rank)
        number = self._ranks[busiest].rank
        parts = [
            ("bubble", sender, 1.0 - longer),
            ("imbalance", Cause(rank=number, account="compute"), unequal),
            ("straggler", Cause(rank=number, account=self._account(busiest)), longer - unequal),
        ]
        return [
            Entry(account=account, gpu_seconds=share * wait.seconds, cause=cause)
            for account, cause, share in parts
            if share > 0
        ]

    def _more_work(self, busiest: int, other: int) -> float:
        """Share of the busiest stage's longer time that its additional FLOPs explain."""
        late, early = self._ranks[busiest], self._ranks[other]
        longer = self._own[busiest] - self._own[other]
        if not early.flops or late.flops <= early.flops * (1 + _UNEQUAL) or longer <= 0:
            return 0.0
        if not _measures_work(late):
            return 0.0
        busy = late.accounts.get("compute", 0.0)
        return min(1.0, busy * (1 - early.flops / late.flops) / longer)

    def _unequal(self, key: tuple[int, int, int]) -> float:
        """Share of one rank's wait for another in a step that the other's additional FLOPs explain."""
        if key not in self._shares:
            self._shares[key] = self._explained(*key)
        return self._shares[key]

    def _explained(self, culprit: int, waiting: int, step: int) -> float:
        late, other = self._ranks[culprit], self._ranks[waiting]
        own, less = (_step_value(rank.flops_by_step, rank, step) for rank in (late, other))
        if not less or own <= less * (1 + _UNEQUAL) or not _measures_work(late):
            return 0.0
        busy = _step_value(late.by_step.get("compute", ()), late, step)
        caused = self._caused[culprit, waiting, step]
        return min(1.0, busy * (1 - less / own) / caused) if caused else 0.0

    def _account(self, culprit: int) -> str:
        """The account in which a rank spends more than the others do."""
        if culprit not in self._accounts:
            others = [r for index, r in enumerate(self._ranks) if index != culprit]
            own = self._ranks[culprit].accounts
            more = {
                name: own.get(name, 0.0)
                - float(np.median([other.accounts.get(name, 0.0) for other in others]))
                for name in OWN_ACCOUNTS
            }
            most = max(more, key=lambda name: more[name])
            self._accounts[culprit] = most if more[most] > 0 else "unexplained"
        return self._accounts[culprit]


def _measures_work(rank: RankMeasurement) -> bool:
    """Whether operators with known FLOPs take most of the rank's compute: else FLOPs say nothing of
    how much there is to do.
    """
    return rank.product_seconds >= _MOSTLY * rank.kernel_seconds


def _step_value(values: Sequence[float], rank: RankMeasurement, step: int) -> float:
    """The value of one step; of the whole window where steps are unknown."""
    if step in rank.steps and len(values) == len(rank.steps):
        return values[rank.steps.index(step)]
    return float(sum(values))
