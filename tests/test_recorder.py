"""The recorder without training: frames, the tape, imports, commands, what is kept of a command."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import json
import math
import os
import random
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.collection import attaching, launching
from computeflow.collection.run_facts import kept_environment, without_secrets
from computeflow.errors import InputError
from computeflow.recorder import commands, identity, imports, tape
from computeflow.recorder.commands import Commands
from computeflow.recorder.frames import (
    MAGIC,
    MAX_RECORD,
    DamagedError,
    FrameReader,
    packed,
    packed_all,
)
from computeflow.recorder.process_recorder import Recorder
from computeflow.recorder.tape import Tape

RECORDS = st.lists(
    st.fixed_dictionaries(
        {"k": st.sampled_from("sbmcex")},
        optional={"n": st.integers(0, 10**9), "text": st.text(max_size=30)},
    ),
    max_size=8,
)


def read(data: bytes) -> list[dict[str, Any]]:
    return list(FrameReader(io.BytesIO(data)).read())


def steps(count: int, start: int = 1) -> list[dict[str, Any]]:
    return [{"k": "s", "n": n} for n in range(start, start + count)]


# Frames


@given(RECORDS)
def test_records_are_read_as_they_were_written(records: list[dict[str, Any]]) -> None:
    assert read(MAGIC + packed_all(records)) == records


@given(RECORDS, st.randoms(use_true_random=False))
def test_a_file_is_followed_however_it_is_cut(
    records: list[dict[str, Any]], choose: random.Random
) -> None:
    data = MAGIC + packed_all(records)
    file = io.BytesIO()
    reader = FrameReader(file)
    seen = []
    while data:
        size = choose.randint(1, 20)
        file.seek(0, os.SEEK_END)
        file.write(data[:size])
        data = data[size:]
        seen += list(reader.read())
    assert seen == records
    assert (reader.damaged_bytes, reader.unread_bytes) == (0, 0)


def test_a_file_that_ends_anywhere_gives_what_stands_before() -> None:
    records = steps(5)
    data = MAGIC + packed_all(records)
    ends = [len(MAGIC) + len(packed_all(records[:n])) for n in range(6)]
    for size in range(len(data) + 1):
        whole = sum(end <= size for end in ends[1:])
        assert read(data[:size]) == records[:whole], size


def test_a_flipped_bit_costs_one_record() -> None:
    records = steps(6)
    data = bytearray(MAGIC + packed_all(records))
    frame = len(packed(records[0]))
    for place in range(len(MAGIC) * 8, len(data) * 8):
        data[place // 8] ^= 1 << place % 8
        reader = FrameReader(io.BytesIO(bytes(data)))
        kept = list(reader.read())
        broken = (place // 8 - len(MAGIC)) // frame
        assert kept == records[:broken] + records[broken + 1 :], place
        assert reader.damaged_bytes + reader.unread_bytes == frame
        data[place // 8] ^= 1 << place % 8


@given(st.binary(max_size=200), RECORDS)
def test_any_bytes_are_read_without_an_error(noise: bytes, records: list[dict[str, Any]]) -> None:
    after = read(MAGIC + noise + packed_all(records))
    assert after[-len(records) :] == records if records else True


@pytest.mark.parametrize("length", [0, 1, 4, MAX_RECORD, MAX_RECORD + 1, 2**31, 2**32 - 1])
def test_a_hostile_length_is_passed_over(length: int) -> None:
    reader = FrameReader(io.BytesIO(MAGIC + struct.pack("<II", length, 0) + packed_all(steps(3))))
    assert list(reader.read()) == steps(3)
    assert reader.damaged_bytes == 8


def test_damage_of_megabytes_is_passed_over() -> None:
    noise = random.Random(0).randbytes(5 * MAX_RECORD)
    assert read(MAGIC + packed_all(steps(2)) + noise + packed_all(steps(2, 3))) == steps(4)


class Counting(io.BytesIO):
    """A file that counts what is read of it."""

    total = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.total += len(data)
        return data


@pytest.mark.parametrize("length", [10_000, MAX_RECORD])
def test_a_search_for_the_next_frame_is_linear(length: int) -> None:
    """A file of beginnings alone, each with the length of a long record that is not there."""
    for size in (20_000, 40_000):
        file = Counting(MAGIC + (struct.pack("<II", length, 1) + b'{"k":') * size)
        assert list(FrameReader(file).read()) == []
        assert file.total < 4 * MAX_RECORD + 24 * len(file.getvalue())


def test_small_damage_everywhere_is_read_in_linear_time() -> None:
    data = b"".join(b"\xff" * 20 + packed({"k": "s", "n": n}) for n in range(2000))
    file = Counting(MAGIC + data)
    assert len(list(FrameReader(file).read())) == 2000
    assert file.total < 2000 * 3 * 4096


def test_what_is_deep_or_no_object_is_damage() -> None:
    bodies = [b"[" * 100_000, b'{"k":' * 50_000, b"[1]", b"7", b'{"x":1}', b"\xff\xfe"]
    frames = b"".join(struct.pack("<II", len(b), zlib.crc32(b)) + b for b in bodies)
    assert read(MAGIC + frames + packed_all(steps(1))) == steps(1)


def test_the_end_of_a_file_can_be_read_alone() -> None:
    data = MAGIC + packed_all(steps(50))
    for offset in range(len(MAGIC), len(data)):
        kept = list(FrameReader(io.BytesIO(data), offset).read())
        assert kept == steps(50)[50 - len(kept) :]
        assert len(kept) >= (len(data) - offset) // len(packed(steps(50)[-1])) - 1


def test_the_summary_reads_the_end_of_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_TAIL_BYTES", 500)
    frames = packed_all([*steps(1000), {"k": "end", "dropped": 7}])
    (tmp_path / "rank-00000.attempt-0.cfr").write_bytes(MAGIC + frames)
    (tmp_path / "rank-00001.attempt-0.cfr").write_bytes(MAGIC + packed_all(steps(3)))
    ranks, most, size, notes = launching._recorded(tmp_path)
    assert (ranks, most) == (2, 1000)
    assert size > len(frames)
    assert "1 process ended without a last record" in notes[0]
    assert notes[1:] == ["up to 7 records of a rank were dropped"]


def test_other_files_and_versions_are_refused() -> None:
    for data in (b"hello, world", b"CFREC\x02\r\nxx", b"CFREC\x02", b"\x1f\x8b0000000"):
        with pytest.raises(DamagedError):
            read(data)
    assert read(b"") == read(MAGIC[:3]) == []


def test_numbers_that_json_lacks_are_text() -> None:
    frame = packed({"k": "s", "loss": math.nan, "p": [math.inf, (-math.inf,), 1.5]})
    (record,) = read(MAGIC + frame)
    assert record == {"k": "s", "loss": "nan", "p": ["inf", ["-inf"], 1.5]}
    json.loads(frame[8:], parse_constant=pytest.fail)


def test_a_record_that_no_reader_takes_is_not_written() -> None:
    with pytest.raises(ValueError, match="at most"):
        packed({"k": "s", "text": "x" * MAX_RECORD})


# The tape


def new_tape(folder: Path, **options: Any) -> Tape:
    first = {"k": "start", "rank": 0, "attempt": 0}
    made = Tape(
        folder,
        first,
        options.get("encode", lambda item: {"k": "s", "n": item}),
        options.get("idle", list),
        options.get("last", list),
    )
    made.start()
    return made


def kept(folder: Path, attempt: int = 0) -> list[dict[str, Any]]:
    with (folder / f"rank-00000.attempt-{attempt}.cfr").open("rb") as file:
        return list(FrameReader(file).read())


def wait_for(what: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(tape, "_RETRY_SECONDS", 0.01)


def test_what_is_put_is_kept_in_order_and_ends(tmp_path: Path) -> None:
    made = new_tape(tmp_path, last=lambda: [{"k": "m"}])
    for n in range(5000):
        made.put(n)
    made.close({"k": "end"}, seconds=30)
    first, *middle, memory, end = kept(tmp_path)
    assert (first["k"], memory["k"], end["k"]) == ("start", "m", "end")
    assert [record["n"] for record in middle] == list(range(5000))


class Disk:
    """`os.write` of the recorder's files, which may refuse or be slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses: int | None = None
        self.at_most = 1 << 30
        self.gate = threading.Event()
        self.gate.set()
        self.tries = 0
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, file: int, data: bytes) -> int:
        if threading.current_thread().name != "computeflow-recorder":
            return self._write(file, data)
        self.tries += 1
        self.gate.wait(30)
        if self.refuses is not None:
            if self.at_most:
                size, self.at_most = self.at_most, 0
                return self._write(file, data[:size])
            raise OSError(self.refuses, os.strerror(self.refuses))
        return self._write(file, data)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_loses_nothing_that_fits_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None, number: int
) -> None:
    disk = Disk(monkeypatch)
    disk.refuses, disk.at_most = number, 21  # in the middle of the first record
    made = new_tape(tmp_path)
    for n in range(100):
        made.put(n)
    wait_for(lambda: disk.tries > 3)
    disk.refuses = None
    made.close({"k": "end"}, seconds=30)
    records = kept(tmp_path)
    assert [record["n"] for record in records if record["k"] == "s"] == list(range(100))
    (lost,) = (record for record in records if record["k"] == "x")
    assert lost["errors"]["disk"][0] >= 1
    assert os.strerror(number) in lost["errors"]["disk"][1]


