"""`foreign_link`: links of somebody who may write to a folder, to what only the server may read.

A link is followed where it belongs to the owner of what it points to, or to the user of the server, as
one that is put there to show runs of another disk. Others would show a reader of the page what its
writer cannot read.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from pathlib import Path

from computeflow.files.limits import FILES
from computeflow.files.names import shown

_PARTS = ("kineto", "control")
"""Folders inside a run folder, of which files are read."""


def foreign_link(path: Path) -> str:
    """Why a recording is not followed: a link in it, or to it, of another user; "" where none is."""
    for link in _links(path):
        if _is_foreign(link):
            where = link.name if link == path else f"{path.name}: {link.name}"
            return f"{shown(where)}: a link of another user to what is not theirs: not followed"
    return ""


def link_stamp(path: Path) -> Hashable:
    """A value that differs where links may have been put into a recording."""
    return tuple(_changed(each) for each in (path, *(path / part for part in _PARTS)))


def _links(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        yield path
    for folder in (path, *(path / part for part in _PARTS)):
        try:
            with os.scandir(folder) as entries:
                for _, entry in zip(range(FILES), entries, strict=False):
                    if entry.is_symlink():
                        yield Path(entry.path)
        except OSError:
            continue


def _is_foreign(link: Path) -> bool:
    try:
        owner = link.lstat().st_uid
        return owner not in (0, os.geteuid(), link.stat().st_uid)
    except OSError:  # to nothing
        return False


def _changed(path: Path) -> tuple[int, int, int]:
    try:
        link, folder = path.lstat(), path.stat()
    except OSError:
        return 0, 0, 0
    return link.st_mtime_ns, folder.st_mtime_ns, folder.st_ctime_ns
