"""The ledger of a run folder: every microsecond of every rank on one account, over all attempts.

From the start of the first process to the end of the first step it is `startup`, in later attempts
`restart`; steps that an earlier attempt had done already, by the optimizer's own count, are `lost`.
Other steps are split by phases; waits are booked as `straggler`, or `imbalance` where the rank that
came last had more tokens, with that rank and what it did longer as their cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog import Accelerator
from computeflow.errors import InputError, LedgerError
from computeflow.ledger import Cause, Entry, Ledger, PeakFlops, Window
from computeflow.telemetry.run_folders.attempt_time import AttemptTime, RankTime
from computeflow.telemetry.run_folders.phases import PARTS, account_of, part_of_letter
from computeflow.telemetry.run_folders.rank_file import Beat, RankFile, RunEvent
from computeflow.telemetry.run_folders.window_split import WindowSplit, split_entries
from computeflow.telemetry.source_reports import SourceRequest

_ASSUMED_PRECISION = "bf16"
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
"""By the type of the weights; float32 weights may be multiplied in another precision."""
_TRACE = "a trace (--kineto)"
_PAUSES = ("checkpoint", "evaluation")

Key = tuple[str, Cause | None]


@dataclass(slots=True)
class RankBook:
    """Microseconds of one rank by account and cause."""

    rank: int
    booked: dict[Key, float] = field(default_factory=dict)
    cursor: int = 0
    """Everything before is booked."""
    steps: int = 0
    """Steps that are split by phases."""
    redone: int = 0

    def add(self, account: str, micros: float, cause: Cause | None = None) -> None:
        if micros > 0:
            self.booked[account, cause] = self.booked.get((account, cause), 0.0) + micros

    def fill(self, account: str, until: int, cause: Cause | None = None) -> None:
        """Book all up to a moment."""
        self.add(account, until - self.cursor, cause)
        self.cursor = max(self.cursor, until)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBooks:
    ranks: tuple[RankBook, ...]
    begin: int
    end: int
    lost: dict[tuple[int, int], NDArray[np.bool_]]
    """Which steps were done before, by attempt and rank."""


def book_run(attempts: Sequence[AttemptTime]) -> RunBooks:
    """Book the time of all ranks of all attempts."""
    begin = min(attempt.begin for attempt in attempts)
    end = max(_rank_end(rank) for attempt in attempts for rank in attempt.ranks)
    numbers = sorted({rank.rank for attempt in attempts for rank in attempt.ranks})
    places = [{rank.rank: index for index, rank in enumerate(each.ranks)} for each in attempts]
    lost: dict[tuple[int, int], NDArray[np.bool_]] = {}
    books = []
    for number in numbers:
        book = RankBook(rank=number, cursor=begin)
        done = -1
        for attempt, place in zip(attempts, places, strict=True):
            if number not in place:
                continue
            rank = attempt.ranks[place[number]]
            again = (rank.steps.own >= 0) & (rank.steps.own <= done)
            lost[attempt.number, number] = again
            _book_attempt(book, rank, attempt, again, first=attempt is attempts[0])
            done = max(done, int(rank.steps.own.max(initial=-1)))
        if number in places[-1]:
            _book_tail(book, places[-1][number], attempts[-1])
        book.fill("idle", end)
        books.append(book)
    return RunBooks(ranks=tuple(books), begin=begin, end=end, lost=lost)


def _rank_end(rank: RankTime) -> int:
    """When a rank was last seen at work, or stuck; how long its process takes to end is not counted."""
    pauses = [event.end for event in rank.file.events if event.what in _PAUSES]
    beats = [beat.at for beat in _waiting_beats(rank)]
    return max(rank.last, *pauses, *beats, rank.began)


def _waiting_beats(rank: RankTime) -> Sequence[Beat]:
    """Heart beats after the last step of a rank that had more to do: it waited, or was stuck."""
    return () if rank.file.ended not in (None, "exception") else rank.file.beats


def _book_attempt(
    book: RankBook,
    rank: RankTime,
    attempt: AttemptTime,
    again: NDArray[np.bool_],
    *,
    first: bool,
) -> None:
    ends = rank.steps.end
    rows = np.flatnonzero(ends[:-1] >= book.cursor) + 1 if len(ends) else np.zeros(0, np.int64)
    before = int(ends[rows[0] - 1]) if len(rows) else rank.last
    book.fill("startup" if first else "restart", before)
    if not len(rows):
        return
    chosen = np.zeros(len(ends), bool)
    chosen[rows] = True
    lost = chosen & again
    length = np.diff(ends, prepend=ends[0])
    book.add("lost", float(length[lost].sum()))
    kept = chosen & ~again
    book.steps += int(kept.sum())
    book.redone += int(lost.sum())
    for place, part in enumerate(PARTS):
        book.add(account_of(part), float(rank.parts[kept, place].sum()))
    book.add("comm", float(rank.comm[kept].sum()))
    _book_waits(book, rank, attempt, kept)
    book.cursor = max(book.cursor, rank.last)


def _book_waits(
    book: RankBook, rank: RankTime, attempt: AttemptTime, kept: NDArray[np.bool_]
) -> None:
    waits = rank.waits
    chosen = kept[waits.step] if len(waits.step) else np.zeros(0, bool)
    if not chosen.any():
        return
    key = (waits.culprit * len(PARTS) + waits.part)[chosen]
    micros, unequal = waits.micros[chosen], waits.unequal[chosen]
    values, place = np.unique(key, return_inverse=True)
    slower = np.bincount(place, micros * (1 - unequal), len(values))
    uneven = np.bincount(place, micros * unequal, len(values))
    for value, slow, more in zip(values.tolist(), slower.tolist(), uneven.tolist(), strict=True):
        culprit, part = divmod(value, len(PARTS))
        number = attempt.ranks[culprit].rank
        book.add("straggler", slow, Cause(rank=number, account=account_of(PARTS[part])))
        book.add("imbalance", more, Cause(rank=number, account="compute"))


def _book_tail(book: RankBook, index: int, attempt: AttemptTime) -> None:
    """What a rank did after its last step: saves and evaluations, and waits for those of others."""
    rank = attempt.ranks[index]
    pauses: list[tuple[int, int, str, Cause | None]] = [
        (event.start, event.end, event.what, None) for event in _last_pauses(rank)
    ]
    pauses += [
        (start, end, "straggler", cause) for start, end, cause in _last_waits(index, attempt)
    ]
    for start, end, account, cause in sorted(pauses, key=lambda pause: pause[:2]):
        if end > book.cursor:
            book.fill("idle", start)
            book.fill(account, end, cause)
    for beat in _waiting_beats(rank):
        book.fill("idle", min(beat.since, beat.at))
        book.fill(stuck_account(beat.inside), beat.at)


def stuck_account(inside: str) -> str:
    """The account of the time after the last step, by the letter of the phase that it passes in."""
    part = part_of_letter(inside)
    return part if part in ("input", *_PAUSES) else "idle"


def _last_pauses(rank: RankTime) -> list[RunEvent]:
    return [event for event in rank.file.events if event.what in _PAUSES and event.end > rank.last]


def _last_waits(index: int, attempt: AttemptTime) -> list[tuple[int, int, Cause]]:
    """Waits after the last step for ranks that save or evaluate meanwhile."""
    rank, waits = attempt.ranks[index], attempt.waits.ranks[index]
    found: list[tuple[int, int, Cause]] = []
    if attempt.waits_missing:
        return found
    for row in np.flatnonzero(waits.start >= rank.last):
        start, end = int(waits.start[row]), int(waits.end[row])
        culprit = attempt.ranks[int(waits.culprit[row])]
        for event in _last_pauses(culprit):
            low, high = max(start, event.start), min(end, event.end)
            if high > low:
                cause = Cause(rank=culprit.rank, account=event.what)
                found.append((low, high, cause))
    return found


def run_ledger(
    books: RunBooks,
    attempts: Sequence[AttemptTime],
    request: SourceRequest,
    window: WindowSplit | None = None,
) -> tuple[Ledger | None, str, list[str]]:
    """The ledger, or why there is none; and notes. `window` splits what phases cannot."""
    wall = (books.end - books.begin) / 1e6
    if wall <= 0 or not any(book.steps + book.redone for book in books.ranks):
        steps = any(len(rank.steps) for attempt in attempts for rank in attempt.ranks)
        return None, "one step alone, which is start-up" if steps else "no step was finished", []
    files = [rank.file for attempt in attempts for rank in attempt.ranks]
    world = max(max(file.start.world for file in files), len(books.ranks))
    entries = _entries(books)
    unavailable, booked_under = _unavailable(attempts, files)
    useful = _useful(books, files, request, world)
    notes: list[str] = []
    if window is not None:
        entries = split_entries(entries, window, sum(book.steps for book in books.ranks))
        lost = {name: why for name, why in unavailable.items() if name == "lost"}
        unavailable, booked_under = lost | window.unavailable, {}
        notes.append(
            "sampled: kernels, copies and communication inside forward and backward passes are those "
            f"of the profiler window at step {window.step:,}; the rest of these passes is host"
        )
    peak = None
    if isinstance(useful, str):
        unavailable["compute.model"] = useful
    else:
        seconds, peak, assumed = useful
        entries = _split_compute(entries, seconds)
        unavailable |= {
            "compute.clock": "readings of the device's clock",
            "compute.recompute": _TRACE,
        }
        booked_under |= dict.fromkeys(("compute.clock", "compute.recompute"), "compute.kernel")
        notes += assumed
    try:
        ledger = Ledger.closed(
            entries,
            gpus=len(books.ranks),
            wall_seconds=wall,
            basis="measured",
            window=_window(books, attempts),
            gpus_total=world,
            peak=peak,
            unavailable=unavailable,
            booked_under=booked_under,
            on_host=all(file.start.device == "cpu" for file in files),
        )
    except LedgerError as error:
        return None, f"the times in the files are not plausible: {error}", notes
    return ledger, "", notes


def _entries(books: RunBooks) -> list[Entry]:
    total: dict[Key, list[float]] = {}
    for book in books.ranks:
        for key, micros in book.booked.items():
            if key[0] != "unexplained":
                total.setdefault(key, []).append(micros)
    return [
        Entry(account=account, gpu_seconds=float(np.sum(micros)) / 1e6, cause=cause)
        for (account, cause), micros in total.items()
    ]


def _unavailable(
    attempts: Sequence[AttemptTime], files: Sequence[RankFile]
) -> tuple[dict[str, str], dict[str, str]]:
    """Accounts of which something is missing, and where their seconds are instead."""
    missing = next((attempt.waits_missing for attempt in attempts if attempt.waits_missing), "")
    unavailable, booked_under = {"copy": _TRACE}, {"copy": "compute"}
    if max(file.start.world for file in files) > 1:
        if missing:
            unavailable |= dict.fromkeys(("straggler", "imbalance"), missing)
            booked_under |= dict.fromkeys(("straggler", "imbalance"), "compute")
        if missing or not all(file.arrivals.timed for file in files):
            unavailable["comm"] = "ends of collectives, which the back end does not time"
            booked_under["comm"] = "compute"
    if len(attempts) > 1 and not any((file.steps.own >= 0).any() for file in files):
        unavailable["lost"] = "the optimizer's own count of steps"
    return unavailable, booked_under


def _useful(
    books: RunBooks, files: Sequence[RankFile], request: SourceRequest, world: int
) -> tuple[float, PeakFlops, list[str]] | str:
    """GPU-seconds of the model's FLOPs, the peak and what was assumed; or the missing signal."""
    work = request.work
    if work is None:
        return "the model's FLOPs (--model)"
    accelerator = device_of(files, request)
    if accelerator is None:
        return "the accelerator (--on)"
    stated = next((file.dtype for file in files if file.dtype), "").removeprefix("torch.")
    precision = _PRECISIONS.get(stated, _ASSUMED_PRECISION)
    dense = accelerator.dense_flops.get(precision)
    if dense is None:
        return f"the catalog's dense peak of {accelerator.name} for {precision}"
    steps = sum(book.steps for book in books.ranks)
    ratio = work.full_flops_per_step / work.flops_per_step
    notes = []
    if stated not in _PRECISIONS:
        notes.append(f"the precision of matrix products is not recorded: {precision} is assumed")
    return (
        steps * work.flops_per_step / world / dense,
        PeakFlops(flops=dense, precision=precision, palm_ratio=ratio),
        notes,
    )


def device_of(files: Sequence[RankFile], request: SourceRequest) -> Accelerator | None:
    name = next((file.start.gpu for file in files if file.start.gpu), "-")
    return request.accelerator or request.catalog.accelerators.get(name)


def _split_compute(entries: Sequence[Entry], model: float) -> list[Entry]:
    compute = sum(entry.gpu_seconds for entry in entries if entry.account == "compute")
    if model > compute:
        raise InputError(
            f"the model's FLOPs alone take {model:.4g} GPU-seconds at the dense peak, its steps "
            f"compute for {compute:.4g}: wrong device or model"
        )
    return [
        *(entry for entry in entries if entry.account != "compute"),
        Entry(account="compute.model", gpu_seconds=model),
        Entry(account="compute.kernel", gpu_seconds=compute - model),
    ]


def _window(books: RunBooks, attempts: Sequence[AttemptTime]) -> Window:
    steps = max(len(rank.steps) for attempt in attempts for rank in attempt.ranks)
    many = f", {len(attempts)} attempts" if len(attempts) > 1 else ""
    return Window(
        label=f"the whole run{many}" if many else f"the whole run, {steps:,} steps",
        start_seconds=books.begin / 1e6,
        end_seconds=books.end / 1e6,
    )
