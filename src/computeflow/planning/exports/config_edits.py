"""The user's own file with another plan in it: only the keys that differ are touched.

Both plans are written in the file's format; what differs between the two is set in, or taken out of,
the user's text. The edited text is read again, and counts only if it says the new plan.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from computeflow.catalog import Catalog
from computeflow.errors import ComputeFlowError
from computeflow.files import edits
from computeflow.files.parsing import parse_json, parse_toml, parse_yaml
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.config_reader import read_file, setup_of
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.planning.exports.frameworks.fsdp2 import stated_plan
from computeflow.planning.exports.frameworks.shell.flag_edits import (
    drop_flag,
    has_flag,
    set_flag,
    set_pair,
)
from computeflow.planning.exports.frameworks.torchtitan import OLDER_KEYS

_ANCHORS = ("micro-batch-size", "global-batch-size", "seq-length", "tensor-model-parallel-size")
_PAIR_ANCHORS = ("data.micro_batch_size", "data.global_batch_size", "trainer.num_nodes")
"""Keys behind which a new one is put: they are in every launch."""
_FSDP = "use-megatron-fsdp"
_CONNECTIONS = re.compile(r"(?m)^[ \t]*export CUDA_DEVICE_MAX_CONNECTIONS=1[ \t]*(?:#.*)?\n")
"""What tensor parallelism wants and Megatron-FSDP refuses (`validate_args` of Megatron Core 0.19.2)."""
_LANGUAGES = {
    "toml": (parse_toml, edits.set_toml, edits.drop_toml),
    "json": (parse_json, edits.set_json, edits.drop_json),
    "yaml": (parse_yaml, edits.set_yaml, edits.drop_yaml),
}
_OLDER_KEYS: Mapping[str, Mapping[str, str | None]] = {"torchtitan": OLDER_KEYS}
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A configuration of the user, with what he stated beside it."""

    text: str
    where: str
    format: str
    given: Mapping[str, Any]
    """Values over those of the file, as `setup_of` takes them."""
    catalog: Catalog

    def setup(self, like: Setup) -> Setup:
        """The plan that the text says."""
        reading = read_file(self.text, self.where, self.format)
        return setup_of(reading, like.cluster, self.given, self.catalog)

    def with_plan(self, before: Setup, after: Setup) -> ConfigFile | None:
        """The file that says `after` in place of `before`; None where it cannot be edited so."""
        for way in _WAYS:
            try:
                changed = replace(self, text=_edited(self, before, after, way))
                if _same(changed.setup(like=after), after):
                    return changed
            except ComputeFlowError:
                continue
        return None

    def diff(self, other: ConfigFile) -> str:
        """From this text to another, as `patch` takes it."""
        old, new = (each.text.splitlines(keepends=True) for each in (self, other))
        return "".join(_ended(difflib.unified_diff(old, new, self.where, self.where, n=1)))


def _ended(lines: Iterable[str]) -> list[str]:
    """Lines of a difference, also where the last one of a file has no end."""
    return [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    ]


