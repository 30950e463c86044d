"""Run folders: ledgers that close, causes on the right rank; cut, damaged and hostile files."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.errors import InputError
from computeflow.ledger import Ledger
from computeflow.recorder.frames import MAGIC, Record, packed, packed_all
from computeflow.telemetry.run_folders.phases import CHECKPOINT, EVALUATION, FORWARD
from computeflow.telemetry.run_folders.rank_reading import read_rank_file
from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.telemetry.run_folders.spans import Span, flatten
from computeflow.telemetry.source_registry import observe, sort_files
from computeflow.telemetry.source_reports import ModelWork, SourceReport, SourceRequest
from kineto_maker import data_parallel_job
from run_folder_maker import EPOCH_NS, MS, Training

ASKED = SourceRequest(catalog=load_catalog(()))
MANY = 1 << 30
RELAXED = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(folder: Path, asked: SourceRequest = ASKED) -> SourceReport:
    found = sort_files([folder])
    reports, failed = observe(found.files, [], asked)
    assert not failed
    (report,) = reports
    return report


def ledger_of(report: SourceReport) -> Ledger:
    assert report.ledger is not None, report.ledger_reason
    return report.ledger


def caused(ledger: Ledger, account: str = "straggler") -> dict[tuple[int, str], float]:
    return {
        (entry.cause.rank, entry.cause.account): entry.gpu_seconds
        for entry in ledger.entries
        if entry.account == account and entry.cause is not None
    }


def is_closed(ledger: Ledger) -> bool:
    total = sum(entry.gpu_seconds for entry in ledger.entries)
    return abs(total - ledger.gpu_seconds) <= 1e-9 * ledger.gpu_seconds


def test_a_plain_run_is_explained(tmp_path: Path) -> None:
    report = read(Training(ranks=4, steps=50).write(tmp_path))
    run: RecordedRun = report.facts
    ledger = ledger_of(report)
    assert (run.ranks, run.world, run.steps, run.state) == (4, 4, 50, "ended")
    assert run.step_seconds == pytest.approx(0.1016)
    assert run.tokens_per_second == pytest.approx(4 * 4096 / 0.1016)
    assert ledger.booked("unexplained") == 0
    assert ledger.booked("compute") == pytest.approx(4 * 49 * 0.091)
    assert ledger.booked("optimizer") == pytest.approx(4 * 49 * 0.009)
    assert ledger.booked("startup") == pytest.approx(4 * (2.0 + 0.1016))
    assert not report.left_out and not report.notes


@pytest.mark.parametrize(
    ("letter", "account"),
    [
        ("d", "input"),
        ("f", "compute"),
        ("b", "compute"),
        ("o", "optimizer"),
        ("c", "checkpoint"),
        ("v", "evaluation"),
        ("g", "host"),
        ("gap", "host"),
    ],
)
def test_what_one_rank_takes_longer_is_the_cause_of_the_others_wait(
    tmp_path: Path, letter: str, account: str
) -> None:
    usual = ledger_of(read(Training(ranks=3, steps=41).write(tmp_path / "usual")))
    slow = Training(ranks=3, steps=41, extra=lambda rank, step: {letter: 50 * MS * (rank == 1)})
    ledger = ledger_of(read(slow.write(tmp_path / "slow")))
    assert ledger.booked(account) - usual.booked(account) == pytest.approx(40 * 0.05, abs=0.01)
    waits = caused(ledger)
    assert waits == {(1, account): pytest.approx(2 * 40 * 0.05)}


def test_a_slow_optimizer_is_waited_for_in_the_next_step(tmp_path: Path) -> None:
    slow = Training(extra=lambda rank, step: {"o": 40 * MS * (rank == 0 and step % 10 == 0)})
    report = read(slow.write(tmp_path))
    assert caused(ledger_of(report)) == {(0, "optimizer"): pytest.approx(5 * 0.04)}


def test_more_tokens_are_imbalance(tmp_path: Path) -> None:
    uneven = Training(
        tokens=lambda rank, step: 8192 if rank == step % 2 else 4096,
        extra=lambda rank, step: {"f": 30 * MS, "b": 60 * MS} if rank == step % 2 else {},
    )
    ledger = ledger_of(read(uneven.write(tmp_path)))
    assert ledger.booked("straggler") == pytest.approx(0, abs=0.01)
    assert ledger.booked("imbalance") == pytest.approx(59 * 0.09, rel=0.01)


def test_transfers_are_booked_where_the_back_end_times_them(tmp_path: Path) -> None:
    ledger = ledger_of(read(Training(timed=True, transfer=20 * MS).write(tmp_path)))
    assert ledger.booked("comm") == pytest.approx(2 * 59 * 0.02)
    assert "comm" not in ledger.unavailable


def test_other_hosts_clocks_are_aligned(tmp_path: Path) -> None:
    far = Training(
        clock_ahead={1: 7_654_321}, extra=lambda rank, step: {"f": 50 * MS * (rank == 1)}
    )
    report = read(far.write(tmp_path))
    ledger = ledger_of(report)
    assert set(caused(ledger)) == {(1, "compute")}
    assert ledger.booked("straggler") == pytest.approx(59 * 0.05, rel=0.01)
    assert any("2 hosts are aligned" in note for note in report.notes)


def test_blocking_collectives_count_wholly(tmp_path: Path) -> None:
    """Ranks that come to the next collective only after the last one has come to this one."""
    files: list[list[Record]] = []
    for rank in range(2):
        head = Training().records()[rank][:1]
        steps: list[Record] = []
        now = 0
        for step in range(1, 31):
            late = 10 * MS * rank
            arrivals = [now + 20 * MS + late, now + 60 * MS + late]
            end = now + 100 * MS
            first, second = arrivals
            steps += [
                {
                    "k": "s",
                    "n": step,
                    "t": end,
                    "d": 100 * MS,
                    "p": ["f", 0, 90 * MS, "o", 90 * MS, 10 * MS],
                },
                {
                    "k": "c",
                    "g": "tp",
                    "o": "allreduce",
                    "q": 2 * step,
                    "a": [first, second - first],
                },
            ]
            now = end
        files.append([*head, *steps])
    for rank, records in enumerate(files):
        (tmp_path / f"rank-{rank}.attempt-0.cfr").write_bytes(MAGIC + packed_all(records))
    assert ledger_of(read(tmp_path)).booked("straggler") == pytest.approx(29 * 2 * 0.01)


def test_a_resumed_run_has_restarts_and_lost_steps(tmp_path: Path) -> None:
    Training(steps=40, ends=False).write(tmp_path)
    Training(steps=30, attempt=1, first_count=31, begins=10_000 * MS).write(tmp_path)
    report = read(tmp_path)
    run: RecordedRun = report.facts
    ledger = ledger_of(report)
    assert [attempt.redone_steps for attempt in run.attempts] == [0, 10]
    assert ledger.booked("lost") == pytest.approx(2 * 9 * 0.1016)  # its first step is restart
    first_end, second_start = 2.0 + 40 * 0.1016, 10.0
    assert ledger.booked("restart") == pytest.approx(2 * (second_start - first_end + 2.0 + 0.1016))
    assert ledger.booked("unexplained") == 0


def test_a_device_hides_what_its_host_does(tmp_path: Path) -> None:
    """The host waits 30 ms for data; the device is behind by 20 ms, so it is idle for 10."""
    head = Training(ranks=1, device="cuda").records()[0][:1]
    steps: list[Record] = [
        {
            "k": "s",
            "n": n,
            "t": 100 * MS * n,
            "d": 100 * MS,
            "p": [
                "d",
                0,
                30 * MS,
                "f",
                30 * MS,
                20 * MS,
                "b",
                50 * MS,
                40 * MS,
                "o",
                90 * MS,
                10 * MS,
            ],
            "v": [1, 25 * MS, 2, 22 * MS, 3, 20 * MS],
        }
        for n in range(1, 22)
    ]
    (tmp_path / "rank-0.attempt-0.cfr").write_bytes(MAGIC + packed_all([*head, *steps]))
    ledger = ledger_of(read(tmp_path))
    assert ledger.booked("input") == pytest.approx(20 * 0.01)
    assert ledger.booked("optimizer") == pytest.approx(20 * 0.008, rel=0.11)
    assert ledger.booked("compute") == pytest.approx(20 * 0.082, rel=0.01)


def test_the_innermost_span_counts_but_an_evaluation_keeps_its_forward() -> None:
    spans = [Span(EVALUATION, 0, 100), Span(FORWARD, 10, 40), Span(CHECKPOINT, 50, 60)]
    pieces = [(piece.kind, piece.start, piece.end) for piece in flatten(spans)]
    assert pieces == [
        (EVALUATION, 0, 10),
        (EVALUATION, 10, 40),
        (EVALUATION, 40, 50),
        (CHECKPOINT, 50, 60),
        (EVALUATION, 60, 100),
    ]


def test_spans_beyond_those_that_a_record_lists_are_taken_from_the_end_of_the_step(
    tmp_path: Path,
) -> None:
    head = Training(ranks=1).records()[0][:1]
    steps: list[Record] = [
        {
            "k": "s",
            "n": n,
            "t": 100 * MS * n,
            "d": 100 * MS,
            "p": ["f", 0, 40 * MS],
            "more": {"b": [3, 40 * MS], "o": [1, 10 * MS]},
        }
        for n in range(1, 12)
    ]
    (tmp_path / "rank-0.attempt-0.cfr").write_bytes(MAGIC + packed_all([*head, *steps]))
    ledger = ledger_of(read(tmp_path))
    assert ledger.booked("compute") == pytest.approx(10 * 0.08)
    assert ledger.booked("host") == pytest.approx(10 * 0.01)


def test_flops_of_a_model_make_an_mfu(tmp_path: Path) -> None:
    work = ModelWork(flops_per_step=2 * 0.0455 * 989.4e12, full_flops_per_step=2 * 0.05 * 989.4e12)
    device = ASKED.catalog.accelerators["h100-sxm"]
    asked = SourceRequest(catalog=ASKED.catalog, work=work, accelerator=device)
    ledger = ledger_of(read(Training().write(tmp_path), asked))
    peak = device.dense_flops["bf16"]
    assert ledger.booked("compute.model") == pytest.approx(59 * work.flops_per_step / peak)
    assert is_closed(ledger) and ledger.mfu


def test_the_traces_of_a_run_folder_are_no_second_audit(tmp_path: Path) -> None:
    Training(steps=20).write(tmp_path)
    (tmp_path / "kineto").mkdir()
    trace = {"traceEvents": [{"ph": "X", "name": "x", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}
    window = tmp_path / "kineto" / "rank-00000.step-000010.json.gz"
    window.write_bytes(gzip.compress(json.dumps(trace).encode()))
    (tmp_path / "run.json").write_text('{"name": "first try", "command": ["python", "train.py"]}')
    found = sort_files([tmp_path])
    assert set(found.files) == {"recording"} and not found.left_out
    run: RecordedRun = read(tmp_path).facts
    assert (run.name, run.command) == ("first try", "python train.py")
    assert set(sort_files([window]).files) == {"kineto"}


def test_the_latest_window_splits_what_phases_cannot(tmp_path: Path) -> None:
    """Kernels of 2 ms in passes of 91 ms: what the device did not do was the host's."""
    Training(device="cuda").write(tmp_path)
    (tmp_path / "made").mkdir()
    (tmp_path / "kineto").mkdir()
    for rank, path in enumerate(data_parallel_job(tmp_path / "made", ranks=2)):
        path.rename(tmp_path / "kineto" / f"rank-{rank:05d}.step-000030.json")
    report = read(tmp_path)
    ledger = ledger_of(report)
    steps = 2 * 59
    assert is_closed(ledger)
    assert ledger.booked("compute") == pytest.approx(steps * 0.002, rel=0.01)
    assert ledger.booked("comm") == pytest.approx(steps * 0.0001, rel=0.2)
    assert ledger.booked("host") == pytest.approx(steps * (0.091 + 0.0006 - 0.0021), rel=0.01)
    assert any(note.startswith("sampled: ") and "step 30" in note for note in report.notes)
    assert len(report.sources) == 4


