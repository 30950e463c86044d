"""YAML out: JSON's scalars are YAML already. In, `files.parsing` reads it."""

from __future__ import annotations

import json
from typing import Any


def to_yaml(tree: dict[str, Any], indent: str = "") -> list[str]:
    """Lines of nested tables of scalars and flat lists."""
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *to_yaml(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}")
    return lines
