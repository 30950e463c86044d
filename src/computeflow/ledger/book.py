"""`Ledger`: the GPU-seconds of a window, split into accounts, closed or not there at all.

    gpus x wall_seconds  ==  sum of entries          (to 1e-9 of the whole)

A ledger that does not balance cannot be built. Where the parts are known and the rest is not,
`Ledger.closed` books the rest as `unexplained`, in the open. Nothing here reads a clock or a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from computeflow.errors import LedgerError, UnknownNameError
from computeflow.ledger.accounts import ACCOUNTS, account

Basis = Literal["predicted", "simulated", "measured"]
_POWER = {
    "predicted": "the device's power limit",
    "simulated": "the device's power limit",
    "measured": "power readings",
}
"""Signal that joules come from."""
_TOLERANCE = 1e-9
"""Share of the whole that float sums of a million entries may be off."""
_MAX_GPUS = 10**9
_MAX_SECONDS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cause:
    """Who made these seconds pass: a rank, and the account of that rank's own time."""

    rank: int
    account: str

    def __post_init__(self) -> None:
        account(self.account)
        if self.rank < 0:
            raise LedgerError(f"cause: rank {self.rank} is negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """GPU-seconds booked on one account. `joules` None: the power of these seconds is unknown."""

    account: str
    gpu_seconds: float
    cause: Cause | None = None
    joules: float | None = None

    def __post_init__(self) -> None:
        account(self.account)
        if not math.isfinite(self.gpu_seconds) or self.gpu_seconds < 0:
            raise LedgerError(
                f"{self.account}: {self.gpu_seconds:g} GPU-seconds cannot be booked"
                + _why_negative(self.account)
            )
        if self.joules is not None and not (math.isfinite(self.joules) and self.joules >= 0):
            raise LedgerError(f"{self.account}: {self.joules:g} joules cannot be booked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The stretch of the run that a ledger covers."""

    label: str
    first_step: int | None = None
    last_step: int | None = None
    start_seconds: float | None = None
    end_seconds: float | None = None

    def __post_init__(self) -> None:
        for first, last in (
            (self.first_step, self.last_step),
            (self.start_seconds, self.end_seconds),
        ):
            if first is not None and last is not None and last < first:
                raise LedgerError(f"window {self.label!r} ends at {last:g}, before it starts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakFlops:
    """Divisor of `compute.model`: the dense peak of one device at the matmuls' precision."""

    flops: float
    precision: str
    palm_ratio: float | None = None
    """Model FLOPs by the PaLM convention (full attention) over ours (causal half)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.flops) and self.flops > 0):
            raise LedgerError(f"a peak of {self.flops:g} FLOP/s: must be above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """GPU-seconds of a window by account; the entries sum to `gpus` x `wall_seconds`.

    `gpus` are the ranks seen; `gpus_total` the ranks of the job, if known.
    """

    gpus: int
    wall_seconds: float
    entries: tuple[Entry, ...]
    basis: Basis
    window: Window
    gpus_total: int | None = None
    peak: PeakFlops | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Account (or "joules") to the signal that is missing, for all of it or for part."""
    booked_under: Mapping[str, str] = field(default_factory=dict)
    """Unavailable account to the one its seconds are in, where that is not the usual one."""
    on_host: bool = False
    """Whether the ranks computed on the host: then `gpus` counts processes, and no GPU."""

    def __post_init__(self) -> None:
        entries, unavailable = tuple(self.entries), dict(self.unavailable)
        if any(entry.joules is None for entry in entries):
            unavailable.setdefault("joules", _POWER[self.basis])
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "unavailable", unavailable)
        object.__setattr__(self, "booked_under", dict(self.booked_under))
        self._check_window()
        if self.basis not in get_args(Basis):
            raise UnknownNameError("basis", self.basis, get_args(Basis))
        for name in (*self.unavailable, *self.booked_under, *self.booked_under.values()):
            if name != "joules":
                account(name)
        off = _sum(self.entries) - self.gpu_seconds
        if abs(off) > _TOLERANCE * self.gpu_seconds:
            raise LedgerError(
                f"the ledger does not close: {self.gpu_seconds:g} GPU-seconds passed, the entries "
                f"{'exceed' if off > 0 else 'miss'} them by {abs(off):g}"
            )

    def _check_window(self) -> None:
        if not 1 <= self.gpus <= _MAX_GPUS or not 0 < self.wall_seconds <= _MAX_SECONDS:
            gpus = self.gpus if abs(self.gpus) <= _MAX_GPUS else "too many"
            raise LedgerError(f"{gpus} GPUs over {self.wall_seconds:g} s is no window")
        if self.gpus_total is not None and self.gpus_total < self.gpus:
            raise LedgerError(f"{self.gpus} ranks seen of only {self.gpus_total}")

    @classmethod
    def closed(
        cls,
        entries: Iterable[Entry],
        *,
        gpus: int,
        wall_seconds: float,
        basis: Basis,
        window: Window,
        gpus_total: int | None = None,
        peak: PeakFlops | None = None,
        rest_joules: float | None = None,
        unavailable: Mapping[str, str] | None = None,
        booked_under: Mapping[str, str] | None = None,
        on_host: bool = False,
    ) -> Ledger:
        """Build a ledger from the parts that are known; the rest is booked as `unexplained`.

        Parts that exceed the window are an error: something was counted twice. `rest_joules` is the
        energy of the rest, where the energy of the whole window was read.
        """
        known = tuple(entries)
        rest = gpus * wall_seconds - _sum(known)
        if rest > _TOLERANCE * gpus * wall_seconds:
            known = (*known, Entry(account="unexplained", gpu_seconds=rest, joules=rest_joules))
        return cls(
            gpus=gpus,
            wall_seconds=wall_seconds,
            entries=known,
            basis=basis,
            window=window,
            gpus_total=gpus_total,
            peak=peak,
            unavailable=unavailable or {},
            booked_under=booked_under or {},
            on_host=on_host,
        )

    @property
    def gpu_seconds(self) -> float:
        return self.gpus * self.wall_seconds

    @property
    def accounts(self) -> dict[str, float]:
        """GPU-seconds by account as booked, in the order of the tree."""
        booked: dict[str, list[float]] = {}
        for entry in self.entries:
            booked.setdefault(entry.account, []).append(entry.gpu_seconds)
        return {name: math.fsum(booked[name]) for name in ACCOUNTS if name in booked}

    @property
    def joules(self) -> float | None:
        """Energy of the whole window; None when any entry lacks it."""
        known = [e.joules for e in self.entries if e.joules is not None]
        return math.fsum(known) if known and len(known) == len(self.entries) else None

    def booked(self, name: str) -> float:
        """GPU-seconds of an account and everything below it."""
        account(name)
        return math.fsum(e.gpu_seconds for e in self.entries if is_within(e.account, name))

    def share(self, name: str) -> float | None:
        """The part of the window booked on an account; None where nothing could tell."""
        seconds = self.booked(name)
        hidden = any(is_within(name, other) for other in self.unavailable if other in ACCOUNTS)
        return None if hidden and not seconds else seconds / self.gpu_seconds

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the share of `compute.model`.

        None if the model's FLOPs were unknown for all of the compute time or part of it.
        """
        booked = {entry.account for entry in self.entries if entry.gpu_seconds}
        if "compute.model" in self.unavailable or "compute" in booked:
            return None
        return self.share("compute.model") if "compute.model" in booked else None

    @property
    def mfu_palm(self) -> float | None:
        """The MFU by the PaLM convention, which counts attention without its causal mask."""
        ratio = self.peak.palm_ratio if self.peak else None
        return None if self.mfu is None or ratio is None else self.mfu * ratio

    def scale(self, factor: float) -> Ledger:
        """The ledger of `factor` such windows one after another: a step's ledger to a run's."""
        if not (math.isfinite(factor) and factor > 0):
            raise LedgerError(f"cannot scale a ledger by {factor:g}")
        return replace(
            self,
            wall_seconds=self.wall_seconds * factor,
            window=Window(label=f"{self.window.label}, {factor:g} times"),
            entries=tuple(_scaled(entry, factor) for entry in self.entries),
        )

    def __add__(self, other: Ledger) -> Ledger:
        """One ledger of the same GPUs: this window and then the other."""
        return concatenate([self, other])

    def _repr_html_(self) -> str:
        from computeflow.ledger.describe import html

        return html(self)


def is_within(name: str, parent: str) -> bool:
    return name == parent or name.startswith(parent + ".")


def merge(ledgers: Iterable[Ledger]) -> Ledger:
    """One ledger of different ranks over the same window: GPUs add up, the wall clock does not."""
    first, *rest = parts = _several(ledgers)
    for other in rest:
        steps = (other.window.first_step, other.window.last_step)
        if steps != (first.window.first_step, first.window.last_step):
            raise LedgerError(f"{first.window.label!r} and {other.window.label!r} are other steps")
        if not math.isclose(other.wall_seconds, first.wall_seconds, rel_tol=_TOLERANCE):
            raise LedgerError(
                f"windows of {first.wall_seconds:g} s and {other.wall_seconds:g} s are not the "
                "same: ranks can be merged over one window only"
            )
    gpus = sum(part.gpus for part in parts)
    whole = math.fsum(part.gpu_seconds for part in parts)
    return _joined(parts, gpus=gpus, wall_seconds=whole / gpus, window=first.window)


def concatenate(ledgers: Iterable[Ledger]) -> Ledger:
    """One ledger of the same GPUs over windows that follow each other: the wall clock adds up."""
    first, *rest = parts = _several(ledgers)
    if any(other.gpus != first.gpus for other in rest):
        sizes = ", ".join(str(part.gpus) for part in parts)
        raise LedgerError(f"windows of {sizes} GPUs cannot follow each other in one ledger")
    opening, closing = first.window, parts[-1].window
    same = opening.label == closing.label
    window = Window(
        label=opening.label if same else f"{opening.label} to {closing.label}",
        first_step=opening.first_step,
        last_step=closing.last_step,
        start_seconds=opening.start_seconds,
        end_seconds=closing.end_seconds,
    )
    wall = math.fsum(part.wall_seconds for part in parts)
    return _joined(parts, gpus=first.gpus, wall_seconds=wall, window=window)


def _several(ledgers: Iterable[Ledger]) -> list[Ledger]:
    parts = list(ledgers)
    if not parts:
        raise LedgerError("no ledgers to put together")
    if len({part.basis for part in parts}) > 1:
        raise LedgerError("a predicted, a simulated and a measured ledger do not add up to one")
    return parts


def _joined(parts: list[Ledger], *, gpus: int, wall_seconds: float, window: Window) -> Ledger:
    """All entries of `parts`, equal keys summed; what any part lacked stays unavailable."""
    seconds: dict[tuple[str, Cause | None, bool], list[Entry]] = {}
    for entry in (entry for part in parts for entry in part.entries):
        seconds.setdefault((entry.account, entry.cause, entry.joules is None), []).append(entry)
    unavailable: dict[str, str] = {}
    booked_under: dict[str, str] = {}
    for part in reversed(parts):
        unavailable |= part.unavailable
        booked_under |= part.booked_under
    peaks = {part.peak for part in parts}
    return Ledger(
        gpus=gpus,
        wall_seconds=wall_seconds,
        entries=tuple(_summed(group) for group in seconds.values()),
        basis=parts[0].basis,
        window=window,
        gpus_total=_job_gpus(parts),
        peak=peaks.pop() if len(peaks) == 1 else None,
        unavailable=unavailable,
        booked_under=booked_under,
        on_host=all(part.on_host for part in parts),
    )


def _job_gpus(parts: list[Ledger]) -> int | None:
    totals = {part.gpus_total for part in parts} - {None}
    if len(totals) > 1:
        raise LedgerError(f"ranks of jobs of {', '.join(map(str, sorted(totals, key=str)))} GPUs")
    return totals.pop() if totals else None


def _summed(group: list[Entry]) -> Entry:
    joules = [e.joules for e in group if e.joules is not None]
    return replace(
        group[0],
        gpu_seconds=math.fsum(e.gpu_seconds for e in group),
        joules=math.fsum(joules) if joules else None,
    )


def _scaled(entry: Entry, factor: float) -> Entry:
    joules = None if entry.joules is None else entry.joules * factor
    return replace(entry, gpu_seconds=entry.gpu_seconds * factor, joules=joules)


def _sum(entries: Iterable[Entry]) -> float:
    try:
        return math.fsum(entry.gpu_seconds for entry in entries)
    except OverflowError:
        raise LedgerError("the entries sum to more seconds than there are") from None


def _why_negative(name: str) -> str:
    if name == "compute.kernel":
        return ": the FLOPs or the peak are wrong (the model's FLOPs alone need longer)"
    return ": more was booked elsewhere than passed" if name == "unexplained" else ""