def test_a_hang_names_who_has_not_come(tmp_path: Path) -> None:
    training = Training(ranks=3, steps=20, ends=False)
    for rank, records in enumerate(training.records()):
        last = records[-2]
        if rank != 2:
            again = dict(records[-1])
            records.append(again | {"q": again["q"] + 3, "a": [last["t"] + 90 * MS, 1, 1]})
        beats: list[Record] = [
            {
                "k": "b",
                "t": last["t"] + 1000 * MS * n,
                "n": 20,
                "in": "b" if rank != 2 else "",
                "for": 1000 * MS * n,
            }
            for n in range(1, 31)
        ]
        path = tmp_path / f"rank-{rank}.attempt-0.cfr"
        path.write_bytes(MAGIC + packed_all([*records, *beats]))
    report = read(tmp_path)
    stuck = report.facts.stuck
    assert stuck is not None
    assert (stuck.missing, stuck.waiting, stuck.step) == ((2,), (0, 1), 20)
    assert stuck.seconds == pytest.approx(30, abs=0.1)
    assert ledger_of(report).booked("idle") == pytest.approx(90, abs=0.5)


class TestFilesAsTheyComeFromCrashes:
    @RELAXED
    @given(where=st.floats(0, 1))
    def test_a_file_cut_anywhere_gives_a_beginning_of_the_truth(
        self, tmp_path: Path, where: float
    ) -> None:
        records = Training(steps=30).records()[0]
        whole = MAGIC + packed_all(records)
        path = tmp_path / "rank-0.attempt-0.cfr"
        path.write_bytes(whole)
        truth = read_rank_file(path, MANY)
        path.write_bytes(whole[: round(where * len(whole))])
        try:
            cut = read_rank_file(path, MANY)
        except InputError as error:
            assert "nothing was recorded yet" in str(error)
            return
        count = len(cut.steps)
        assert cut.steps.end.tolist() == truth.steps.end[:count].tolist()
        pieces = len(cut.pieces)
        assert cut.pieces.kind.tolist() == truth.pieces.kind[:pieces].tolist()
        assert cut.arrivals.at.tolist() == truth.arrivals.at[: len(cut.arrivals)].tolist()

    def test_damage_costs_the_records_it_hits(self, tmp_path: Path) -> None:
        path = Training(steps=30).write(tmp_path) / "rank-00000.attempt-0.cfr"
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 600] = b"\x00" * 600
        path.write_bytes(content)
        report = read(tmp_path)
        assert any("damaged" in note for note in report.left_out)
        assert report.facts.per_rank[0].steps in (27, 28, 29)
        assert is_closed(ledger_of(report))

    def test_a_large_file_is_read_from_its_end(self, tmp_path: Path) -> None:
        training = Training(ranks=1, steps=20_000)
        path = training.write(tmp_path) / "rank-00000.attempt-0.cfr"
        part = read_rank_file(path, 2 << 20)
        assert 0 < len(part.steps) < 20_000 and part.steps.number[-1] == 20_000
        assert any("only the beginning is read" in note for note in part.left_out)

    @RELAXED
    @given(data=st.data())
    def test_hostile_records_never_break_the_reader(
        self, tmp_path: Path, data: st.DataObject
    ) -> None:
        odd = st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=5),
            st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=2)), max_size=6),
            st.just(10**30),
            st.just({"x": [1]}),
        )
        fields = st.dictionaries(
            st.sampled_from(
                "n o t d p v tok smp gc w loss g r q a z e every in for dropped".split()
            ),
            odd,
            max_size=12,
        )
        kinds = st.sampled_from(["s", "c", "e", "m", "b", "x", "end", "model", "z", "start"])
        records = [*Training(steps=6).records()[0]]
        for kind, values in data.draw(st.lists(st.tuples(kinds, fields), max_size=12)):
            place = data.draw(st.integers(1, len(records)))
            records.insert(place, {"k": kind} | values)
        (tmp_path / "rank-0.attempt-0.cfr").write_bytes(MAGIC + packed_all(records))
        report = read(tmp_path)
        if report.ledger is not None:
            assert is_closed(report.ledger)

    @pytest.mark.parametrize("field", ["unix_ns", "rank", "world", "attempt", "began_us", "host"])
    @pytest.mark.parametrize("value", [None, -1, 1e400, 10**40, "x", [1], {}])
    def test_a_start_with_impossible_values_is_refused_or_read(
        self, tmp_path: Path, field: str, value: object
    ) -> None:
        start, *rest = Training(ranks=1, steps=5).records()[0]
        start[field] = value
        path = tmp_path / "rank-0.attempt-0.cfr"
        path.write_bytes(MAGIC + packed_all([start, *rest]))
        found = sort_files([tmp_path])
        reports, failed = observe(found.files, [], ASKED)
        assert len(reports) + len(failed) == 1

    def test_another_version_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "rank-0.attempt-0.cfr"
        path.write_bytes(b"CFREC\x02\r\n" + packed({"k": "start"}))
        _, failed = observe(sort_files([tmp_path]).files, [], ASKED)
        assert "format version 2" in failed[0]


