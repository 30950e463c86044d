"""What all framework formats share: keys that are taken one by one, and what a format cannot express.

A file becomes `ConfigKeys`; a format takes the keys it knows, each with its type, and what is not taken
is the reading's `unknown`. `not_expressed` lists what of a plan a format has no word for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import prod
from typing import Any, Protocol, TypeVar

from computeflow.catalog.config import short
from computeflow.errors import InputError
from computeflow.files.limits import CONFIG_BYTES, DEPTH
from computeflow.files.names import shown
from computeflow.planning.exports.config_formats import ConfigFormat, ConfigReading, Setup
from computeflow.planning.timeouts import plain_seconds
from computeflow.workload import Layout, check_layout
from computeflow.workload.job import MAX_SIZE

T = TypeVar("T")
Choices = Mapping[str, tuple[Any, ...]]
_JOB_FIELDS = (
    "model",
    "global_batch",
    "seq_len",
    "precision",
    "optimizer",
    "training",
    "loss_chunks",
    "multi_token",
    "checkpoint_steps",
)
"""Fields of a job that a framework may take; the others describe data."""
_PLAIN: dict[str, Any] = {
    "training": "full",
    "loss_chunks": 1,
    "multi_token": False,
    "checkpoint_steps": None,
}


_TIMEOUTS = {
    "comm.train_timeout_seconds": ("collective", 1.0),
    "comm.init_timeout_seconds": ("first-collective", 1.0),
    "fault_tolerance.process_group_timeout_ms": ("replica-collective", 1e-3),
    "ddp_timeout": ("collective", 1.0),
    "distributed-timeout-minutes": ("collective", 60.0),
    "dist.distributed_timeout_minutes": ("collective", 60.0),
    "exit-duration-in-mins": ("job", 60.0),
    "train.exit_duration_in_mins": ("job", 60.0),
}
"""Keys of torchtitan, TrainingArguments, Megatron-LM and -Bridge, and their units in seconds."""


class Framework(ConfigFormat, Protocol):
    @property
    def expresses(self) -> frozenset[str]:
        """Fields of `Job` and `Layout` that come back when a written file is read."""
        ...

    @property
    def choices(self) -> Choices:
        """Values of a field that it can say, where that is not all of them."""
        ...

    @property
    def capabilities(self) -> Choices:
        """Fields of `Stack` that a file can switch, each with its values, the fastest last."""
        ...


class ConfigKeys:
    """Keys of one file, dots between the levels; a key that is taken is removed."""

    def __init__(self, tree: Any, where: str) -> None:
        if not isinstance(tree, dict):
            raise InputError(f"{where}: the top level is not a table of keys")
        self.where = where
        self.looked_up: set[str] = set()
        """Keys that were looked up, present or not."""
        self._left: dict[str, Any] = {}
        self._flatten(tree, "")
        self.timeouts = {
            what: seconds
            for key, (what, unit) in _TIMEOUTS.items()
            if (seconds := plain_seconds(self._left.get(key), unit)) is not None
        }

    def _flatten(self, tree: dict[Any, Any], above: str, depth: int = 0) -> None:
        if depth > DEPTH:
            raise InputError(f"{self.where}: nested too deeply: more than {DEPTH} levels")
        for key, value in tree.items():
            name = f"{above}{key}"
            if isinstance(value, dict) and value:
                self._flatten(value, f"{name}.", depth + 1)
            elif name in self._left:
                raise InputError(f"{self.where}: the key {shown(name)} appears twice")
            else:
                self._left[name] = value

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def raw(self, key: str) -> Any:
        self.looked_up.add(key)
        return self._left.pop(key, None)

    def skip(self, keys: Iterable[str], prefix: str = "") -> None:
        """Take keys that are known and of no matter to a layout."""
        for key in keys:
            self.raw(prefix + key)

    def drop(self, value: str) -> list[str]:
        """The keys that had this value; they are gone."""
        dropped = [key for key, other in self._left.items() if other == value]
        for key in dropped:
            del self._left[key]
        return dropped

    def size(self, key: str, least: int = 1) -> int | None:
        """A whole number; None where the key is absent or null."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_SIZE:
            raise self.wrong(key, value, f"a whole number from {least} to {MAX_SIZE:,}")
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

    def agree(self, keys: tuple[str, str], values: tuple[T | None, T | None], why: str) -> T | None:
        """A value that may be given under two keys; refused where they differ."""
        first, second = values
        if None not in values and first != second:
            raise self.against(f"{keys[0]} = {first}", f"{keys[1]} = {second}", why)
        return second if first is None else first

    def keep(self, keys: Iterable[str]) -> None:
        """Keys of an inner file that were not taken."""
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
    """The text itself, where it is small enough for a configuration."""
    if len(text) > CONFIG_BYTES or len(text.encode("utf-8", "replace")) > CONFIG_BYTES:
        raise InputError(f"{where}: larger than {CONFIG_BYTES:,} bytes, which no configuration is")
    return text