def test_a_full_buffer_drops_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    disk = Disk(monkeypatch)
    made = new_tape(tmp_path)
    wait_for(lambda: disk.tries)
    disk.gate.clear()  # the disk hangs
    made.put(-1)
    wait_for(lambda: not made._waiting)
    for n in range(tape.MAX_WAITING + 500):
        made.put(n)
    disk.gate.set()
    made.close({"k": "end"}, seconds=30)
    records = kept(tmp_path)
    assert sum(record["k"] == "s" for record in records) == tape.MAX_WAITING + 1
    assert [record["dropped"] for record in records if record["k"] == "x"] == [500]


def test_putting_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.gate.clear()
    made = new_tape(tmp_path)
    made.put(1)
    made.close({"k": "end"}, seconds=0.01)  # nor does the end, but for the time it is given
    assert made._thread.is_alive()
    disk.gate.set()
    made._thread.join(30)
    assert [record["k"] for record in kept(tmp_path)] == ["start", "s", "end"]


def test_a_folder_that_cannot_be_written_is_tried_again(tmp_path: Path, quick: None) -> None:
    (tmp_path / "run").write_text("a file")
    made = new_tape(tmp_path / "run")
    made.put(1)
    wait_for(lambda: made.errors_at("disk") > 2)
    (tmp_path / "run").unlink()
    made.close({"k": "end"}, seconds=30)
    assert [record["k"] for record in kept(tmp_path / "run")] == ["start", "s", "x", "end"]


