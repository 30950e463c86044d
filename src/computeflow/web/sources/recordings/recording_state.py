"""`look_at`: the files of a recording at one moment, and whether a link leads where it must not.

A link is followed where it belongs to the owner of what it points to, to root, or to the user of the
server, as one that is put there to show runs of another disk. Others, of somebody who may write to the
folder, would show readers of the page what only the server may read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from computeflow.files.limits import FILES
from computeflow.files.names import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingState:
    path: Path
    files: Hashable
    """Names, sizes, times and owners of all files, behind links too: equal while none changed."""
    unread_reason: str
    """Why it is not read: a link in it, or to it, of another user, or more files than are looked at; ""
    where it is."""


def look_at(path: Path) -> RecordingState:
    files: list[tuple[str, int, int, int]] = []
    unread_reason = ""
    for number, (where, owner, found) in enumerate(_entries(path)):
        if number > FILES:
            unread_reason = f"{shown(path.name)}: more than {FILES:,} files: not read"
            break
        if owner not in (None, 0, os.geteuid(), found.st_uid) and not unread_reason:
            name = shown(path.name if where == str(path) else f"{path.name}: {Path(where).name}")
            unread_reason = f"{name}: a link of another user to what is not theirs: not followed"
        if not stat.S_ISDIR(found.st_mode):
            files.append((where, found.st_size, found.st_mtime_ns, found.st_uid))
    return RecordingState(path=path, files=tuple(sorted(files)), unread_reason=unread_reason)


def _entries(path: Path) -> Iterator[tuple[str, int | None, os.stat_result]]:
    """Place, owner of the link (None of what is none), and what is there, of a file, or of a folder and
    all below it; folders behind links are not entered, and hidden ones are nobody's recording.
    """
    try:
        yield str(path), path.lstat().st_uid if path.is_symlink() else None, path.stat()
    except OSError:
        return
    folders = [str(path)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    link = entry.is_symlink()
                    if not link and entry.is_dir():
                        folders.append(entry.path)
                    try:
                        owner = entry.stat(follow_symlinks=False).st_uid if link else None
                        yield entry.path, owner, entry.stat()
                    except OSError:  # a link to nothing
                        continue
        except OSError:  # a file, or a folder that may not be read
            continue