def read_optimizer(
    settings: ConfigKeys, key: str, meant: Mapping[str, str], notes: list[str]
) -> str | None:
    """The one that is meant; another is taken for adamw, with a note."""
    name = settings.text(key)
    if name is None:
        return None
    if name.lower() not in meant:
        notes.append(f"{key} = {name}: taken for adamw")
    return meant.get(name.lower(), "adamw")


def not_expressed(setup: Setup, framework: Framework) -> list[str]:
    """Parts of a plan that the format cannot express, a line each; an impossible layout is refused."""
    check_layout(setup.job, setup.layout)
    values = {f.name: getattr(setup.layout, f.name) for f in fields(Layout)}
    values |= {name: getattr(setup.job, name) for name in _JOB_FIELDS}
    values["model"] = setup.job.model.name
    lines = (_not_expressed(name, value, setup, framework) for name, value in values.items())
    return [line for line in lines if line is not None]


def _not_expressed(name: str, value: Any, setup: Setup, framework: Framework) -> str | None:
    start = f"{name} = {value}: {framework.name}"
    if name not in framework.expresses:
        plain = {f.name: f.default for f in fields(Layout)} | _PLAIN
        usual = name in plain and value == plain[name]
        return None if usual else f"{start} has no setting for it here"
    known = framework.choices.get(name, (value,))
    if value in known or (name == "sharding" and whole(setup)):
        return None
    return f"{start} knows {', '.join(map(str, known))} only"


def without_model(left_out: list[str]) -> list[str]:
    """Lines that remain where the model's shape is written out, or its recipe named."""
    return [line for line in left_out if not line.startswith("model = ")]


def whole(setup: Setup) -> bool:
    """Nothing is replicated or sharded, so that every `sharding` is the same."""
    return setup.dp * setup.layout.cp == 1


def contradiction(framework: str, first: str, second: str, why: str) -> InputError:
    return InputError(f"{framework}: {first} against {second}: {why}")


def cut_sizes(layout: Layout, names: Iterable[str] = ("tp", "pp", "cp", "ep")) -> dict[str, int]:
    """The ways in which the model is cut, with the number of its parts."""
    return {name: size for name in names if (size := getattr(layout, name)) > 1}


def first_set(plain: str, **names: object) -> str:
    """The first name whose value is set; `plain` where none is."""
    return next((name for name, value in names.items() if value), plain)


def run_tokens(job: Mapping[str, Any], steps: int | None) -> dict[str, float]:
    """The tokens of a run of so many steps, where the file states all that they follow from."""
    if steps is None or steps < 1 or not {"global_batch", "seq_len"} <= job.keys():
        return {}
    return {"tokens": float(steps * job["global_batch"] * job["seq_len"])}


def header(title: str, setup: Setup, left_out: Iterable[str]) -> list[str]:
    """The opening lines of a file, without comment signs."""
    job, layout = setup.job, setup.layout
    return [
        title,
        f"{job.model.name} on {layout.gpus} x {setup.cluster.accelerator.name}: tp {layout.tp}, "
        f"pp {layout.pp}, cp {layout.cp}, dp {setup.dp}; {setup.accumulation} micro-batches a step.",
        *(f"Left out: {line}" for line in left_out),
    ]


def stated(**values: Any) -> dict[str, Any]:
    """The values that are there."""
    return {name: value for name, value in values.items() if value is not None}


def reading(
    framework: str,
    settings: ConfigKeys,
    job: dict[str, Any],
    layout: dict[str, Any],
    notes: Iterable[str] = (),
    stack: str | None = None,
    accumulation: int | None = None,
    capabilities: dict[str, Any] | None = None,
) -> ConfigReading:
    """A reading whose sizes agree with each other, as far as the file states them."""
    gpus = layout.get("gpus")
    group = prod(layout.get(name) or 1 for name in ("tp", "pp", "cp"))
    if gpus is not None and gpus % group:
        raise settings.against(
            f"{gpus} GPUs", f"tp x pp x cp = {group}", "one does not divide the other"
        )
    return ConfigReading(
        format=framework,
        job=job,
        layout=layout,
        stack=stack,
        unknown=settings.rest(),
        notes=tuple(notes),
        accumulation=accumulation,
        capabilities=capabilities or {},
        timeouts=settings.timeouts,
    )
