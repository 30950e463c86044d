"""The user's own file with another plan in it: only the keys that differ are touched.

Both plans are written in the file's format; what differs between the two is set in, or taken out of,
the user's text. The edited text is read again, and counts only if it says the new plan.
"""

from __future__ import annotations

import difflib
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
from computeflow.planning.exports.frameworks.shell.flag_edits import drop_flag, set_flag, set_pair

_ANCHORS = ("micro-batch-size", "global-batch-size", "seq-length", "tensor-model-parallel-size")
_PAIR_ANCHORS = ("data.micro_batch_size", "data.global_batch_size", "trainer.num_nodes")
"""Keys behind which a new one is put: they are in every launch."""
_LANGUAGES = {
    "toml": (parse_toml, edits.set_toml, edits.drop_toml),
    "json": (parse_json, edits.set_json, edits.drop_json),
    "yaml": (parse_yaml, edits.set_yaml, edits.drop_yaml),
}
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
        for keep_open in (True, False):
            try:
                changed = replace(self, text=_edited(self, before, after, keep_open))
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


def _edited(file: ConfigFile, before: Setup, after: Setup, keep_open: bool) -> str:
    """`keep_open`: what the file leaves to the framework (-1, auto) stays so."""
    written = [_main_file(FRAMEWORKS[file.format].write(plan).files) for plan in (before, after)]
    if file.format in ("megatron", "nemo"):
        return _EDITORS[file.format](file.text, *map(_words, written))
    language = _language(written[0])
    old, new = (_flat(_LANGUAGES[language][0](text, file.where)) for text in written)
    own = (
        "json" if file.text.lstrip().startswith("{") else "yaml" if language == "json" else language
    )
    parse, put, drop = _LANGUAGES[own]
    text, stated = file.text, _flat(parse(file.text, file.where))
    left_open = {key for key, value in stated.items() if keep_open and value in (-1, "auto")}
    for key in old:
        if key not in new:
            text = drop(text, key)
    for key, value in new.items():
        if old.get(key, _MISSING) != value and key not in left_open:
            text = put(text, key, value)
    return text


def _main_file(files: Mapping[str, str]) -> str:
    """The configuration among the files of a format; a note may lie beside it."""
    return next(text for name, text in files.items() if not name.endswith(".txt"))


def _language(text: str) -> str:
    if text.lstrip().startswith("{"):
        return "json"
    return "toml" if "\n[" in text else "yaml"


def _flat(tree: Any, above: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            values |= _flat(value, f"{above}{key}.")
        else:
            values[f"{above}{key}"] = value
    return values


def _words(text: str) -> dict[str, str | None]:
    """Flags or pairs of an argument file, one a line."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = (line.removeprefix("--").replace("=", " ", 1).partition(" ") for line in lines)
    return {key: value or None for key, _, value in pairs}


Words = Mapping[str, str | None]


def _edit_flags(text: str, old: Words, new: Words) -> str:
    for flag, value in old.items():
        if flag not in new:
            text = drop_flag(text, flag, has_value=value is not None)
    for flag, value in new.items():
        if old.get(flag, _MISSING) != value:
            text = next(
                (
                    more
                    for beside in _ANCHORS
                    if (more := set_flag(text, flag, value, beside)) != text
                ),
                text,
            )
    return text


def _edit_pairs(text: str, old: Words, new: Words) -> str:
    for key, value in new.items():
        if old.get(key, _MISSING) != value:
            text = next(
                (
                    more
                    for beside in _PAIR_ANCHORS
                    if (more := set_pair(text, key, value or "", beside)) != text
                ),
                text,
            )
    return text


_EDITORS: dict[str, Callable[[str, Words, Words], str]] = {
    "megatron": _edit_flags,
    "nemo": _edit_pairs,
}
