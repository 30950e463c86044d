"""The one writer of every output.

    check_target("report.html", "--html")             before the work: could it be written at all?
    write_file("report.html", text, "--html")         after it

A file is written under a name of its own beside the target, brought to the disk, and then given its
name: whoever looks, at whatever moment the machine stops, finds the old content or the new. What is
there already is kept, unless it holds the same or `force` is set; an input of the call, a folder, a
device and a symbolic link are never written to.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from computeflow.errors import InputError, OutputError

Fill = Callable[[BinaryIO], None]
"""Writes the content, piece by piece."""
Target = str | os.PathLike[str]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EMLINK}
_BLOCK = 1 << 20
_LOGS = ("-wal", "-journal", "-shm")
"""Files beside a database that are a part of it."""
_MARKS, _MARKED = (b'<meta name="generator" content="ComputeFlow', b'"computeflow.accounts"'), 2048
"""First bytes of our reports and annotated traces."""
_NAMED_FILES = 3

_inputs: ContextVar[tuple[Path, ...]] = ContextVar("inputs", default=())


@contextmanager
def inputs_kept(inputs: Iterable[Path]) -> Iterator[None]:
    """No file is written over one of `inputs`, forced or not, until the end."""
    token = _inputs.set((*_inputs.get(), *inputs))
    try:
        yield
    finally:
        _inputs.reset(token)


def check_target(target: Target, option: str) -> None:
    """Say before the work what would fail after it; `option` opens the message."""
    path = _path(target, option)
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}")
    with _told(option, path):
        _check_kind(path, option, _look(path))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{option} {path}: the folder {path.parent} cannot be written to")


def check_folder(target: Target, option: str) -> None:
    """Check the target of a folder, which may be new."""
    path = _path(target, option)
    if path.is_symlink():
        raise _linked(path, option)
    if path.exists() and not path.is_dir():
        raise InputError(f"{option} {path}: exists and is no folder")


def check_absent(target: Target, option: str, *, force: bool) -> None:
    """Refuse an existing target, for content that is never the same twice: a measurement."""
    check_target(target, option)
    if not force and os.path.lexists(target):
        raise _kept(option, [str(target)])


def write_file(
    target: Target,
    content: str | bytes | Fill,
    option: str,
    *,
    force: bool = False,
    make_folder: bool = False,
) -> None:
    """Write all of the content or nothing."""
    path = _path(target, option)
    with _told(option, path), ExitStack() as stack:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        folder = _enter(stack, os.open(path.parent, _FOLDER))
        part = _stage(stack, _Part(path=path, folder=folder, option=option), content)
        if part.changes():
            if part.there is not None and not force:
                raise _kept(option, [str(path)])
            part.publish()


def write_folder(
    target: Target, files: Mapping[str, str], option: str, *, force: bool = False
) -> None:
    """Texts by their names below a folder: all are on the disk before the first gets its name."""
    top = _path(target, option)
    with _told(option, top), ExitStack() as stack:
        check_folder(top, option)
        top.mkdir(parents=True, exist_ok=True)
        root = _enter(stack, os.open(top, _FOLDER))
        parts = []
        for name, text in files.items():
            *folders, last = Path(name).parts
            folder = root
            for step in folders:
                folder = _enter(stack, _open_below(folder, step))
            staged = _Part(path=top / name, folder=folder, option=option, name=last)
            parts.append(_stage(stack, staged, text))
        new = [part for part in parts if part.changes()]
        if not force and (kept := [str(part.path) for part in new if part.there is not None]):
            raise _kept(option, kept)
        for part in new:
            part.publish()


@dataclass(slots=True, kw_only=True)
class _Part:
    """A file under a name of its own, until it is whole."""

    path: Path
    folder: int
    """Open: a folder that is moved or replaced meanwhile changes nothing."""
    option: str
    name: str = ""
    own_name: str = ""
    there: os.stat_result | None = None
    """File that has the name already."""

    def __post_init__(self) -> None:
        self.name = self.name or self.path.name
        self.own_name = f".computeflow-{secrets.token_hex(8)}.partial"

    def write(self, content: str | bytes | Fill) -> None:
        descriptor = os.open(self.own_name, _NEW, 0o666, dir_fd=self.folder)
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, str):
                file.write(content.encode("utf-8", "backslashreplace"))
            elif isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            if self.there is not None:
                os.fchmod(descriptor, stat.S_IMODE(self.there.st_mode))
            file.flush()
            os.fsync(descriptor)

    def changes(self) -> bool:
        """Whether the name is free, or has other content."""
        if self.there is None:
            return True
        try:
            with self._open(self.own_name) as new, self._open(self.name) as old:
                if os.fstat(new.fileno()).st_size != os.fstat(old.fileno()).st_size:
                    return True
                while block := new.read(_BLOCK):
                    if block != old.read(_BLOCK):
                        return True
        except PermissionError:
            return True  # what cannot be read is not the same
        return False

    def _open(self, name: str) -> BinaryIO:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.fdopen(os.open(name, flags, dir_fd=self.folder), "rb")

    def publish(self) -> None:
        if self.there is not None or not self._link():
            os.replace(self.own_name, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        with suppress(OSError):  # not every file system can
            os.fsync(self.folder)

    def _link(self) -> bool:
        """Take a free name, and only a free one; False where the file system has no links."""
        try:
            os.link(self.own_name, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except FileExistsError:  # since we looked
            raise _kept(self.option, [str(self.path)]) from None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return False
            raise
        return True

    def discard(self) -> None:
        with suppress(OSError):
            os.unlink(self.own_name, dir_fd=self.folder)


def _stage(stack: ExitStack, part: _Part, content: str | bytes | Fill) -> _Part:
    part.there = _look(part.name, part.folder)
    _check_kind(part.path, part.option, part.there)
    stack.callback(part.discard)
    part.write(content)
    return part


def _path(target: Target, option: str) -> Path:
    text = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
    if not text or "\0" in text:
        raise InputError(f"{option} {target!r}: names no file")
    return Path(text)


def _real(path: Target) -> Path:
    """The path without links; unlike `Path.resolve`, also where links go in a circle."""
    return Path(os.path.realpath(path))


def _look(name: str | Path, folder: int | None = None) -> os.stat_result | None:
    """The file under a name, a link as a link; None where the name is free."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _check_kind(path: Path, option: str, there: os.stat_result | None) -> None:
    if there is None:
        return
    kind = stat.S_IFMT(there.st_mode)
    if kind == stat.S_IFLNK:
        raise _linked(path, option)
    if kind != stat.S_IFREG:
        what = "a folder" if kind == stat.S_IFDIR else "a device or a pipe"
        raise InputError(f"{option} {path}: is {what}")
    if any(_is_input(path, there, source) for source in _inputs.get()):
        raise InputError(f"{option} {path}: is an input of this command: choose another name")


