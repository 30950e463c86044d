"""Several ranks: matched, put on one clock, replayed together; who keeps the others waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from computeflow.catalog import load_catalog
from computeflow.diagnosis import Diagnosis
from computeflow.diagnosis.diagnose import diagnose
from computeflow.ledger import Finding
from computeflow.replay.rank_lines import rank_lines
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.job_ledgers import TracedJob
from gloo_maker import HostRank, all_reduce, data_parallel, pipeline, ring
from kineto_maker import Maker

CATALOG = load_catalog()
EVEN = [[30.0, 30.2, 29.9, 30.1], [30.1, 29.8, 30.0, 30.2], [29.9, 30.1, 30.2, 30.0]] * 2


def job(folder: Path) -> TracedJob:
    return audit([folder], CATALOG, cache=False)


def judged(folder: Path) -> tuple[TracedJob, Diagnosis]:
    found = job(folder)
    return found, diagnose(found, CATALOG)


def only(found: Diagnosis) -> Finding:
    (finding,) = found.findings
    return finding


def share(found: TracedJob, account: str) -> float:
    return found.job.ledger.booked(account) / found.job.ledger.gpu_seconds


def ranks(count: int, **more: object) -> list[HostRank]:
    return [HostRank(rank=rank, world=count, **more) for rank in range(count)]  # type: ignore[arg-type]


def gain(found: TracedJob, finding: Finding) -> float:
    assert finding.remedy is not None and finding.remedy.gain_gpu_seconds is not None
    return finding.remedy.gain_gpu_seconds / found.job.ledger.gpu_seconds


def test_equal_ranks_get_no_finding_and_their_ledger_closes(tmp_path: Path) -> None:
    data_parallel(tmp_path, ranks(4), work=EVEN)
    found, diagnosis = judged(tmp_path)
    assert diagnosis.findings == ()
    assert sum(found.job.ledger.accounts.values()) == pytest.approx(found.job.ledger.gpu_seconds)


@pytest.mark.parametrize("shapes", [True, False])
def test_a_rank_that_computes_longer_is_named_with_what_that_costs(
    tmp_path: Path, shapes: bool
) -> None:
    work = [[*row[:2], 1.4 * row[2], row[3]] for row in EVEN]
    data_parallel(tmp_path, ranks(4, shapes=shapes), work=work)
    found, diagnosis = judged(tmp_path)
    finding = only(diagnosis)
    assert (finding.rule, finding.ranks) == ("straggler-rank", (2,))
    assert "1.40 times as long" in finding.title
    assert gain(found, finding) == pytest.approx(12 / 43, rel=0.1)


def test_work_on_one_rank_after_the_step_is_found_across_step_borders(tmp_path: Path) -> None:
    data_parallel(tmp_path, ranks(4), work=EVEN, idle=[25.0, 0, 0, 0])
    found, diagnosis = judged(tmp_path)
    finding = only(diagnosis)
    assert (finding.rule, finding.ranks) == ("straggler-rank", (0,))
    assert "nothing that the profiler records" in finding.title
    assert gain(found, finding) == pytest.approx(25 / 56, rel=0.1)


@pytest.mark.parametrize("by_hand", [True, False])
def test_without_marks_a_slow_rank_that_ends_later_is_found_with_what_it_did(
    tmp_path: Path, by_hand: bool
) -> None:
    made = ranks(4, marked=False, by_hand=by_hand)
    data_parallel(tmp_path, made, work=EVEN, idle=[25.0, 0, 0, 0])
    made[0].work(30.0)
    made[0].write(tmp_path)
    found, diagnosis = judged(tmp_path)
    finding = only(diagnosis)
    assert (finding.rule, finding.ranks) == ("straggler-rank", (0,))
    assert "nothing that the profiler records" in finding.title
    assert gain(found, finding) == pytest.approx(25 / 56, rel=0.15)


def test_what_a_rank_does_after_its_last_collective_costs_all_of_its_time(tmp_path: Path) -> None:
    """The others wait for it at the next step's first collective; its other work delays nobody."""
    made = ranks(4)
    for number in range(1, 7):
        starts = [rank.now for rank in made]
        all_reduce(made)
        for rank in made:
            rank.forward(10.0)
            rank.backward(20.0)
        all_reduce(made)
        for rank, start in zip(made, starts, strict=True):
            rank.optimizer()
            if rank.rank == 0:
                rank.work(20.0, "aten::argsort")
            rank.step(number, start)
    for rank in made:
        rank.write(tmp_path)
    found, diagnosis = judged(tmp_path)
    finding = only(diagnosis)
    assert finding.ranks == (0,) and "aten::argsort" in finding.title
    assert gain(found, finding) == pytest.approx(20 / 52, rel=0.1)


