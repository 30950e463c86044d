"""YAML in: the one place that imports PyYAML. Out, JSON's scalars are YAML already."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from computeflow.errors import InputError, UnavailableError
from computeflow.planning.exports.frameworks.settings import MOST_DEPTH, bounded


def from_yaml(text: str, where: str) -> Any:
    """One document of plain data. Aliases are refused: nine lines of them make a billion items."""
    bounded(text, where)
    try:
        import yaml
    except ImportError:
        raise UnavailableError(
            "reading YAML needs PyYAML: pip install 'computeflow[exports]'"
        ) from None
    plain = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(plain):  # type: ignore[misc, valid-type]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            keys = [key.value for key, _ in node.value]
            if twice := [key for key in keys if isinstance(key, str) and keys.count(key) > 1][:1]:
                raise InputError(f"{where}: {twice[0]} stands there twice")
            found: dict[Hashable, Any] = super().construct_mapping(node, deep)
            return found

    try:
        _refuse_bombs(yaml.parse(text, Loader=plain), where)
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        lines = [line.strip() for line in str(error).splitlines()] or ["no reason given"]
        raise InputError(f"{where}: not YAML: {'; '.join(lines[:2])[:200]}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not YAML: {str(error)[:200]}") from None


def _refuse_bombs(events: Any, where: str) -> None:
    depth = 0
    for event in events:
        kind = type(event).__name__
        if kind == "AliasEvent":
            raise InputError(
                f"{where}: YAML aliases (*{event.anchor}) are not read: write values out"
            )
        depth += kind.endswith(("MappingStartEvent", "SequenceStartEvent"))
        depth -= kind.endswith(("MappingEndEvent", "SequenceEndEvent"))
        if depth > MOST_DEPTH:
            raise InputError(f"{where}: nested more than {MOST_DEPTH} levels deep")


def to_yaml(tree: dict[str, Any], indent: str = "") -> list[str]:
    """Lines of nested tables of scalars and flat lists."""
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *to_yaml(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}")
    return lines
