"""The step formula's pipeline against schedules that are played, operation by operation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.prediction import find_stack, load_parameters
from computeflow.prediction.step import pipeline
from computeflow.prediction.step_inputs import of_job
from computeflow.workload import Job, Layout, Layouts

FACTS = load_catalog()
PARAMETERS = load_parameters()
BATCH = of_job(
    Job(model=FACTS.models["llama-3.1-8b"], global_batch=8, seq_len=4096),
    find_cluster("h100-sxm:8", FACTS),
    Layouts.of([Layout(gpus=8)]),
    find_stack("megatron"),
)


def play(
    stages: int, chunks: int, rounds: int, forward: list[float], backward: list[float]
) -> float:
    """Seconds until all is done: each stage works through its list, an operation starts when the
    stage is free and its input is there. `forward[v]`: seconds of model chunk v (stage v % stages).
    """
    last = stages * chunks - 1
    orders = [order(stage, stages, chunks, rounds) for stage in range(stages)]
    done: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * stages, [0] * stages
    while any(at[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for stage in range(stages):
            while at[stage] < len(orders[stage]):
                kind, chunk, batch = orders[stage][at[stage]]
                if kind == "f":
                    needs = ("f", chunk - 1, batch) if chunk else None
                else:
                    needs = ("b", chunk + 1, batch) if chunk < last else ("f", last, batch)
                if needs is not None and needs not in done:
                    break
                start = max(free[stage], done[needs] if needs else 0.0)
                seconds = forward[chunk] if kind == "f" else backward[chunk]
                free[stage] = done[kind, chunk, batch] = start + seconds
                at[stage] += 1
                moved = True
        assert moved, "the schedule waits for itself"
    return max(free)


def order(stage: int, stages: int, chunks: int, rounds: int) -> list[tuple[str, int, int]]:
    """Operations in 1F1B order, or interleaved with several chunks (arXiv:2104.04473, figure 4)."""
    total = rounds * chunks

    def item(kind: str, place: int) -> tuple[str, int, int]:
        group, rest = divmod(place, stages * chunks)
        chunk, batch = divmod(rest, stages)
        if kind == "b":
            chunk = chunks - 1 - chunk
        return kind, chunk * stages + stage, group * stages + batch

    if chunks == 1:
        warm = min(stages - stage - 1, rounds)
        forwards = [("f", stage, n) for n in range(rounds)]
        backwards = [("b", stage, n) for n in range(rounds)]
    else:
        warm = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
        forwards = [item("f", n) for n in range(total)]
        backwards = [item("b", n) for n in range(total)]
    steady = [step for pair in zip(forwards[warm:], backwards, strict=False) for step in pair]
    return forwards[:warm] + steady + backwards[len(forwards) - warm :]


def formula(stages: int, chunks: int, rounds: int, layer: float, layers: int, head: float) -> float:
    """Seconds by the predictor's formula."""
    batch = replace(
        BATCH,
        layers=np.full(1, layers),
        pp=np.full(1, stages),
        vp=np.full(1, chunks),
        micro_batches=np.full(1, rounds),
    )
    return float(pipeline(batch, PARAMETERS, np.full(1, layer), np.full(1, head)).seconds[0])


def cut(stages: int, layers: int, layer: float, head: float) -> list[float]:
    """Seconds of each stage, the last one among those with fewer layers."""
    fewest, more = divmod(layers, stages)
    counts = [fewest + (stage < more) for stage in range(stages)]
    return [count * layer + head * (stage == stages - 1) for stage, count in enumerate(counts)]


@given(
    stages=st.integers(2, 8),
    rounds=st.integers(1, 24),
    layers=st.integers(16, 64),
    head=st.floats(0, 4),
    share=st.floats(0.2, 0.5),
)
def test_one_forward_one_backward_with_uneven_stages(
    stages: int, rounds: int, layers: int, head: float, share: float
) -> None:
    times = cut(stages, layers, 1.0, head)
    played = play(stages, 1, rounds, [share * t for t in times], [(1 - share) * t for t in times])
    said = formula(stages, 1, rounds, 1.0, layers, head)
    # stages of unlike length also wait in between
    assert 0.85 * played <= said <= played * (1 + 1e-9)


def test_uneven_stages_are_close_in_the_mean() -> None:
    draw = np.random.default_rng(0)
    off = []
    for _ in range(300):
        stages, rounds = int(draw.integers(2, 9)), int(draw.integers(1, 25))
        layers, head = int(draw.integers(16, 65)), float(draw.uniform(0, 4))
        times = cut(stages, layers, 1.0, head)
        played = play(stages, 1, rounds, [t / 3 for t in times], [2 * t / 3 for t in times])
        off.append(1 - formula(stages, 1, rounds, 1.0, layers, head) / played)
    assert max(off) < 0.15
    assert np.mean(off) < 0.01


@pytest.mark.parametrize("rounds", [1, 4, 32])
@pytest.mark.parametrize("head", [0.3, 1.0, 5.0])
def test_even_layers_with_a_head_are_exact(rounds: int, head: float) -> None:
    times = cut(4, 16, 1.0, head)
    played = play(4, 1, rounds, [t / 3 for t in times], [2 * t / 3 for t in times])
    assert formula(4, 1, rounds, 1.0, 16, head) == pytest.approx(played, rel=1e-9)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_even_stages_are_exact(stages: int, chunks: int, groups: int) -> None:
    rounds = stages * groups
    times = [1.0 / chunks] * (stages * chunks)
    played = play(stages, chunks, rounds, [t / 3 for t in times], [2 * t / 3 for t in times])
    assert formula(stages, chunks, rounds, 1.0, stages, 0.0) == pytest.approx(played, rel=1e-9)