def test_an_annotation_of_the_users_own_says_what_a_rank_did(tmp_path: Path) -> None:
    data_parallel(tmp_path, ranks(4), work=EVEN, idle=[0, 0, 0, 20.0], inside="write_metrics")
    finding = only(judged(tmp_path)[1])
    assert finding.ranks == (3,) and "runs 'write_metrics'" in finding.title


def test_saving_on_one_rank_is_named(tmp_path: Path) -> None:
    data_parallel(tmp_path, ranks(4), work=EVEN, idle=[40.0, 0, 0, 0], inside="checkpoint")
    finding = only(judged(tmp_path)[1])
    assert finding.ranks == (0,) and "saves a checkpoint" in finding.title
    assert finding.remedy is not None and "async_save" in finding.remedy.change


def test_two_slow_ranks_are_one_finding_and_the_others_are_innocent(tmp_path: Path) -> None:
    work = [[row[0], 1.5 * row[1], row[2], 1.5 * row[3], 30.0, 30.1] for row in EVEN]
    data_parallel(tmp_path, ranks(6), work=work)
    assert only(judged(tmp_path)[1]).ranks == (1, 3)


def test_ranks_that_are_late_by_turns_are_an_imbalance_of_nobody(tmp_path: Path) -> None:
    work = [[60.0 if step % 4 == rank else 30.0 for rank in range(4)] for step in range(8)]
    data_parallel(tmp_path, ranks(4), work=work)
    found, diagnosis = judged(tmp_path)
    finding = only(diagnosis)
    assert (finding.rule, finding.ranks) == ("imbalance", ())
    assert gain(found, finding) == pytest.approx(22.5 / 61, rel=0.1)


def test_gradients_reduced_in_every_pass_are_a_finding(tmp_path: Path) -> None:
    made = ranks(4)
    data_parallel(tmp_path, made, work=EVEN, passes=4)
    found = judged(tmp_path)[1]
    assert [f.rule for f in found.findings] in ([], ["repeated-reduction"])
    early = [int(rank.collectives.early.sum()) for rank in job(tmp_path).ranks]
    assert early == [18] * 4  # three of four in each of six steps


def test_gradients_reduced_once_are_none(tmp_path: Path) -> None:
    data_parallel(tmp_path, ranks(4), work=EVEN)
    assert not any(rank.collectives.early.any() for rank in job(tmp_path).ranks)


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("warm_up", [None, (3, 2, 1, 0)])
def test_the_bubble_of_a_pipeline_is_its_schedules(
    tmp_path: Path, warm_up: tuple[int, ...] | None, shapes: bool
) -> None:
    pipeline(
        tmp_path, ranks(4, shapes=shapes), micro_batches=8, forward=[10.0] * 4, warm_up=warm_up
    )
    found, diagnosis = judged(tmp_path)
    assert diagnosis.findings == ()
    assert share(found, "bubble") == pytest.approx(3 / 11, rel=0.1)
    assert found.job.shared_collectives == 4 * 8 * 6  # steps, micro-batches, ways


def test_messages_without_partners_and_marks_are_matched_from_optimizer_to_optimizer(
    tmp_path: Path,
) -> None:
    made = ranks(3, shapes=False, marked=False)
    pipeline(tmp_path, made, micro_batches=6, forward=[10.0, 16.0, 10.0])
    found, diagnosis = judged(tmp_path)
    assert found.job.shared_collectives == 4 * 6 * 4  # steps, micro-batches, ways
    assert only(diagnosis).ranks == (1,)


