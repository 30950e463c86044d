"""Step-time noise of real runs: `python -m benchmarks.measure_noise FOLDER`, data/step_noise.json.

Sources: run folders under FOLDER (`benchmarks.record_noise` makes them), the real ones in
`tests/data/run_folders`, single steps of the H200 (`data/h200/steps.jsonl`), and production timelines
of operations in the public data (`recordings/bytedance_straggler`), where they are at hand. Rows of a
source that is not there stay as they are.

A rank's time by phase is what `audit` takes for its own, without waits. It is divided by the rank's own
median step; slow drifts of all ranks together are taken out and reported as such.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import median_filter
from scipy.special import ndtri

from benchmarks.record_noise import FACTS
from benchmarks.step_noise import DATA, LEVELS, PHASES, SLOW, Floats, StepNoise, apart
from computeflow import codec
from computeflow.telemetry.run_folders.phases import PARTS
from computeflow.telemetry.run_folders.run_folder_source import read_run

ROOT = Path(__file__).parents[1]
WINDOW = 101
"""Steps over which a change of all ranks is a drift and no noise."""
_FIRST = 20
"""Steps at the beginning that are left out: caches fill, memory is allocated."""
_MIN_STEPS = 60
_SMALL_TOKENS = 4096
"""Tokens of a micro-batch below which the H200 waited for its host."""
_PERIODIC = 0.2
"""Correlation, above that of the periods beside it, from which on long steps are periodic."""
_SHARED = Path(os.environ.get("COMPUTEFLOW_DATA", ROOT.parent / "shared" / "data"))
_PRODUCTION = _SHARED / "recordings" / "bytedance_straggler"
_JUDGING = (
    "mlp-4", "transformer-2-busy", "trainer-2", "transformer-4", "clean", "production-AR",
    "h200-b", "h200-small",
)  # fmt: skip
"""Sources that only judge, fixed before any rule was tried on them."""
_HELD = {"forward": "forward", "backward": "backward", "optimizer": "optimizer", "input": "input"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Seconds of ranks x steps x `PHASES`; pieces are joined where steps do not follow each other."""

    name: str
    source: str
    seconds: Floats
    step_seconds: float | None = None
    """Median step, where `seconds` are scaled to it."""
    roles: tuple[int, ...] = ()
    """Ranks of one number do the same work; () where all of them do."""
    facts: dict[str, Any] = field(default_factory=dict)


def recorded(folder: Path) -> Measurement:
    left_out: list[str] = []
    attempt = read_run(sorted(folder.glob("*.cfr")), 1 << 30, left_out)[0]
    steps = min(len(rank.own) for rank in attempt.ranks)
    own = np.stack([rank.parts[:steps] for rank in attempt.ranks]) / 1e6
    columns = [own[:, :, [PARTS.index(name)]] for name in _HELD]
    rest = own.sum(axis=2, keepdims=True) - np.sum(columns, axis=0)
    by_name = dict(zip([*_HELD, "host"], [*columns, rest], strict=True))
    seconds = np.concatenate([by_name[name] for name in PHASES], axis=2)
    facts = folder / FACTS
    return Measurement(
        name=folder.name,
        source=f"{len(own)} ranks over gloo under `computeflow record`, {steps} steps",
        seconds=seconds[:, _FIRST:],
        facts=json.loads(facts.read_text()) if facts.is_file() else {},
    )


def of_h200(path: Path) -> Iterator[Measurement]:
    """Single steps of the trainings measured on the H200, each scaled to its own median.

    Small micro-batches are launched as fast as the host can, and have the host's noise: a source of
    their own. Of the others every second one is in each of two sources.
    """
    groups: dict[str, list[Floats]] = {"h200-a": [], "h200-b": [], "h200-small": []}
    medians: dict[str, list[float]] = {name: [] for name in groups}
    for number, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        settings = row["settings"]
        tokens = settings["seq_len"] * settings["micro_batch"]
        name = "h200-small" if tokens < _SMALL_TOKENS else "h200-b" if number % 2 else "h200-a"
        phases = np.array([_h200_phases(step) for step in row["steps"]])
        groups[name].append(phases / np.median(phases.sum(axis=1)))
        medians[name].append(float(np.median(phases.sum(axis=1))))
    for name, scaled in groups.items():
        usual = np.median(np.concatenate(scaled), axis=0)  # phases as in a training between them
        yield Measurement(
            name=name,
            source=f"{len(scaled)} trainings on one H200, data/h200/steps.jsonl, unprofiled",
            step_seconds=float(np.median(medians[name])),
            seconds=np.concatenate([part - np.median(part, axis=0) + usual for part in scaled])[
                None
            ],
        )