@RELAXED
@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(1, 5),
    steps=st.integers(2, 40),
    jitter=st.floats(0, 0.5),
    timed=st.booleans(),
    ahead=st.integers(-(10**7), 10**7),
)
def test_the_ledger_closes_whatever_happens(
    tmp_path: Path, seed: int, ranks: int, steps: int, jitter: float, timed: bool, ahead: int
) -> None:
    chance = random.Random(seed)
    faults = {
        (rank, step): {chance.choice([*"dfbocvg", "gap"]): chance.randrange(10**6)}
        for rank in range(ranks)
        for step in range(steps)
        if chance.random() < 0.3
    }
    training = Training(
        ranks=ranks,
        steps=steps,
        jitter=jitter,
        seed=seed,
        timed=timed,
        extra=lambda rank, step: faults.get((rank, step), {}),
        clock_ahead={ranks - 1: ahead} if ranks > 1 else {},
    )
    for old in tmp_path.glob("*.cfr"):
        old.unlink()
    ledger = ledger_of(read(training.write(tmp_path)))
    assert is_closed(ledger)
    assert ledger.booked("unexplained") <= 1e-6 * ledger.gpu_seconds


@RELAXED
@given(order=st.permutations(range(4)))
def test_the_order_of_files_does_not_matter(tmp_path: Path, order: list[int]) -> None:
    slow = Training(ranks=4, steps=20, extra=lambda rank, step: {"f": 9 * MS * rank})
    paths = sorted(slow.write(tmp_path).glob("*.cfr"))
    first, _ = observe({"recording": paths}, [], ASKED)
    again, _ = observe({"recording": [paths[place] for place in order]}, [], ASKED)
    assert first[0].ledger == again[0].ledger and first[0].facts == again[0].facts


def test_times_are_those_of_the_epoch(tmp_path: Path) -> None:
    report = read(Training(steps=5).write(tmp_path))
    assert report.facts.start == pytest.approx(EPOCH_NS / 1e9)


def test_a_long_file_is_thinned_in_the_memory_of_the_device_and_of_the_host(tmp_path: Path) -> None:
    """A rank on a GPU writes both at each tick, one after the other."""
    head = Training(ranks=1, steps=2).records()[0]
    ticks = [
        record
        for at in range(40_000)
        for record in (
            {"k": "m", "t": 5_000_000 * at, "allocated": at, "reserved": at},
            {"k": "m", "t": 5_000_000 * at + 9, "host": at},
        )
    ]
    path = tmp_path / "rank-00000.attempt-0.cfr"
    path.write_bytes(MAGIC + packed_all([*head, *ticks]))
    rows = read_rank_file(path, 1 << 30).memory_rows
    device, host = rows.allocated[rows.allocated >= 0], rows.host[rows.host >= 0]
    assert len(device) == len(host) == 23_616  # 32,768 of each, halved, and 7,232 more
    assert device[-1] == host[-1] == 39_999 and (rows.at[1:] >= rows.at[:-1]).all()