@pytest.mark.parametrize("shapes", [True, False])
def test_a_slow_stage_is_named(tmp_path: Path, shapes: bool) -> None:
    forward = [10.0, 10.0, 16.0, 10.0]
    pipeline(
        tmp_path,
        ranks(4, shapes=shapes),
        micro_batches=8,
        forward=forward,
        warm_up=(3, 2, 1, 0),
    )
    found, diagnosis = judged(tmp_path)
    finding = only(diagnosis)
    assert (finding.rule, finding.ranks) == ("straggler-rank", (2,))
    assert gain(found, finding) == pytest.approx(1 - 330 / (8 * 48 + 90), abs=0.06)
    assert share(found, "straggler") > share(found, "imbalance") == 0


def test_several_stages_that_compute_longer_are_an_uneven_division(tmp_path: Path) -> None:
    """Nobody is to blame, and what is won is that of even stages, not of the quickest."""
    forward = [8.0, 16.0, 8.0, 16.0]
    pipeline(tmp_path, ranks(4), micro_batches=6, forward=forward, warm_up=(3, 2, 1, 0))
    found, diagnosis = judged(tmp_path)
    finding = only(diagnosis)
    assert (finding.rule, finding.ranks) == ("imbalance", ())
    assert gain(found, finding) < 0.25


def test_what_a_host_does_before_it_asks_for_a_message_is_no_wait(tmp_path: Path) -> None:
    """Round a ring: the message ends when it is asked for, though it was there long before."""
    ring(tmp_path, ranks(4), busy=[8.0, 8.0, 12.0, 8.0])
    found, diagnosis = judged(tmp_path)
    assert sum(found.job.ledger.accounts.values()) == pytest.approx(found.job.ledger.gpu_seconds)
    finding = only(diagnosis)
    assert (finding.rule, finding.ranks) == ("straggler-rank", (2,))


def test_an_even_ring_gets_no_finding(tmp_path: Path) -> None:
    ring(tmp_path, ranks(4), busy=[8.0, 8.1, 7.9, 8.0])
    assert judged(tmp_path)[1].findings == ()


def test_ranks_of_one_machine_share_its_clock(tmp_path: Path) -> None:
    """A pipeline's sends end when they please: aligned on them, ranks would be milliseconds apart."""
    pipeline(tmp_path, ranks(4), micro_batches=4, forward=[10.0] * 4)
    assert job(tmp_path).job.clock_offsets_seconds == (0.0,) * 4


def test_clocks_of_two_machines_are_aligned_on_what_meets(tmp_path: Path) -> None:
    made = ranks(4)
    for rank in made[2:]:
        rank.host, rank.clock = "node2", 7000.0
    data_parallel(tmp_path, made, work=EVEN)
    found = job(tmp_path)
    assert found.job.clock_offsets_seconds == pytest.approx((0, 0, 7, 7), abs=1e-3)


def test_clocks_of_a_pipeline_over_two_machines_are_aligned_on_messages_both_ways(
    tmp_path: Path,
) -> None:
    made = ranks(4)
    for rank in made[2:]:
        rank.host, rank.clock = "node2", 3000.0
    pipeline(tmp_path, made, micro_batches=4, forward=[10.0] * 4)
    found = job(tmp_path)
    assert found.job.clock_offsets_seconds == pytest.approx((0, 0, 3, 3), abs=2e-3)


def test_a_machine_whose_ranks_clocks_disagree_is_aligned_and_says_so(tmp_path: Path) -> None:
    made = ranks(4)
    made[1].clock = 500.0
    data_parallel(tmp_path, made, work=EVEN)
    found = job(tmp_path)
    assert found.job.clock_offsets_seconds == pytest.approx((0, 0.5, 0, 0), abs=1e-3)
    assert any("disagree" in note for note in found.job.notes)


