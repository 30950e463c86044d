"""Ranks on devices: bytes are counted exactly, placements are permutations and no worse than names."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.cluster import Cluster, LinkTier, find_cluster
from computeflow.cluster.placement import Placement
from computeflow.cluster.topology import Topology, read_topology
from computeflow.cluster.wiring import Ints, Wiring, fat_tree, rails, torus, wiring_of
from computeflow.errors import InputError
from computeflow.planning.placement import (
    Flow,
    Traffic,
    crossing,
    effect,
    hostname_order,
    launch,
    place,
    random_order,
    total,
    traffic,
)
from computeflow.planning.placement.rank_orders import NVLINK_COST
from computeflow.prediction import STACKS, load_parameters, predict
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import of_job
from computeflow.workload import Job, Layout, Layouts

FACTS = load_catalog()
CLUSTER = find_cluster("h100-sxm:512", FACTS)
DENSE = Job(model=FACTS.models["llama-3.1-70b"], global_batch=512, seq_len=8192)
EXPERTS = Job(model=FACTS.models["deepseek-v3"], global_batch=512, seq_len=4096)
CUTS = Layout(gpus=512, tp=8, pp=8)


def ring(ranks: int, stride: int = 1, size: float = 1.0) -> Flow:
    return Flow(account="comm.dp", ranks=ranks, stride=stride, pattern="ring", bytes=size)


def everyone(ranks: int, stride: int = 1, *, copies: float = 0.0) -> Flow:
    return Flow(
        account="comm.ep",
        ranks=ranks,
        stride=stride,
        pattern="all",
        bytes=ranks - 1.0,
        copies=copies,
    )


def in_order(wiring: Wiring, *nodes: int, ranks: int | None = None) -> Placement:
    ranks = ranks or len(nodes) * wiring.devices
    return Placement.of_nodes(np.array(nodes), devices=wiring.devices, ranks=ranks)


def tiers(placement: Placement, wiring: Wiring, *flows: Flow) -> dict[str, float]:
    sent = Traffic(gpus=len(placement), flows=flows)
    found = total(crossing(placement, wiring, sent), wiring).by_tier
    return {tier: size for tier, size in found.items() if size}


def cost(placement: Placement, wiring: Wiring, sent: Traffic) -> float:
    """The cost that `place` minimises, from the exact count."""
    found = total(crossing(placement, wiring, sent), wiring).by_tier
    up = wiring.leaf_oversubscription
    pod, core = 1 + up, 1 + up + up * wiring.pod_oversubscription
    return (
        NVLINK_COST * found["block"]
        + found["leaf"]
        + found["torus"]
        + pod * found["spine"]
        + core * found["core"]
    )


# Counting


def test_a_ring_through_two_leaves_crosses_twice() -> None:
    wiring = fat_tree(4, nodes_per_leaf=2, devices=1)
    assert tiers(in_order(wiring, 0, 1, 2, 3), wiring, ring(4)) == {"leaf": 2.0, "spine": 2.0}
    assert tiers(in_order(wiring, 0, 2, 1, 3), wiring, ring(4)) == {"spine": 4.0}


def test_the_core_joins_pods() -> None:
    wiring = fat_tree(4, nodes_per_leaf=1, leaves_per_pod=2, devices=1)
    assert tiers(in_order(wiring, 0, 1, 2, 3), wiring, ring(4)) == {"spine": 2.0, "core": 2.0}


def test_rings_of_one_device_each_stay_on_their_rail() -> None:
    """Two nodes of a group share a leaf per rail; the rings of all devices use their own."""
    wiring = rails(4, rails=2, nodes_per_group=2, devices=2)
    placement = in_order(wiring, 0, 1)
    assert tiers(placement, wiring, ring(2, stride=2)) == {"leaf": 4.0}
    found = crossing(placement, wiring, Traffic(gpus=4, flows=(ring(2, stride=2),)))["comm.dp"]
    assert found.nic[:2].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert not found.leaf.any()


def test_bytes_for_another_rail_first_cross_nvlink() -> None:
    """A ring of four over two nodes: two edges inside, two between; those change the device."""
    wiring = rails(2, rails=2, nodes_per_group=2, devices=2)
    assert tiers(in_order(wiring, 0, 1), wiring, ring(4)) == {"node": 4.0, "leaf": 2.0}
    one_leaf = fat_tree(2, nodes_per_leaf=2, devices=2)
    assert tiers(in_order(one_leaf, 0, 1), one_leaf, ring(4)) == {"node": 2.0, "leaf": 2.0}


def test_a_rail_decides_which_leaves_a_message_meets() -> None:
    """Nodes that share the leaf of rail 0 alone: the ring of device 1 goes through the spine."""
    wiring = Wiring(
        names=("a", "b"),
        devices=2,
        leaf=np.array([[0, 1], [0, 2]]),
        parent=np.zeros(3, np.int64),
    )
    assert tiers(in_order(wiring, 0, 1), wiring, ring(2, stride=2)) == {"leaf": 2.0, "spine": 2.0}


def test_a_chain_sends_both_ways_and_closes_when_interleaved() -> None:
    wiring = fat_tree(3, nodes_per_leaf=1, devices=1)
    chain = Flow(account="comm.pp", ranks=3, stride=1, pattern="chain", bytes=5.0)
    assert tiers(in_order(wiring, 0, 1, 2), wiring, chain) == {"spine": 20.0}
    closed = replace(chain, closing=1.0)
    assert tiers(in_order(wiring, 0, 1, 2), wiring, closed) == {"spine": 22.0}


def test_all_to_all_counts_every_pair() -> None:
    wiring = fat_tree(4, nodes_per_leaf=2, devices=2)
    found = tiers(in_order(wiring, 0, 1, 2, 3), wiring, everyone(8))
    assert found == {"node": 8.0, "leaf": 16.0, "spine": 32.0}


def test_a_deduplicating_dispatcher_sends_a_token_once_to_a_node() -> None:
    """Two copies of a token to four ranks on two nodes: 3 of 4 times one of them goes there."""
    wiring = rails(2, rails=2, nodes_per_group=2, devices=2)
    every = tiers(in_order(wiring, 0, 1), wiring, everyone(4))
    once = tiers(in_order(wiring, 0, 1), wiring, everyone(4, copies=2.0))
    assert every["leaf"] == 8.0
    assert once["leaf"] == pytest.approx(8.0 * (1 - 0.5**2) / (2 * 0.5))
    assert once["node"] == every["node"] == 4.0 + 4.0


def test_an_nvlink_block_joins_its_nodes() -> None:
    wiring = fat_tree(4, nodes_per_leaf=4, devices=1, nodes_per_block=2)
    assert tiers(in_order(wiring, 0, 1, 2, 3), wiring, ring(4)) == {"block": 2.0, "leaf": 2.0}


def test_bytes_on_a_torus_count_once_for_every_link() -> None:
    wiring = torus((4, 4), devices=1)
    assert tiers(in_order(wiring, 0, 1, 2, 3), wiring, ring(4)) == {"torus": 4.0}
    assert tiers(in_order(wiring, 0, 10), wiring, ring(2)) == {"torus": 8.0}


def test_uplinks_carry_what_leaves_their_leaf() -> None:
    wiring = fat_tree(4, nodes_per_leaf=2, leaves_per_pod=1, devices=1)
    sent = Traffic(gpus=4, flows=(ring(4),))
    found = crossing(in_order(wiring, 0, 1, 2, 3), wiring, sent)["comm.dp"]
    assert found.leaf.tolist() == found.pod.tolist() == [1.0, 1.0]
    assert found.nic.reshape(-1).tolist() == [1.0, 1.0, 1.0, 1.0]


@st.composite
def wirings(draw: st.DrawFn) -> Wiring:
    """Any nodes on any leaves, rail by rail; some with NVLink blocks, some on a torus."""
    nodes, devices = draw(st.integers(1, 14)), draw(st.sampled_from([1, 2, 4]))
    count = draw(st.integers(1, 6))
    columns = draw(st.integers(1, devices))
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    if draw(st.integers(0, 4)) == 0:
        return torus((nodes, 2), devices=devices)
    return Wiring(
        names=tuple(f"n{number}" for number in range(nodes)),
        devices=devices,
        leaf=numbers.integers(0, count, (nodes, columns)),
        parent=numbers.integers(0, 2, count),
        block=numbers.integers(0, 3, nodes) if draw(st.booleans()) else None,
        leaf_oversubscription=draw(st.sampled_from([1.0, 4.0])),
        pod_oversubscription=draw(st.sampled_from([1.0, 2.0])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Wiring, Ints, Traffic]:
    """A wiring, an allocation of it, and traffic that fits there."""
    wiring = draw(wirings())
    taken = draw(st.integers(1, wiring.nodes))
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(wiring.nodes)
    used = draw(st.integers(1, taken)) * wiring.devices
    flows = []
    for ranks in [n for n in range(2, used + 1) if used % n == 0]:
        stride = draw(st.sampled_from([s for s in range(1, used + 1) if used % (ranks * s) == 0]))
        flows.append(draw(st.sampled_from([ring(ranks, stride), everyone(ranks, stride)])))
    return wiring, order[:taken], Traffic(gpus=used, flows=tuple(flows))


@given(cases(), st.integers(0, 5))
def test_nothing_is_lost_between_the_tiers(case: tuple[Wiring, Ints, Traffic], seed: int) -> None:
    """Bytes by tier, without what NVLink forwards, are all bytes that are sent."""
    wiring, nodes, sent = case
    flat = replace(wiring, leaf=wiring.leaf[:, :1])  # one rail: nothing is forwarded
    found = total(crossing(random_order(sent.gpus, flat, nodes, seed=seed), flat, sent), flat)
    if wiring.coordinates is None:
        assert found.tiers.sum() == pytest.approx(sum(f.bytes for f in sent.flows) * sent.gpus)
    assert found.nic.sum() >= found.leaf.sum() >= found.pod.sum()


# Placing


@given(cases())
def test_a_placement_is_a_permutation_that_costs_no_more_than_host_names(
    case: tuple[Wiring, Ints, Traffic],
) -> None:
    wiring, nodes, sent = case
    ours = place(sent, wiring, nodes, effort=400)
    ours.check(wiring)
    assert len(ours) == sent.gpus
    assert set(ours.node.tolist()) <= set(nodes.tolist())
    assert cost(ours, wiring, sent) <= cost(
        hostname_order(sent.gpus, wiring, nodes), wiring, sent
    ) * (1 + 1e-9)


def test_the_same_seed_gives_the_same_placement() -> None:
    wiring = fat_tree(64, nodes_per_leaf=4, devices=8)
    nodes = np.random.default_rng(3).choice(64, 64, replace=False)
    sent = traffic(DENSE, CLUSTER, CUTS)
    one, two = (place(sent, wiring, order) for order in (nodes, nodes[::-1]))
    assert one.node.tolist() == two.node.tolist()


@pytest.mark.parametrize(
    ("wiring", "limit"),
    [
        (fat_tree(256, nodes_per_leaf=32, oversubscription=4.0), 0.5),
        (rails(256, rails=4, nodes_per_group=48), 0.5),
        (torus((8, 8, 4), devices=8), 0.5),
    ],
    ids=["tree", "rails", "torus"],
)
def test_bytes_that_go_far_are_at_least_halved(wiring: Wiring, limit: float) -> None:
    sent = traffic(DENSE, CLUSTER, CUTS)
    for seed in range(4):
        nodes = np.random.default_rng(seed).choice(256, 64, replace=False)
        ours, chance = (
            total(crossing(order, wiring, sent), wiring).tiers[3:].sum()
            for order in (place(sent, wiring, nodes), random_order(512, wiring, nodes, seed=seed))
        )
        assert ours <= limit * chance


def test_rings_that_carry_most_fill_leaves_of_their_size() -> None:
    """Eight leaves of eight nodes, eight rings of eight: only pipelines cross."""
    wiring = fat_tree(64, nodes_per_leaf=8)
    sent = traffic(replace(DENSE, global_batch=64), CLUSTER, CUTS)
    nodes = np.random.default_rng(0).permutation(64)
    found = crossing(place(sent, wiring, nodes), wiring, sent)
    assert found["comm.dp"].between_leaves == 0
    assert found["comm.pp"].between_leaves == pytest.approx(
        2 * 7 * 64 * sent.bytes_by_account["comm.pp"]
    )


def test_few_leaves_are_the_wrong_goal_where_every_nic_has_its_own() -> None:
    """a and b share all leaves, crosswise: the switches are the same two, the rails are not."""
    wiring = Wiring(
        names=("a", "b", "c", "d"),
        devices=2,
        leaf=np.array([[0, 1], [1, 0], [0, 1], [1, 0]]),
        parent=np.zeros(2, np.int64),
    )
    pairs = Traffic(gpus=8, flows=(ring(2, stride=2),))
    found = place(pairs, wiring, range(4)).node[::2].tolist()
    assert {frozenset(found[:2]), frozenset(found[2:])} == {frozenset({0, 2}), frozenset({1, 3})}


def test_experts_stay_inside_an_nvlink_block() -> None:
    wiring = fat_tree(36, nodes_per_leaf=18, devices=4, nodes_per_block=18)
    nodes = np.random.default_rng(1).permutation([*range(16), *range(20, 36)])
    spread = Traffic(gpus=128, flows=(everyone(32),))
    found = total(crossing(place(spread, wiring, nodes), wiring, spread), wiring).by_tier
    assert found["block"] > 0
    assert found["leaf"] + found["spine"] == 0


def test_nodes_that_are_not_needed_are_those_that_lie_apart() -> None:
    wiring = fat_tree(12, nodes_per_leaf=4, devices=1)
    sent = Traffic(gpus=4, flows=(ring(4),))
    ours = place(sent, wiring, [0, 4, 5, 8, 9, 10, 11])
    assert sorted(ours.node.tolist()) == [8, 9, 10, 11]


def test_two_thousand_nodes_are_placed_and_counted_in_time() -> None:
    wiring = rails(4096, rails=8, nodes_per_group=32, groups_per_pod=8)
    sent = traffic(
        replace(DENSE, global_batch=2048),
        find_cluster("h100-sxm:16384", FACTS),
        Layout(gpus=16384, tp=8, pp=16, vp=5),
    )
    nodes = np.random.default_rng(0).choice(4096, 2048, replace=False)
    start = time.process_time()
    ours = place(sent, wiring, nodes)
    placed = time.process_time()
    crossing(ours, wiring, sent)
    assert placed - start < 10
    assert time.process_time() - placed < 1


# Traffic

UNIT_LINKS = {
    "link_efficiency": 1.0, "nic_efficiency": 1.0, "exchange_efficiency": 1.0, "link_hop": 0.0,
    "tp_hidden": 0.0, "ep_latency": 0.0, "ep_hidden": 0.0, "p2p_exposed": 1.0, "network_hop": 0.0,
    "dp_hidden": 0.0, "shard_interference": 0.0,
}  # fmt: skip
"""Over links of one byte a second that hide nothing, the predictor's seconds are bytes."""


