"""Findings while a run goes on: named within seconds, closed when they are gone, none on sound runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from computeflow.answers.audits import audit
from computeflow.collection.online.watcher import Watcher, WatchOptions
from computeflow.collection.wire.batches import NodeSignal, make_batch
from computeflow.errors import InputError
from computeflow.recorder.frames import Record
from live_stream import Told, records_of, watch
from run_folder_maker import MS, Training

DATA = Path(__file__).parent / "data" / "run_folders"
STEP_SECONDS = 0.1
Fault = Callable[[int, int], Mapping[str, int]]


def between(first: int, last: int, fault: Mapping[str, int], ranks: tuple[int, ...] = ()) -> Fault:
    def extra(rank: int, step: int) -> Mapping[str, int]:
        return fault if first <= step < last and (not ranks or rank in ranks) else {}

    return extra


def training(extra: Fault, ranks: int = 4, steps: int = 600) -> Training:
    return Training(ranks=ranks, steps=steps, jitter=0.03, extra=extra, ends=False)


def told(extra: Fault, ranks: int = 4, steps: int = 600) -> Told:
    return watch(training(extra, ranks, steps).records(), after=3.0)


@pytest.mark.parametrize(
    ("fault", "ranks", "rule"),
    [
        ({"f": 40 * MS}, (2,), "straggler-rank"),
        ({"b": 15 * MS}, (1,), "straggler-rank"),
        ({"d": 60 * MS}, (), "input-stall"),
        ({"d": 60 * MS}, (3,), "input-stall"),
        ({"g": 50 * MS}, (0,), "gc-pause"),
        ({"gap": 80 * MS}, (), "host-stall"),
    ],
)
def test_a_fault_is_named_in_ten_seconds_and_closed_when_it_is_gone(
    fault: Mapping[str, int], ranks: tuple[int, ...], rule: str
) -> None:
    begins, ends = 150, 350
    heard = told(between(begins, ends, fault, ranks))
    assert heard.rules() == [rule]
    ((at, finding),) = heard.opened
    onset = 2.0 + begins * STEP_SECONDS  # start-up, then steps
    assert onset < at < onset + 10
    assert finding.ranks == ranks
    assert finding.onset == pytest.approx(1_790_000_000 + onset, abs=4.0)
    assert [closed.key for _, closed in heard.closed] == [finding.key]
    assert heard.closed[0][1].usd is not None


def test_a_slow_rank_names_its_node_and_its_cost() -> None:
    watcher = Watcher(WatchOptions(price_usd_per_gpu_hour=3.6))
    records = training(between(100, 10_000, {"f": 50 * MS}, (3,)), steps=400).records()
    heard = watch(records, nodes={2: "b", 3: "b"}, watcher=watcher, after=1.0)
    ((_, finding),) = heard.opened
    assert finding.nodes == ("b",)
    (now,) = watcher.findings()
    assert now.usd_per_hour == pytest.approx(now.share * 4 * 3.6)
    assert now.usd == pytest.approx(now.gpu_seconds * 3.6 / 3600)
    assert 0.25 < now.share < 0.4  # of a step of 150 ms, 50 ms of three ranks and the own
    (run,) = watcher.runs()
    assert run.slowest[0].rank == 3
    assert sum(run.accounts.values()) == pytest.approx(1.0)


def test_a_rank_of_two_that_is_slow_from_the_start_is_named() -> None:
    watcher = Watcher(WatchOptions())
    slow = training(between(0, 10_000, {"f": 40 * MS}, (1,)), ranks=2, steps=200)
    heard = watch(slow.records(), watcher=watcher, after=1.0)
    assert [(f.rule, f.ranks) for _, f in heard.opened] == [("straggler-rank", (1,))]
    (run,) = watcher.runs()
    late = {each.rank: each.late_seconds for each in run.slowest}
    assert late[1] is not None and late[1] > 0.03


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slow_rank_is_named_every_time_that_it_is_slow(ranks: int) -> None:
    begins = [150, 450, 750]

    def extra(rank: int, step: int) -> Mapping[str, int]:
        slow = rank == 1 and any(begin <= step < begin + 150 for begin in begins)
        return {"f": 30 * MS} if slow else {}

    heard = told(extra, ranks, steps=1_050)
    assert [(f.rule, f.ranks) for _, f in heard.opened] == 3 * [("straggler-rank", (1,))]
    assert len(heard.closed) == 3
    onsets = [2.0 + begin * STEP_SECONDS + 4.5 * number for number, begin in enumerate(begins)]
    late = [at - onset for (at, _), onset in zip(heard.opened, onsets, strict=True)]
    assert all(0 < each < 10 for each in late)


def test_windows_that_come_at_once_are_all_judged() -> None:
    slow = training(between(150, 10_000, {"d": 60 * MS}, (1,)), ranks=2, steps=260)
    records = [with_late_collectives(rank, 3.0) for rank in slow.records()]
    ((at, finding),) = watch(records, after=1.0).opened
    assert finding.rule == "input-stall" and at < 2 + 150 * STEP_SECONDS + 10


def with_late_collectives(records: Sequence[Record], seconds: float) -> list[Record]:
    """Records as a recorder writes them that reads collectives every few seconds."""
    made: list[Record] = []
    held: list[Record] = []
    due = 0.0
    for record in records:
        if record["k"] == "c":
            held.append(record)
            continue
        made.append(record)
        if record["k"] == "s" and record["t"] >= due:
            made += held
            held, due = [], record["t"] + seconds * 1e6
    return made + held


def test_sound_runs_get_no_finding() -> None:
    heard = told(between(0, 0, {}), steps=1_500)
    assert heard.opened == []


def test_one_long_step_is_no_finding() -> None:
    assert told(between(200, 201, {"d": 900 * MS})).opened == []
    assert told(between(200, 201, {"f": 900 * MS}, (1,))).opened == []


def test_a_blip_of_one_second_is_no_finding() -> None:
    assert told(between(200, 207, {"f": 60 * MS}, (1,))).opened == []


def checkpoints(every: int, fault: Mapping[str, int]) -> Fault:
    return lambda rank, step: fault if step % every == 0 else {}


def test_a_checkpoint_is_weighed_against_the_time_between_two() -> None:
    slow = told(checkpoints(60, {"c": 900 * MS}))
    assert slow.rules() == ["checkpoint-stall"]
    assert slow.opened[0][0] < 2 + 2 * (60 * STEP_SECONDS + 0.9) + 4  # the second one
    rare = told(checkpoints(400, {"c": 700 * MS}), steps=1_300)
    assert rare.opened == []


@pytest.mark.parametrize(
    ("every", "save", "lost", "word"), [(150, 100, 50, "rarely"), (5, 300, 2, "often")]
)
def test_saves_that_do_not_fit_the_failures_are_named_while_the_run_goes_on(
    every: int, save: int, lost: int, word: str
) -> None:
    records: list[list[Record]] = []
    begins, first = 0, 1
    for attempt in range(7):
        records += Training(
            ranks=2,
            steps=200,
            attempt=attempt,
            begins=begins,
            first_count=first,
            ends=False,
            extra=lambda rank, step: {"c": save * MS} if step % every == 0 else {},
        ).records()
        begins += 4_000 * MS + 200 * 102 * MS + 200 // every * save * MS
        first += 200 - lost
    heard = watch(records, after=1.0)
    found = [f for _, f in heard.opened if f.rule == "checkpoint-interval"]
    assert [f"too {word}" in finding.title for finding in found] == [True]


@pytest.mark.parametrize("name", ["clean", "eval", "gc", "loader", "save", "slow"])
def test_what_audit_finds_first_is_found_while_the_run_goes_on(name: str) -> None:
    folder = DATA / name
    heard = watch([records_of(path) for path in sorted(folder.glob("*.cfr"))], after=1.0)
    audited = audit(folder, no_cache=True).to_dict()["findings"]
    if not audited:
        assert heard.opened == []
        return
    named = {(finding.rule, finding.ranks) for _, finding in heard.opened}
    assert (audited[0]["rule"], tuple(audited[0]["ranks"])) in named


def test_a_nodes_own_signal_is_evidence_of_its_finding() -> None:
    watcher = Watcher(WatchOptions())
    records = training(between(100, 10_000, {"f": 50 * MS}, (3,)), steps=400).records()
    said = NodeSignal(at=1_790_000_014_000_000, what="xid 79", detail="fallen off the bus")
    watcher.take(
        make_batch([], agent="b", number=1, node="b", sent=1_790_000_014_000_000, signals=[said]),
        1_790_000_014.0,
    )
    heard = watch(records, nodes={3: "b"}, watcher=watcher, after=1.0)
    assert "xid 79" in " ".join(each.what for each in heard.opened[0][1].evidence)


def test_a_silenced_finding_is_kept_and_an_unknown_one_refused() -> None:
    watcher = Watcher(WatchOptions())
    records = training(between(100, 10_000, {"d": 50 * MS}), steps=300).records()
    heard = watch(records, watcher=watcher, after=1.0)
    key = heard.opened[0][1].key
    assert watcher.silence(key, 1e12).silenced_until == 1e12
    assert watcher.findings()[0].silenced_until == 1e12
    with pytest.raises(InputError, match="none is open"):
        watcher.silence("nope", 0.0)


def test_an_open_finding_outlives_the_watcher() -> None:
    records = training(between(100, 10_000, {"d": 50 * MS}), steps=600).records()
    half = [[r for r in rank if r.get("n", r.get("q", 0) // 3) < 300] for rank in records]
    before = Watcher(WatchOptions())
    first = watch(half, watcher=before, after=1.0)
    after = Watcher(WatchOptions(), before.findings())
    heard = watch(records, watcher=after, after=1.0)
    assert [finding.key for finding in after.findings()] == [first.opened[0][1].key]
    assert heard.opened == []


@pytest.mark.parametrize("ranks", [4, 70])
def test_a_finding_that_was_closed_is_not_told_again_after_a_restart(ranks: int) -> None:
    """The journal that is not sealed is read again; what comes later is told."""

    def extra(rank: int, step: int) -> Mapping[str, int]:
        again = between(220, 260, {"b": 45 * MS}, (2,))(rank, step)
        return {**between(60, 110, {"b": 45 * MS}, (1,))(rank, step), **again}

    records = training(extra, ranks, steps=260).records()
    half = [[r for r in rank if r.get("n", r.get("q", 0) // 3) < 190] for rank in records]
    first = watch(half, after=1.0)
    assert [f.ranks for _, f in first.closed] == [(1,)]
    after = Watcher(WatchOptions(), [f for _, f in first.closed])
    heard = watch(records, watcher=after, after=1.0)
    assert [f.ranks for _, f in heard.opened] == [(2,)]


def test_a_large_run_is_watched_rank_by_rank() -> None:
    made = training(between(60, 10_000, {"f": 30 * MS}, (157,)), ranks=160, steps=120)
    heard = watch(
        made.records(), nodes={rank: f"n{rank // 8:02d}" for rank in range(160)}, after=1.0
    )
    assert [(f.rule, f.ranks, f.nodes) for _, f in heard.opened] == [
        ("straggler-rank", (157,), ("n19",))
    ]


def hanging(rank: int, step: int, seconds: int) -> Fault:
    return lambda r, s: {"f": seconds * 1000 * MS} if (r, s) == (rank, step) else {}


def test_a_slow_rank_of_many_does_not_hide_the_next_one() -> None:
    """Lateness of a rank that was slow is no measure of what is usual in a sound run."""
    slow = [between(60, 110, {"b": 45 * MS}, (77,)), between(180, 230, {"b": 45 * MS}, (81,))]

    def extra(rank: int, step: int) -> Mapping[str, int]:
        return {**slow[0](rank, step), **slow[1](rank, step)}

    heard = told(extra, ranks=90, steps=240)
    assert [(f.rule, f.ranks) for _, f in heard.opened] == [
        ("straggler-rank", (77,)),
        ("straggler-rank", (81,)),
    ]


def test_a_hang_is_named_by_heart_beats_and_closed_when_steps_go_on() -> None:
    records = training(hanging(2, 200, 30), steps=400).records()
    for rank, mine in enumerate(records):
        at = next(i for i, record in enumerate(mine) if record.get("n") == 200)
        began = mine[at]["t"] - mine[at]["d"]
        waits = "f" if rank == 2 else "b"
        beats = [
            {
                "k": "b",
                "t": began + second * 1_000_000,
                "n": 199,
                "in": waits,
                "for": second * 10**6,
            }
            for second in range(1, 30)
        ]
        early = [mine[at + 1]] if rank != 2 else []  # arrivals at the collective that never ends
        rest = mine[at : at + 1] + (mine[at + 2 :] if early else mine[at + 1 :])
        mine[:] = [*mine[:at], *early, *beats, *rest]
    heard = watch(records, after=2.0)
    assert [(f.rule, f.ranks) for _, f in heard.opened] == [("hang", (2,))]
    assert heard.opened[0][0] < 2 + 20 + 10
    assert [f.why_closed for _, f in heard.closed] == ["no longer seen"]


def test_the_ranks_with_most_of_each_account_are_those_of_the_last_window() -> None:
    watcher = Watcher(WatchOptions())
    slow = between(0, 600, {"d": 60 * MS}, (3,))
    watch(training(slow, steps=300).records(), watcher=watcher, after=1.0)
    (run,) = watcher.runs()
    assert run.window_ranks == 4
    assert run.ranks_by_account["input"][0].rank == 3
    seconds = sum(part.gpu_seconds for part in run.ranks_by_account["input"])
    assert seconds == pytest.approx(run.accounts["input"] * 4 * run.window_seconds, rel=0.1)
