"""The collector's store: what was synced is there once, whatever happened in between."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_maker import batches_of
from collector_processes import steps_in
from computeflow.collection.sealing import seal
from computeflow.collection.store.journal import (
    JournalFollower,
    JournalWriter,
    cut_torn_tail,
    journal_numbers,
    journal_path,
    read_frames,
)
from computeflow.collection.store.keeper import Keeper, KeepOptions
from computeflow.collection.store.positions import Positions
from computeflow.collection.store.sealing_journals import seal_journal
from computeflow.collection.store.segment_tables import SCHEMAS
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import StoreFolder, lock_store, open_store
from computeflow.collection.wire.batches import Batch, NodeReading, NodeSignal, pack_batch
from computeflow.errors import InputError, OutputError
from run_folder_maker import MS, Training

duckdb = pytest.importorskip("duckdb")
NOW = 1_795_000_000.0
"""2026-11-18."""
DAY = 86_400.0


def written(store: StoreFolder, batches: list[Batch], number: int = 1, at: float = NOW) -> None:
    """A closed journal with these batches, and an empty one behind it."""
    writer = JournalWriter(store.journal, number)
    writer.append([(int(at * 1e6) + place, pack_batch(b)) for place, b in enumerate(batches)])
    writer.roll()
    writer.close()


@pytest.fixture
def store(tmp_path: Path) -> StoreFolder:
    return open_store(tmp_path / "store")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return Training(ranks=3, steps=40, timed=True, device="cuda").write(tmp_path / "run")


def keeper(store: StoreFolder, now: float = NOW, **options: Any) -> Keeper:
    """A keeper that has run for two days by `now`."""
    clock = [now - 2 * DAY]
    made = Keeper(
        store, KeepOptions(store=str(store.path), **options), (lambda: clock[0], lambda: clock[0])
    )
    clock[0] = now
    return made


def ask(store: StoreFolder, query: str) -> list[tuple[Any, ...]]:
    for name in SCHEMAS:
        query = query.replace(f"FROM {name}", f"FROM '{store.parquet}/{name}/*/*.parquet'")
    with duckdb.connect() as engine:
        rows: list[tuple[Any, ...]] = engine.execute(query).fetchall()
    return rows


# The journal


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 1)
    frames = [(place, bytes([place]) * place * 1000) for place in range(1, 250)]
    writer.append(frames[:100])
    writer.append(frames[100:])
    writer.close()
    with journal_path(tmp_path, 1).open("rb") as file:
        assert [(frame.received, frame.body) for frame in read_frames(file)] == frames


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(0, 700), flip=st.integers(-1, 700))
def test_a_torn_or_damaged_tail_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    writer = JournalWriter(folder, 1)
    writer.append([(n, bytes([n]) * 100) for n in range(5)])
    writer.close()
    path = journal_path(folder, 1)
    content = bytearray(path.read_bytes())
    whole = max((cut - 8) // 116, 0) if cut < len(content) else 5
    if 8 <= flip < min(cut, len(content)):
        content[flip] ^= 1
        whole = min(whole, (flip - 8) // 116)
    path.write_bytes(content[:cut])
    cut_torn_tail(path)
    with path.open("rb") as file:
        assert [frame.received for frame in read_frames(file)] == list(range(whole))


def test_what_is_cut_off_behind_damage_is_kept(tmp_path: Path) -> None:
    """Batches behind a damaged one were acknowledged: nobody sends them again."""
    writer = JournalWriter(tmp_path, 1)
    writer.append([(n, bytes([n]) * 100) for n in range(5)])
    writer.close()
    path = journal_path(tmp_path, 1)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-10])
    assert cut_torn_tail(path) == "000001.cfj: cut 106 bytes that were never acknowledged"
    assert cut_torn_tail(path) == ""
    content[8 + 116 + 50] ^= 1
    path.write_bytes(content)
    said = "000001.cfj: cut 464 bytes behind a damaged batch; as it was: 000001.damaged"
    assert cut_torn_tail(path) == said
    assert path.with_suffix(".damaged").read_bytes() == content


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing beyond `size` fails, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_append_that_fails_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 1)
    writer.append([(1, b"a" * 100)])
    with largest_file(1000), pytest.raises(OSError):
        writer.append([(2, b"b" * 500), (3, b"c" * 500)])
    writer.append([(4, b"d" * 100)])
    writer.close()
    with journal_path(tmp_path, 1).open("rb") as file:
        assert [frame.received for frame in read_frames(file)] == [1, 4]


def test_a_journal_is_followed_over_its_files(tmp_path: Path) -> None:
    writer, follower = JournalWriter(tmp_path, 1), JournalFollower(tmp_path)
    assert follower.read(10) == []
    seen = []
    for n in range(30):
        writer.append([(n, bytes(n))])
        if n % 7 == 3:
            writer.roll()
        if n % 4 == 0:
            seen += [frame.received for frame in follower.read(3)]
        if n == 13:
            follower.look()
            journal_path(tmp_path, 2).unlink()  # sealed while it was behind
    while frames := follower.read(4):
        seen += [frame.received for frame in frames]
    assert seen == list(range(30)) and follower.skipped == 0
    writer.close()
    follower.close()


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "000001.cfj").write_bytes(b"something else")
    with (tmp_path / "000001.cfj").open("rb") as file, pytest.raises(InputError, match="version"):
        list(read_frames(file))


# Exactly once


def test_a_batch_is_new_known_or_refused(run: Path) -> None:
    first, second, third, *_ = batches_of(run)
    positions = Positions(load=lambda run: {})
    assert positions.judge(second)[0] == "refused"
    assert positions.judge(first)[0] == "new"
    positions.take(first, 1)
    assert positions.judge(first)[0] == "known" and positions.judge(second)[0] == "new"
    positions.take(second, 1)
    positions.take(third, 1)
    overlap = replace(third, ranks=(replace(third.ranks[0], records=99), *third.ranks[1:]))
    assert positions.judge(overlap)[0] == "refused"
    positions.take_back([third, second])
    assert positions.judge(second)[0] == "new" and positions.judge(third)[0] == "refused"
    assert positions.next_of(second) == {"0.0": 10, "1.0": 10, "2.0": 10}


def test_a_rank_twice_in_a_batch_is_refused(run: Path) -> None:
    batch = batches_of(run)[0]
    twice = replace(batch, ranks=(batch.ranks[0], *batch.ranks))
    with pytest.raises(InputError, match="twice"):
        Positions(load=lambda run: {}).judge(twice)


def test_batches_without_ranks_are_known_by_their_number() -> None:
    batch = Batch(agent="a", number=4, node="n", sent=9)
    positions = Positions(load=lambda run: {})
    positions.take(batch, 1)
    assert positions.judge(batch)[0] == "known"
    assert positions.judge(replace(batch, number=1, sent=10))[0] == "new"


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_whatever_is_sent_again_every_record_is_taken_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """A sender that rewinds as it likes and cuts its records differently each time."""
    folder = Training(ranks=2, steps=12).write(tmp_path_factory.mktemp("run"))
    chance = random.Random(seed)
    sizes = {size: batches_of(folder, records=size) for size in (1, 3, 4, 30)}
    positions, taken = Positions(load=lambda run: {}), set[tuple[int, int]]()
    for _ in range(400):
        size = chance.choice(list(sizes))
        batch = chance.choice(sizes[size])
        if positions.judge(batch)[0] == "new":
            positions.take(batch, 1)
            for rows in batch.ranks:
                new = {(rows.rank, n) for n in range(rows.first, rows.first + rows.records)}
                assert not new & taken
                taken |= new
    ends = {rank: n for (rank, _), n in positions.of("run-1").items()}
    assert taken == {(rank, n) for rank, end in ends.items() for n in range(end)}


# Sealing


def test_sealed_tables_equal_those_of_the_run_folder(store: StoreFolder, run: Path) -> None:
    written(store, batches_of(run, records=7))
    assert keeper(store).seal() == 1
    seal(run)
    for name in ("steps", "spans", "collectives"):
        with duckdb.connect() as engine:
            columns = [
                row[0] for row in engine.execute(f"DESCRIBE FROM '{run}/{name}.parquet'").fetchall()
            ]
            want = engine.execute(f"FROM '{run}/{name}.parquet' ORDER BY ALL").fetchall()
        have = ask(store, f"SELECT {', '.join(columns)} FROM {name} ORDER BY ALL")
        if name == "collectives":  # the label says which members a group has
            have = [(*row[:2], str(row[2]).partition("#")[0], *row[3:]) for row in have]
        assert have == want and want
    assert ask(store, "SELECT DISTINCT run, node FROM spans") == [("run-1", "n1")]
    assert journal_numbers(store.journal) == [2]


def test_steps_of_ranks_without_spans_do_not_move_the_spans_of_others(store: StoreFolder) -> None:
    import numpy as np

    def batch(rank: int, begin: int, pieces: bool, number: int) -> Batch:
        from computeflow.collection.wire.batches import _STEPS, RankRows

        steps = {name: np.zeros(2, kind) for name, kind in _STEPS.items()}
        steps["number"][:] = [number, number + 1]
        steps["begin"][:], steps["end"][:] = [begin, begin + 50], [begin + 40, begin + 90]
        table = {"length": np.array([30, 20, 40], "<i8"), "kind": np.array([0, 1, 2], "<i4")}
        rows = RankRows(
            rank=rank, attempt=0, first=0, records=2, last=1, steps=2, pieces=3 if pieces else 0
        )
        return Batch(
            agent="a",
            number=1,
            node="n",
            sent=1,
            run="r",
            ranks=(rows,),
            steps=steps,
            pieces=table if pieces else {},
        )

    many = [batch(0, 10**6, False, 1), batch(1, 5, True, 7), batch(2, 10**5, False, 1)]
    written(store, [*many, batch(3, 10**4, True, 11)])
    keeper(store).seal()
    query = "SELECT rank, step, epoch_us(start) FROM spans ORDER BY rank, start"
    assert ask(store, query) == [
        (1, 7, 5),
        (1, 7, 35),
        (1, 8, 55),
        (3, 11, 10_000),
        (3, 11, 10_030),
        (3, 12, 10_050),
    ]


def test_readings_signals_and_rare_records_are_rows(store: StoreFolder, run: Path) -> None:
    node = Batch(
        agent="a",
        number=1,
        node="n7",
        sent=5,
        readings=(
            NodeReading(at=7, name="DCGM_FI_DEV_POWER_USAGE", value=512.5, labels={"gpu": "0"}),
        ),
        signals=(NodeSignal(at=8, what="xid", detail="79: off the bus", gpu="GPU-1"),),
    )
    written(store, [node, *batches_of(run)])
    keeper(store).seal()
    assert ask(store, "SELECT name, node, epoch_us(time), value, labels FROM readings") == [
        ("DCGM_FI_DEV_POWER_USAGE", "n7", 7, 512.5, '{"gpu": "0"}')
    ]
    assert ask(store, "SELECT name, detail, gpu, fault FROM signals") == [
        ("xid", "79: off the bus", "GPU-1", True)
    ]
    whats = dict(ask(store, "SELECT what, count(*) FROM events GROUP BY what"))
    assert whats == {"start": 3, "end": 3}


def test_the_users_phases_keep_their_names_over_batches(tmp_path: Path, store: StoreFolder) -> None:
    (records, other) = Training(ranks=2, steps=6).records()
    for step, record in enumerate(r for r in records if r["k"] == "s"):
        record["p"] = ["u", 0, 10 * MS]
        record["u"] = ["tokenize" if step % 2 else "augment"]
    from computeflow.recorder.frames import MAGIC, packed_all

    for rank, some in enumerate((records, other)):
        (tmp_path / f"rank-{rank}.attempt-0.cfr").write_bytes(MAGIC + packed_all(some))
    written(store, batches_of(tmp_path, records=4))
    keeper(store).seal()
    found = ask(store, "SELECT phase, count(*) FROM spans WHERE rank = 0 GROUP BY phase")
    assert {"tokenize": 3, "augment": 3}.items() <= dict(found).items()


def test_a_batch_that_is_twice_in_the_journal_is_once_in_parquet(
    store: StoreFolder, run: Path
) -> None:
    batches = batches_of(run)
    written(store, [*batches[:5], batches[4]], 1)
    written(store, batches[4:], 2)
    keeper(store).seal()
    counts = steps_in(store.path)
    assert len(counts) == 120 and set(counts.values()) == {1}


@pytest.mark.parametrize("point", ["_publish", "_write_table", "add_journal", "delete_journal"])
def test_a_seal_that_is_cut_off_anywhere_is_done_again(
    store: StoreFolder, run: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from computeflow.collection.store import sealing_journals, segments

    written(store, batches_of(run))
    place: Any = {"add_journal": StateDatabase, "delete_journal": sealing_journals}.get(
        point, segments
    )
    calls, real = list[int](), getattr(place, point)

    def cut(*words: Any) -> Any:
        calls.append(1)
        if len(calls) == (2 if place is segments else 1):
            raise KeyboardInterrupt
        return real(*words)

    with monkeypatch.context() as patched:
        patched.setattr(place, point, cut)
        with pytest.raises(KeyboardInterrupt):
            keeper(store).seal()
    counts = steps_in(store.path)
    keeper(store).seal()
    counts = steps_in(store.path)
    assert len(counts) == 120 and set(counts.values()) == {1}
    assert not list(store.work.iterdir())
    assert journal_numbers(store.journal) == [2]


def test_a_damaged_journal_is_sealed_as_far_as_it_goes_and_kept(
    store: StoreFolder, run: Path
) -> None:
    written(store, batches_of(run))
    path = journal_path(store.journal, 1)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    summary = seal_journal(store, StateDatabase(store.state), 1)
    assert summary is not None and summary.damaged_bytes > 0 and summary.batches > 2
    assert [p.name for p in store.journal.glob("*.damaged")] == ["000001.damaged"]


# Merging and keeping


def sealed_days(store: StoreFolder, run: Path, days: int = 3, files: int = 4) -> None:
    batches = batches_of(run, records=2)
    number = 0
    size = len(batches) // (days * files) + 1
    for day in range(days):
        for file in range(files):
            part = batches[number * size : (number + 1) * size]
            number += 1
            written(
                store,
                part or [Batch(agent="x", number=number, node="n", sent=number)],
                number,
                NOW + day * DAY + file,
            )
    assert keeper(store).seal() == number


def test_small_files_of_a_finished_day_become_one_sorted_one(store: StoreFolder, run: Path) -> None:
    sealed_days(store, run)
    before = ask(store, "SELECT * FROM steps ORDER BY ALL")
    last = keeper(store, NOW + 2 * DAY + 60)
    assert last.merge() > 0
    assert ask(store, "SELECT * FROM steps ORDER BY ALL") == before
    days = sorted(path.parent.name for path in store.parquet.glob("steps/*/*.parquet"))
    assert len(days) == 2 + len(set(days)) - 2 + days.count(days[-1]) - 1
    assert [days.count(day) for day in sorted(set(days))][:2] == [1, 1]
    (merged,) = store.parquet.glob(f"steps/{days[0]}/*.parquet")
    with duckdb.connect() as engine:
        rows = engine.execute(f"SELECT run, rank, attempt, step FROM '{merged}'").fetchall()
    assert rows == sorted(rows)
    assert last.merge() == 0


@pytest.mark.parametrize("point", ["rename-1", "rename-2", "rmtree", "replace_segments"])
def test_a_merge_that_is_cut_off_anywhere_leaves_every_row_once(
    store: StoreFolder, run: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed_days(store, run)
    before = ask(store, "SELECT * FROM steps ORDER BY ALL")
    name, _, which = point.partition("-")
    place: Any = {"rename": Path, "rmtree": shutil, "replace_segments": StateDatabase}[name]
    real, calls = getattr(place, name), list[int]()
    fails_at = int(which or (3 if name == "rmtree" else 1))
    merging = keeper(store, NOW + 3 * DAY)

    def cut(*words: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == fails_at:
            raise KeyboardInterrupt
        return real(*words, **more)

    with monkeypatch.context() as patched:
        patched.setattr(place, name, cut)
        with pytest.raises(KeyboardInterrupt):
            merging.merge()
    again = keeper(store, NOW + 3 * DAY)
    assert ask(store, "SELECT * FROM steps ORDER BY ALL") == before
    again.merge()
    assert ask(store, "SELECT * FROM steps ORDER BY ALL") == before
    there = {p.relative_to(store.parquet).as_posix() for p in store.parquet.glob("*/*/*.parquet")}
    assert {s.path for s in StateDatabase(store.state).segments()} == there


def test_what_is_too_old_goes_and_is_counted(store: StoreFolder, run: Path) -> None:
    sealed_days(store, run)
    gone = keeper(store, NOW + 2 * DAY + 3600, keep_seconds=1.5 * DAY).retain()
    assert gone and {segment.day for segment in gone} == {"20261118"}
    counters = StateDatabase(store.state).counters()
    assert counters["deleted files"] == len(gone)
    assert counters["deleted rows"] == sum(segment.rows for segment in gone)
    assert not list(store.parquet.glob("*/20261118"))


def test_what_is_too_much_goes_oldest_first(store: StoreFolder, run: Path) -> None:
    sealed_days(store, run)
    before = StateDatabase(store.state).segments()
    most = sum(segment.bytes for segment in before) // 2
    keeper(store, keep_bytes=most).retain()
    left = StateDatabase(store.state).segments()
    assert left == before[-len(left) :] and sum(segment.bytes for segment in left) <= most


def test_a_clock_that_jumps_deletes_nothing(store: StoreFolder, run: Path) -> None:
    sealed_days(store, run)
    wall, steady = [NOW + 1000 * DAY], [0.0]
    clocks = (lambda: wall[0], lambda: steady[0])
    kept = Keeper(store, KeepOptions(store=str(store.path)), clocks)
    assert kept.retain() == []  # started with a wrong clock
    steady[0] += 10 * DAY
    wall[0] += 1000 * DAY
    assert kept.retain() == []  # set while it runs
    wall[0], steady[0] = wall[0] + DAY, steady[0] + DAY
    assert kept.retain()  # a clock that goes on for a day is believed


def test_a_journal_with_values_that_fit_no_column_is_kept_and_not_tried_forever(
    store: StoreFolder, run: Path
) -> None:
    batch = batches_of(run)[0]
    odd = replace(batch, ranks=tuple(replace(rows, rank=2**40 + rows.rank) for rows in batch.ranks))
    written(store, [odd])
    written(store, batches_of(run), 2)
    assert keeper(store).seal() == 2
    assert [p.name for p in store.journal.glob("*.damaged")] == ["000001.damaged"]
    assert ask(store, "SELECT count(*) FROM steps") == [(120,)]


# The folder and the state


def test_a_folder_with_other_things_in_it_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(InputError, match="empty folder"):
        open_store(tmp_path)


def test_a_store_of_another_version_or_owner_is_refused(store: StoreFolder) -> None:
    about = store.path / "collector.json"
    for text in (
        '{"schema": "computeflow.store/9"}',
        '{"schema": "computeflow.store/1", "collector": "../x"}',
    ):
        about.write_text(text)
        with pytest.raises(InputError, match=r"collector\.json"):
            open_store(store.path)


def test_one_store_has_one_collector(store: StoreFolder) -> None:
    with (
        lock_store(store, "collector"),
        pytest.raises(InputError, match="another process"),
        lock_store(store, "collector"),
    ):
        pass


def test_collectors_that_share_a_folder_own_their_files(tmp_path: Path, run: Path) -> None:
    shared = tmp_path / "shared"
    for name in ("a", "b"):
        store = open_store(tmp_path / name, shared)
        written(store, batches_of(run, run=f"run-{name}", node=name))
        Keeper(store, KeepOptions(store=str(store.path), shared=str(shared))).seal()
    with duckdb.connect() as engine:
        rows = engine.execute(
            f"SELECT run, count(*) FROM '{shared}/*/steps/*/*.parquet' GROUP BY run ORDER BY run"
        ).fetchall()
    assert rows == [("run-a", 120), ("run-b", 120)]


def test_names_from_the_wire_are_no_file_names(store: StoreFolder, run: Path) -> None:
    written(store, batches_of(run, run="../../../evil", node="/etc/x", agent="..\\a"))
    keeper(store).seal()
    names = {path.name for path in store.path.parent.rglob("*")}
    assert not any("evil" in name or name == "x" for name in names)
    assert ask(store, "SELECT DISTINCT run FROM steps") == [("../../../evil",)]


def test_a_state_that_is_no_database_is_said_in_one_line(store: StoreFolder) -> None:
    store.state.write_bytes(b"not a database at all, but long enough" * 100)
    with pytest.raises(OutputError, match="not a database"):
        StateDatabase(store.state)


def test_a_keeper_that_is_told_to_stop_seals_no_further_journal(
    store: StoreFolder, run: Path
) -> None:
    batches = batches_of(run)
    for number, batch in enumerate(batches[:3], 1):
        written(store, [batch], number)
    kept, asked = keeper(store), list[int]()

    def is_over() -> bool:
        asked.append(1)
        return len(asked) > 1

    assert kept.seal(is_over) == 1
    assert kept.seal() == 2
    kept.close()


_ENDS_BESIDE_A_QUERY = """
import threading
from computeflow.files.parquet import parquet_engine
began = threading.Event()
def ask():
    with parquet_engine("a test") as (engine, _):
        began.set()
        engine.execute("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b")
threading.Thread(target=ask, daemon=True).start()
began.wait()
"""


def test_a_process_ends_in_order_while_a_thread_of_it_reads_parquet() -> None:
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", _ENDS_BESIDE_A_QUERY], capture_output=True, timeout=300
        )
        assert ended.returncode == 0 and b"terminate" not in ended.stderr
