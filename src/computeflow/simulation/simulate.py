"""`simulate`: a run's outcome: a closed ledger, and how much it varies.

`simulate_many` gives several runs the same random numbers, so that they differ by their settings
and not by random failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from computeflow.economics import fill_joules, usd_of
from computeflow.engines import Engine, each
from computeflow.errors import ComputeFlowError, InputError
from computeflow.ledger import Entry, Ledger, Window
from computeflow.simulation.budget import MAX_WORK, ROUND, spend
from computeflow.simulation.closed_form import exact_ettr, meta_ettr
from computeflow.simulation.conditions import MAX_OUTAGES_PER_YEAR
from computeflow.simulation.draws import CHUNK, check_seed
from computeflow.simulation.engine import play
from computeflow.simulation.lanes import CAUSES
from computeflow.simulation.run_inputs import RunInputs
from computeflow.simulation.totals import SimulationTotals, cut_totals, join_totals, totals_of
from computeflow.units import DAY_SECONDS, YEAR_SECONDS

_MAX_REPLICAS = 1_000_000
PERCENTILES = (10, 50, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Spread of a figure over the replicas."""

    p10: float
    p50: float
    p90: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """The same run by formula, which knows neither spares, stragglers nor background saves."""

    meta_ettr: float
    """arXiv:2410.21680."""
    exact_ettr: float
    """The renewal argument, exact for constant rates."""
    phases: dict[str, float]
    """Mean seconds of one recovery: to notice, to swap a node where one goes, to start processes, to
    load the checkpoint, to warm up."""

    @property
    def recovery_seconds(self) -> float:
        return math.fsum(self.phases.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    run: RunInputs
    replicas: int
    seed: int
    seconds: Spread
    """From start to end."""
    ettr: Spread
    """Share of the time in which the job worked on steps that were kept, slow ones included."""
    goodput: Spread
    """Share of all allocated GPU-seconds, spares included, worth of kept steps at full speed."""
    work_seconds: Spread
    """Kept steps, in seconds at full speed."""
    interruptions: Spread
    planned_stops: Spread
    spare_waits: Spread
    mtbi_seconds: float | None
    """Mean time between interruptions that were not planned; None without any."""
    by_cause: dict[str, float]
    """Mean number of interruptions."""
    interval_seconds: float
    ledger: Ledger
    """Mean of all replicas, over allocated GPUs."""
    closed: ClosedForm
    finished: float
    """Share of replicas that did all their work; 1 where the run goes by time."""

    def usd(self, usd_per_gpu_hour: float) -> Spread:
        """Dollars of all allocated GPUs, spares included."""
        scale = usd_of(self.run.allocated_gpus, usd_per_gpu_hour)
        seconds = self.seconds
        return Spread(
            p10=scale * seconds.p10,
            p50=scale * seconds.p50,
            p90=scale * seconds.p90,
            mean=scale * seconds.mean,
        )


def simulate(
    run: RunInputs, *, replicas: int = 1000, seed: int = 0, engine: Engine = "local"
) -> Simulation:
    return simulate_many([run], replicas=replicas, seed=seed, engine=engine)[0]


def simulate_many(
    runs: Sequence[RunInputs], *, replicas: int = 1000, seed: int = 0, engine: Engine = "local"
) -> list[Simulation]:
    books = play_many(runs, replicas=replicas, seed=seed, engine=engine)
    return [_summed(run, part, seed) for run, part in zip(runs, books, strict=True)]


def play_many(
    runs: Sequence[RunInputs], *, replicas: int = 1000, seed: int = 0, engine: Engine = "local"
) -> list[SimulationTotals]:
    """The totals of every simulation of every run; equal rows of all have equal random numbers."""
    if not 1 <= replicas <= _MAX_REPLICAS:
        raise InputError(f"{replicas:,} simulations: must be between 1 and {_MAX_REPLICAS:,}")
    check_seed(seed)
    _check_saves(runs)
    _check_work(runs, replicas)
    chunks = math.ceil(replicas / CHUNK)
    work = partial(_chunk, tuple(runs), replicas, seed)
    parts = _on_ray(work, chunks) if engine == "ray" else [work(n) for n in range(chunks)]
    return [join_totals([part[number] for part in parts]) for number in range(len(runs))]


def _on_ray(
    work: Callable[[int], list[SimulationTotals]], chunks: int
) -> list[list[SimulationTotals]]:
    parts = []
    for part in each(work, range(chunks), "ray"):
        if isinstance(part, ComputeFlowError):
            raise part
        parts.append(part)
    return parts


def _check_saves(runs: Sequence[RunInputs]) -> None:
    for run in runs:
        if run.interval_seconds < run.conditions.persist_seconds:
            raise InputError(
                f"{run.label}: saves every {run.interval_seconds:g} s that take "
                f"{run.conditions.persist_seconds:g} s each would pile up: a longer interval"
            )


def _check_work(runs: Sequence[RunInputs], replicas: int) -> None:
    """All replicas of a chunk go on in step until the last one ends."""
    longest = max(runs, key=expected_events)
    rounds = expected_events(longest)
    chunks = math.ceil(replicas / CHUNK)
    work = rounds * (len(runs) * replicas + chunks * ROUND)
    if work <= MAX_WORK:
        spend(work)
        return
    remedies = {
        "simulations": (MAX_WORK / rounds - ROUND) / (len(runs) + ROUND / CHUNK),
        "runs (draws, offers) at once": (MAX_WORK / rounds - chunks * ROUND) / replicas,
    }
    fitting = [
        f"{int(count):,} {what}"
        for (what, count), now in zip(remedies.items(), (replicas, len(runs)), strict=True)
        if now > 1 and count >= 1
    ]
    remedy = f"at most {' or '.join(fitting)}"
    if not fitting:
        times = math.ceil(rounds * (1 + ROUND) / MAX_WORK)
        remedy = f"a run {times:,} times shorter, or on so many times fewer nodes"
    raise InputError(
        f"{longest.label}: some {rounds:,.0f} failures and other events one after the other, in "
        f"{replicas:,} simulations of {len(runs):,} runs, take {_tenths(work / MAX_WORK)} times what "
        f"one call may (some 25 s of a processor): {remedy}"
    )


def _tenths(times: float) -> str:
    """Rounded up: what is refused is never called 1 times the limit."""
    return f"{math.ceil(10 * times) / 10:,.1f}"


def expected_events(run: RunInputs) -> float:
    """Failures, slow nodes (that come and go), outages and maintenance of one replica, roughly."""
    conditions, nodes = run.conditions, run.nodes
    failures = conditions.interruptions_per_second(nodes)
    rate = failures + 2 * nodes * conditions.stragglers_per_node_day / DAY_SECONDS
    rate += MAX_OUTAGES_PER_YEAR / YEAR_SECONDS if conditions.outages_per_year else 0.0
    if conditions.maintenance_every_seconds:
        rate += 1 / conditions.maintenance_every_seconds
    seconds = run.limit_seconds
    if run.work_seconds is not None:
        seconds = min(seconds, run.work_seconds / max(closed_form(run).exact_ettr, 1e-9))
    early = conditions.infant_factor * min(conditions.infant_seconds, seconds)
    return rate * seconds + failures * early


def _chunk(
    runs: tuple[RunInputs, ...], replicas: int, seed: int, chunk: int
) -> list[SimulationTotals]:
    count = min(CHUNK, replicas - chunk * CHUNK)
    state, _ = play(runs, count, seed, chunk)
    books = totals_of(state)
    return [cut_totals(books, slice(n * count, (n + 1) * count)) for n in range(len(runs))]


def closed_form(run: RunInputs) -> ClosedForm:
    conditions = run.conditions
    phases = _recovery_phases(run)
    terms = {
        "per_second": conditions.interruptions_per_second(run.nodes),
        "recovery_seconds": math.fsum(phases.values()),
        "interval_seconds": run.interval_seconds,
        "write_seconds": conditions.stall_seconds,
    }
    return ClosedForm(meta_ettr=meta_ettr(**terms), exact_ettr=exact_ettr(**terms), phases=phases)


def _recovery_phases(run: RunInputs) -> dict[str, float]:
    """Mean phases of the recovery from a failure, with a spare at hand."""
    conditions = run.conditions
    shares = conditions.failures.shares
    silent, hardware = shares["silent"], 1 - shares["software"]
    return {
        "notice": (1 - silent) * conditions.detect_seconds + silent * conditions.silent_seconds,
        "swap": hardware * conditions.repaired * conditions.swap_seconds,
        "start": conditions.init_seconds,
        "load": conditions.load_seconds,
        "warm up": conditions.warm_seconds,
    }


def _summed(run: RunInputs, books: SimulationTotals, seed: int) -> Simulation:
    job = run.gpus / run.allocated_gpus
    worked = sum(books.accounts[name] for name in ("useful", "compute.clock", "straggler"))
    total = float(books.interruptions.sum())
    done = (
        True
        if run.work_seconds is None
        else books.accounts["useful"] >= run.work_seconds * 0.999999
    )
    return Simulation(
        run=run,
        replicas=len(books.seconds),
        seed=seed,
        seconds=_spread(books.seconds),
        ettr=_spread(worked / books.seconds),
        goodput=_spread(job * books.accounts["useful"] / books.seconds),
        work_seconds=_spread(books.accounts["useful"]),
        interruptions=_spread(books.interruptions),
        planned_stops=_spread(books.planned),
        spare_waits=_spread(books.waits),
        mtbi_seconds=float(books.seconds.sum()) / total if total else None,
        by_cause={name: float(books.causes[:, n].mean()) for n, name in enumerate(CAUSES)},
        interval_seconds=run.interval_seconds,
        ledger=mean_ledger(run, books),
        closed=closed_form(run),
        finished=float(np.mean(done)),
    )


def _spread(values: object) -> Spread:
    array = np.asarray(values, dtype=np.float64)
    p10, p50, p90 = (float(v) for v in np.percentile(array, PERCENTILES))
    return Spread(p10=p10, p50=p50, p90=p90, mean=float(array.mean()))


def mean_ledger(run: RunInputs, books: SimulationTotals) -> Ledger:
    """The mean replica: the step's accounts over the useful time, the rest as simulated."""
    means = {name: run.gpus * float(values.mean()) for name, values in books.accounts.items()}
    wall = float(books.seconds.mean())
    useful = means.pop("useful")
    means["idle"] += (run.allocated_gpus - run.gpus) * wall
    entries = [Entry(account=n, gpu_seconds=s) for n, s in means.items() if s > 0]
    ledger = Ledger(
        gpus=run.allocated_gpus,
        wall_seconds=wall,
        entries=(*_steps(run, useful), *entries),
        basis="simulated",
        window=Window(label=run.label),
        peak=run.step.peak if run.step is not None else None,
        unavailable=dict.fromkeys(("compute.model", "joules"), "a step's ledger")
        if run.step is None
        else {},
    )
    return ledger if run.waiting_watts is None else fill_joules(ledger, run.waiting_watts)


def _steps(run: RunInputs, useful: float) -> list[Entry]:
    """The step's own accounts, and their energy where it is known, for the steps that were kept."""
    if run.step is None:
        return [Entry(account="compute", gpu_seconds=useful)]
    times = useful / run.step.gpu_seconds
    return [
        Entry(
            account=entry.account,
            gpu_seconds=times * entry.gpu_seconds,
            joules=None if entry.joules is None else times * entry.joules,
        )
        for entry in run.step.entries
    ]