@pytest.mark.parametrize(
    ("job", "layout", "stack"),
    [
        (DENSE, CUTS, "megatron"),
        (DENSE, Layout(gpus=512, tp=4, pp=4, vp=5, cp=2, recompute="full"), "nemo"),
        (DENSE, Layout(gpus=512, tp=2, pp=2, cp=4, context="all-to-all"), "torchtitan"),
        (EXPERTS, Layout(gpus=512, tp=2, pp=8, ep=16), "nemo"),
        (EXPERTS, Layout(gpus=512, tp=2, etp=2, pp=8, ep=16, recompute="full"), "nemo"),
        (DENSE, Layout(gpus=512, sharding="fsdp"), "torchtitan"),
        (DENSE, Layout(gpus=512, sharding="hsdp", replicas=4), "torchtitan"),
    ],
)
def test_bytes_are_those_of_the_predictor(job: Job, layout: Layout, stack: str) -> None:
    used = replace(STACKS[stack], dispatcher="alltoall", dp_overlap=False)
    slow = replace(CLUSTER, tiers=(LinkTier(devices=512, bytes_per_second=1.0),))
    step = account_step(
        of_job(job, slow, Layouts.of([layout]), used), load_parameters().replaced(UNIT_LINKS)
    )
    found = traffic(job, slow, layout, used).bytes_by_account
    for account, size in found.items():
        seconds = float(step.accounts[account][0])
        if account == "comm.dp" and layout.sharding in ("fsdp", "hsdp"):
            assert size == pytest.approx(seconds, rel=1e-3)  # gathering hides behind what it can
            continue
        if account == "comm.cp" and layout.context == "ring":
            seconds *= 2  # half of the ring is hidden
        if account == "comm.pp":
            seconds /= 2  # there and back
        assert size == pytest.approx(seconds, rel=1e-6), account
    sent = {name for name in step.accounts if name.startswith("comm.") and step.accounts[name] > 1}
    assert sent == set(found)


