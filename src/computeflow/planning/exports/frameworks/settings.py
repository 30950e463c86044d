"""What all framework formats share: keys that are taken one by one, and what a format leaves unsaid.

A file becomes `Settings`; a format takes the keys it knows, each with its type, and what nobody took
is the reading's `unknown`. `unsaid` lists what of a plan a format has no word for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from computeflow.catalog.config import short
from computeflow.errors import InputError
from computeflow.planning.exports.model import Format, Reading, Setup
from computeflow.workload import Layout, check
from computeflow.workload.layout import MOST

T = TypeVar("T")
MOST_BYTES = 5_000_000
"""Of a file that is read; configurations are a thousand times smaller."""
MOST_DEPTH = 32
JOB_FIELDS = ("model", "global_batch", "seq_len", "precision", "optimizer", "training", "loss_chunks",
              "multi_token", "checkpoint_steps")  # fmt: skip
"""That a framework could be told; the rest of a job describes data."""
_PLAIN: dict[str, Any] = {
    "training": "full", "loss_chunks": 1, "multi_token": False, "checkpoint_steps": None
}  # fmt: skip


TIMEOUTS = {
    "comm.train_timeout_seconds": ("collective", 1.0),
    "ddp_timeout": ("collective", 1.0),
    "distributed-timeout-minutes": ("collective", 60.0),
    "dist.distributed_timeout_minutes": ("collective", 60.0),
    "exit-duration-in-mins": ("job", 60.0),
    "train.exit_duration_in_mins": ("job", 60.0),
}
"""Keys of torchtitan, TrainingArguments, Megatron-LM and -Bridge, and their units in seconds."""


def _seconds(value: Any, unit: float) -> float | None:
    try:
        seconds = float(value) * unit
    except (TypeError, ValueError):
        return None
    return seconds if 0 < seconds < 1e9 else None


class Framework(Format, Protocol):
    @property
    def expresses(self) -> frozenset[str]:
        """Fields of `Job` and `Layout` that come back when a written file is read."""
        ...

    @property
    def choices(self) -> Mapping[str, tuple[Any, ...]]:
        """Values of a field that it can say, where that is not all of them."""
        ...


class Settings:
    """Keys of one file, dots between the levels; a key that is taken is gone."""

    def __init__(self, tree: Any, where: str) -> None:
        if not isinstance(tree, dict):
            raise InputError(f"{where}: the top level is not a table of keys")
        self.where = where
        self.asked: set[str] = set()
        """Keys that somebody wanted, there or not."""
        self._left: dict[str, Any] = {}
        self._flatten(tree, "", 0)
        self.timeouts = {
            what: seconds
            for key, (what, unit) in TIMEOUTS.items()
            if (seconds := _seconds(self._left.get(key), unit)) is not None
        }

    def _flatten(self, tree: dict[Any, Any], above: str, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise InputError(f"{self.where}: nested more than {MOST_DEPTH} levels deep")
        for key, value in tree.items():
            name = f"{above}{key}"
            if isinstance(value, dict) and value:
                self._flatten(value, f"{name}.", depth + 1)
            elif name in self._left:
                raise InputError(f"{self.where}: {name} stands there twice")
            else:
                self._left[name] = value

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def raw(self, key: str) -> Any:
        self.asked.add(key)
        return self._left.pop(key, None)

    def drop(self, value: str) -> list[str]:
        """The keys that had this value; they are gone."""
        found = [key for key, other in self._left.items() if other == value]
        for key in found:
            del self._left[key]
        return found

    def size(self, key: str, least: int = 1) -> int | None:
        """A whole number; None where the key is absent or null."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise self.wrong(key, value, f"a whole number from {least} to {MOST:,}")
        return value

    def flag(self, key: str) -> bool | None:
        return self._of(key, bool, "true or false")

    def text(self, key: str) -> str | None:
        return self._of(key, str, "a text")

    def items(self, key: str) -> list[Any] | None:
        return self._of(key, list, "a list")

    def choice(self, key: str, means: Mapping[str, T]) -> T | None:
        value = self.text(key)
        if value is None:
            return None
        if value not in means:
            raise self.wrong(key, value, f"one of {', '.join(means)}")
        return means[value]

    def keep(self, keys: Iterable[str]) -> None:
        """Keys of an inner file that nobody took there."""
        self._left |= dict.fromkeys(keys)

    def forget(self, starts: tuple[str, ...]) -> None:
        """Keys that are known to be of no matter to a layout, by how they begin."""
        self._left = {key: v for key, v in self._left.items() if not key.startswith(starts)}

    def rest(self) -> tuple[str, ...]:
        return tuple(self._left)

    def wrong(self, key: str, value: Any, wanted: str) -> InputError:
        return InputError(f"{self.where}: {key} = {short(value)}: {wanted} is meant")

    def against(self, first: str, second: str, why: str) -> InputError:
        return InputError(f"{self.where}: {first} against {second}: {why}")

    def _of(self, key: str, kind: type[T], wanted: str) -> T | None:
        value = self.raw(key)
        if value is None or isinstance(value, kind):
            return value
        raise self.wrong(key, value, wanted)