def test_unchanged_the_replay_gives_the_recording(tmp_path: Path) -> None:
    pipeline(tmp_path, ranks(4), micro_batches=6, forward=[10.0, 14.0, 9.0, 10.0])
    found = job(tmp_path)
    lines, why = rank_lines(found.ranks, found.job.waits)
    assert lines is not None, why
    error = lines.error()
    assert error is not None and abs(error) < 0.005


def test_groups_that_no_trace_names_are_those_that_causality_allows(tmp_path: Path) -> None:
    """Two groups of two: taken as one of four, ranks would leave before others come."""
    made = ranks(4)
    for rank in made:
        rank.groups = ([0, 1],) if rank.rank < 2 else ([2, 3],)
    for number in range(1, 7):
        starts = [rank.now for rank in made]
        for first, length in ((0, 20.0), (2, 35.0)):
            pair = made[first : first + 2]
            for rank in pair:
                rank.forward(length)
            _reduce(pair)
        for rank, start in zip(made, starts, strict=True):
            rank.optimizer()
            rank.step(number, start)
    for rank in made:
        rank.write(tmp_path)
    groups = job(tmp_path).job.waits.groups
    assert sorted(group.ranks for group in groups) == [(0, 1), (2, 3)]


def test_two_axes_of_groups_that_no_trace_names_are_told_apart_by_time(tmp_path: Path) -> None:
    """Pairs reduce in their layers, and other pairs after them, under one name."""
    made = ranks(4, shapes=False)
    for rank in made:
        across = [rank.rank % 2, rank.rank % 2 + 2]
        rank.groups = ([0, 1] if rank.rank < 2 else [2, 3], across)
    for number in range(1, 7):
        starts = [rank.now for rank in made]
        for _ in range(2):
            for rank in made:
                rank.forward(30.0 if rank.rank == 3 else 20.0)
            _reduce(made[:2])
            _reduce(made[2:])
        for rank in made:
            rank.backward(5.0)
        for first in (0, 1):
            _reduce(made[first::2])
        for rank, start in zip(made, starts, strict=True):
            rank.optimizer()
            rank.step(number, start)
    for rank in made:
        rank.write(tmp_path)
    found, diagnosis = judged(tmp_path)
    groups = {group.ranks: len(group.rows[0]) for group in found.job.waits.groups}
    assert groups[0, 1] == groups[2, 3] == 12
    finding = only(diagnosis)
    assert finding.ranks == (3,)
    assert gain(found, finding) == pytest.approx(20 / 67, rel=0.15)


def test_ranks_that_were_read_before_give_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "traces"
    folder.mkdir()
    data_parallel(folder, ranks(3), work=[[20.0, 20.0, 40.0]] * 6)
    answers = [audit([folder], CATALOG, cache=True) for _ in range(2)]
    assert list((tmp_path / "cache").rglob("*")), "nothing was kept"
    first, again = (diagnose(answer, CATALOG) for answer in answers)
    assert only(first).ranks == (2,)
    assert first.findings == again.findings


def test_scatters_whose_size_the_root_alone_records_are_matched_in_order(tmp_path: Path) -> None:
    """Every rank scatters in turn: in the trace, its own scatter alone has a size."""
    made = ranks(3)
    for number in range(1, 7):
        starts = [rank.now for rank in made]
        for rank in made:
            rank.forward(40.0 if rank.rank == 1 else 20.0)
        for root in range(3):
            _scatter(made, root)
        all_reduce(made)
        for rank, start in zip(made, starts, strict=True):
            rank.optimizer()
            rank.step(number, start)
    for rank in made:
        rank.write(tmp_path)
    found, diagnosis = judged(tmp_path)
    lines, why = rank_lines(found.ranks, found.job.waits)
    assert lines is not None, why
    finding = only(diagnosis)
    assert finding.ranks == (1,)
    assert gain(found, finding) == pytest.approx(20 / 43, rel=0.15)


