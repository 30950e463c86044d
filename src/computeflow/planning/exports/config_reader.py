"""A configuration file to a job and a layout: `read_file` finds the format, `setup_of` fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import prod
from typing import Any

from computeflow.catalog import Catalog, find_model
from computeflow.catalog.lookup import is_file_name
from computeflow.catalog.models import Model
from computeflow.cluster import Cluster
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.names import shown
from computeflow.files.parsing import parse_json, parse_toml, parse_yaml
from computeflow.planning.exports.config_formats import ConfigReading, Setup
from computeflow.planning.exports.frameworks import FRAMEWORKS, Framework
from computeflow.planning.exports.frameworks.config_keys import bounded
from computeflow.prediction.stack import DEFAULT, Stack, find_stack
from computeflow.workload import Job, Layout


def read_file(text: str, where: str, format_name: str | None = None) -> ConfigReading:
    """Read a file in the format that its content shows; `format_name` where that leaves it open."""
    if format_name is not None:
        return FRAMEWORKS[format_name].read(text, where)
    formats = recognised(text, where)
    if not formats:
        _check_language(text, where)
        raise InputError(f"{where}: none of {', '.join(FRAMEWORKS)} by its content; give --format")
    if len(formats) > 1:
        names = ", ".join(known.name for known in formats)
        raise InputError(f"{where}: could be {names}; give --format")
    return formats[0].read(text, where)


def recognised(text: str, where: str) -> list[Framework]:
    """The formats that a text may be of, by its content."""
    bounded(text, where)
    code = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    return [known for known in FRAMEWORKS.values() if known.recognises(code, where)]


def _check_language(text: str, where: str) -> None:
    """Say what a file of no known format breaks: its own language, or a limit."""
    ending = where.lower().removesuffix(".gz").rpartition(".")[2]
    if text.lstrip().startswith("{"):
        ending = "json"
    if ending in _LANGUAGES:
        _LANGUAGES[ending](text, where)


_LANGUAGES: dict[str, Callable[[str, str], Any]] = {
    "json": parse_json,
    "toml": parse_toml,
    "yaml": parse_yaml,
    "yml": parse_yaml,
}


def setup_of(
    reading: ConfigReading, cluster: Cluster, given: Mapping[str, Any], catalog: Catalog
) -> Setup:
    """The plan in a file, with the caller's values over it and defaults for the rest."""
    stated = {**reading.job, **reading.layout, **given}
    model = stated.pop("model", None)
    if model is None:
        raise InputError("the file does not name its model: give --model")
    gpus = stated.pop("gpus", None) or cluster.gpus
    if gpus != cluster.gpus:
        raise InputError(f"the file is for {gpus} GPUs, --on names {cluster.gpus}")
    stated |= _global_batch(stated, gpus, reading.accumulation)
    for name in ("global_batch", "seq_len"):
        if name not in stated:
            raise InputError(f"the file does not state {name}: give --{name.replace('_', '-')}")
    return Setup(
        job=Job(model=_model(model, catalog, "model" in given), **_fields_of(Job, stated)),
        cluster=cluster,
        layout=Layout(gpus=gpus, **_fields_of(Layout, stated)),
        stack=_stack(reading, given.get("stack")),
    )


def _stack(reading: ConfigReading, given: str | None) -> Stack:
    """The caller's stack as it is, or the framework's own with what the file switches."""
    if given is not None:
        return find_stack(given)
    return replace(find_stack(reading.stack or DEFAULT), **reading.capabilities)


def _global_batch(stated: Mapping[str, Any], gpus: int, accumulation: int | None) -> dict[str, int]:
    """Global batch from the number of GPUs, where the file states micro-batches only."""
    if "global_batch" in stated or not accumulation or "micro_batch" not in stated:
        return {}
    ranks = max(gpus // prod(stated.get(name, 1) for name in ("tp", "pp", "cp")), 1)
    return {"global_batch": ranks * stated["micro_batch"] * accumulation}


def _fields_of(kind: type[Job | Layout], values: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: values[f.name] for f in fields(kind) if f.name in values}


def _model(stated: str | Model, catalog: Catalog, given: bool) -> Model:
    if not isinstance(stated, str):
        return _named(stated, catalog)
    if is_file_name(stated) and not given:
        raise InputError(
            f"the file's model is a file, {shown(stated)}: give --model if it is to be read"
        )
    try:
        return find_model(catalog, stated)
    except UnknownNameError as error:
        if given:
            raise
        raise InputError(f"the file's model: {error}; give --model") from None


def _named(shape: Model, catalog: Catalog) -> Model:
    """The catalog's model of the same shape, where there is one: files give sizes, people names."""

    def key(model: Model) -> tuple[Any, ...]:
        return model.blocks, model.hidden, model.vocab, model.tied

    same = [model for model in catalog.models if key(model) == key(shape)]
    return same[0] if same else shape