def test_an_impossible_layout_is_refused() -> None:
    with pytest.raises(InputError, match="does not divide"):
        traffic(DENSE, CLUSTER, replace(CUTS, tp=7))


# Effect


def step_of(placement: Placement, wiring: Wiring, cluster: Cluster = CLUSTER) -> float:
    return effect(DENSE, cluster, CUTS, placement, wiring, neighbours="busy").step_seconds


def test_without_oversubscription_the_step_is_the_predicted_one() -> None:
    wiring = fat_tree(64, nodes_per_leaf=8)
    expected = predict(DENSE, CLUSTER, CUTS).step_seconds
    chance = random_order(512, wiring, range(64), seed=0)
    assert step_of(chance, wiring) == pytest.approx(expected)
    assert step_of(in_order(wiring, *range(64)), wiring) == pytest.approx(expected)


def test_on_a_narrow_tree_a_better_order_is_faster() -> None:
    wiring = fat_tree(64, nodes_per_leaf=8, oversubscription=4.0)
    ours = place(traffic(DENSE, CLUSTER, CUTS), wiring, range(64))
    chance = random_order(512, wiring, range(64), seed=0)
    assert step_of(ours, wiring) < step_of(chance, wiring)
    slowdowns = effect(DENSE, CLUSTER, CUTS, chance, wiring).slowdowns
    assert slowdowns["comm.dp"] == pytest.approx(4.0)
    assert slowdowns["comm.tp"] == 1.0
    least = effect(DENSE, CLUSTER, CUTS, chance, wiring).least_seconds
    assert 0 < least["nic"] < least["leaf"]