def _same(one: Setup, other: Setup) -> bool:
    """Whether two plans are one, whether or not a file states enough to count its tokens."""
    jobs = (replace(each.job, tokens=None) for each in (one, other))
    return next(jobs) == next(jobs) and (one.layout, one.stack) == (other.layout, other.stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How a file is edited."""

    keep_open: bool = True
    """Sizes that the file leaves to the framework (-1) stay so, as auto always does: the Trainer fills
    that from its own arguments, and refuses another value."""
    in_variables: bool = True
    """A flag whose value is a variable of the script is set there."""
    spell_out: bool = False
    """Keys of a changed section that the file leaves out are put there: their defaults may follow from
    what changes."""
    may_add: bool = True
    """Whether flags may be added: today's are not all known to an older release."""


_WAYS = (
    _Way(),
    _Way(spell_out=True),
    _Way(in_variables=False),
    _Way(in_variables=False, keep_open=False),
)


def _edited(file: ConfigFile, before: Setup, after: Setup, way: _Way) -> str:
    written = [_main_file(FRAMEWORKS[file.format].write(plan).files) for plan in (before, after)]
    if file.format in _EDITORS:
        way = replace(way, may_add=before.stack.name == file.format)
        return _EDITORS[file.format](file.text, _words(written[0]), _words(written[1]), way)
    if file.format == "fsdp2":
        return _edit_plan(file.text, *(stated_plan(text, file.where) for text in written))
    language = _language(written[0])
    old, new = (flat_keys(_LANGUAGES[language][0](text, file.where)) for text in written)
    own = (
        "json" if file.text.lstrip().startswith("{") else "yaml" if language == "json" else language
    )
    parse, put, drop = _LANGUAGES[own]
    text, stated = file.text, flat_keys(parse(file.text, file.where))
    left_open = {
        key for key, value in stated.items() if value == "auto" or (way.keep_open and value == -1)
    }
    names = _older_names(file.format, stated)
    for key in _dropped(old, new):
        text = drop(text, names.get(key, key) or key)
    changed = [key for key, value in new.items() if old.get(key, _MISSING) != value]
    if way.spell_out:
        sections = {key.partition(".")[0] for key in changed if "." in key}
        inside = [key for key in new if key.partition(".")[0] in sections and key not in stated]
        changed = [*dict.fromkeys((*changed, *inside))]
    for key in changed:
        name = names.get(key, key)
        if name is not None and name not in left_open:
            text = put(text, name, new[key])
    return text


def _older_names(format_name: str, stated: Mapping[str, Any]) -> Mapping[str, str | None]:
    """Today's keys to those of the file's release, where it states one of the latter."""
    known = _OLDER_KEYS.get(format_name, {})
    return known if any(name in stated for name in known.values()) else {}


def _dropped(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Keys that the new plan has not; a whole section where it has none of its keys."""
    kept = {key[:at] for key in new for at in range(len(key)) if key[at] == "."}
    gone: dict[str, None] = {}
    for key in old:
        if key not in new:
            above = key.split(".")
            sections = (".".join(above[:depth]) for depth in range(1, len(above)))
            gone[next((section for section in sections if section not in kept), key)] = None
    return list(gone)


def _edit_plan(text: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    for key, value in new.items():
        if old.get(key, _MISSING) != value:
            text = edits.set_python(text, key, value)
    return text


def _main_file(files: Mapping[str, str]) -> str:
    """The configuration among the files of a format; a note may lie beside it."""
    return next(text for name, text in files.items() if not name.endswith(".txt"))


def _language(text: str) -> str:
    if text.lstrip().startswith("{"):
        return "json"
    return "toml" if "\n[" in text else "yaml"


def flat_keys(tree: Any, above: str = "") -> dict[str, Any]:
    """Keys of all levels, dots between them."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            values |= flat_keys(value, f"{above}{key}.")
        else:
            values[f"{above}{key}"] = value
    return values


def _words(text: str) -> dict[str, str | None]:
    """Flags or pairs of an argument file, one a line."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = (line.removeprefix("--").replace("=", " ", 1).partition(" ") for line in lines)
    return {key: value or None for key, _, value in pairs}


Words = Mapping[str, str | None]


def _edit_flags(text: str, old: Words, new: Words, way: _Way) -> str:
    for flag, value in old.items():
        if flag not in new:
            text = drop_flag(text, flag, has_value=value is not None)
    for flag, value in new.items():
        if old.get(flag, _MISSING) != value and (way.may_add or has_flag(text, flag)):
            text = _first_change(
                text,
                (
                    set_flag(text, flag, value, beside, in_variables=way.in_variables)
                    for beside in _ANCHORS
                ),
            )
    return _CONNECTIONS.sub("", text) if _FSDP in new and _FSDP not in old else text


def _edit_pairs(text: str, old: Words, new: Words, way: _Way) -> str:
    for key, value in new.items():
        if old.get(key, _MISSING) != value:
            edited = (set_pair(text, key, value or "", beside) for beside in _PAIR_ANCHORS)
            text = _first_change(text, edited)
    return text


def _first_change(text: str, edited: Iterable[str]) -> str:
    return next((more for more in edited if more != text), text)


_EDITORS: dict[str, Callable[[str, Words, Words, _Way], str]] = {
    "megatron": _edit_flags,
    "nemo": _edit_pairs,
}