def bounded(text: str, where: str) -> str:
    """The text itself, where it is small enough to be parsed."""
    if len(text) > MOST_BYTES or len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise InputError(f"{where}: larger than {MOST_BYTES:,} bytes, which no configuration is")
    return text


def parsed(parse: Callable[[str], T], text: str, where: str, kind: str) -> T:
    """What a parser makes of a text of bounded size; its complaint in one line otherwise."""
    try:
        return parse(bounded(text, where))
    except RecursionError:
        raise InputError(f"{where}: not read: {kind} nested too deeply") from None
    except ValueError as error:
        lines = str(error).splitlines() or ["no reason given"]
        raise InputError(f"{where}: not {kind}: {lines[0][:200]}") from None


def read_optimizer(
    settings: Settings, key: str, meant: Mapping[str, str], notes: list[str]
) -> str | None:
    """The one that is meant; another is taken for adamw, with a note."""
    name = settings.text(key)
    if name is None:
        return None
    if name.lower() not in meant:
        notes.append(f"{key} = {name}: taken for adamw")
    return meant.get(name.lower(), "adamw")


def unsaid(setup: Setup, framework: Framework) -> list[str]:
    """What of a plan the format cannot say, a line each; a job's impossible layout is refused."""
    check(setup.job, setup.layout)
    found = []
    plain = {f.name: f.default for f in fields(Layout)} | _PLAIN
    names = [f.name for f in fields(Layout)] + list(JOB_FIELDS)
    for name in names:
        value = getattr(setup.layout if hasattr(setup.layout, name) else setup.job, name)
        value = value.name if name == "model" else value
        if name not in framework.expresses:
            if name in plain and value == plain[name]:
                continue
            found.append(f"{name} = {value}: {framework.name} has no setting for it here")
        elif name == "sharding" and whole(setup):
            continue
        elif value not in framework.choices.get(name, (value,)):
            known = ", ".join(map(str, framework.choices[name]))
            found.append(f"{name} = {value}: {framework.name} knows {known} only")
    return found


def whole(setup: Setup) -> bool:
    """Nothing is replicated or sharded, so that every `sharding` is the same."""
    return setup.dp * setup.layout.cp == 1


def contradiction(framework: str, first: str, second: str, why: str) -> InputError:
    return InputError(f"{framework}: {first} against {second}: {why}")


def header(title: str, setup: Setup, left_out: Iterable[str]) -> list[str]:
    """The opening lines of a file, without comment signs."""
    job, layout = setup.job, setup.layout
    lines = [
        title,
        f"{job.model.name} on {layout.gpus} x {setup.cluster.accelerator.name}: tp {layout.tp}, "
        f"pp {layout.pp}, cp {layout.cp}, dp {setup.dp}; {setup.accumulation} micro-batches a step.",
    ]
    left = list(left_out)
    return [*lines, *(f"Left out: {line}" for line in left)]


def stated(**values: Any) -> dict[str, Any]:
    """The values that are there."""
    return {name: value for name, value in values.items() if value is not None}


def reading(
    framework: str,
    settings: Settings,
    job: dict[str, Any],
    layout: dict[str, Any],
    notes: Iterable[str] = (),
    stack: str | None = None,
    accumulation: int | None = None,
) -> Reading:
    """A reading whose sizes agree with each other, as far as the file states them."""
    sizes = [layout.get(name) for name in ("gpus", "tp", "pp", "cp")]
    if sizes[0] is not None:
        group = 1
        for size in sizes[1:]:
            group *= size or 1
        if sizes[0] % group:
            raise settings.against(
                f"{sizes[0]} GPUs", f"tp x pp x cp = {group}", "one does not divide the other"
            )
    return Reading(
        format=framework, job=job, layout=layout, stack=stack, unknown=settings.rest(),
        notes=tuple(notes), accumulation=accumulation, timeouts=settings.timeouts,
    )  # fmt: skip