def test_a_second_process_of_a_rank_takes_the_next_number(tmp_path: Path) -> None:
    for _ in range(3):
        new_tape(tmp_path).close({"k": "end"}, seconds=30)
    assert [kept(tmp_path, n)[0]["attempt"] for n in range(3)] == [0, 1, 2]


def test_what_cannot_be_encoded_is_dropped_and_counted(tmp_path: Path) -> None:
    class BadError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def encode(item: int) -> dict[str, Any]:
        if item % 2:
            raise BadError
        return {"k": "s", "n": item, "text": "x" * (MAX_RECORD if item == 4 else 1)}

    made = new_tape(tmp_path, encode=encode, last=lambda: [{"k": "m", "x": object()}])
    for n in range(10):
        made.put(n)
    made.close({"k": "end"}, seconds=30)
    records = kept(tmp_path)
    assert [record["n"] for record in records if record["k"] == "s"] == [0, 2, 6, 8]
    (lost,) = (record for record in records if record["k"] == "x")
    assert (lost["dropped"], lost["errors"]) == (6, {"encode": [6, "BadError"]})


def test_watches_that_fail_are_counted(tmp_path: Path, quick: None) -> None:
    def idle() -> list[dict[str, Any]]:
        raise ValueError("no such thing")

    made = new_tape(tmp_path, idle=idle)
    wait_for(lambda: made.errors_at("watch") > 1)
    made.close({"k": "end"}, seconds=30)
    records = kept(tmp_path)
    assert records[-1]["k"] == "end"
    assert any("no such thing" in str(record.get("errors")) for record in records)


def test_errors_of_many_places_are_bounded() -> None:
    made = Tape(Path(), {"rank": 0, "attempt": 0}, dict, list, list)
    for n in range(10_000):
        made.error(f"place {n}", ValueError("x" * 10_000))
    assert len(packed({"k": "x", "errors": made._errors})) < 20_000


# The recorder of a process


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    import gc

    monkeypatch.delenv("RANK", raising=False)
    before = list(gc.callbacks)
    made = Recorder(tmp_path / "run")
    yield made
    made.close()
    gc.callbacks[:] = before


def finished(recorder: Recorder) -> list[dict[str, Any]]:
    recorder.close()
    assert recorder.tape is not None
    recorder.tape._thread.join(30)
    with recorder.tape.path.open("rb") as file:
        return list(FrameReader(file).read())


