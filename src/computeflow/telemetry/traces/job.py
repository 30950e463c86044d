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
from computeflow.ledger import Cause, Entry, Ledger, Peak, Window
from computeflow.telemetry.observed import ModelWork
from computeflow.telemetry.traces.measured import RankMeasured
from computeflow.telemetry.traces.trace import CounterRow
from computeflow.telemetry.traces.waits import Wait, Waits, find_waits

_UNEQUAL = 0.005
"""Relative difference of two ranks' FLOPs that is more than rounding of shapes."""
TYPES = {
    "c10::BFloat16": "bf16", "bf16": "bf16", "c10::Half": "fp16", "float": "fp32",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8", "double": "fp64", "signed char": "int8",
}  # fmt: skip
"""How torch writes types in a trace, and what the catalog calls their precision."""
_NO_OTHERS = "traces of other ranks that share collectives"
_BUSY = (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLedger:
    rank: int
    source: str
    ledger: Ledger
    came_last: float | None
    """Share of the shared collectives; None where none were matched."""
    waited_for_seconds: float
    """That other ranks stood waiting for this one, summed over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    ledger: Ledger
    ranks: tuple[RankLedger, ...]
    clock_offsets_seconds: tuple[float, ...]
    """Of each rank's clock against the first one's."""
    clock_spread_seconds: float
    shared_collectives: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """What the traces of one job say, and what of the files was left out."""

    job: Job
    ranks: tuple[RankMeasured, ...]
    accelerator: Accelerator | None
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The format of its traces."""
        return self.ranks[0].origin.kind

    @property
    def versions(self) -> tuple[str, ...]:
        """Of the profiler and its format, as far as the traces say."""
        return tuple(dict.fromkeys(text for rank in self.ranks for text in rank.origin.versions))

    @property
    def counters(self) -> tuple[CounterRow, ...]:
        """Sampled over the whole recording, once for each file."""
        return tuple(dict.fromkeys(row for rank in self.ranks for row in rank.counters))


def job_ledger(
    ranks: Sequence[RankMeasured],
    accelerator: Accelerator | None,
    *,
    work: ModelWork | None = None,
) -> Job:
    ranks = _of_one_job(ranks)
    if work is not None:
        world = max([rank.world or 0 for rank in ranks] + [len(ranks)])
        ranks = [_with_work(rank, work, world) for rank in ranks]
    waits = find_waits(ranks)
    peak, why = _find_peak(ranks, accelerator)
    blame = _Blame(ranks, waits)
    window = _job_window(ranks)
    parts = [
        _rank_ledger(rank, place, waits, blame, peak, why, window)
        for place, rank in enumerate(ranks)
    ]
    caused: dict[int, float] = {}
    for wait in waits.waits:
        caused[wait.culprit] = caused.get(wait.culprit, 0.0) + wait.seconds
    shared = sum(waits.last)
    return Job(
        ledger=_whole_ledger(ranks, parts, window),
        ranks=tuple(
            RankLedger(
                rank=rank.rank,
                source=rank.source,
                ledger=part,
                came_last=waits.last[place] / shared if shared else None,
                waited_for_seconds=caused.get(place, 0.0),
            )
            for place, (rank, part) in enumerate(zip(ranks, parts, strict=True))
        ),
        clock_offsets_seconds=tuple(offset / 1e9 for offset in waits.offsets),
        clock_spread_seconds=waits.spread_seconds,
        shared_collectives=waits.shared,
        notes=(*waits.notes, *_flops_notes(ranks, work, peak)),
    )


def _whole_ledger(ranks: Sequence[RankMeasured], parts: Sequence[Ledger], window: Window) -> Ledger:
    """The ranks' entries by account and cause."""
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
    )


def _flops_notes(
    ranks: Sequence[RankMeasured], work: ModelWork | None, peak: Peak | None
) -> list[str]:
    """What was taken for what the recording does not say of its FLOPs."""
    notes = []
    if work is not None and not any(rank.steps for rank in ranks):
        notes.append("no steps are marked: the model's FLOPs are taken for one step in the window")
    typed = any(kind for rank in ranks for kind in rank.types)
    if peak is not None and not typed and any(rank.flops for rank in ranks):
        notes.append("types of products are not stated: their peak is taken as that of bf16")
    return notes


def _of_one_job(ranks: Sequence[RankMeasured]) -> list[RankMeasured]:
    found: dict[int, RankMeasured] = {}
    for rank in sorted(ranks, key=lambda rank: (rank.rank, rank.source)):
        if rank.rank in found:
            raise InputError(f"rank {rank.rank} twice: {found[rank.rank].source} and {rank.source}")
        found[rank.rank] = rank
    worlds = {rank.world for rank in found.values()} - {None}
    if len(worlds) > 1:
        sizes = ", ".join(str(world) for world in sorted(worlds, key=str))
        raise InputError(f"traces of jobs of {sizes} ranks: give those of one")
    return list(found.values())


def _with_work(rank: RankMeasured, work: ModelWork, world: int) -> RankMeasured:
    """An equal share of the model's FLOPs."""
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


def _job_window(ranks: Sequence[RankMeasured]) -> Window:
    steps = sorted({step for rank in ranks for step in rank.steps})
    if not steps:
        return Window(label="the whole recording")
    label = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Window(label=label, first_step=steps[0], last_step=steps[-1])


