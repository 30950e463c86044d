"""The one writer: old content or new, never neither; never an input, a link, a folder or a device."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from computeflow.errors import ComputeFlowError, InputError, OutputError
from computeflow.files import writing
from computeflow.files.cache import Cache, cache_home
from computeflow.files.writing import (
    check_absent,
    check_folder,
    check_target,
    inputs_kept,
    named_files,
    write_file,
    write_folder,
)

FOLDER = {"slurm/job.sbatch": "new job", "slurm/hosts": "new hosts", "plan.toml": "new plan"}


def texts(folder: Path) -> dict[str, str]:
    """Every file below, hidden ones too."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


# What may be written to


def test_a_new_file_has_the_content_and_the_user_s_mode(tmp_path: Path) -> None:
    write_file(tmp_path / "a", "text", "--to")
    assert texts(tmp_path) == {"a": "text"}
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask


def test_what_is_there_is_kept_unless_it_is_the_same_or_forced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(InputError, match="--force writes over it"):
        write_file(path, "new", "--to")
    assert texts(tmp_path) == {"a": "old"}
    before = path.stat()
    write_file(path, "old", "--to")
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    write_file(path, "new", "--to", force=True)
    assert texts(tmp_path) == {"a": "new"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def odd_targets(folder: Path) -> Iterator[tuple[Path, str]]:
    (folder / "folder").mkdir()
    yield folder / "folder", "is a folder"
    (folder / "real").write_text("old")
    (folder / "link").symlink_to(folder / "real")
    yield folder / "link", "symbolic link"
    (folder / "dangling").symlink_to(folder / "nothing")
    yield folder / "dangling", "symbolic link"
    os.mkfifo(folder / "pipe")
    yield folder / "pipe", "device or a pipe"
    yield Path("/dev/full"), "device or a pipe"
    yield Path("/dev/stdout"), "symbolic link"
    yield folder / "nowhere" / "a", "no folder"
    yield folder / "real" / "a", "no folder"


@pytest.mark.parametrize("force", [False, True])
def test_links_folders_and_devices_are_never_written_to(tmp_path: Path, force: bool) -> None:
    for target, said in odd_targets(tmp_path):
        with pytest.raises(InputError, match=said):
            check_target(target, "--to")
        with pytest.raises(InputError):
            write_file(target, "new", "--to", force=force)
    assert (tmp_path / "real").read_text() == "old"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_target_without_a_name_is_refused(name: str) -> None:
    for check in (check_target, check_folder):
        with pytest.raises(InputError, match="names no file"):
            check(name, "--export")
    with pytest.raises(InputError, match="names no file"):
        write_folder(name, FOLDER, "--export")


def test_an_input_is_never_written_over(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text("precious")
    (tmp_path / "same").hardlink_to(source)
    with inputs_kept([source]):
        for target in (source, tmp_path / "same", tmp_path / "x" / ".." / "trace.json"):
            (tmp_path / "x").mkdir(exist_ok=True)
            with pytest.raises(InputError, match="is an input of this command"):
                check_target(target, "--html")
            with pytest.raises(InputError, match="is an input of this command"):
                write_file(target, "new", "--html", force=True)
    assert source.read_text() == "precious"


def test_inputs_are_found_among_the_arguments(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    arguments = [str(path), "llama-3.1-8b", 3, None, [path, "a\0"], ("x" * 5000,)]
    assert list(named_files(arguments)) == [path, path]


def test_a_measurement_is_not_made_for_a_file_that_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text("old")
    with pytest.raises(InputError, match="--force"):
        check_absent(path, "--write-calibration", force=False)
    check_absent(path, "--write-calibration", force=True)


# Folders


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    top = tmp_path / "out" / "plan"
    write_folder(top, FOLDER, "--export")
    assert texts(top) == FOLDER
    write_folder(top, FOLDER, "--export")
    (top / "plan.toml").write_text("edited")
    changed = {name: text.replace("new", "newer") for name, text in FOLDER.items()}
    with pytest.raises(InputError, match=r"slurm/hosts and plan|--force"):
        write_folder(top, changed, "--export")
    assert texts(top) == {**FOLDER, "plan.toml": "edited"}
    write_folder(top, changed, "--export", force=True)
    assert texts(top) == changed


def test_links_inside_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    top = tmp_path / "out"
    top.mkdir()
    (top / "slurm").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="symbolic link"):
        write_folder(top, FOLDER, "--export", force=True)
    (top / "slurm").unlink()
    (top / "plan.toml").symlink_to(tmp_path / "victim" / "plan")
    with pytest.raises(InputError, match="symbolic link"):
        write_folder(top, FOLDER, "--export", force=True)
    (tmp_path / "way").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="symbolic link"):
        write_folder(tmp_path / "way", FOLDER, "--export", force=True)
    assert texts(tmp_path / "victim") == {}
    assert not (top / "slurm" / "job.sbatch").exists()


# Faults: the n-th call of each kind fails; kill -9 at each of them is in test_writing_live.py

CALLS = ("open", "fdopen", "fsync", "fchmod", "link", "replace", "stat", "mkdir")
ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EPERM)