# Launchers


def a_placement() -> tuple[Placement, Wiring]:
    wiring = fat_tree(4, nodes_per_leaf=2, devices=2)
    return in_order(wiring, 2, 0, 3), wiring


def test_hostfiles_list_nodes_with_their_slots() -> None:
    assert launch.hostfile(*a_placement()) == "node2 slots=2\nnode0 slots=2\nnode3 slots=2\n"


def test_rankfiles_bind_every_rank() -> None:
    text = launch.rankfile(*a_placement(), cores_per_rank=8)
    assert text.splitlines()[:3] == [
        "rank 0=node2 slot=0-7",
        "rank 1=node2 slot=8-15",
        "rank 2=node0 slot=0-7",
    ]
    assert launch.rankfile(*a_placement()).splitlines()[1] == "rank 1=node2 slot=1"


def test_slurm_hostfiles_name_the_node_of_every_task() -> None:
    text = launch.slurm_hostfile(*a_placement())
    assert text.split() == ["node2", "node2", "node0", "node0", "node3", "node3"]


def test_nodes_are_numbered_for_torchrun_kubernetes_and_ray() -> None:
    assert launch.torchrun_node_ranks(*a_placement()) == "node2 0\nnode0 1\nnode3 2\n"
    assert json.loads(launch.pod_indices(*a_placement())) == {
        "0": "node2",
        "1": "node0",
        "2": "node3",
    }
    assert json.loads(launch.ray_bundles(*a_placement())) == ["node2", "node0", "node3"]