def _h200_phases(step: Mapping[str, Any]) -> list[float]:
    named = [step["phases"][name] for name in ("input", "forward", "backward", "optimizer")]
    return [*named, max(step["seconds"] - sum(step["phases"].values()), 0.0)]


def production(path: Path) -> Measurement:
    """Computing operations of a production job, summed over each rank's step."""
    import duckdb

    sums = ", ".join(
        f"sum(duration) FILTER (optype = '{name}')"
        for name in ("forward-compute", "backward-compute", "optimizer")
    )
    rows = duckdb.execute(
        f"SELECT rank, step, stage, {sums} FROM read_parquet(?) GROUP BY ALL ORDER BY rank, step",
        [str(path)],
    ).fetchall()
    stages = {row[0]: row[2] for row in rows}
    ranks = len(stages)
    table = np.array([[0.0, *row[3:], 0.0] for row in rows], float)
    seconds = table.reshape(ranks, -1, len(PHASES))
    job = path.stem.removeprefix("trace-")
    return Measurement(
        name=f"production-{job}",
        source=f"{ranks} ranks of a production job, {path.name}: {seconds.shape[1]} steps, "
        "not all of them in a row; computing operations and the optimizer",
        seconds=seconds,
        roles=tuple(stages.values()),
    )


def analyse(found: Measurement) -> StepNoise:
    seconds = found.seconds
    medians = np.median(seconds.sum(axis=2), axis=1)
    share = seconds / medians[:, None, None]
    usual = np.median(share, axis=1, keepdims=True)
    deviation = share - usual
    together = np.median(deviation, axis=0)
    drift = median_filter(together, size=(min(WINDOW, len(together) | 1), 1), mode="nearest")
    deviation -= drift[None]
    scores = _normal_scores(deviation)
    whole = _normal_scores(deviation.sum(axis=2, keepdims=True))[:, :, 0]
    lags = {lag: _lagged(whole, lag) for lag in (1, 2, 5, 10, 20, 50)}
    slow = float(np.clip(np.mean([lags[10] / SLOW**10, lags[20] / SLOW**20]), 0, 0.95))
    fast = float(np.clip((lags[1] - slow * SLOW) / (1 - slow), 0, 0.95))
    step = 1 + deviation.sum(axis=2)
    return StepNoise(
        name=found.name,
        source=found.source,
        judging=found.name in _JUDGING,
        ranks=len(seconds),
        steps=seconds.shape[1],
        step_seconds=found.step_seconds or float(np.median(medians)),
        phases=_named(np.median(usual[:, 0], axis=0)),
        quantiles={
            name: [round(float(v), 6) for v in np.quantile(deviation[:, :, place], LEVELS)]
            for place, name in enumerate(PHASES)
        },
        across_ranks=_across_ranks(whole),
        across_phases=_across_phases(scores, deviation),
        slow_share=round(slow, 4),
        fast=round(fast, 4),
        rank_spread=round(_rank_spread(medians, found.roles or (0,) * len(medians)), 5),
        measured={
            "over": {f"{x}x": round(float((step > x).mean()), 6) for x in (1.1, 1.2, 1.5, 2.0)},
            "spread": round(float(1.4826 * np.median(np.abs(step - np.median(step)))), 5),
            "autocorrelation": {str(lag): round(value, 4) for lag, value in lags.items()},
            "apart": {
                str(window): round(apart(step, window), 5)
                for window in (20, 60)
                if len(step) > 1 and step.shape[1] >= 4 * window
            },
            "drift": round(float(np.ptp(drift.sum(axis=1))), 5),
            "pauses": _pauses(step),
            **({"recorded": found.facts} if found.facts else {}),
        },
    )


