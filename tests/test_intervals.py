"""Sets of time against sets of whole numbers: what is true of one is true of the other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.telemetry.intervals import EMPTY, Intervals, Times, between, union

LOW, HIGH = -12, 12
moments = st.integers(LOW, HIGH)
pairs = st.lists(st.tuples(moments, moments), max_size=8)


def made(some: list[tuple[int, int]]) -> Intervals:
    return union(times(start for start, _ in some), times(end for _, end in some))


def times(some: Iterable[int]) -> Times:
    return np.array(list(some), np.int64)


def points(some: list[tuple[int, int]]) -> set[int]:
    """The model: every nanosecond that one of the pairs covers."""
    return {moment for start, end in some for moment in range(start, end)}


def covered(some: Intervals) -> set[int]:
    return points(list(zip(some.start.tolist(), some.end.tolist(), strict=True)))


def assert_in_order(some: Intervals) -> None:
    assert (some.start < some.end).all()
    assert (some.end[:-1] < some.start[1:]).all(), "intervals that touch are one"


@given(pairs)
def test_a_union_covers_what_its_parts_cover_once(some: list[tuple[int, int]]) -> None:
    whole = made(some)
    assert covered(whole) == points(some)
    assert whole.total == len(points(some))
    assert_in_order(whole)


@given(pairs, pairs)
def test_difference_intersection_and_union_are_those_of_sets(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = made(one), made(other)
    for found, wanted in (
        (a.minus(b), points(one) - points(other)),
        (a.both(b), points(one) & points(other)),
        (a.either(b), points(one) | points(other)),
    ):
        assert covered(found) == wanted
        assert_in_order(found)


@given(pairs, pairs)
def test_the_measure_of_disjoint_parts_adds_up(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = made(one), made(other)
    assert a.minus(b).total + a.both(b).total == a.total
    assert a.minus(b).total + b.minus(a).total + a.both(b).total == a.either(b).total
    assert a.minus(b).both(b).total == 0


@given(pairs, st.lists(moments, max_size=6))
def test_before_and_contains_speak_of_each_moment(
    some: list[tuple[int, int]], asked: list[int]
) -> None:
    whole, model = made(some), points(some)
    assert whole.before(times(asked)).tolist() == [sum(p < t for p in model) for t in asked]
    assert whole.contains(times(asked)).tolist() == [t in model for t in asked]


@given(pairs, pairs)
def test_within_is_of_each_interval_for_itself(
    some: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    whole = made(some)
    forward = [(min(pair), max(pair)) for pair in asked]
    found = whole.within(times(a for a, _ in forward), times(b for _, b in forward))
    assert found.tolist() == [len(points(some) & set(range(a, b))) for a, b in forward]


@given(pairs, moments, moments)
def test_clipping_is_an_intersection_with_one_interval(
    some: list[tuple[int, int]], start: int, end: int
) -> None:
    whole = made(some)
    clipped = whole.clipped(start, end)
    assert covered(clipped) == points(some) & set(range(start, end))
    assert covered(clipped) == covered(whole.both(between(start, end)))
    assert_in_order(clipped)


@given(pairs, st.lists(moments, min_size=2, max_size=6))
def test_what_lies_between_edges_adds_up_to_what_lies_between_the_outer_ones(
    some: list[tuple[int, int]], edges: list[int]
) -> None:
    whole, cuts = made(some), times(sorted(edges))
    steps = np.diff(whole.before(cuts))
    assert (steps >= 0).all()
    assert steps.sum() == whole.clipped(int(cuts[0]), int(cuts[-1])).total


@pytest.mark.parametrize("far", [2**53 + 1, 17 * 10**17, 4 * 10**18])
def test_nanoseconds_of_this_century_are_exact(far: int) -> None:
    whole = union(times([far, far + 2]), times([far + 1, far + 5]))
    assert whole.total == 4
    assert whole.before(times([far + 3])).tolist() == [2]
    assert whole.minus(between(far + 2, far + 3)).start.tolist() == [far, far + 3]


def test_nothing_is_a_set_too() -> None:
    one = between(0, 3)
    assert len(EMPTY) == EMPTY.total == 0
    assert between(3, 3) is EMPTY
    assert one.minus(EMPTY).total == one.either(EMPTY).total == 3
    assert EMPTY.both(one).total == EMPTY.minus(one).total == one.both(EMPTY).total == 0
    assert EMPTY.clipped(0, 1).total == 0
    assert EMPTY.contains(times([1])).tolist() == [False]