@settings(deadline=None, max_examples=40)
@given(cases())
def test_written_files_read_back_as_the_placement(case: tuple[Wiring, Ints, Traffic]) -> None:
    wiring, nodes, sent = case
    ours = place(sent, wiring, nodes, effort=100)
    names = [wiring.names[node] for node in ours.node]
    lines = launch.rankfile(ours, wiring, cores_per_rank=3).splitlines()
    read = [re.fullmatch(r"rank (\d+)=(\S+) slot=(\d+)-\d+", line) for line in lines]
    assert [(int(m[1]), m[2], int(m[3]) // 3) for m in read if m] == [
        (rank, name, int(device))
        for rank, (name, device) in enumerate(zip(names, ours.device, strict=True))
    ]
    assert launch.slurm_hostfile(ours, wiring).split() == names
    slots = [line.split(" slots=") for line in launch.hostfile(ours, wiring).splitlines()]
    assert [name for name, count in slots for _ in range(int(count))] == names
    order = [wiring.names[node] for node in ours.node_order]
    assert json.loads(launch.ray_bundles(ours, wiring)) == order
    assert list(json.loads(launch.pod_indices(ours, wiring)).values()) == order
    numbered = [line.split() for line in launch.torchrun_node_ranks(ours, wiring).splitlines()]
    assert numbered == [[name, str(number)] for number, name in enumerate(order)]


def test_ranks_that_do_not_follow_each_other_need_a_file_of_ranks() -> None:
    wiring = fat_tree(2, nodes_per_leaf=2, devices=2)
    mixed = Placement(node=np.array([0, 1, 0, 1]), device=np.array([0, 0, 1, 1]))
    assert launch.slurm_hostfile(mixed, wiring).split() == ["node0", "node1", "node0", "node1"]
    with pytest.raises(InputError, match="rankfile"):
        launch.torchrun_node_ranks(mixed, wiring)
    turned = Placement(node=np.array([0, 0]), device=np.array([1, 0]))
    with pytest.raises(InputError, match="order of ranks"):
        launch.slurm_hostfile(turned, wiring)


# Hostile inputs


@pytest.mark.parametrize(
    ("allocation", "message"),
    [
        ([0, 1, 1, 2], "node 1 is twice"),
        ([0, 1], "4 ranks need 4 nodes of 1 devices; 2 given"),
        ([0, 1, 2, 9], "node 9"),
        ([0, 1, 2, -1], "allocation"),
        ([], "one or more"),
    ],
)
def test_a_wrong_allocation_is_refused(allocation: list[int], message: str) -> None:
    wiring = fat_tree(8, nodes_per_leaf=2, devices=1)
    sent = Traffic(gpus=4, flows=(ring(4),))
    with pytest.raises(InputError, match=message):
        place(sent, wiring, allocation)
    with pytest.raises(InputError, match=message):
        hostname_order(4, wiring, allocation)
    with pytest.raises(InputError, match=message):
        random_order(4, wiring, allocation, seed=0)


def test_a_wrong_wiring_is_refused() -> None:
    good = fat_tree(4, nodes_per_leaf=2)
    wrong: list[dict[str, object]] = [
        {"names": ("a", "a", "b", "c")},
        {"names": ()},
        {"leaf": np.zeros((3, 1), np.int64)},
        {"leaf": np.full((4, 1), 7)},
        {"leaf": np.zeros((4, 9), np.int64)},
        {"parent": np.array([-1, 0])},
        {"block": np.zeros(3, np.int64)},
        {"torus": (2, 2)},
        {"torus": (2, 2), "coordinates": np.full((4, 2), 5)},
        {"torus": (2, 2), "coordinates": np.zeros((4, 2), np.int64)},
        {"leaf_oversubscription": 0.5},
    ]
    for change in wrong:
        with pytest.raises(InputError):
            replace(good, **change)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        fat_tree(0, nodes_per_leaf=1)
    for shape in ((), (2, 0)):
        with pytest.raises(InputError):
            torus(shape)


def test_a_wrong_placement_or_flow_is_refused() -> None:
    wiring = fat_tree(2, nodes_per_leaf=2, devices=2)
    zero = np.zeros(2, np.int64)
    with pytest.raises(InputError, match="two ranks on one device"):
        Placement(node=zero, device=zero)
    with pytest.raises(InputError, match="the wiring has"):
        crossing(
            Placement(node=zero + 5, device=np.arange(2)), wiring, Traffic(gpus=2, flows=(ring(2),))
        )
    with pytest.raises(InputError, match="2 ranks"):
        crossing(Placement(node=zero, device=np.arange(2)), wiring, Traffic(gpus=4, flows=()))
    with pytest.raises(InputError, match="do not divide"):
        Traffic(gpus=6, flows=(ring(4),))
    with pytest.raises(InputError):
        ring(1)
    with pytest.raises(InputError):
        ring(2, size=float("nan"))


@pytest.mark.shared
def test_the_real_wiring_is_read_and_its_bytes_are_halved(data_folder: Path) -> None:
    from benchmarks.prove_placement import real_wiring

    path = data_folder / "cluster" / "zhejianglab_a100_cluster_topology.csv"
    wiring = real_wiring(path.read_text())
    assert (wiring.nodes, wiring.rails, len(wiring.parent)) == (253, 4, 20)
    assert len(np.unique(wiring.leaf, axis=0)) == 5
    sent = traffic(DENSE, CLUSTER, CUTS)
    nodes = np.random.default_rng(0).choice(253, 64, replace=False)
    ours, chance = (
        total(crossing(order, wiring, sent), wiring).between_leaves
        for order in (place(sent, wiring, nodes), random_order(512, wiring, nodes, seed=0))
    )
    assert ours <= 0.5 * chance


def rails_csv(nodes: int, per_leaf: int) -> str:
    rows = ["node,nic,leaf,spine"]
    for node in range(nodes):
        rows += [
            f"gpu{node:03d},mlx5_{rail},leaf{node // per_leaf}-{rail},spine{node // (4 * per_leaf)}"
            for rail in range(4)
        ]
    return "\n".join(rows) + "\n"


def test_a_topology_becomes_a_wiring() -> None:
    wiring = wiring_of(read_topology(rails_csv(16, 2), "wires.csv"), 8)
    assert (wiring.nodes, wiring.rails, wiring.devices) == (16, 4, 8)
    assert (wiring.leaf[0] == wiring.leaf[1]).all()
    assert not set(wiring.leaf[0]) & set(wiring.leaf[2])
    assert len(set(wiring.parent[wiring.leaf[:, 0]].tolist())) == 2
    lines = rails_csv(16, 2).splitlines()
    lacking = wiring_of(read_topology("\n".join(lines[:-1]), "wires.csv"), 8)
    last = lacking.leaf[15, 3]
    assert (lacking.leaf == last).sum() == 1  # a leaf of its own
    with pytest.raises(InputError, match="no nodes"):
        wiring_of(Topology(), 8)


def test_place_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wires.csv").write_text(rails_csv(64, 8))
    mine = str(tmp_path / "mine.toml")
    assert (
        run(
            [
                "cluster",
                "import",
                str(tmp_path / "wires.csv"),
                "--accelerator",
                "h100-sxm",
                "--to",
                mine,
            ]
        )
        == 0
    )
    capsys.readouterr()
    job = [
        "place",
        "llama-3.1-70b",
        "--on",
        mine,
        "--global-batch",
        "512",
        "--seq-len",
        "8192",
        "--tp",
        "8",
        "--pp",
        "8",
    ]
    assert run(job) == 0
    (heads,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("order ")]
    assert "between leaves" in heads and "pod" not in heads
    assert run([*job, "--to", str(tmp_path / "out"), "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    across = {
        name: order["bytes_by_tier"]["spine"] + order["bytes_by_tier"]["core"]
        for name, order in data["orders"].items()
    }
    assert across["ours"] <= across["by name"] < across["random"]
    assert across["ours"] < 0.5 * across["random"]
    assert sorted(data["nodes"]) == [f"gpu{n:03d}" for n in range(64)]
    assert len((tmp_path / "out" / "slurm_hostfile").read_text().splitlines()) == 512
    for arguments, words in (
        ([*job, "--nodes", "gpu[000-062]"], "impossible layout"),
        ([*job, "--nodes", "cpu000"], "unknown node"),
        ([*job[:3], "h100-sxm:512", *job[4:]], "without a topology"),
    ):
        assert run(arguments) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert words in message