def _rank_spread(medians: Floats, roles: Sequence[int]) -> float:
    """How much ranks of one role differ for good; by MAD, so that one that is ill does not count."""
    groups = [medians[np.array(roles) == role] for role in sorted(set(roles))]
    ratios = np.concatenate([group / np.median(group) for group in groups])
    return float(1.4826 * np.median(np.abs(ratios - 1)))


def _named(values: Floats) -> dict[str, float]:
    return {name: round(float(value), 5) for name, value in zip(PHASES, values, strict=True)}


def _normal_scores(values: Floats) -> Floats:
    """Each value's place among those of its phase, as a standard normal number."""
    flat = values.reshape(-1, values.shape[2])
    places = np.argsort(np.argsort(flat, axis=0), axis=0)
    return np.asarray(ndtri((places + 0.5) / len(flat)).reshape(values.shape))


def _lagged(scores: Floats, lag: int) -> float:
    if scores.shape[1] <= 2 * lag:
        return 0.0
    return float(np.mean(scores[:, lag:] * scores[:, :-lag]) / np.mean(scores**2))


def _across_ranks(scores: Floats) -> float:
    """Mean correlation between two ranks; 0 where there is one, whose noise is then all its own."""
    if len(scores) < 2:
        return 0.0
    table = np.atleast_2d(np.corrcoef(scores))
    return round(float(np.clip(table[np.triu_indices(len(table), 1)].mean(), 0, 1)), 4)


def _across_phases(scores: Floats, deviation: Floats) -> float:
    """Correlation between two phases of a step, weighted by how much they vary."""
    weight = deviation.std(axis=(0, 1))
    table = np.atleast_2d(np.corrcoef(scores.reshape(-1, scores.shape[2]), rowvar=False))
    pairs = np.outer(weight, weight)
    upper = np.triu_indices(len(table), 1)
    return round(
        float(np.clip(np.average(np.nan_to_num(table[upper]), weights=pairs[upper]), 0, 1)), 4
    )


def _pauses(step: Floats) -> dict[str, float]:
    """The period at which long steps come back, where they do so more than beside it; else nothing."""
    long = (step > 1.2).mean(axis=0)
    if long.std() == 0 or len(long) < 400:
        return {}
    centred = long - long.mean()
    again = np.array(
        [np.mean(centred[lag:] * centred[:-lag]) / centred.var() for lag in range(1, 200)]
    )
    beside = median_filter(again, size=21, mode="nearest")
    best = int(np.argmax(again[9:] - beside[9:])) + 9
    if again[best] - beside[best] < _PERIODIC:
        return {}
    return {"period_steps": best + 1, "correlation": round(float(again[best]), 4)}


def sources(folder: Path) -> Iterator[Measurement]:
    places = [*sorted(folder.iterdir()), ROOT / "tests" / "data" / "run_folders" / "clean"]
    for place in places:
        if next(place.glob("*.cfr"), None) is not None:
            found = recorded(place)
            if found.seconds.shape[1] >= _MIN_STEPS:
                yield found
    steps = ROOT / "benchmarks" / "data" / "h200" / "steps.jsonl"
    yield from of_h200(steps)
    for name in ("AR", "ST"):
        path = _PRODUCTION / f"trace-{name}.parquet"
        if path.is_file():
            yield production(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    rows: dict[str, Mapping[str, Any]] = {}
    if DATA.is_file():
        rows = {row["name"]: row for row in json.loads(DATA.read_text())["sources"]}
    for found in sources(options.folder):
        rows[found.name] = asdict(analyse(found))
    table = {
        "schema": "computeflow.step-noise/1",
        "levels": list(LEVELS),
        "sources": [*rows.values()],
    }
    lines = codec.to_json(codec.encode(table))
    DATA.write_text(lines + "\n")


if __name__ == "__main__":
    main()
