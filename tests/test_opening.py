"""Recordings are opened in one way: without waiting, and as what they are."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sqlite3
import subprocess
import tarfile
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from computeflow.errors import InputError
from computeflow.telemetry import opening
from computeflow.telemetry.accounting.accounting_source import read_jobs
from computeflow.telemetry.lines import read_lines
from computeflow.telemetry.nsys.database import Database
from computeflow.telemetry.nsys.nsys_reader import recognises
from computeflow.telemetry.opening import head_of, open_recording, read_head, read_whole, tail_of
from computeflow.telemetry.source_registry import sort_files

TRACE = json.dumps(
    {
        "deviceProperties": [],
        "traceEvents": [{"ph": "X", "name": "k", "cat": "kernel", "ts": 1, "dur": 1}],
    }
).encode()
PACKED = {
    "a.json.zst": (b"\x28\xb5\x2f\xfd" + b"x" * 600, "zstd -dc"),
    "a.json.xz": (b"\xfd7zXZ\x00" + b"x" * 600, "xz -dc"),
    "a.json.bz2": (b"BZh9" + b"x" * 600, "bzip2 -dc"),
    "a.7z": (b"7z\xbc\xaf\x27\x1c" + b"x" * 600, "7z x"),
    "twice.json.gz": (gzip.compress(gzip.compress(TRACE)), "gzip -dc"),
}


def tar(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(TRACE)
            archive.addfile(member, io.BytesIO(TRACE))
    return made.getvalue()


@pytest.mark.parametrize("name", ["run.tar", "run.tar.gz", "rank0.json.gz", "run.zip", *PACKED])
def test_archives_and_other_compressions_are_refused_with_what_unpacks_them(
    tmp_path: Path, name: str
) -> None:
    content, tool = PACKED.get(name, (tar("rank0.json", "rank1.json"), "tar xf"))
    path = tmp_path / name
    path.write_bytes(
        gzip.compress(content) if name.endswith(".gz") and tool != "gzip -dc" else content
    )
    if name.endswith(".zip"):
        tool = "unzip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("rank0.json", TRACE)
    with pytest.raises(InputError, match=tool):
        read_head(path)
    with pytest.raises(InputError, match=tool):
        sort_files([path])
    (tmp_path / "good.json").write_bytes(TRACE)
    assert any(tool in note for note in sort_files([tmp_path]).left_out)


def test_what_unpacks_a_file_does_so_whatever_its_ending(tmp_path: Path) -> None:
    packed, unpacked = tmp_path / "it's.json", tmp_path / "new.json"
    for content in (lzma.compress(TRACE), bz2.compress(TRACE), gzip.compress(gzip.compress(TRACE))):
        packed.write_bytes(content)
        with pytest.raises(InputError) as refused:
            read_head(packed)
        command = str(refused.value).rpartition("unpack it first (")[2].removesuffix(")")
        subprocess.run(command.replace("NEW", unpacked.name), shell=True, check=True, cwd=tmp_path)
        assert read_head(unpacked) == TRACE


def test_an_archive_of_a_folder_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_bytes(TRACE)
    (tmp_path / "a.json.xz").write_bytes(lzma.compress(TRACE))
    (tmp_path / "notes.md").write_text("no recording")
    archive, others = sort_files([tmp_path]).left_out
    assert "a.json.xz" in archive and others == "files of other kinds: 1 .md"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_known_as_such(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "train.log"
    path.write_bytes("step 1: loss 2.0\n".encode(encoding) * 100)
    with pytest.raises(InputError, match="UTF-16 without a byte-order mark: save it as UTF-8"):
        sort_files([path])
    with pytest.raises(InputError, match="UTF-16 without a byte-order mark: save it as UTF-8"):
        sort_files([tmp_path])


def test_pipes_and_devices_are_refused_and_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="not a file"), open_recording(path):
            pass
        assert head_of(path) == tail_of(path, 8) == b""
    with pytest.raises(InputError, match="null byte"):
        read_head(Path("a\x00b"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "utf-16-be", "utf-32-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_text_of_any_width_is_read(tmp_path: Path, encoding: str, packed: bool) -> None:
    text = "".join(f"line {n} µ\n" for n in range(50_000))
    mark = "\ufeff" if encoding.endswith("-be") else ""
    content = (mark + text).encode(encoding)
    path = tmp_path / "a.log"
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    left_out: list[str] = []
    assert "\n".join(read_lines(path, left_out)) + "\n" == text
    assert left_out == []


def test_gzip_of_several_members_with_padding_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(
        gzip.compress(b"one\n") + gzip.compress(b"") + gzip.compress(b"two\n") + bytes(900)
    )
    assert read_whole(path, 100, "") == b"one\ntwo\n"


def test_a_broken_end_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d\n" % n for n in range(9999)))[:-5000])
    left_out: list[str] = []
    assert len(list(read_lines(path, left_out))) > 10
    assert "broken" in left_out[0]
    with pytest.raises(InputError, match="ends in the middle"):
        read_whole(path, 1 << 20, "")


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "INFLATED_BYTES", 1 << 20)
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(InputError, match="200 times its size"):
        list(read_lines(path, []))


@pytest.fixture
def pending(tmp_path: Path) -> Path:
    """A database whose last rows still lie in its log of changes."""
    made = tmp_path / "made.sqlite"
    path = tmp_path / "pending.sqlite"
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT)")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2)")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        rows = [(n, n + 1) for n in range(99)]
        connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?)", rows)
        connection.commit()
        for ending in ("", "-wal"):
            path.with_name(path.name + ending).write_bytes(
                made.with_name(made.name + ending).read_bytes()
            )
    return path


def test_rows_that_lie_in_a_log_of_changes_are_read_and_nothing_is_written(
    pending: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with Database(pending) as database:
        count = list(database.rows("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"))
        assert list(private.iterdir())
    assert count == [(100,)]
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    assert not list(private.iterdir())
    assert recognises(pending, head_of(pending))


def test_a_log_of_changes_is_found_behind_a_link(pending: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "run.sqlite"
    link.symlink_to(pending)
    with Database(link) as database:
        count = list(database.rows("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"))
    assert count == [(100,)]


def test_what_is_too_large_to_copy_or_not_finished_is_refused(
    pending: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = pending.with_name(pending.name + "-journal")
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))
    with pytest.raises(InputError, match="export it again"):
        Database(pending)
    journal.write_bytes(bytes(512))  # finished: its mark is gone
    Database(pending).__exit__(None, None, None)
    monkeypatch.setattr("computeflow.telemetry.nsys.database.COPIED_BYTES", 1000)
    with pytest.raises(InputError, match="wal_checkpoint"):
        Database(pending)


def test_a_job_that_says_a_key_twice_is_left_out_and_counted(tmp_path: Path) -> None:
    good = '{"job_id": 1, "state": "COMPLETED", "time": {"start": 1, "end": 2}, "tres": {}}'
    bad = [
        '{"job_id": 2, "job_id": 3, "state": "FAILED"}',
        '{"job_id": 4, "time": {"start": 1, "start": 9, "end": 10}}',
    ]
    path = tmp_path / "sacct.json"
    path.write_text('{"slurm": {}, "jobs": [' + ",".join([good, *bad]) + "]}")
    read = read_jobs([path])
    assert read.jobs.words["job"] == ("1",)
    assert read.left_out == ("2 lines that are not jobs",)