def _find_peak(
    ranks: Sequence[RankMeasured], accelerator: Accelerator | None
) -> tuple[Peak | None, str]:
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
    return Peak(flops=dense, precision=precision, palm_ratio=full / total if total else None), ""


def _main_type(ranks: Sequence[RankMeasured]) -> str:
    """Of most FLOPs; bf16 where the format does not state types."""
    types: dict[str, float] = {}
    for rank in ranks:
        for kind, flops in rank.types.items():
            if kind or rank.origin.kind == "kineto":
                types[kind] = types.get(kind, 0.0) + flops
    return max(types, key=lambda name: types[name], default="c10::BFloat16")


def _precision(kind: str, ranks: Sequence[RankMeasured], accelerator: Accelerator) -> str:
    precision = TYPES.get(kind, "")
    if precision == "fp32" and _is_tf32(ranks, accelerator):
        return "tf32"
    if precision == "fp16" and "fp16" not in accelerator.dense_flops:
        return "bf16"
    return precision


def _is_tf32(ranks: Sequence[RankMeasured], accelerator: Accelerator) -> bool:
    """Whether float32 products ran on tensor cores: a kernel says so, or nothing else is so fast."""
    plain = accelerator.dense_flops.get("fp32")
    return any(
        rank.precision_hint == "tf32"
        or (plain is not None and rank.flops / plain > rank.accounts.get("compute", 0.0))
        for rank in ranks
    )


def _rank_ledger(
    rank: RankMeasured,
    place: int,
    waits: Waits,
    blame: _Blame,
    peak: Peak | None,
    why: str,
    window: Window,
) -> Ledger:
    """Of one rank, closed."""
    seconds = dict(rank.accounts)
    missing = dict(rank.missing)
    entries = []
    for wait in waits.waits:
        if wait.rank == place:
            entries += blame.entries(wait)
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
    )


def _split_compute(rank: RankMeasured, busy: float, peak: Peak) -> list[Entry]:
    model = rank.flops / peak.flops
    if model > busy:
        raise InputError(
            f"{rank.source}: {rank.flops:.4g} FLOPs in {busy:.4g} s are more than "
            f"{peak.flops:.4g} FLOP/s dense {peak.precision}: the device or the model is another"
        )
    return [
        Entry(account="compute.model", gpu_seconds=model),
        Entry(account="compute.kernel", gpu_seconds=busy - model),
    ]


class _Blame:
    """Whose fault a wait is: equal work at unequal speed, or unequal work."""

    def __init__(self, ranks: Sequence[RankMeasured], waits: Waits) -> None:
        self._ranks = ranks
        self._caused: dict[tuple[int, int, int], float] = {}
        for wait in waits.waits:
            key = wait.culprit, wait.rank, wait.step
            self._caused[key] = self._caused.get(key, 0.0) + wait.seconds
        self._shares: dict[tuple[int, int, int], float] = {}
        self._accounts: dict[int, str] = {}

    def entries(self, wait: Wait) -> list[Entry]:
        """One wait, by account and cause."""
        culprit = self._ranks[wait.culprit]
        more = Cause(rank=culprit.rank, account="compute")
        if wait.account == "comm.pp":
            return [Entry(account="bubble", gpu_seconds=wait.seconds, cause=more)]
        unequal = self._unequal((wait.culprit, wait.rank, wait.step))
        slower = Cause(rank=culprit.rank, account=self._account(wait.culprit))
        parts = [("imbalance", more, unequal), ("straggler", slower, 1.0 - unequal)]
        return [
            Entry(account=account, gpu_seconds=share * wait.seconds, cause=cause)
            for account, cause, share in parts
            if share > 0
        ]

    def _unequal(self, key: tuple[int, int, int]) -> float:
        """Of what one rank waits for another in a step, what the other's additional FLOPs explain."""
        if key not in self._shares:
            self._shares[key] = self._explained(*key)
        return self._shares[key]

    def _explained(self, culprit: int, waiting: int, step: int) -> float:
        late, other = self._ranks[culprit], self._ranks[waiting]
        own, less = (_step_value(rank.flops_by_step, rank, step) for rank in (late, other))
        if not less or own <= less * (1 + _UNEQUAL):
            return 0.0
        busy = _step_value(late.by_step.get("compute", ()), late, step)
        caused = self._caused[culprit, waiting, step]
        return min(1.0, busy * (1 - less / own) / caused) if caused else 0.0

    def _account(self, culprit: int) -> str:
        """Where a rank spends more than the others do."""
        if culprit not in self._accounts:
            others = [r for place, r in enumerate(self._ranks) if place != culprit]
            own = self._ranks[culprit].accounts
            more = {
                name: own.get(name, 0.0)
                - float(np.median([other.accounts.get(name, 0.0) for other in others]))
                for name in _BUSY
            }
            most = max(more, key=lambda name: more[name])
            self._accounts[culprit] = most if more[most] > 0 else "unexplained"
        return self._accounts[culprit]


def _step_value(values: Sequence[float], rank: RankMeasured, step: int) -> float:
    """Of one step; of the whole window where steps are not known."""
    if step in rank.steps and len(values) == len(rank.steps):
        return values[rank.steps.index(step)]
    return float(sum(values))