def _scatter(made: list[HostRank], root: int) -> None:
    """All wait until the root has come."""
    starts = [rank.post("c10d::scatter_") for rank in made]
    for rank, start in zip(made, starts, strict=True):
        size = {"Input Dims": [[8, 64]] * len(made)} if rank.rank == root else {}
        end = max(start, starts[root]) + 0.3
        rank.span("user_annotation", "gloo:scatter", start, end, thread=2, **size)
        rank.now = end + 0.1


def _reduce(pair: list[HostRank]) -> None:
    starts = [rank.post("c10d::allreduce_") for rank in pair]
    for rank, start in zip(pair, starts, strict=True):
        rank.transfer("gloo:all_reduce", start, max(starts) + 0.5)
        rank.now = max(starts) + 0.6


def test_messages_of_a_device_are_matched_by_the_partner_that_nccl_states(tmp_path: Path) -> None:
    """Three stages: without partners, messages of more than two cannot be matched."""
    made = [Maker(rank=rank, world=3, groups={"0": ("pp", [0, 1, 2])}) for rank in range(3)]
    for number in range(1, 5):
        starts = [maker.host for maker in made]
        sent = 0.0
        for maker in made:
            maker.device = maker.host = max(maker.device, maker.host)
            if maker.rank:
                _message(maker, "recv", maker.rank - 1, max(sent, maker.device + 4) + 20)
            maker.product(4096, 4096, 4096, 500.0)
            if maker.rank < 2:
                sent = maker.device
                _message(maker, "send", maker.rank + 1, maker.device + 25)
        end = max(maker.device for maker in made)
        for maker, start in zip(made, starts, strict=True):
            maker.host = max(maker.host, maker.device)
            maker.step(number, start)
            maker.host = maker.device = end + 50
    for maker in made:
        maker.write(tmp_path)
    groups = job(tmp_path).job.waits.groups
    assert sorted((group.ranks, len(group.rows[0])) for group in groups) == [
        ((0, 1), 4),
        ((1, 2), 4),
    ]


def _message(maker: Maker, name: str, peer: int, until: float) -> None:
    """A message from when the device is free to `until`."""
    doc, members = maker.groups["0"]
    start = max(maker.device, maker.host + 2.0)
    said: dict[str, Any] = {
        "Collective name": name,
        "Process Group Name": "0",
        "Process Group Description": doc,
    }
    said |= {"Process Group Ranks": str(members), "In msg nelems": 1000, "dtype": "BFloat16"}
    said |= {"Dst Rank" if name == "send" else "Src Rank": peer}
    maker.kernel("ncclDevKernel_SendRecv", max(until - start, 1.0), **said)


def test_a_slow_rank_is_found_where_ranks_meet_in_every_fourth_step_only(tmp_path: Path) -> None:
    """Local SGD: the rank is late in every step, and only some steps wait for it."""
    made = ranks(4)
    for number in range(1, 9):
        starts = [rank.now for rank in made]
        for rank in made:
            rank.forward(42.0 if rank.rank == 3 else 30.0 + 0.1 * (number % 3))
        if number % 4 == 0:
            all_reduce(made)
        for rank, start in zip(made, starts, strict=True):
            rank.optimizer()
            rank.step(number, start)
    for rank in made:
        rank.write(tmp_path)
    found, diagnosis = judged(tmp_path)
    finding = only(diagnosis)
    assert finding.ranks == (3,)
    assert gain(found, finding) == pytest.approx(12 / 42, rel=0.2)


def test_a_fault_of_some_steps_is_found_where_only_one_other_rank_compares(tmp_path: Path) -> None:
    work = [[90.0 if step % 4 == 2 else 30.0, 30.0 + 0.1 * (step % 3)] for step in range(12)]
    data_parallel(tmp_path, ranks(2), work=work)
    assert only(judged(tmp_path)[1]).ranks == (0,)


def test_one_long_stall_of_one_rank_is_found(tmp_path: Path) -> None:
    work = [[*row, 30.0, 30.1] for row in EVEN]
    work[3][5] += 300.0
    data_parallel(tmp_path, ranks(6), work=work)
    assert only(judged(tmp_path)[1]).ranks == (5,)