def test_a_hook_that_fails_is_counted_and_given_up(recorder: Recorder) -> None:
    calls = []

    def fails(*_: Any) -> None:
        calls.append(1)
        raise ValueError("a fault of ours")

    recorder.on_step.append(fails)
    for _ in range(50):
        recorder.watch.boundary()
    records = finished(recorder)
    assert sum(record["k"] == "s" for record in records) == 50
    assert len(calls) == 20
    (errors,) = (record["errors"] for record in records if record["k"] == "x")
    assert [count for count, _ in errors.values()] == [20]


@pytest.mark.parametrize("name", ["begin", "resume", "end", "boundary", "drop"])
def test_a_watch_that_fails_raises_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from computeflow import recorder as public
    from computeflow.recorder import process_recorder
    from computeflow.recorder.steps import StepWatch

    def fails(*_: Any) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(StepWatch, name, fails)
    monkeypatch.setattr(process_recorder, "_CURRENT", [recorder])
    for _ in range(30):
        with public.step(), public.phase("data"):
            recorder.watch.end(recorder.watch.resume("o"))
            recorder.watch.drop(recorder.watch.begin("v"))


def test_a_process_that_cannot_start_a_thread_trains_on(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Tape, "start", refuse)
    for _ in range(3):
        recorder.watch.boundary()
    assert recorder.tape is None
    assert "can't start new thread" in (recorder.folder / "not-recorded.txt").read_text()


def test_times_are_counted_from_the_beginning_of_the_first_step(recorder: Recorder) -> None:
    before = time.time_ns()
    span = recorder.watch.begin("f")
    time.sleep(0.01)
    recorder.watch.end(span)
    recorder.watch.boundaries([time.perf_counter_ns()])
    start, step, *_ = finished(recorder)
    assert step["t"] == step["d"] >= 10_000
    assert before - 10_000_000 <= start["unix_ns"] <= before + 9_000_000 + step["d"] * 1000
    assert start["began_us"] <= 0


def test_training_looks_at_no_file(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network disk that hangs must not hang a step: all of it is the writer's."""
    recorder.watch.boundary()
    mine = threading.get_ident()
    for name in ("stat", "open", "listdir", "write", "mkdir"):
        real = getattr(os, name)

        def only_elsewhere(*arguments: Any, real: Any = real, **options: Any) -> Any:
            assert threading.get_ident() != mine
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, only_elsewhere)
    for _ in range(10):
        recorder.watch.end(recorder.watch.begin("f"))
        recorder.watch.boundary()
    monkeypatch.undo()
    assert not recorder._failures
    assert sum(record["k"] == "s" for record in finished(recorder)) == 11


# Commands


