"""The ledger closes, whatever is done to it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow import codec
from computeflow.errors import InputError, LedgerError, UnknownNameError
from computeflow.ledger import (
    ACCOUNTS,
    Cause,
    Entry,
    Ledger,
    PeakFlops,
    Window,
    concatenate,
    gaps,
    ledger_from_data,
    ledger_to_data,
    merge,
)

SECONDS = st.floats(1e-3, 1e6)


@st.composite
def ledgers(draw: st.DrawFn, gpus: int | None = None, wall: float | None = None) -> Ledger:
    """Any ledger: accounts at any level, causes, joules or none, some accounts unavailable."""
    parts = draw(
        st.lists(
            st.tuples(
                st.sampled_from(sorted(ACCOUNTS)),
                SECONDS,
                st.none()
                | st.builds(
                    Cause, rank=st.integers(0, 99), account=st.sampled_from(sorted(ACCOUNTS))
                ),
                st.none() | st.floats(0, 1e9),
            ),
            min_size=1,
            max_size=12,
        )
    )
    gpus = gpus or draw(st.integers(1, 10_000))
    wall = wall or draw(SECONDS)
    total = math.fsum(seconds for _, seconds, _, _ in parts)
    share = draw(st.floats(0.1, 1.0))
    entries = [
        Entry(account=a, gpu_seconds=s / total * share * gpus * wall, cause=c, joules=j)
        for a, s, c, j in parts
    ]
    missing = draw(st.sets(st.sampled_from(sorted(ACCOUNTS)), max_size=3))
    return Ledger.closed(
        entries,
        gpus=gpus,
        wall_seconds=wall,
        basis="measured",
        window=Window(label="test"),
        unavailable=dict.fromkeys(missing - {"compute.model"}, "a signal"),
    )


def balance(ledger: Ledger) -> float:
    return math.fsum(e.gpu_seconds for e in ledger.entries) / ledger.gpu_seconds


def simple(model: float, **others: float) -> Ledger:
    entries = [Entry(account="compute.model", gpu_seconds=model)]
    entries += [Entry(account=k.replace("_", "."), gpu_seconds=v) for k, v in others.items()]
    wall = model + sum(others.values())
    return Ledger(
        gpus=1,
        wall_seconds=wall,
        entries=tuple(entries),
        basis="measured",
        window=Window(label="step"),
    )


def test_a_ledger_that_does_not_close_cannot_be_built() -> None:
    with pytest.raises(LedgerError, match=r"does not close: 10 GPU-seconds passed.*miss them by 4"):
        Ledger(
            gpus=2,
            wall_seconds=5.0,
            entries=(Entry(account="host", gpu_seconds=6.0),),
            basis="measured",
            window=Window(label="step"),
        )


def test_the_rest_is_booked_as_unexplained() -> None:
    ledger = Ledger.closed(
        [Entry(account="compute.model", gpu_seconds=6.0)],
        gpus=2,
        wall_seconds=5.0,
        basis="measured",
        window=Window(label="step"),
    )
    assert ledger.accounts == {"compute.model": 6.0, "unexplained": 4.0}
    assert ledger.mfu == pytest.approx(0.6)


def test_parts_that_exceed_the_window_are_an_error() -> None:
    with pytest.raises(LedgerError, match="exceed"):
        Ledger.closed(
            [Entry(account="host", gpu_seconds=11.0)],
            gpus=2,
            wall_seconds=5.0,
            basis="measured",
            window=Window(label="step"),
        )


def test_negative_kernel_time_says_that_flops_or_peak_are_wrong() -> None:
    with pytest.raises(LedgerError, match="FLOPs or the peak are wrong"):
        Entry(account="compute.kernel", gpu_seconds=-1.0)


def test_an_unknown_account_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: compute\.model"):
        Entry(account="compute.modell", gpu_seconds=1.0)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_not_booked(seconds: float) -> None:
    with pytest.raises(LedgerError):
        Entry(account="host", gpu_seconds=seconds)


def test_mfu_is_unavailable_rather_than_zero_without_flops() -> None:
    ledger = Ledger.closed(
        [Entry(account="compute", gpu_seconds=3.0)],
        gpus=1,
        wall_seconds=4.0,
        basis="measured",
        window=Window(label="step"),
        unavailable={"compute.model": "the model's shape"},
    )
    assert ledger.mfu is None
    assert ledger.share("compute") == pytest.approx(0.75)


@given(ledgers())
def test_every_ledger_balances(ledger: Ledger) -> None:
    assert balance(ledger) == pytest.approx(1, abs=1e-9)


@given(ledgers(), st.floats(1e-6, 1e6))
def test_scaling_keeps_balance_shares_and_entries(ledger: Ledger, factor: float) -> None:
    scaled = ledger.scale(factor)
    assert balance(scaled) == pytest.approx(1, abs=1e-9)
    assert len(scaled.entries) == len(ledger.entries)
    assert scaled.booked("compute") == pytest.approx(factor * ledger.booked("compute"))


@given(st.lists(ledgers(wall=3.0), min_size=1, max_size=5))
def test_merging_ranks_loses_nothing(parts: list[Ledger]) -> None:
    whole = merge(parts)
    assert whole.gpus == sum(part.gpus for part in parts)
    assert_nothing_lost(whole, parts)


@given(st.lists(ledgers(gpus=8), min_size=1, max_size=5))
def test_windows_in_a_row_lose_nothing(parts: list[Ledger]) -> None:
    whole = concatenate(parts)
    assert whole.wall_seconds == pytest.approx(sum(part.wall_seconds for part in parts))
    assert_nothing_lost(whole, parts)


def assert_nothing_lost(whole: Ledger, parts: list[Ledger]) -> None:
    assert balance(whole) == pytest.approx(1, abs=1e-9)
    keys = {(e.account, e.cause) for part in parts for e in part.entries}
    assert {(e.account, e.cause) for e in whole.entries} == keys
    for name in ACCOUNTS:
        assert whole.booked(name) == pytest.approx(sum(part.booked(name) for part in parts))
    assert set(whole.unavailable) == {name for part in parts for name in part.unavailable}
    known = [e.joules for part in parts for e in part.entries if e.joules is not None]
    assert math.fsum(e.joules for e in whole.entries if e.joules is not None) == pytest.approx(
        math.fsum(known)
    )


@given(ledgers())
def test_a_ledger_survives_json(ledger: Ledger) -> None:
    text = codec.to_json(ledger_to_data(ledger))
    assert ledger_from_data(codec.from_json(text, "text")) == ledger


@given(ledgers(), ledgers(), st.floats(0.01, 100))
def test_gaps_sum_to_the_total_gap(one: Ledger, other: Ledger, ratio: float) -> None:
    lines = gaps(one, other, work_ratio=ratio)
    total = one.gpu_seconds - ratio * other.gpu_seconds
    scale = one.gpu_seconds + ratio * other.gpu_seconds
    assert math.fsum(line.gpu_seconds for line in lines) == pytest.approx(total, abs=1e-9 * scale)
    names = [name for line in lines for name in line.accounts]
    assert len(names) == len(set(names))


@given(ledgers())
def test_a_ledger_has_no_gap_to_itself(ledger: Ledger) -> None:
    assert all(line.gpu_seconds == 0 for line in gaps(ledger, ledger, work_ratio=1.0))


def test_gaps_are_taken_at_equal_model_flops() -> None:
    lines = gaps(simple(20.0, input=6.0, host=4.0), simple(10.0, input=1.0, host=2.0))
    assert {line.label: line.gpu_seconds for line in lines} == {
        "compute.model": 0.0,
        "host": 0.0,
        "input": 4.0,
    }


def test_a_split_is_compared_with_a_whole_at_their_common_level() -> None:
    lines = gaps(simple(10.0, comm=5.0), simple(10.0, comm_tp=1.0, comm_dp=2.0, host=1.0))
    assert {line.label: line.gpu_seconds for line in lines} == {
        "compute.model": 0.0,
        "comm": 2.0,
        "host": -1.0,
    }


def test_what_one_side_cannot_tell_apart_is_compared_together() -> None:
    one_rank = Ledger.closed(
        [
            Entry(account="compute.model", gpu_seconds=10.0),
            Entry(account="comm.dp", gpu_seconds=6.0),
        ],
        gpus=1,
        wall_seconds=16.0,
        basis="measured",
        window=Window(label="step"),
        unavailable={"straggler": "traces of the other ranks"},
    )
    lines = gaps(one_rank, simple(10.0, comm_dp=3.0, straggler=1.0))
    assert {line.label: line.gpu_seconds for line in lines} == {
        "compute.model": 0.0,
        "comm+straggler": 2.0,
    }


def test_without_model_flops_the_ratio_of_work_must_be_given() -> None:
    unknown = Ledger.closed(
        [Entry(account="compute", gpu_seconds=3.0)],
        gpus=1,
        wall_seconds=4.0,
        basis="measured",
        window=Window(label="step"),
        unavailable={"compute.model": "the model's shape"},
    )
    with pytest.raises(LedgerError, match="give the work ratio"):
        gaps(unknown, simple(1.0))
    assert [line.label for line in gaps(unknown, simple(1.0), work_ratio=1.0)] == [
        "compute",
        "unexplained",
    ]


def test_an_unavailable_parent_is_not_a_measured_zero() -> None:
    measured = Ledger.closed(
        [
            Entry(account="compute.model", gpu_seconds=40.0),
            Entry(account="compute.kernel", gpu_seconds=30.0),
        ],
        gpus=1,
        wall_seconds=100.0,
        basis="measured",
        window=Window(label="step"),
        unavailable={"comm": "traces of several ranks"},
    )
    lines = gaps(measured, simple(40.0, compute_kernel=30.0, comm_tp=20.0, comm_dp=10.0))
    assert {line.label: line.gpu_seconds for line in lines} == {
        "compute.model": 0.0,
        "compute.kernel": 0.0,
        "comm+unexplained": 0.0,
    }


def test_a_ledger_may_say_that_seconds_fell_elsewhere_than_usual() -> None:
    published = Ledger.closed(
        [Entry(account="compute.model", gpu_seconds=40.0)],
        gpus=1,
        wall_seconds=100.0,
        basis="measured",
        window=Window(label="run"),
        unavailable={"compute.kernel": "a trace", "restart": "the log"},
        booked_under={"compute.kernel": "unexplained", "restart": "unexplained"},
    )
    lines = gaps(published, simple(40.0, compute_kernel=35.0, restart=5.0, host=10.0))
    assert {line.label: line.gpu_seconds for line in lines} == {
        "compute.model": 0.0,
        "compute.kernel+restart+unexplained": 20.0,
        "host": -10.0,
    }


def test_redone_steps_that_cannot_be_told_apart_need_a_work_ratio() -> None:
    unsure = Ledger.closed(
        [Entry(account="compute.model", gpu_seconds=3.0)],
        gpus=1,
        wall_seconds=4.0,
        basis="measured",
        window=Window(label="run"),
        unavailable={"lost": "step numbers"},
    )
    with pytest.raises(LedgerError, match="steps done again"):
        gaps(unsure, simple(1.0))


def test_mfu_is_unavailable_where_compute_was_booked_whole() -> None:
    whole = Ledger.closed(
        [Entry(account="compute", gpu_seconds=9.0)],
        gpus=1,
        wall_seconds=10.0,
        basis="measured",
        window=Window(label="step"),
    )
    assert whole.mfu is None
    assert "MFU unavailable" in whole._repr_html_()
    split = simple(5.0, idle=5.0)
    assert split.mfu == 0.5
    assert merge([whole, split]).mfu is None


def test_the_share_of_what_is_unavailable_is_not_zero() -> None:
    ledger = Ledger.closed(
        [Entry(account="compute.model", gpu_seconds=1.0)],
        gpus=1,
        wall_seconds=2.0,
        basis="measured",
        window=Window(label="step"),
        unavailable={"comm": "traces"},
    )
    assert ledger.share("comm.dp") is None
    assert ledger.share("idle") == 0.0


def test_the_palm_figure_stands_beside_the_mfu_with_the_peak() -> None:
    peak = PeakFlops(flops=989e12, precision="bf16", palm_ratio=1.1)
    ledger = Ledger.closed(
        [Entry(account="compute.model", gpu_seconds=5.0)],
        gpus=1,
        wall_seconds=10.0,
        basis="predicted",
        window=Window(label="step"),
        peak=peak,
    )
    assert ledger.mfu_palm == pytest.approx(0.55)
    text = "MFU 50.0 % of 989 TFLOP/s dense bf16 (PaLM convention: 55.0 %)"
    assert text in ledger._repr_html_()


def test_energy_that_is_not_known_says_so() -> None:
    part = Entry(account="compute.model", gpu_seconds=5.0, joules=3500.0)
    frame = {"gpus": 1, "wall_seconds": 10.0, "basis": "measured", "window": Window(label="step")}
    partly = Ledger.closed([part], **frame)  # type: ignore[arg-type]
    assert (partly.joules, partly.unavailable) == (None, {"joules": "power readings"})
    whole = Ledger.closed([part], rest_joules=1000.0, **frame)  # type: ignore[arg-type]
    assert (whole.joules, whole.unavailable) == (4500.0, {})


@pytest.mark.parametrize(
    ("gpus", "wall", "seconds"),
    [(10, 1e308, []), (10**310, 1.0, []), (1, 1.0, [1e308, 1e308]), (1, math.inf, [1.0])],
)
def test_numbers_without_end_are_refused(gpus: int, wall: float, seconds: list[float]) -> None:
    with pytest.raises(LedgerError):
        Ledger(
            gpus=gpus,
            wall_seconds=wall,
            basis="measured",
            window=Window(label="step"),
            entries=tuple(Entry(account="host", gpu_seconds=s) for s in seconds),
        )


def test_entries_may_come_from_a_generator_and_the_caller_keeps_no_handle() -> None:
    missing = {"straggler": "other ranks"}
    ledger = Ledger(
        gpus=1,
        wall_seconds=1.0,
        basis="measured",
        window=Window(label="step"),
        entries=(Entry(account="host", gpu_seconds=1.0) for _ in range(1)),  # type: ignore[arg-type]
        unavailable=missing,
    )
    missing["bubble"] = "added later"
    assert ledger.accounts == {"host": 1.0}
    assert "bubble" not in ledger.unavailable


def test_windows_and_job_sizes_that_differ_are_not_put_together() -> None:
    def steps(first: int, total: int | None) -> Ledger:
        return Ledger(
            gpus=1,
            wall_seconds=1.0,
            entries=(Entry(account="host", gpu_seconds=1.0),),
            basis="measured",
            window=Window(label="w", first_step=first, last_step=first + 9),
            gpus_total=total,
        )

    with pytest.raises(LedgerError, match="other steps"):
        merge([steps(0, 8), steps(50, 8)])
    with pytest.raises(LedgerError, match="jobs of"):
        concatenate([steps(0, 8), steps(10, 64)])
    assert merge([steps(0, 8), steps(0, None)]).gpus_total == 8
    assert (steps(0, 8) + steps(10, 8)).window.last_step == 19
    assert steps(0, 8).scale(1000).window.last_step is None


def test_ranks_of_different_windows_are_not_merged() -> None:
    with pytest.raises(LedgerError, match="not the same"):
        merge([simple(1.0), simple(2.0)])


def test_predicted_and_measured_do_not_add_up() -> None:
    measured = simple(1.0)
    predicted = Ledger(
        gpus=1,
        wall_seconds=1.0,
        entries=measured.entries,
        basis="predicted",
        window=measured.window,
    )
    with pytest.raises(LedgerError, match="do not add up"):
        _ = measured + predicted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "computeflow.ledger/9"}, "is not 'computeflow.ledger/1'"),
        ({"gpus": 0}, "no window"),
        ({"gpus": "many"}, "gpus: Expected int, got str"),
        ({"accounts": {"compute.model": 2.0}}, "disagree"),
        ({"entries": [{"account": "compute.model", "gpu_second": 1.0}]}, "gpu_second"),
        ({"basis": "guessed"}, "guessed"),
    ],
)
def test_a_damaged_ledger_file_is_one_clear_error(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ledger_from_data(ledger_to_data(simple(1.0)) | change, "file.json")


def test_a_notebook_shows_the_ledger_as_a_table() -> None:
    page = simple(3.0, host=1.0)._repr_html_()
    assert "<td>compute.model</td>" in page
    assert "MFU 75.0 %" in page


def test_every_account_falls_to_an_account_and_has_an_owner() -> None:
    for account in ACCOUNTS.values():
        assert account.falls_to in ACCOUNTS
        assert account.parent is None or account.parent in ACCOUNTS


def test_a_ledger_written_under_the_old_name_is_read() -> None:
    ledger = replace(simple(1.0), booked_under={"input": "unexplained"})
    data = ledger_to_data(ledger)
    data["fell_to"] = data.pop("booked_under")
    assert ledger_from_data(data) == ledger
