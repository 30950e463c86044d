"""Nodes for a job that is to be submitted: order, waiting, refusal, and large memory left free."""

from __future__ import annotations

import numpy as np
import pytest

from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.cluster.placement import Placement
from computeflow.cluster.wiring import fat_tree
from computeflow.errors import InputError, UnknownNameError
from computeflow.planning.placement import crossing, total, traffic
from computeflow.prediction.stack import usual_stack
from computeflow.scheduling import NodePool, choose_nodes
from computeflow.workload import Job, Layout

FACTS = load_catalog()
SMALL = Job(model=FACTS.models["llama-3.1-8b"], global_batch=256, seq_len=8192)
LARGE = Job(model=FACTS.models["llama-3.1-70b"], global_batch=256, seq_len=8192)
EIGHT_NODES = Layout(gpus=64, tp=8)
FOUR_NODES = Layout(gpus=32, tp=2, sharding="zero1")


def pool(
    accelerator: str = "h100-sxm",
    *,
    nodes: int = 16,
    free: tuple[int, ...] | None = None,
    coming: tuple[tuple[float, int], ...] = (),
    oversubscription: float = 4.0,
) -> NodePool:
    """Leaves of four nodes, with uplinks that are too narrow."""
    wiring = fat_tree(nodes, nodes_per_leaf=4, devices=8, oversubscription=oversubscription)
    names = wiring.names
    return NodePool(
        name=accelerator,
        cluster=find_cluster(f"{accelerator}:{nodes * 8}", FACTS),
        wiring=wiring,
        free=names if free is None else tuple(names[n] for n in free),
        coming=tuple((seconds, names[n]) for seconds, n in coming),
    )


def leaves(there: NodePool, nodes: tuple[str, ...]) -> list[int]:
    return [int(there.wiring.leaf[there.wiring.names.index(node), 0]) for node in nodes]


def test_a_job_of_one_leaf_is_put_on_one_leaf_though_other_nodes_are_free() -> None:
    there = pool(free=(0, 1, 2, 5, 8, 9, 10, 11, 13))
    choice = choose_nodes(SMALL, FOUR_NODES, [there], steps=1000)
    assert choice.chosen is not None
    assert leaves(there, choice.chosen.nodes) == [2, 2, 2, 2]
    assert choice.chosen.bytes_by_tier["spine"] == 0
    assert choice.chosen.wait_seconds == 0
    assert "4 nodes of h100-sxm are free" in choice.reason


def test_the_bytes_that_it_predicts_are_those_of_its_own_order() -> None:
    there = pool(free=(0, 1, 4, 5, 8, 9, 12, 13))
    choice = choose_nodes(LARGE, EIGHT_NODES, [there], steps=10)
    assert choice.chosen is not None
    numbers = np.array([there.wiring.names.index(node) for node in choice.chosen.nodes])
    placement = Placement.of_nodes(numbers, devices=8, ranks=64)
    sent = traffic(LARGE, find_cluster("h100-sxm:64", FACTS), EIGHT_NODES, usual_stack("NVIDIA"))
    assert total(crossing(placement, there.wiring, sent), there.wiring).by_tier == pytest.approx(
        choice.chosen.bytes_by_tier
    )


def test_a_long_job_waits_for_a_better_placement_and_a_short_one_does_not() -> None:
    scattered, better = (0, 4, 8, 12), ((600.0, 1), (600.0, 2), (600.0, 3))
    there = pool(free=scattered, coming=better)
    short = choose_nodes(SMALL, FOUR_NODES, [there], steps=10)
    long = choose_nodes(SMALL, FOUR_NODES, [there], steps=100_000)
    assert short.chosen is not None and long.chosen is not None
    assert (short.chosen.wait_seconds, long.chosen.wait_seconds) == (0.0, 600.0)
    assert leaves(there, long.chosen.nodes) == [0, 0, 0, 0]
    assert long.chosen.step_seconds < short.chosen.step_seconds
    gained = 100_000 * (short.chosen.step_seconds - long.chosen.step_seconds)
    assert long.worth_waiting_seconds == pytest.approx(gained)
    assert "after 10 min a step takes" in long.reason
    assert [option.wait_seconds for option in long.options] == [0.0, 600.0]


def test_without_enough_nodes_it_waits_or_says_how_many_are_missing() -> None:
    later = choose_nodes(SMALL, FOUR_NODES, [pool(free=(0, 1, 2), coming=((60.0, 3),))], steps=10)
    assert later.chosen is not None and later.chosen.wait_seconds == 60
    assert "free in 60 s" in later.reason
    never = choose_nodes(SMALL, FOUR_NODES, [pool(free=(0, 1))], steps=10)
    assert (never.chosen, never.refused) == (None, False)
    assert never.reason == "4 nodes needed, 2 free or coming free"


def test_a_job_that_does_not_fit_is_refused_with_the_nearest_that_does() -> None:
    whole = Layout(gpus=64)
    choice = choose_nodes(LARGE, whole, [pool()], steps=10)
    assert choice.refused and choice.chosen is None
    assert choice.reason.startswith("refused: needs ")
    assert choice.nearest is not None and choice.nearest.gpus == 64
    fits = choose_nodes(LARGE, choice.nearest, [pool()], steps=10)
    assert fits.chosen is not None
    few = choose_nodes(LARGE, Layout(gpus=8), [pool()], steps=10)
    assert few.nearest is not None and few.nearest.gpus > 8
    assert f"it fits on {few.nearest.gpus} devices" in few.reason
    none = choose_nodes(LARGE, Layout(gpus=8), [pool(nodes=1)], steps=10)
    assert none.nearest is None and "nothing fits" in none.reason
    many = choose_nodes(SMALL, Layout(gpus=64), [pool(nodes=4)], steps=10)
    assert "8 nodes needed, h100-sxm has 4" in many.reason


def test_a_small_job_leaves_large_memory_free_while_it_can() -> None:
    small, large = pool("h100-sxm"), pool("h200-sxm")
    for pools in ([small, large], [large, small]):
        assert choose_nodes(SMALL, FOUR_NODES, pools, steps=10).pool == "h100-sxm"
    full = pool("h100-sxm", free=(0,))
    assert choose_nodes(SMALL, FOUR_NODES, [full, large], steps=10).pool == "h200-sxm"


def test_nodes_that_nobody_knows_and_empty_requests_are_refused() -> None:
    there = pool()
    with pytest.raises(UnknownNameError):
        NodePool(name="a", cluster=there.cluster, wiring=there.wiring, free=("nowhere",))
    with pytest.raises(InputError):
        pool(coming=((-1.0, 3),))
    with pytest.raises(InputError):
        choose_nodes(SMALL, FOUR_NODES, [], steps=10)