def written(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_commands_come_in_order_at_their_step(tmp_path: Path) -> None:
    known = Commands(tmp_path / "control", 0)
    known.look()
    written(tmp_path / "control", "1.json", '{"do": "checkpoint"}')
    written(tmp_path / "control", "2.json", '{"do": "window", "step": 5}')
    known.look()
    assert [each["do"] for each in known.due(1)] == ["checkpoint"]
    assert known.due(4) == []
    assert [each["name"] for each in known.due(6)] == ["2.json"]
    known.look()
    assert known.due(9) == []
    written(tmp_path / "control", "3.json", '{"do": "stop"}')
    known.look()
    assert [each["do"] for each in known.due(9)] == ["stop"]


def test_a_command_that_is_none_hides_no_other(tmp_path: Path) -> None:
    control = tmp_path / "control"
    for number, text in enumerate(["{", "[1]", '{"step": "x"}', "[" * 60_000, "\x00", "7"]):
        written(control, f"{number}.json", text)
    (control / "6.json").mkdir()
    os.mkfifo(control / "7.json")
    (control / "8.json").symlink_to("nowhere")
    written(control, "9.json", '{"do": "checkpoint"}')
    known = Commands(control, 0)
    known.look()
    assert [each["name"] for each in known.due(1)] == ["9.json"]


def test_a_later_attempt_does_not_obey_again(tmp_path: Path) -> None:
    path = written(tmp_path / "control", "1.json", '{"do": "stop"}')
    os.utime(path, ns=(10**18, 10**18))
    earlier, later = (Commands(path.parent, 10**18 + shift) for shift in (-1, 1))
    earlier.look()
    later.look()
    assert [each["do"] for each in earlier.due(1)] == ["stop"]
    assert later.due(1) == []


def test_what_nobody_registered_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CHECKPOINT", "_INTERVAL", "_STOP"):
        monkeypatch.setattr(commands, name, [])
    for do in ("checkpoint", "interval", "stop"):
        assert commands.carry_out({"do": do}).startswith("unavailable: nothing was registered")
    assert commands.carry_out({"do": "dance"}) == "unknown: 'dance'"
    done: list[object] = []
    commands.on_checkpoint(lambda: done.append("saved"))
    commands.on_interval(done.append)
    commands.on_stop(lambda: done.append("stopped"))
    assert commands.carry_out({"do": "interval", "steps": "many"}).startswith("refused")
    for command in ({"do": "checkpoint"}, {"do": "interval", "steps": 7}, {"do": "stop"}):
        assert commands.carry_out(command) == "done"
    assert done == ["saved", 7, "stopped"]


# Imports


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "computeflow_awaited.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "computeflow_awaited"
    sys.modules.pop("computeflow_awaited", None)
    imports._FINDER.acts.pop("computeflow_awaited", None)
    with contextlib.suppress(ValueError):
        sys.meta_path.remove(imports._FINDER)


def test_a_module_is_acted_on_once_it_is_loaded(module: str) -> None:
    seen: list[int] = []
    imports.when_imported(module, lambda loaded: seen.append(loaded.value))
    assert importlib.util.find_spec(module) is not None  # as those do who only ask
    assert importlib.util.find_spec(module) is not None
    assert seen == []
    loaded = importlib.import_module(module)
    assert seen == [7]
    assert type(loaded.__loader__).__name__ == type(loaded.__spec__.loader).__name__  # type: ignore[union-attr]
    assert type(loaded.__loader__).__name__ == "SourceFileLoader"
    importlib.reload(loaded)
    assert seen == [7]
    imports.when_imported(module, lambda loaded: seen.append(loaded.value))
    assert seen == [7, 7]


def test_an_act_that_fails_is_not_the_importers_fault(module: str) -> None:
    def fails(_: ModuleType) -> None:
        raise ValueError

    seen: list[object] = []
    imports.when_imported(module, fails)
    imports.when_imported(module, seen.append)
    assert importlib.import_module(module).value == 7
    assert len(seen) == 1
    imports.when_imported(module, fails)


def test_a_module_that_fails_or_is_missing_does_so_as_ever(module: str, tmp_path: Path) -> None:
    imports.when_imported("computeflow_missing", lambda _: pytest.fail())
    imports.when_imported("computeflow_broken", lambda _: pytest.fail())
    (tmp_path / "computeflow_broken.py").write_text("1 / 0")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("computeflow_missing")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("computeflow_broken")


# Who this process is


@pytest.mark.parametrize(
    ("rank", "world", "seen"),
    [
        ("3", "8", (3, 8)),
        ("abc", "8", (0, 8)),
        ("-1", "-5", (0, 1)),
        ("9" * 40, "9" * 40, (0, 1)),
        ("7", "2", (7, 8)),
        ("٣", "４", (0, 1)),
        ("", " ", (0, 1)),
        ("1e3", "0x10", (0, 1)),
    ],
)
def test_a_hostile_environment_is_no_rank(
    monkeypatch: pytest.MonkeyPatch, rank: str, world: str, seen: tuple[int, int]
) -> None:
    for name in identity._RANK + identity._WORLD:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    assert identity.rank_and_world()[:2] == seen


def test_an_attempt_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert identity.attempt_number() == 2
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "x")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "4")
    assert identity.attempt_number() == 4


# Secrets

SECRET = "hunter2"
KEYS = [
    "hf_abcdefghijklmnopqrst",
    "ghp_abcdefghijklmnopqrst",
    "sk-abcdefghijklmnopqrst",
    "AKIAABCDEFGHIJKLMNOP",
    "xoxb-123456789012-abc",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "https://user:hunter2@host/path",
    "redis://:hunter2@host",
    "9f2c41d07ab86e53c0d4f19b7a2e8c6d5b3f0e17",
    "a1B2c3D4e5F6g7H8i9J0k1L2m3N4",
    "-----BEGIN RSA PRIVATE KEY-----\nabc",
    "DefaultEndpointsProtocol=https;AccountKey=abc==",
]