def _is_input(path: Path, there: os.stat_result, source: Path) -> bool:
    """The source itself, a log of it, or a file below it that is no report of ours."""
    for name in (source, *(source.with_name(source.name + ending) for ending in _LOGS)):
        with suppress(OSError):
            if os.path.samestat(there, name.stat()):
                return True
    return source.is_dir() and _real(path).is_relative_to(source) and not _ours(path)


def _ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_MARKED)
            return any(mark in head for mark in _MARKS)
    except OSError:
        return False


def check_apart(targets: Iterable[tuple[Target, str]]) -> None:
    """No two outputs of a call are the same file, and none lies in a folder that another fills."""
    seen: dict[Path, str] = {}
    for target, option in targets:
        path = _real(_path(target, option))
        if path in seen:
            raise InputError(
                f"{option} {path}: is also written by {seen[path]}: choose another name"
            )
        seen[path] = option
    for path, option in seen.items():
        for folder in filter(seen.__contains__, path.parents):
            raise InputError(
                f"{option} {path}: lies in the folder of {seen[folder]}, which might hold a file of "
                "that name: choose another place"
            )


def _linked(path: Path, option: str) -> InputError:
    return InputError(
        f"{option} {path}: is a symbolic link, which is not followed: name its target"
    )


def _open_below(folder: int, name: str) -> int:
    """A folder inside of an open one, made where it is not there; a link is refused."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def _enter(stack: ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _kept(option: str, paths: list[str]) -> InputError:
    named = ", ".join(paths[:_NAMED_FILES])
    more = len(paths) - _NAMED_FILES
    others = f" and {more} more" if more > 0 else ""
    verb = "is" if len(paths) == 1 else "are"
    return InputError(
        f"{option}: {named}{others} {verb} there already, with other content: --force writes over it"
    )


@contextmanager
def _told(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except NotADirectoryError as error:
        where = error.filename if isinstance(error.filename, str) else path
        raise InputError(f"{option} {path}: {where} is no folder, or a symbolic link") from None
    except (FileNotFoundError, FileExistsError) as error:
        raise InputError(f"{option} {path}: {error.strerror}") from None
    except OSError as error:
        raise OutputError(f"{option} {path}: {error.strerror or error}") from None


def named_files(values: Iterable[Any]) -> Iterator[Path]:
    """The files that arguments of a call name, whatever else they may mean."""
    for value in values:
        if isinstance(value, str | os.PathLike):
            with suppress(OSError, ValueError):
                if Path(value).exists():  # refused at once where a text is too long for a path
                    yield _real(value)
        elif isinstance(value, list | tuple):
            yield from named_files(value)
