"""Time of collectives: which algorithm wins where, and what must never make one faster."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.cluster.collectives import (
    Floats,
    Group,
    Links,
    all_reduce_seconds,
    gather_seconds,
    ring_speed,
)

RANKS = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0]
Operation = Callable[[Group, Floats], Floats]
OPERATIONS = [all_reduce_seconds, gather_seconds]
sizes = st.floats(1e3, 1e11)
years = st.sampled_from([2018.0, 2021.0, 2023.0, 2026.0])


def links(
    rows: int = 1,
    *,
    year: float = 2026.0,
    switch: bool = False,
    torus: bool = False,
    domain: float = 8.0,
    link: float = 450e9,
    network: float = 50e9,
) -> Links:
    """Domains of 8 with NVLink of the fourth generation, and 400 Gb/s for each device."""
    row = np.ones((rows, 1))
    return Links(
        devices=row * [domain, 1e6, np.inf, np.inf],
        bytes_per_second=row * [link, network, np.inf, np.inf],
        scale_up_efficiency=0.8,
        network_efficiency=0.9,
        year=np.full(rows, year),
        switch_reduces=np.full(rows, switch),
        torus=np.full(rows, torus),
    )


def group(ranks: float, stride: float = 1.0, **options: object) -> Group:
    made = links(**options)  # type: ignore[arg-type]
    return Group.of(made, np.full(1, ranks), np.full(1, stride))


def test_a_group_knows_how_it_lies_in_the_domains() -> None:
    wide = group(64, stride=2)
    assert (wide.members[0], wide.domains[0]) == (4, 16)
    assert wide.speed[0] == pytest.approx(4 * 50e9 * 0.9)
    alone = group(16, stride=8)
    assert (alone.members[0], alone.domains[0]) == (1, 16)
    assert np.isinf(alone.inside[0])
    assert alone.speed[0] == pytest.approx(50e9 * 0.9)
    within = group(8)
    assert (within.members[0], within.domains[0]) == (8, 1)
    assert np.isinf(within.outside[0])
    assert ring_speed(links(), np.full(1, 8.0), np.ones(1)) == within.speed


def test_one_rank_takes_no_time() -> None:
    assert all_reduce_seconds(group(1), np.full(1, 1e9))[0] == 0
    assert gather_seconds(group(1), np.full(1, 1e9))[0] == 0
    assert group(1).latency[0] == 0


@pytest.mark.parametrize("operation", OPERATIONS)
@given(size=sizes, factor=st.floats(1.0, 100.0), year=years, switch=st.booleans())
def test_more_bytes_never_take_less(
    operation: Operation, size: float, factor: float, year: float, switch: bool
) -> None:
    for ranks in RANKS:
        made = group(ranks, year=year, switch=switch)
        less, more = (operation(made, np.full(1, x))[0] for x in (size, size * factor))
        assert less <= more * (1 + 1e-12)


@pytest.mark.parametrize("operation", OPERATIONS)
@given(size=sizes, year=years, switch=st.booleans(), stride=st.sampled_from([1.0, 2.0, 8.0]))
def test_more_ranks_never_take_less(
    operation: Operation, size: float, year: float, switch: bool, stride: float
) -> None:
    seconds = [
        operation(group(ranks, stride, year=year, switch=switch), np.full(1, size))[0]
        for ranks in RANKS
    ]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(seconds))


@pytest.mark.parametrize("operation", OPERATIONS)
@given(size=sizes, year=years, faster=st.floats(1.0, 10.0))
def test_faster_links_and_newer_libraries_never_take_longer(
    operation: Operation, size: float, year: float, faster: float
) -> None:
    for ranks in RANKS:
        before = operation(group(ranks, year=year), np.full(1, size))[0]
        quick = group(ranks, year=year, link=450e9 * faster, network=50e9 * faster)
        assert operation(quick, np.full(1, size))[0] <= before * (1 + 1e-12)
        newer = group(ranks, year=year + 10, switch=True)
        assert operation(newer, np.full(1, size))[0] <= before * (1 + 1e-12)


@given(size=sizes, count=st.integers(1, 1000))
def test_messages_in_a_row_take_at_least_their_transfers_and_at_most_as_long_as_alone(
    size: float, count: int
) -> None:
    for ranks in RANKS:
        made = group(ranks)
        once = all_reduce_seconds(made, np.full(1, size))[0]
        row = all_reduce_seconds(made, np.full(1, size), float(count))[0]
        assert row <= count * once * (1 + 1e-9)
        assert row >= 0.45 * count * size / made.speed[0]


def test_a_ring_of_1024_takes_as_long_for_one_gigabyte_as_for_two() -> None:
    """Measured: 19.4, 20.2 and 25.4 ms for 1, 2 and 4 GB (nccl-tests issue 322)."""
    ring = group(1024, year=2018)
    one, two, four = (all_reduce_seconds(ring, np.full(1, x * 2.0**30))[0] for x in (1, 2, 4))
    assert one == pytest.approx(19.4e-3, rel=0.25)
    assert two == pytest.approx(20.2e-3, rel=0.25)
    assert four == pytest.approx(25.4e-3, rel=0.25)


def test_trees_stay_flat_where_rings_grow_with_the_ranks() -> None:
    bucket = np.full(1, 25e6)
    few, many = (all_reduce_seconds(group(n), bucket, 100.0)[0] for n in (64, 16384))
    assert many < 2 * few
    rings = [all_reduce_seconds(group(n, year=2018), bucket, 100.0)[0] for n in (64, 16384)]
    assert rings[1] > 100 * rings[0]


def test_aggregated_trees_serve_one_rank_per_domain_only() -> None:
    small = np.full(1, 1e6)
    assert gather_seconds(group(512, stride=8), small) < gather_seconds(
        group(512, stride=8, year=2021), small
    )
    assert gather_seconds(group(512), small) == gather_seconds(group(512, year=2021), small)


def test_switches_reduce_inside_their_domain() -> None:
    """8 H200 with NVLink SHARP: 16 GB at a bus bandwidth of 482 GB/s, without 368."""
    size = np.full(1, 2.0**34)
    with_switch = all_reduce_seconds(group(8, switch=True), size)[0]
    without = all_reduce_seconds(group(8), size)[0]
    assert 1.75 * 2**34 / with_switch == pytest.approx(482e9, rel=0.1)
    assert 1.75 * 2**34 / without == pytest.approx(368e9, rel=0.1)


def test_a_torus_has_fewer_hops_than_a_ring_through_all_devices() -> None:
    torus = group(4096, torus=True, domain=4096.0)
    assert torus.latency[0] < 0.2e-3 < group(4096, domain=4096.0).latency[0]


def test_rows_do_not_know_of_each_other() -> None:
    ranks = np.array(RANKS)
    made = Group.of(links(len(RANKS)), ranks, np.ones(len(RANKS)))
    together = all_reduce_seconds(made, np.full(len(RANKS), 1e8))
    alone = [all_reduce_seconds(group(n), np.full(1, 1e8))[0] for n in RANKS]
    assert together.tolist() == alone
