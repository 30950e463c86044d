"""Messages between the proof and an environment: files to check, and a parser's answers."""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The files of one plan in one format."""

    folder: str
    dp: int
    nodes: int
    layout: dict[str, Any]
    """Fields of the plan's `Layout`, to compare with what a parser read."""
    job: dict[str, Any]
    left_out: tuple[str, ...]
    """Fields that the format reports as left out."""
    own_keys: tuple[str, ...] = ()
    """Keys of a user's file for other programs, which the parser need not know."""

    @property
    def gpus(self) -> int:
        return int(self.layout["gpus"])

    def says(self, name: str) -> bool:
        """Whether the file should have a field."""
        return not any(line.startswith(f"{name} = ") for line in self.left_out)

    def text(self, name: str) -> str:
        return (Path(self.folder) / name).read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    taken: bool
    said: str = ""
    """The parser's error, where it refused the file."""
    frames: tuple[str, ...] = ()


def answer(take: Callable[[Asked], None]) -> None:
    """Main of a parser's module: `ASKED ANSWERS`, both JSON. `take` raises if it refuses a file."""
    source, target = map(Path, sys.argv[1:3])
    requests = [Asked(**request) for request in json.loads(source.read_text())]
    target.write_text(json.dumps([asdict(_answer_one(take, request)) for request in requests]))


def _answer_one(take: Callable[[Asked], None], request: Asked) -> Answer:
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            take(request)
    except (Exception, SystemExit) as error:
        usage = said.getvalue().rpartition("error: ")[2] if isinstance(error, SystemExit) else ""
        words = " ".join((usage or str(error)).split()) or "no reason given"
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = tuple(f"{frame.name}:{frame.lineno}" for frame in frames)
        return Answer(taken=False, said=f"{type(error).__name__}: {words}"[:400], frames=where)
    return Answer(taken=True)


@contextmanager
def ranks(count: int) -> Iterator[None]:
    """A process group of so many ranks that exchanges no data; this process is rank 0."""
    distributed = import_module("torch.distributed")
    import_module("torch.testing._internal.distributed.fake_pg")
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    distributed.init_process_group("fake", rank=0, world_size=count, store=store)
    try:
        yield
    finally:
        distributed.destroy_process_group()


class _Absent(ModuleType):
    """Stand-in for a package: any name is a class to subclass or a module to call."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if name[0].isupper():
            stand_in: Any = type(name, (), {"__init__": lambda *_, **__: None})
        else:
            stand_in = sys.modules.get(path) or _Absent(path)
        setattr(self, name, stand_in)
        return stand_in

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if args and callable(args[0]) else self


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        known = any(name == package or name.startswith(f"{package}.") for package in self.names)
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def absent(*names: str) -> None:
    """Put stand-ins in place of packages that a project imports but a configuration does not need."""
    sys.meta_path.insert(0, _Finder(names))


def expect(true: bool, message: str) -> None:
    if not true:
        raise ValueError(message)


def same(theirs: Any, ours: Any, request: Asked, name: str) -> None:
    if request.says(name):
        expect(theirs == ours, f"{name}: {theirs} was understood, {ours} is the plan's")