@pytest.mark.parametrize(
    "option",
    "--token --hf-token --hub_token --api-key --api_key --apikey --wandb-key --password --passwd "
    "--secret --aws_secret_access_key --auth --auth-token --credentials --db-password --dsn --cookie "
    "--private-key --jwt -password --wandb.api_key --slack-webhook --pass --pwd".split(),
)
def test_the_value_of_a_secret_option_is_hidden(option: str) -> None:
    for command in (
        ["train.py", option, SECRET, "--lr", "0.1"],
        ["train.py", f"{option}={SECRET}", "--lr", "0.1"],
        ["bash", "-c", f"python train.py {option} {SECRET} --lr 0.1"],
        ["bash", "-c", f"python train.py {option}='{SECRET} x' --lr 0.1"],
        ["env", f"{option.strip('-').upper().replace('-', '_')}={SECRET}", "train.py", "0.1"],
        ["bash", "-c", f"export {option.strip('-').upper()}={SECRET}; python train.py 0.1"],
        ["train.py", option, f"-{SECRET}", "0.1"],
    ):
        shown = " ".join(without_secrets(command))
        assert SECRET not in shown, shown
        assert "train.py" in shown
        assert "0.1" in shown


@pytest.mark.parametrize("key", KEYS)
def test_a_value_that_looks_like_a_secret_is_hidden(key: str) -> None:
    assert key not in " ".join(without_secrets(["train.py", key, f"--with={key}"]))
    assert kept_environment({"NCCL_X": key, "NCCL_DEBUG": "INFO"}) == {"NCCL_DEBUG": "INFO"}
    assert SECRET not in " ".join(without_secrets([key]))


def test_what_is_no_secret_stays() -> None:
    command = (
        "torchrun --nproc-per-node 8 --rdzv-endpoint=node1:29500 train.py --tokenizer gpt2 "
        "--max-tokens 4096 --tokens_per_batch=8192 --skip-connections-on --monkey banana "
        "--model meta-llama/Llama-3.1-8B-Instruct --data s3://bucket/a/b-00001-of-00128.tar "
        "--author me --passes 3 --out /data/runs/Llama3InstructFinetuneRunNumber5"
    ).split()
    assert without_secrets(command) == command
    kept_ones = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-8f6d2a10-1b2c-4d5e-8f90-123456789abc",
        "MASTER_ADDR": "10.0.0.1",
        "NCCL_IB_HCA": "mlx5_0,mlx5_1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "RANK": "3",
        "SLURM_JOB_ID": "77",
        "WORLD_SIZE": "8",
    }
    assert kept_environment(kept_ones) == kept_ones


@pytest.mark.parametrize(
    "name",
    "HF_TOKEN SLURM_JWT NVIDIA_API_KEY RAY_AUTH_TOKEN KUBERNETES_SECRET POD_PASSWORD HF_HUB_CREDS "
    "TORCH_DSN JAX_COOKIE MASTER_PRIVATE FSDP_WEBHOOK RAY_REDIS_PASSWORD HIP_CONNECTION_STRING "
    "AWS_SECRET_ACCESS_KEY WANDB_API_KEY HOME PATH MY_VARIABLE LOCAL_SAS NCCL_SIGNATURE".split(),
)
def test_a_secret_variable_is_not_kept(name: str) -> None:
    assert kept_environment({name: SECRET}) == {}


def test_a_command_line_of_any_size_is_read_in_linear_time() -> None:
    for word in (
        "a-" * 60_000,
        "token" * 20_000,
        "--key " * 20_000,
        "x://" * 30_000,
        "9a" * 60_000,
    ):
        began = time.process_time()
        without_secrets([word])
        assert time.process_time() - began < 5


# A process that runs already

RAW = """\
thread (7): MainThread;<module> (/u/train.py:8);step (/u/a b.py:6);load (/u/train.py:4) 6
thread (7): MainThread;<module> (/u/train.py:8);\
Tensor.backward (/v/site-packages/torch/_tensor.py:6);run (/v/site-packages/torch/autograd/graph.py:9) 3
thread (7): MainThread;_run (<frozen runpy>:88) 1
thread (9): Thread-1;wait (/usr/lib/python3.11/threading.py:3) 10
nonsense
"""


def test_samples_become_places_of_the_main_thread() -> None:
    places = attaching._places(attaching._main_thread(RAW, 7))
    assert [(place.code, place.framework, place.share) for place in places] == [
        ("load (train.py:4)", "", 0.6),
        ("<module> (train.py:8)", "run", 0.3),
        ("(no code of the user's)", "", 0.1),
    ]


def test_attaching_without_py_spy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(InputError, match=r"pip install 'computeflow\[attach\]'"):
        attaching.attach(os.getpid(), 1, Path())