class Failing:
    """The module `os` of the writer, whose `at`-th call of a name fails."""

    def __init__(self, name: str, at: int, number: int) -> None:
        self.name, self.left, self.number = name, at, number

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name != self.name:
            return real

        def call(*args: Any, **keywords: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(self.number, os.strerror(self.number))
            return real(*args, **keywords)

        return call


def one_file(folder: Path) -> None:
    write_file(folder / "plan.toml", "new plan", "--to", force=True)


def whole_folder(folder: Path) -> None:
    write_folder(folder, FOLDER, "--export", force=True)


def filled(folder: Path) -> None:
    def fill(file: Any) -> None:
        for _ in range(3):
            file.write(b"new " * 100_000)

    write_file(folder / "plan.toml", fill, "--perfetto", force=True)


@pytest.mark.parametrize("write", [one_file, whole_folder, filled])
@pytest.mark.parametrize("old", [{}, {"plan.toml": "old plan"}], ids=["new", "replaced"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_leaves_old_content_or_new(
    write: Callable[[Path], None],
    old: dict[str, str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    write(fresh)
    new = texts(fresh)
    failed = 0
    for number in ERRORS:
        for at in range(1, 30):
            folder = tmp_path / f"{number}-{at}"
            folder.mkdir()
            for file, text in old.items():
                (folder / file).write_text(text)
            failing = Failing(name, at, number)
            with monkeypatch.context() as patch:
                patch.setattr(writing, "os", failing)
                try:
                    write(folder)
                except ComputeFlowError as error:
                    failed += 1
                    assert "\n" not in str(error)
            found = texts(folder)
            assert set(found) <= set(new), "nothing is left over"
            assert all(found[file] in (old.get(file), new[file]) for file in found)
            assert set(old) <= set(found)
            if failing.left > 0:  # there was no such call any more
                assert found == new
                break
    assert failed or name not in ("open", "fdopen", "fsync", "stat")


def test_a_full_disk_is_no_mistake_of_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "os", Failing("fsync", 1, errno.ENOSPC))
    with pytest.raises(OutputError, match="No space left on device") as caught:
        write_file(tmp_path / "a", "text", "--html")
    assert caught.value.exit_code == 1
    assert texts(tmp_path) == {}


# What is kept for later


def test_a_cache_is_the_user_s_own_or_none(tmp_path: Path) -> None:
    cache = Cache("traces")
    assert cache.get("key") is None
    cache.put("key", b"content")
    assert cache.get("key") == b"content"
    folder = cache_home() / "traces"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "other").write_bytes((folder / "key").read_bytes())
    assert cache.get("other") is None
    folder.chmod(0o770)
    assert cache.get("key") is None
    folder.chmod(0o700)
    (folder / "key").unlink()
    os.mkfifo(folder / "key")
    assert cache.get("key") is None
    (folder / "key").unlink()
    (folder / "key").symlink_to("/dev/zero")
    assert cache.get("key") is None
    cache.put("key", b"content")
    assert cache.get("key") is None
    cache.trim()


def test_the_oldest_of_a_cache_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache("traces")
    for age, key in ((3, "a"), (2, "b"), (1, "c")):
        cache.put(key, bytes(1000))
        os.utime(cache_home() / "traces" / key, (1e9 - age, 1e9 - age))
    monkeypatch.setattr("computeflow.files.cache.CACHE_BYTES", 2500)
    cache.trim()
    assert [cache.get(key) is not None for key in "abc"] == [False, True, True]
