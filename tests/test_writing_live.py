"""The writer under strace: killed, or refused by the kernel, at every system call it makes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("strace") is None, reason="apt-get install strace"),
]
SOURCE = Path(__file__).parents[1] / "src"
BEGIN = "/computeflow-writes-from-here"
PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(SOURCE)!r})
from computeflow.errors import ComputeFlowError
from computeflow.files.writing import write_file, write_folder
folder = sys.argv[1]
os.access({BEGIN!r}, 0)
try:
    if sys.argv[2] == "file":
        def fill(file):
            for _ in range(3):
                file.write(b"new" * 9000)
        write_file(folder + "/a", fill, "--to", force=True)
    else:
        write_folder(folder, {{"a": "new", "x/b": "new"}}, "--export", force=True)
except ComputeFlowError as error:
    sys.exit(error.exit_code)
"""
EXPECTED = {"file": {"a": "new" * 27000}, "folder": {"a": "new", "x/b": "new"}}
CALL = re.compile(r"^(?:\d+ +)?(\w+)\(", re.MULTILINE)
ERRORS = ("ENOSPC", "EACCES", "EINTR", "EIO")


def prepared(folder: Path, old: bool) -> Path:
    folder.mkdir()
    if old:
        (folder / "a").write_text("old")
    return folder


def run(folder: Path, kind: str, *options: str) -> int:
    words = ["strace", "-qq", "-e", "signal=none", *options]
    program = [sys.executable, "-I", "-S", "-B", "-c", PROGRAM, str(folder), kind]
    return subprocess.run([*words, *program], capture_output=True, timeout=300).returncode


def calls_of(folder: Path, kind: str) -> list[tuple[str, int]]:
    """Every system call of the writer: its name, and its number among calls of this name."""
    log = folder.with_suffix(".log")
    assert run(folder, kind, "-o", str(log)) == 0
    names = CALL.findall(log.read_text())
    before = len(CALL.findall(log.read_text().split(BEGIN)[0]))
    counts: Counter[str] = Counter()
    found = []
    for place, name in enumerate(names):
        counts[name] += 1
        if place >= before and name not in ("exit_group", "munmap", "rt_sigaction", "brk", "mmap"):
            found.append((name, counts[name]))
    return found


def check(folder: Path, kind: str, old: bool, *, whole: bool) -> None:
    """Check that every file has old content or new; `whole`: nothing else is left over."""
    for path in folder.rglob("*"):
        if path.is_dir():
            continue
        name = str(path.relative_to(folder))
        if name in EXPECTED[kind]:
            assert path.read_text() in (EXPECTED[kind][name], *(["old"] if old else []))
        else:
            assert not whole
            assert path.name.startswith(".computeflow-")
    assert not old or (folder / "a").is_file()


@pytest.mark.parametrize("old", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_killed_at_any_system_call_old_content_or_new_is_there(
    kind: str, old: bool, tmp_path: Path
) -> None:
    calls = calls_of(prepared(tmp_path / "fresh", old), kind)
    assert {"openat", "write", "fsync"} <= {name for name, _ in calls}
    for number, (name, when) in enumerate(calls):
        folder = prepared(tmp_path / str(number), old)
        code = run(folder, kind, "-o", "/dev/null", "-e", f"inject={name}:signal=KILL:when={when}")
        assert code in (-9, 137), (name, when)
        check(folder, kind, old, whole=False)
    assert len(calls) > 8


@pytest.mark.parametrize("old", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_whatever_the_kernel_refuses_old_content_or_new_is_there(
    kind: str, old: bool, tmp_path: Path
) -> None:
    calls = calls_of(prepared(tmp_path / "fresh", old), kind)
    writes = ("openat", "write", "fsync", "linkat", "renameat", "renameat2", "mkdirat", "fchmod")
    steps = [(name, when) for name, when in calls if name in writes]
    for number, (name, when) in enumerate(steps):
        for error in ERRORS:
            folder = prepared(tmp_path / f"{number}-{error}", old)
            fault = f"inject={name}:error={error}:when={when}"
            code = run(folder, kind, "-o", "/dev/null", "-e", fault)
            assert code in (0, 1, 2), (name, when, error)
            check(folder, kind, old, whole=True)
            if code == 0:
                assert all(
                    (folder / file).read_text() == text for file, text in EXPECTED[kind].items()
                )
